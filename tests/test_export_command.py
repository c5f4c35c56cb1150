"""nlrn export, and zips for bioimage.io."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nlrn.cli import app


def nlrn_export(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments])


def test_a_file_by_command(model: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "m.onnx"
    told = nlrn_export(model, "-o", str(path))
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith(f"{path} (0.1 MB, at most ") and path.is_file()
    again = nlrn_export(model, "-o", str(path), "--fp16")
    assert again.exit_code == 2
    assert again.stderr == f"error: {path}: exists; --overwrite replaces it\n"
    assert nlrn_export(model, "-o", str(path), "--fp16", "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("name", "scale"),
    [("sr-y", ""), ("no-such-model", ""), ("sr-rgb", ""), ("sr-rgb", "5"), ("denoise-rgb", "2")],
)
def test_what_cannot_be_exported_is_one_line(name: str, scale: str, tmp_path: Path) -> None:
    told = nlrn_export(name, "-o", str(tmp_path / "m.onnx"), *(["--scale", scale] if scale else []))
    assert told.exit_code == 2 and told.stderr.count("\n") == 1
    assert told.stderr.startswith(f"error: {name}: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("absent", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(
    absent: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith("nlrn.export.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    told = nlrn_export(model, "-o", str(tmp_path / "m.onnx"))
    assert told.exit_code == 2 and told.stderr.count("\n") == 1
    assert f"export needs {absent}: pip install 'nlrn[onnx]'" in told.stderr


def mend_bioimageio() -> None:
    """Lets bioimageio.spec 0.5.12 work with pydantic 2.14, which minds a wrong second argument."""
    from bioimageio.spec._internal import io_packaging
    from bioimageio.spec.model import v0_4

    def with_source(value: Any, handler: Any, info: Any) -> Any:
        found = handler(value)
        found["source"] = _package(value.source, info, sha256=value.sha256)  # type: ignore[name-defined]  # noqa: F821
        return found

    def as_it_is(value: Any, handler: Any, info: Any) -> Any:
        return handler(value)

    # Pydantic holds the functions themselves: what they do has to change.
    io_packaging.package_file_descr_serializer.__code__ = with_source.__code__
    v0_4.package_weights.__code__ = as_it_is.__code__


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries that check it
@pytest.mark.parametrize("kind", ["residual-rgb", "paper", "upscaler"])
def test_bioimageio_takes_the_zip(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("BIOIMAGEIO_CACHE_PATH", str(tmp_path / "cache"))
    core = pytest.importorskip("bioimageio.core")
    mend_bioimageio()
    from export_networks import network, upscaler

    from nlrn.export import export

    path = tmp_path / "model.zip"
    enlarges = kind == "upscaler"
    given, scale = (upscaler(), 3) if enlarges else (network(kind), None)
    export(given, path, scale=scale, file_format="bioimageio")
    summary = core.test_model(path)
    assert summary.status == "passed", summary.format()
    with zipfile.ZipFile(path) as archive:
        description = json.loads(archive.read("bioimageio.yaml"))
    assert description["weights"]["onnx"]["opset_version"] >= 17
    assert description["config"]["nlrn"]["multiple"] == (2 if kind == "residual-rgb" else 1)
    assert description["config"]["nlrn"]["scale"] == (3 if enlarges else 1)
    assert [i["id"] for i in description["inputs"]] == ["image", "sigma"][: 1 if enlarges else 2]
