"""Many files: which to read, where to write, going on after a bad one."""

from __future__ import annotations

import functools
import io
import os
import sys
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlrn import images, stacks
from nlrn import sources as files
from nlrn.errors import one_line
from nlrn.images import ExistsError, FormatError, Image, ImageError
from nlrn.remote import AnyPath, RemotePath, as_path
from nlrn.sources import InputError as InputError
from nlrn.sources import unknown_files as unknown_files

if TYPE_CHECKING:  # with torch, which finding files needs not
    from nlrn.restoration import Restoration


PIPE = Path("-")  # the standard input or output in place of a file


@dataclass(frozen=True)
class Job:
    """One file to read and the file to write; either may be `PIPE`."""

    source: AnyPath
    target: AnyPath


@dataclass(frozen=True)
class FileOptions:
    """How files are read and written.

    Attributes:
        overwrite: whether files that exist are replaced.
        skip_existing: whether jobs whose target exists are passed over; one that is not whole
            by its header and size is replaced.
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


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        status: "done", "skipped" or "failed".
        facts: what the report says of it; of a file that is skipped its name alone.
        is_passing: whether it failed for a reason that may pass: the disk, the network, memory.
    """

    status: str
    facts: dict[str, Any]
    is_passing: bool = False


@dataclass
class Report:
    """What became of the jobs; `done` and `failed` hold a dict for each file.

    `unknown` are files beside them that are no images, or not of a known kind.
    """

    done: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Takes in what became of one more file."""
        if outcome.status == "skipped":
            self.skipped.append(outcome.facts["input"])
        else:
            (self.done if outcome.status == "done" else self.failed).append(outcome.facts)

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

    def on_count(self, done: int, total: int) -> None:
        """Called with the number of finished files where several are worked on at a time."""


def collect(inputs: list[str], output: str | None, suffix: str, *, recursive: bool) -> list[Job]:
    """Files, folders, patterns, lists (`@NAME`) and URLs -> jobs, each source once.

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
    sources = dict(files.find(inputs, recursive, made_by_us, output))
    if not sources:
        raise InputError(f"no images in {', '.join(inputs)} (known: {' '.join(files.SUFFIXES)})")
    if output == "-":
        if len(sources) > 1:
            raise InputError(f"{len(sources)} images: one at a time goes to the standard output")
        return [Job(next(iter(sources)), PIPE)]
    single = len(sources) == 1 and as_path(inputs[0]) in sources
    as_file = output is not None and not _is_folder(output)
    if as_file and not single:
        if Path(str(output)).suffix.lower() in files.SUFFIXES:
            raise InputError(
                f"{output}: one file; folders, patterns and several images need a folder"
            )
        as_file = False
    jobs: list[Job] = []
    for source, relative in sources.items():
        if output is None:
            stem, ending = files.split(source)
            target = source.with_name(f"{stem}{suffix}{ending}")
        else:
            target = as_path(output) if as_file else as_path(output) / relative
        jobs.append(Job(source, target))
    _check_targets(jobs)
    return jobs


def _from_standard_input(inputs: list[str], output: str | None) -> Job:
    if len(inputs) > 1:
        raise InputError("- is the standard input: no other image can be given beside it")
    if output is not None and output != "-" and _is_folder(output):
        raise InputError(f"{output}: a folder, but the standard input has no name")
    return Job(PIPE, PIPE if output is None else as_path(output))


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
    options, observer = options or FileOptions(), observer or Observer()
    for number, job in enumerate(jobs):
        observer.on_file(job, number)
        outcome = restore_file(job, restoration, options, observer)
        observer.report.add(outcome)
        if outcome.status == "done":
            observer.on_done(outcome.facts)
    return observer.report


def restore_file(
    job: Job, restoration: Restoration, options: FileOptions, observer: Observer
) -> Outcome:
    """Reads, restores and writes one file, wherever that is done; a bad one does not raise."""
    start = time.perf_counter()
    try:
        if options.skip_existing:
            if is_whole(job.target):
                return Outcome("skipped", {"input": str(job.source)})
            options = replace(options, overwrite=True, skip_existing=False)
        restore = _restore_stack if _is_stack(job.source) else _restore_image
        facts = restore(job, restoration, options, observer)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        return _failure(job, error)
    names = {"input": str(job.source), "output": str(job.target)}
    return Outcome("done", names | facts | {"seconds": round(time.perf_counter() - start, 3)})


def _is_stack(source: AnyPath) -> bool:
    return isinstance(source, Path) and source != PIPE and stacks.is_stack(source)


def _restore_image(
    job: Job, restoration: Restoration, options: FileOptions, observer: Observer
) -> dict[str, Any]:
    if options.pages is not None:
        raise InputError("one page only: pages are chosen from stacks")
    image, kind = _read(job.source, options)
    kind = _check_target(job.target, image, kind, options)
    announce = functools.partial(observer.announce, image)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        restored = restoration.restore(image, progress=observer.progress, announce=announce)
    _write(job.target, restored.image, kind, options)
    notes = [*image.notes, *images.lost(kind, image), *(str(w.message) for w in caught)]
    size = {"width": restored.image.width, "height": restored.image.height}
    return size | restored.facts | {"warnings": notes}


