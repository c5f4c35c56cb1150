"""Many files: which to read, where to write, going on after a bad one."""

from __future__ import annotations

import functools
import glob
import io
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlrn import images, stacks
from nlrn.errors import one_line
from nlrn.images import FormatError, Image, ImageError

if TYPE_CHECKING:  # with torch, which finding files needs not
    from nlrn.restoration import Restoration


PIPE = Path("-")  # the standard input or output in place of a file
SUFFIXES = (*images.SUFFIXES, *stacks.SUFFIXES)


class InputError(ValueError):
    """Nothing sensible to do with the given paths; the message is one line."""


@dataclass(frozen=True)
class Job:
    """One file to read and the file to write; either may be `PIPE`."""

    source: Path
    target: Path


@dataclass(frozen=True)
class FileOptions:
    """How files are read and written.

    Attributes:
        overwrite: whether files that exist are replaced.
        skip_existing: whether jobs whose target exists are passed over.
        white: the value of white, where that is not the type's (see `images.read`).
        jpeg_quality: 1 to 100.
        pages: which pages of a stack are taken, from 1: "1-10,15"; None for all.
        axis: the letter of the axis along which these are counted, where there are several.
        axes: a letter for each axis of a stack that does not say them.
    """

    overwrite: bool = False
    skip_existing: bool = False
    white: float | None = None
    jpeg_quality: int = 95
    pages: str | None = None
    axis: str | None = None
    axes: str | None = None

    def __post_init__(self) -> None:
        if self.overwrite and self.skip_existing:
            raise InputError("overwrite and skip-existing contradict each other")
        if not 1 <= self.jpeg_quality <= 100:
            raise InputError(f"jpeg-quality must be in 1..100, got {self.jpeg_quality}")
        if self.white is not None and not self.white > 0:
            raise InputError(f"white must be above 0, got {self.white:g}")
        if self.pages is not None:
            stacks.page_numbers(self.pages)
        elif self.axis is not None:
            raise InputError("axis says along which axis pages are counted: give pages too")


@dataclass
class Report:
    """What became of the jobs; `done` and `failed` hold a dict for each file.

    `unknown` are files beside them that are no images, or not of a known kind.
    """

    done: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

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

    def on_page(self, number: int, count: int) -> None:
        """Called before each page of a stack, with its number from 0."""

    def announce(self, image: Image, seconds: float, pages: int = 1) -> None:
        """Called before long work with the seconds it may take, for all pages of a stack."""

    def on_done(self, facts: dict[str, Any]) -> None:
        """Called after each file that was written, with what the report says of it."""


def collect(inputs: list[str], output: str | None, suffix: str, *, recursive: bool) -> list[Job]:
    """Files, folders and patterns -> jobs, each source once.

    Without `output`, NAME.png goes to NAME<suffix>.png beside it. An output that is a folder, ends
    with a slash, has no suffix, or is given with several inputs and is no name of an image, takes
    files of the same name, the tree below a folder kept; what lies there already is no input. "-"
    is the standard input or output, for one image.
    """
    if "" in inputs or output == "":
        raise InputError(f"the name of the {'output' if output == '' else 'input'} is empty")
    if "-" in inputs:
        return [_from_standard_input(inputs, output)]
    made_by_us = suffix if output is None else None
    sources = dict(_sources(inputs, recursive, made_by_us, output))
    if not sources:
        raise InputError(f"no images in {', '.join(inputs)} (known: {' '.join(SUFFIXES)})")
    if output == "-":
        if len(sources) > 1:
            raise InputError(f"{len(sources)} images: one at a time goes to the standard output")
        return [Job(next(iter(sources)), PIPE)]
    single = len(sources) == 1 and Path(inputs[0]) in sources
    as_file = output is not None and not _is_folder(output)
    if as_file and not single:
        if Path(str(output)).suffix.lower() in SUFFIXES:
            raise InputError(
                f"{output}: one file; folders, patterns and several images need a folder"
            )
        as_file = False
    jobs = []
    for source, relative in sources.items():
        if output is None:
            stem, ending = _split(source)
            target = source.with_name(f"{stem}{suffix}{ending}")
        else:
            target = Path(output) if as_file else Path(output) / relative
        jobs.append(Job(source, target))
    _check_targets(jobs)
    return jobs


