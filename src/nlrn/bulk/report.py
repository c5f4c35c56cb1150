"""A report in a file: JSON as the command prints it, or Parquet with a row for each file."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nlrn import atomic
from nlrn.batch import InputError, Report

COLUMNS = {
    "input": "string",
    "status": "string",
    "output": "string",
    "error": "string",
    "width": "int64",
    "height": "int64",
    "sigma": "float64",
    "scale": "float64",
    "method": "string",
    "model": "string",
    "seconds": "float64",
    "worker": "string",
    "warnings": "list",
}


def check_report(path: Path, *, overwrite: bool = False) -> None:
    """Raises an InputError unless a report can be written under this name.

    It replaces an earlier report, and something else if it is to overwrite.
    """
    if path.suffix not in (".json", ".parquet"):
        raise InputError(f"a report is a .json or .parquet file, got {path}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        how = "in a checkout of nlrn: pip install '.[bulk]'"
        raise InputError(f"{path}: a report in Parquet needs pyarrow; {how}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no such folder")
    if path.exists() and not overwrite and not _is_report(path):
        raise InputError(f"{path}: exists and is no report; overwrite=True replaces it")


def _is_report(path: Path) -> bool:
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_bytes())
            return isinstance(found, dict) and {f.name for f in fields(Report)} <= set(found)
        from pyarrow import parquet

        return set(parquet.read_schema(path).names) == set(COLUMNS)
    except (OSError, ValueError):  # pyarrow's error is a ValueError
        return False


def write_report(report: Report, path: Path) -> None:
    """Writes what became of the files, in the format of the suffix, over what was there."""
    check_report(path, overwrite=True)
    if path.suffix == ".json":
        atomic.write_text(path, json.dumps(asdict(report), indent=2) + "\n")
    else:
        atomic.write_bytes(path, _parquet(report))


def _parquet(report: Report) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    types = {"int64": pa.int64(), "float64": pa.float64(), "list": pa.list_(pa.string())}
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in COLUMNS.items()])
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(_rows(report), schema), out)
    return out.getvalue()


def _rows(report: Report) -> list[dict[str, Any]]:
    done = [{"status": "done"} | facts for facts in report.done]
    failed = [{"status": "failed"} | facts for facts in report.failed]
    names = {"skipped": report.skipped, "unknown": report.unknown}
    others = [{"status": status, "input": name} for status in names for name in names[status]]
    return [*done, *failed, *others]
