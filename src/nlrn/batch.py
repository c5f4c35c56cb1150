"""Many files: which to read, where to write, going on after a bad one."""

from __future__ import annotations

import functools
import glob
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlrn import images
from nlrn.errors import one_line
from nlrn.images import Image, ImageError

if TYPE_CHECKING:  # with torch, which finding files needs not
    from nlrn.restoration import Restoration


class InputError(ValueError):
    """Nothing sensible to do with the given paths; the message is one line."""


@dataclass(frozen=True)
class Job:
    """One file to read and the file to write."""

    source: Path
    target: Path


@dataclass
class Report:
    """What became of the jobs; `done` and `failed` hold a dict for each file."""

    done: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of the files that were dealt with."""
        return len(self.done) + len(self.skipped) + len(self.failed)

    @property
    def exit_code(self) -> int:
        """0 when all went well, 1 when some files failed, 2 when nothing came of it."""
        if not self.failed:
            return 0
        return 1 if self.done or self.skipped else 2


class Observer:
    """Told how a batch goes on; this one only keeps the report.

    Attributes:
        report: filled as the work goes on, so that it is there after an interruption too.
    """

    def __init__(self) -> None:
        self.report = Report()

    def on_file(self, job: Job, number: int) -> None:
        """Called before each file, with its number from 0."""

    def progress(self, done: int, total: int) -> None:
        """Called in equal units of work on the present file."""

    def announce(self, image: Image, seconds: float) -> None:
        """Called before long work with the seconds it may take."""

    def on_done(self, facts: dict[str, Any]) -> None:
        """Called after each file that was written, with what the report says of it."""


def collect(inputs: list[str], output: str | None, suffix: str, *, recursive: bool) -> list[Job]:
    """Files, folders and patterns -> jobs, each source once.

    Without `output`, NAME.png goes to NAME<suffix>.png beside it. An output that is a folder, ends
    with a slash, has no suffix, or is given with several inputs and is no name of an image, takes
    files of the same name, the tree below a folder kept; what lies there already is no input.
    """
    if "" in inputs or output == "":
        raise InputError(f"the name of the {'output' if output == '' else 'input'} is empty")
    sources = dict(_sources(inputs, recursive, suffix if output is None else None, output))
    if not sources:
        raise InputError(f"no images in {', '.join(inputs)} (known: {' '.join(images.SUFFIXES)})")
    single = len(sources) == 1 and Path(inputs[0]) in sources
    as_file = output is not None and not _is_folder(output)
    if as_file and not single:
        if Path(str(output)).suffix.lower() in images.SUFFIXES:
            raise InputError(
                f"{output}: one file; folders, patterns and several images need a folder"
            )
        as_file = False
    jobs = []
    for source, relative in sources.items():
        if output is None:
            target = source.with_name(f"{source.stem}{suffix}{source.suffix}")
        else:
            target = Path(output) if as_file else Path(output) / relative
        jobs.append(Job(source, target))
    _check_targets(jobs)
    return jobs


def run(
    jobs: list[Job],
    restoration: Restoration,
    *,
    overwrite: bool,
    skip_existing: bool,
    observer: Observer | None = None,
) -> Report:
    """Reads, restores and writes one file after the other; a bad one does not stop the rest.

    Args:
        jobs: what to do.
        restoration: what restores an image.
        overwrite: whether files that exist are replaced.
        skip_existing: whether jobs whose target exists are passed over.
        observer: told of each file as it goes on.
    """
    observer = observer or Observer()
    report = observer.report
    for number, job in enumerate(jobs):
        observer.on_file(job, number)
        if skip_existing and job.target.exists():
            report.skipped.append(str(job.source))
            continue
        try:
            report.done.append(_run_one(job, restoration, overwrite, observer))
        except ImageError as error:
            report.failed.append({"input": str(job.source), "error": str(error)})
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            reason = "not enough memory" if not str(error) else one_line(error, 300)
            message = f"{job.source}: {reason}"
            report.failed.append({"input": str(job.source), "error": message})
        else:
            observer.on_done(report.done[-1])
    return report


def _run_one(
    job: Job,
    restoration: Restoration,
    overwrite: bool,
    observer: Observer,
) -> dict[str, Any]:
    start = time.perf_counter()
    image = images.read(job.source)
    if not job.target.parent.exists():
        images.check_holds(job.target, image)  # before a folder is made for nothing
        try:
            job.target.parent.mkdir(parents=True)
        except OSError as error:
            raise ImageError(f"{job.target.parent}: {error.strerror}") from error
    images.check_writable(job.target, image, overwrite=overwrite)
    announce = functools.partial(observer.announce, image)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        restored = restoration.restore(image, progress=observer.progress, announce=announce)
    images.write(job.target, restored.image, overwrite=overwrite)
    return {
        "input": str(job.source),
        "output": str(job.target),
        "width": restored.image.width,
        "height": restored.image.height,
        **restored.facts,
        "warnings": [str(warning.message) for warning in caught],
        "seconds": round(time.perf_counter() - start, 3),
    }


def _sources(
    inputs: list[str], recursive: bool, made_by_us: str | None, output: str | None
) -> Iterator[tuple[Path, Path]]:
    """Each file with its path below the given folder; results of an earlier run are left out."""
    results = Path(output).resolve() if output is not None else None
    for text in inputs:
        path = Path(text)
        if path.is_dir():
            found, base = _walk(path, recursive), path
        elif path.exists() or not glob.has_magic(text):
            yield path, Path(path.name)
            continue
        else:
            matches = map(Path, glob.glob(text, recursive=True))  # noqa: PTH207
            found, base = sorted(p for p in matches if p.is_file()), _fixed_part(path)
            if not found:
                raise InputError(f"{text}: no file matches")
        inside = results is not None and base.resolve() in results.parents
        for file in found:
            is_result = bool(made_by_us) and file.stem.endswith(str(made_by_us))
            if not (is_result or (inside and results in file.resolve().parents)):
                yield file, file.relative_to(base)


def _fixed_part(pattern: Path) -> Path:
    """The folders of a pattern before its first wildcard."""
    parts = pattern.parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:first])


def _walk(folder: Path, recursive: bool) -> list[Path]:
    """Images below a folder in order, hidden files left out."""
    found = folder.rglob("*") if recursive else folder.glob("*")
    return sorted(
        file
        for file in found
        if file.suffix.lower() in images.SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.is_file()
    )


def _is_folder(output: str) -> bool:
    if output.endswith(("/", os.sep)) or Path(output).is_dir():
        return True
    return not Path(output).suffix  # an unknown suffix is refused when the file is to be written


def _check_targets(jobs: list[Job]) -> None:
    seen: dict[Path, Path] = {}
    for job in jobs:
        target = job.target.resolve()
        if target == job.source.resolve():
            raise InputError(f"{job.source}: would be replaced by its own result")
        if target in seen:
            first = seen[target]
            raise InputError(f"{first} and {job.source} would both be written to {job.target}")
        seen[target] = job.source