def _from_standard_input(inputs: list[str], output: str | None) -> Job:
    if len(inputs) > 1:
        raise InputError("- is the standard input: no other image can be given beside it")
    if output is not None and output != "-" and _is_folder(output):
        raise InputError(f"{output}: a folder, but the standard input has no name")
    return Job(PIPE, PIPE if output is None else Path(output))


def unknown_files(inputs: list[str], *, recursive: bool) -> list[Path]:
    """What lies in the given folders and is of no known kind, hidden files left out."""
    folders = [path for path in map(Path, inputs) if path.is_dir() and not stacks.is_zarr(path)]
    files = (file for folder in folders for file in _visible(folder, recursive))
    return sorted(file for file in files if not _is_known(file))


def run(
    jobs: list[Job],
    restoration: Restoration,
    options: FileOptions | None = None,
    observer: Observer | None = None,
) -> Report:
    """Reads, restores and writes one file after the other; a bad one does not stop the rest.

    Args:
        jobs: what to do.
        restoration: what restores an image.
        options: how files are read and written.
        observer: told of each file as it goes on.
    """
    from nlrn.hardware import is_out_of_memory  # with torch, which is loaded by now

    options, observer = options or FileOptions(), observer or Observer()
    report = observer.report
    for number, job in enumerate(jobs):
        observer.on_file(job, number)
        if options.skip_existing and job.target.exists():
            report.skipped.append(str(job.source))
            continue
        try:
            report.done.append(_run_one(job, restoration, options, observer))
        except BrokenPipeError:
            raise
        except ImageError as error:
            report.failed.append({"input": str(job.source), "error": str(error)})
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            reason = "not enough memory" if is_out_of_memory(error) else one_line(error, 300)
            message = f"{job.source}: {reason}"
            report.failed.append({"input": str(job.source), "error": message})
        else:
            observer.on_done(report.done[-1])
    return report


