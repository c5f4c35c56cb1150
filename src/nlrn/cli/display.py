"""Work on files as the terminal shows it: a progress bar, lines, a report at the end."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from nlrn.batch import PIPE, Job, Observer
from nlrn.bulk import report as reports
from nlrn.cli.entry import in_words_of_the_command

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from nlrn.images import Image

SHOWN_NAMES = 5  # of files that are left alone
LONG = 30.0  # seconds of work from which on an estimate is printed first


class Display(Observer):
    """A context that shows how a batch goes on; Ctrl-C ends it, and `exit` still reports.

    What is done is told file by file, or as JSON at the end, which an interruption makes early.

    Args:
        jobs: what is to be done.
        as_json: whether the report is printed as JSON.
        unknown: files beside them of no known kind.
        report_file: where the report is written too.
    """

    def __init__(
        self, jobs: list[Job], as_json: bool, unknown: list[Path], report_file: Path | None = None
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__()
        self._jobs, self._as_json, self._report_file = jobs, as_json, report_file
        self.report.unknown = [str(file) for file in unknown]
        self._interrupted, self._name = False, ""
        console = Console(stderr=True)
        name = TextColumn("{task.description}", markup=False)  # of any characters
        columns = (name, BarColumn(), TimeRemainingColumn())
        self._bar = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
            redirect_stdout=sys.stdout.isatty(),  # else it would go where the bar goes
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Display:
        # A request to end is an exception too, so that nothing temporary is left behind.
        self._handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._bar.stop()
        signal.signal(signal.SIGTERM, self._handler)
        self._interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        return self._interrupted

    def on_file(self, job: Job, number: int) -> None:
        """Shows which file is next."""
        self._name = f"{number + 1}/{len(self._jobs)} {job.source.name}"
        self._bar.reset(self._task, total=1, description=self._name)

    def on_page(self, number: int, count: int) -> None:
        """Shows which page of the present file is next."""
        name = f"{self._name} page {number + 1}/{count}"
        self._bar.update(self._task, description=name)

    def progress(self, done: int, total: int) -> None:
        """Shows how far the present file is."""
        self._bar.update(self._task, completed=done, total=total)

    def on_count(self, done: int, total: int) -> None:
        """Shows how many files are done."""
        name = f"{done}/{total} files"
        self._bar.update(self._task, completed=done, total=total, description=name)

    def announce(self, image: Image, seconds: float, pages: int = 1) -> None:
        """Says how long an image or a stack will take, if that is long."""
        if seconds > LONG:
            size = f"{image.width} x {image.height}"
            size = f"{pages} pages of {size}" if pages > 1 else size
            print(f"{size} pixels will take about {_duration(seconds)}", file=sys.stderr)

    # Not click's echo here, which passes by the bar and is written into its line.
    def on_done(self, facts: dict[str, Any]) -> None:
        """Tells of a file that was written."""
        for warning in facts["warnings"]:
            said = in_words_of_the_command(warning)
            print(f"warning: {facts['input']}: {said}", file=sys.stderr)
        if not self._as_json:
            line = f"{facts['output']} ({_what(facts)}{facts['seconds']:.1f} s)"
            # Where the image itself goes to the standard output, nothing else may.
            print(line, file=sys.stderr if facts["output"] == str(PIPE) else None, flush=True)

    def exit(self) -> None:
        """Says what failed and what was skipped, and leaves with the right exit code."""
        report = self.report
        if self._report_file is not None:
            reports.write_report(report, self._report_file)
        if self._as_json:
            typer.echo(json.dumps(asdict(report), indent=2))
        if report.failed and report.count > 1:
            typer.echo(f"{len(report.failed)} of {report.count} files failed:", err=True)
        for failure in report.failed:
            typer.echo(f"error: {_with_both_flags(failure['error'])}", err=True)
        if report.unknown and not self._as_json:
            typer.echo(f"left alone, of no known kind: {_some(report.unknown)}", err=True)
        if report.skipped and not self._as_json:
            typer.echo(f"{len(report.skipped)} skipped, their results exist", err=True)
        if self._interrupted:
            left = len(self._jobs) - report.count
            typer.echo(f"interrupted: {left} of {len(self._jobs)} files left", err=True)
        raise typer.Exit(130 if self._interrupted else report.exit_code)


def check_report(path: Path | None, *, overwrite: bool) -> None:
    """Raises an InputError if a report is wanted that cannot be written."""
    if path is not None:
        reports.check_report(path, overwrite=overwrite)


def _what(facts: dict[str, Any]) -> str:
    """What was done to a file, in a few words, where it is known."""
    count = facts.get("pages", 0)
    pages = f"{count} page{'s' * (count != 1)} {facts['axes']}, " if count else ""
    if "scale" in facts:
        return f"{pages}x{facts['scale']:g}, "
    how = "channel by channel, " if facts.get("by_channel") else ""
    return f"{pages}sigma {_level(facts)}, {how}" if "sigma" in facts else pages


def _level(facts: dict[str, Any]) -> str:
    """The noise level: one, those of the channels of a stack, or the ends of a map."""
    if isinstance(facts["sigma"], list):
        levels = zip(facts["sigma"], facts["channels"], strict=True)
        return ", ".join(f"{level:g} ({name})" for level, name in levels)
    level = f"{facts['sigma']:g}"
    if "sigma_range" in facts:
        level = "{:.1f} to {:.1f}".format(*facts["sigma_range"])
    return level + (" for correlated noise" if facts.get("correlated") else "")


def _with_both_flags(message: str) -> str:
    """A message in the words of the command, with the other way out where a result exists."""
    said = in_words_of_the_command(message)
    return said.replace(
        "--overwrite replaces it", "--overwrite replaces it, --skip-existing leaves it"
    )


def _some(names: list[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