def _restore_stack(
    job: Job, restoration: Restoration, options: FileOptions, observer: Observer
) -> dict[str, Any]:
    from nlrn.restoration.stacks import restore_stack  # with torch, which is loaded by now

    if job.target == PIPE:
        raise InputError("pages do not go to the standard output: name a file")
    if isinstance(job.source, RemotePath) or isinstance(job.target, RemotePath):
        raise InputError("stacks are read and written on this machine, not behind URLs")
    with stacks.open_stack(job.source, axes=options.axes, white=options.white) as stack:
        if options.pages is not None:
            stack = stack.select(stacks.page_numbers(options.pages), options.axis)
        if not job.target.parent.exists():
            _make_folder(job.target.parent)
        stack.check_target(job.target, overwrite=options.overwrite)
        return restore_stack(
            stack,
            job.target,
            restoration,
            overwrite=options.overwrite,
            progress=observer.progress,
            announce=functools.partial(observer.announce, stack.page(0), pages=len(stack)),
            on_page=observer.on_page,
        )


def _failure(job: Job, error: Exception) -> Outcome:
    from nlrn.hardware import is_out_of_memory  # with torch, which is loaded by now

    name, no_memory = str(job.source), is_out_of_memory(error)
    said = "not enough memory" if no_memory else one_line(error, 300)
    if not isinstance(error, ImageError):  # those name the file themselves
        said = f"{name}: {said.removeprefix(f'{name}: ')}"
    return Outcome("failed", {"input": name, "error": said}, no_memory or _is_of_storage(error))


def is_whole(target: AnyPath) -> bool:
    """Whether there is a file with the header of an image and all the bytes it speaks of."""
    if target == PIPE or not target.exists():
        return False
    if isinstance(target, Path) and target.is_dir():  # named so when it was whole
        return stacks.is_zarr(target)
    with target.open() if isinstance(target, RemotePath) else target.open("rb") as file:
        if target.suffix.lower() in stacks.SUFFIXES:
            return stacks.is_whole(file)
        return images.is_whole(file, target.suffix.lower())


def _is_of_storage(error: Exception) -> bool:
    """Whether a disk or a network is to blame; a file that is not there stays away."""
    causes = (error, error.__cause__)
    if any(isinstance(cause, FileNotFoundError) for cause in causes):
        return False
    return any(isinstance(cause, OSError) for cause in causes)


def _read(source: AnyPath, options: FileOptions) -> tuple[Image, str]:
    """The image and the name of its format."""
    if isinstance(source, RemotePath):
        kind, data = images.format_of(source.name), io.BytesIO(source.read_bytes())
        try:
            suffix = source.suffix.lower()
            return images.read_file(data, white=options.white, suffix=suffix)[0], kind
        except FormatError as error:
            raise ImageError(f"{source}: {error}") from error
    if source != PIPE:
        return images.read(source, white=options.white), images.format_of(source)
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("the standard input is closed or a terminal: send an image into it")
    try:
        return images.read_file(io.BytesIO(sys.stdin.buffer.read()), white=options.white)
    except FormatError as error:
        raise ImageError(f"standard input: {error}") from error


def _check_target(target: AnyPath, image: Image, kind: str, options: FileOptions) -> str:
    """The format of the result; raises before the work what would go wrong after it."""
    if target == PIPE:
        images.check_format(kind, image)
        return kind
    if isinstance(target, RemotePath):
        images.check_holds(target.name, image)
        if not options.overwrite and target.exists():
            raise ExistsError(f"{target}: exists already; overwrite=True replaces it")
        return images.format_of(target.name)
    if not target.parent.exists():
        images.check_holds(target, image)  # before a folder is made for nothing
        _make_folder(target.parent)
    images.check_writable(target, image, overwrite=options.overwrite)
    return images.format_of(target)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)  # another may be as quick
    except OSError as error:
        raise ImageError(f"{folder}: {error.strerror}") from error


def _write(target: AnyPath, image: Image, kind: str, options: FileOptions) -> None:
    quality = options.jpeg_quality
    if isinstance(target, RemotePath):
        target.write_bytes(images.encode(kind, image, quality), overwrite=options.overwrite)
        return
    if target != PIPE:
        images.write(target, image, overwrite=options.overwrite, quality=quality)
        return
    sys.stdout.buffer.write(images.encode(kind, image, quality))
    sys.stdout.buffer.flush()


def _is_folder(output: str) -> bool:
    path = as_path(output)
    if path.suffix.lower() == ".zarr":  # a folder too, but of one array
        return False
    if output.endswith(("/", os.sep)) or path.is_dir():
        return True
    return not path.suffix  # an unknown suffix is refused when the file is to be written


def _check_targets(jobs: list[Job]) -> None:
    seen: dict[AnyPath, AnyPath] = {}
    for job in jobs:
        target = files.real(job.target)
        if target == files.real(job.source):
            raise InputError(f"{job.source}: would be replaced by its own result")
        if target in seen:
            first = seen[target]
            raise InputError(f"{first} and {job.source} would both be written to {job.target}")
        seen[target] = job.source