def _run_one(
    job: Job, restoration: Restoration, options: FileOptions, observer: Observer
) -> dict[str, Any]:
    if job.source != PIPE and stacks.is_stack(job.source):
        return _run_stack(job, restoration, options, observer)
    if options.pages is not None:
        raise InputError("one page only: pages are chosen from stacks")
    start = time.perf_counter()
    image, kind = _read(job.source, options)
    kind = _check_target(job.target, image, kind, options)
    announce = functools.partial(observer.announce, image)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        restored = restoration.restore(image, progress=observer.progress, announce=announce)
    _write(job.target, restored.image, kind, options)
    notes = [*image.notes, *images.lost(kind, image), *(str(w.message) for w in caught)]
    return {
        "input": str(job.source),
        "output": str(job.target),
        "width": restored.image.width,
        "height": restored.image.height,
        **restored.facts,
        "warnings": notes,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _run_stack(
    job: Job, restoration: Restoration, options: FileOptions, observer: Observer
) -> dict[str, Any]:
    from nlrn.restoration.stacks import restore_stack  # with torch, which is loaded by now

    start = time.perf_counter()
    if job.target == PIPE:
        raise InputError("pages do not go to the standard output: name a file")
    with stacks.open_stack(job.source, axes=options.axes, white=options.white) as stack:
        if options.pages is not None:
            stack = stack.select(stacks.page_numbers(options.pages), options.axis)
        if not job.target.parent.exists():
            _make_folder(job.target.parent)
        stack.check_target(job.target, overwrite=options.overwrite)
        facts = restore_stack(
            stack,
            job.target,
            restoration,
            overwrite=options.overwrite,
            progress=observer.progress,
            announce=functools.partial(observer.announce, stack.page(0), pages=len(stack)),
            on_page=observer.on_page,
        )
    seconds = round(time.perf_counter() - start, 3)
    return {"input": str(job.source), "output": str(job.target), **facts, "seconds": seconds}


def _read(source: Path, options: FileOptions) -> tuple[Image, str]:
    """The image and the name of its format."""
    if source != PIPE:
        return images.read(source, white=options.white), images.format_of(source)
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("the standard input is closed or a terminal: send an image into it")
    try:
        return images.read_file(io.BytesIO(sys.stdin.buffer.read()), white=options.white)
    except FormatError as error:
        raise ImageError(f"standard input: {error}") from error


def _check_target(target: Path, image: Image, kind: str, options: FileOptions) -> str:
    """The format of the result; raises before the work what would go wrong after it."""
    if target == PIPE:
        images.check_format(kind, image)
        return kind
    if not target.parent.exists():
        images.check_holds(target, image)  # before a folder is made for nothing
        _make_folder(target.parent)
    images.check_writable(target, image, overwrite=options.overwrite)
    return images.format_of(target)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ImageError(f"{folder}: {error.strerror}") from error


def _write(target: Path, image: Image, kind: str, options: FileOptions) -> None:
    if target != PIPE:
        quality = options.jpeg_quality
        images.write(target, image, overwrite=options.overwrite, quality=quality)
        return
    sys.stdout.buffer.write(images.encode(kind, image, options.jpeg_quality))
    sys.stdout.buffer.flush()


def _sources(
    inputs: list[str], recursive: bool, made_by_us: str | None, output: str | None
) -> Iterator[tuple[Path, Path]]:
    """Each file with its path below the given folder; results of an earlier run are left out."""
    results = _real(Path(output)) if output is not None else None
    for text in inputs:
        path = Path(text)
        if path.is_dir() and not stacks.is_zarr(path):
            found, base = _walk(path, recursive), path
        elif path.exists() or not glob.has_magic(text):
            yield path, Path(path.name)
            continue
        else:
            matches = map(Path, glob.glob(text, recursive=True))  # noqa: PTH207
            found, base = sorted(filter(_is_input, matches)), _fixed_part(path)
            if not found:
                raise InputError(f"{text}: no file matches")
        inside = results is not None and _real(base) in results.parents
        for file in found:
            is_result = bool(made_by_us) and _split(file)[0].endswith(str(made_by_us))
            if not (is_result or (inside and results in _real(file).parents)):
                yield file, file.relative_to(base)


def _fixed_part(pattern: Path) -> Path:
    """The folders of a pattern before its first wildcard."""
    parts = pattern.parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:first])


def _walk(folder: Path, recursive: bool) -> list[Path]:
    """Images below a folder in order, hidden files left out."""
    return sorted(file for file in _visible(folder, recursive) if _is_known(file))


def _is_known(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or stacks.is_zarr(path)


def _is_input(path: Path) -> bool:
    return path.is_file() or stacks.is_zarr(path)


def _visible(folder: Path, recursive: bool) -> Iterator[Path]:
    """Files and Zarr folders below a folder, hidden ones left out."""
    for where, folders, files in os.walk(folder):
        shown = [name for name in folders if not name.startswith(".")]
        arrays = {name for name in shown if stacks.is_zarr(Path(where, name))}
        folders[:] = sorted(set(shown) - arrays) if recursive else []
        for name in (*files, *arrays):
            if not name.startswith(".") and _is_input(Path(where, name)):
                yield Path(where, name)


def _split(path: Path) -> tuple[str, str]:
    """A name without its ending, and that, which is .ome.tif where it is."""
    stem, ending = path.stem, path.suffix
    if stem.lower().endswith(".ome"):
        return stem[:-4], stem[-4:] + ending
    return stem, ending


def _real(path: Path) -> Path:
    """The path without links; one that leads to itself stays, where Path.resolve would raise."""
    return Path(os.path.realpath(path))


def _is_folder(output: str) -> bool:
    if Path(output).suffix.lower() == ".zarr":  # a folder too, but of one array
        return False
    if output.endswith(("/", os.sep)) or Path(output).is_dir():
        return True
    return not Path(output).suffix  # an unknown suffix is refused when the file is to be written


def _check_targets(jobs: list[Job]) -> None:
    seen: dict[Path, Path] = {}
    for job in jobs:
        target = _real(job.target)
        if target == _real(job.source):
            raise InputError(f"{job.source}: would be replaced by its own result")
        if target in seen:
            first = seen[target]
            raise InputError(f"{first} and {job.source} would both be written to {job.target}")
        seen[target] = job.source
