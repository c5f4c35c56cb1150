"""Work on files: the progress bar, the announcement of long work, the report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from nlrn.batch import Job, Report
    from nlrn.images import Image
    from nlrn.models.nlrn import NLRN
    from nlrn.restoration.denoise import Settings

LONG = 30.0  # seconds of work from which on an estimate is printed first
SLOW_METHODS, SAMPLE = ("wnnm", "lssc"), 48  # side of the noise that they are timed with
WORTH_MEASURING = 100_000  # pixels of work; fewer are done in a few seconds

Work = Callable[["Image", Callable[[int, int], None]], "tuple[Image, dict[str, Any]]"]


def announce_long_work(
    name: str,
    network: NLRN,
    size: tuple[int, int],
    planes: int,
    settings: Settings,
    rates: dict[str, float],
) -> None:
    """Says how long an image will take if that is long; the rate is measured once per network."""
    from nlrn.inference.engine import planned_pixels, seconds_per_pixel
    from nlrn.restoration.denoise import DTYPES

    dtype, device = DTYPES[settings.dtype], settings.device
    pixels = planned_pixels(
        network.config,
        size,
        tile=settings.tile,
        exact=settings.exact,
        dtype=dtype,
        device=device,
        memory=settings.memory,
    )
    pixels *= planes * settings.views
    if pixels < WORTH_MEASURING:
        return
    if name not in rates:
        rates[name] = seconds_per_pixel(network, dtype, device)
    _announce(size, rates[name] * pixels)


def announce_slow_method(
    method: str, image: Image, sigma: float, device: str, rates: dict[str, float]
) -> None:
    """The same for the classic methods that may take minutes."""
    pixels = image.pixels.size
    if method not in SLOW_METHODS or pixels < WORTH_MEASURING or sigma == 0:
        return
    if method not in rates:
        import numpy as np

        from nlrn.hardware import choose_device
        from nlrn.restoration.denoise import CLASSIC

        sample = np.random.default_rng(0).random((SAMPLE, SAMPLE), np.float32)
        begin = time.perf_counter()
        CLASSIC[method](sample, sigma, device=choose_device(device))
        rates[method] = (time.perf_counter() - begin) / sample.size
    _announce((image.height, image.width), rates[method] * pixels)


def _announce(size: tuple[int, int], seconds: float) -> None:
    if seconds > LONG:
        took = _duration(seconds)
        print(f"{size[1]} x {size[0]} pixels will take about {took}", file=sys.stderr)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def run_jobs(
    plan: list[Job], work: Work, overwrite: bool, skip_existing: bool, as_json: bool
) -> None:
    """Runs the jobs with a progress bar on a terminal, and leaves with the right exit code.

    What is done is told file by file, or as JSON at the end, which an interruption makes early.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from nlrn import batch

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    progress = Progress(
        *columns,
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # else it would go where the bar goes
    )
    report, interrupted = batch.Report(), False
    with progress:
        bar = progress.add_task("", total=None)

        def on_file(job: Job, number: int) -> None:
            progress.reset(bar, total=1, description=f"{number + 1}/{len(plan)} {job.source.name}")

        def on_image(image: Image) -> tuple[Image, dict[str, Any]]:
            def advance(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            return work(image, advance)

        # Not click's echo here, which passes by the bar and is written into its line.
        def on_done(facts: dict[str, Any]) -> None:
            for warning in facts["warnings"]:
                print(f"warning: {facts['input']}: {warning}", file=sys.stderr)
            if not as_json:
                what = f"sigma {facts['sigma']:g}" if "sigma" in facts else f"x{facts['scale']:g}"
                print(f"{facts['output']} ({what}, {facts['seconds']:.1f} s)", flush=True)

        try:
            batch.run(
                plan,
                on_image,
                overwrite=overwrite,
                skip_existing=skip_existing,
                on_file=on_file,
                on_done=on_done,
                report=report,
            )
        except KeyboardInterrupt:
            interrupted = True
    _conclude(report, as_json)
    if interrupted:
        typer.echo(f"interrupted: {len(plan) - report.count} of {len(plan)} files left", err=True)
    raise typer.Exit(130 if interrupted else report.exit_code)


def _conclude(report: Report, as_json: bool) -> None:
    """Says what failed and what was passed over."""
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    if report.failed and report.count > 1:
        typer.echo(f"{len(report.failed)} of {report.count} files failed:", err=True)
    for failure in report.failed:
        typer.echo(f"error: {failure['error']}", err=True)
    if report.skipped and not as_json:
        typer.echo(f"{len(report.skipped)} skipped, their results exist", err=True)
