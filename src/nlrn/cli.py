"""The command line. Handlers are short and call the library."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlrn import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from nlrn.bench.run import Cell, Row
    from nlrn.images import Image
    from nlrn.jobs import Job, Report
    from nlrn.model import NLRN
    from nlrn.tasks import Settings

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Restore images with the Non-Local Recurrent Network.",
)
LONG = 30.0  # seconds of work from which on an estimate is printed first
WORTH_MEASURING = 100_000  # pixels of work; fewer are done in a few seconds


def main() -> None:
    """Entry point; errors become one line on stderr and exit code 2."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    # Threads of GNU OpenMP wait for each other by spinning, for so long that everything becomes
    # several times slower as soon as another program wants the cores too. This much spinning costs
    # nothing when alone. Has to be said before torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        # A mistake in the options; the class lives in different places in different typers.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "nlrn"
        message = " ".join(error.format_message().split())
        typer.echo(f"error: {message} (see {command} --help)", err=True)
        code = 2
    sys.exit(code or 0)


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Known errors become one line and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nlrn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def denoise(
    inputs: Annotated[list[str], typer.Argument(help="Images, folders or patterns.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File, or folder for several images.")
    ] = None,
    sigma: Annotated[
        str, typer.Option(help="Noise level on the 0..255 scale; auto estimates it per image.")
    ] = "auto",
    strength: Annotated[float, typer.Option(help="1 for the full effect, 0 for none.")] = 1.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    suffix: Annotated[
        str, typer.Option(help="Added to the name of results beside their input.")
    ] = "_denoised",
    model: Annotated[
        str | None, typer.Option(help="A model's name (see nlrn models) or a .safetensors file.")
    ] = None,
    tile: Annotated[
        str,
        typer.Option(
            "--tile",
            "-t",
            help="Side of the tiles; auto by memory, 0 for none. Small ones are slow.",
        ),
    ] = "auto",
    exact: Annotated[
        bool, typer.Option("--exact", help="Tiles that equal the whole image; slower.")
    ] = False,
    views: Annotated[
        int, typer.Option(help="Average over this many flips and rotations, up to 8.")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="fp32, or bf16: faster on recent CPUs.")] = "fp32",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Folders with all that is below them.")
    ] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Pass over images whose result exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Remove noise: NAME_denoised.EXT is written beside each image unless -o says otherwise.

    The models expect white Gaussian noise. A camera's JPEG has other noise: expect less there.
    """
    with _errors_in_one_line():
        from nlrn import jobs

        level = _number(sigma, "sigma", "auto")
        side = _number(tile, "tile", "auto")
        plan = jobs.collect(inputs, output, suffix, recursive=recursive)
        from nlrn.tasks import Settings  # loads torch: only after the paths were found good

        settings = Settings(None if side is None else int(side), exact, views, dtype, device)
        work = _denoiser(level, strength, model, settings)
        report = _run_jobs(plan, work, overwrite, skip_existing)
    _finish(report, as_json)


def _number(text: str, name: str, automatic: str | None) -> float | None:
    """The number in an option, or None for the word that leaves the choice to us."""
    if text == automatic:
        return None
    try:
        value = float(text)
    except ValueError:
        known = f"{automatic} or a number" if automatic else "a number"
        raise ValueError(f"{name} must be {known}, got {text!r}") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be 0 or more, got {text}")
    if name == "tile" and value != int(value):
        raise ValueError(f"tile must be a whole number, got {text}")
    return value


Work = Callable[["Image", Callable[[int, int], None]], "tuple[Image, dict[str, Any]]"]


def _denoiser(sigma: float | None, strength: float, model: str | None, settings: Settings) -> Work:
    """What to do with one image; models are loaded once."""
    from nlrn import tasks

    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be between 0 and 1, got {strength:g}")
    if not 1 <= settings.views <= 8:
        raise ValueError(f"views must be between 1 and 8, got {settings.views}")
    from nlrn.inference import choose_device

    choose_device(settings.device)
    networks: dict[str, NLRN] = {}

    def network_for(level: float) -> tuple[str, NLRN]:
        name = model if model is not None else tasks.choose_weight(level)
        if name not in networks:
            networks[name] = tasks.load_model(name, level)
        return name, networks[name]

    network_for(25.0 if sigma is None else sigma)  # a wrong name ends here, before any image
    rates: dict[str, float] = {}

    def work(image: Image, progress: Callable[[int, int], None]) -> tuple[Image, dict[str, Any]]:
        level = tasks.check_sigma(sigma, image)
        name, network = network_for(level)
        planes = 1 if image.pixels.ndim == 2 else 3 // network.config.in_channels
        size = (image.height, image.width)
        _announce_long_work(name, network, size, planes, settings, rates)
        result = tasks.denoise_image(image, level, network, strength, settings, progress)
        return result, {"sigma": round(level, 2), "model": name}

    return work


def _announce_long_work(
    name: str,
    network: NLRN,
    size: tuple[int, int],
    planes: int,
    settings: Settings,
    rates: dict[str, float],
) -> None:
    """Says how long an image will take if that is long; the rate is measured once per network."""
    from nlrn.inference import planned_pixels, seconds_per_pixel
    from nlrn.tasks import DTYPES

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
    if (seconds := rates[name] * pixels) > LONG:
        took = _duration(seconds)
        typer.echo(f"{size[1]} x {size[0]} pixels will take about {took}", err=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _run_jobs(plan: list[Job], work: Work, overwrite: bool, skip_existing: bool) -> Report:
    """Runs the jobs with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from nlrn import jobs

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)

        def on_file(job: Job, number: int) -> None:
            progress.reset(bar, total=1, description=f"{number + 1}/{len(plan)} {job.source.name}")

        def on_image(image: Image) -> tuple[Image, dict[str, Any]]:
            def advance(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            return work(image, advance)

        return jobs.run(
            plan, on_image, overwrite=overwrite, skip_existing=skip_existing, on_file=on_file
        )


def _finish(report: Report, as_json: bool) -> None:
    """Prints what was done and leaves with the right exit code."""
    for fact in report.done:
        for warning in fact["warnings"]:
            typer.echo(f"warning: {fact['input']}: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        for fact in report.done:
            what = f"sigma {fact['sigma']:g}" if "sigma" in fact else f"x{fact['scale']:g}"
            typer.echo(f"{fact['output']} ({what}, {fact['seconds']:.1f} s)")
    count = len(report.done) + len(report.skipped) + len(report.failed)
    if report.failed and count > 1:
        typer.echo(f"{len(report.failed)} of {count} files failed:", err=True)
    for failure in report.failed:
        typer.echo(f"error: {failure['error']}", err=True)
    if report.skipped and not as_json:
        typer.echo(f"{len(report.skipped)} skipped, their results exist", err=True)
    raise typer.Exit(report.exit_code)


@app.command()
def upscale(
    inputs: Annotated[list[str], typer.Argument(help="Images, folders or patterns.")],
    scale: Annotated[
        str, typer.Option("--scale", "-s", help="More than 1, up to 4; trained for 2, 3 and 4.")
    ] = "2",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File, or folder for several images.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    suffix: Annotated[
        str | None,
        typer.Option(help="Added to the name of results beside their input; _x2 for scale 2."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model's name (see nlrn models) or a .safetensors file.")
    ] = None,
    tile: Annotated[
        str,
        typer.Option(
            "--tile", "-t", help="Side of the tiles in the result; auto by memory, 0 for none."
        ),
    ] = "auto",
    exact: Annotated[
        bool, typer.Option("--exact", help="Tiles that equal the whole image; slower.")
    ] = False,
    views: Annotated[
        int, typer.Option(help="Average over this many flips and rotations, up to 8.")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="fp32, or bf16: faster on recent CPUs.")] = "fp32",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Folders with all that is below them.")
    ] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Pass over images whose result exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Enlarge: NAME_x2.EXT is written beside each image unless -o says otherwise.

    Factors between the trained ones work too, as well as the nearest of them. The models expect
    images that were shrunk by bicubic interpolation, without noise.
    """
    with _errors_in_one_line():
        from nlrn import jobs

        factor = _number(scale, "scale", None)
        assert factor is not None
        side = _number(tile, "tile", "auto")
        ending = suffix if suffix is not None else f"_x{factor:g}"
        plan = jobs.collect(inputs, output, ending, recursive=recursive)
        from nlrn.tasks import Settings  # loads torch: only after the paths were found good

        settings = Settings(None if side is None else int(side), exact, views, dtype, device)
        report = _run_jobs(plan, _upscaler(factor, model, settings), overwrite, skip_existing)
    _finish(report, as_json)


def _upscaler(scale: float, model: str | None, settings: Settings) -> Work:
    """What to do with one image; the model is loaded once."""
    from nlrn import tasks
    from nlrn.inference import choose_device

    tasks.check_scale(scale)
    if not 1 <= settings.views <= 8:
        raise ValueError(f"views must be between 1 and 8, got {settings.views}")
    choose_device(settings.device)
    name = model if model is not None else tasks.choose_upscaler()
    network = tasks.load_upscaler(name)
    rates: dict[str, float] = {}

    def work(image: Image, progress: Callable[[int, int], None]) -> tuple[Image, dict[str, Any]]:
        size = (math.ceil(image.height * scale), math.ceil(image.width * scale))
        _announce_long_work(name, network, size, 1, settings, rates)
        result = tasks.upscale_image(image, scale, network, settings, progress)
        return result, {"scale": scale, "model": name}

    return work


@app.command()
def explain(
    image: Annotated[str, typer.Argument(help="A noisy image.")],
    at: Annotated[str, typer.Option(help="The pixel: row and column, from 0.", metavar="ROW,COL")],
    output: Annotated[str, typer.Option("--output", "-o", help="The figure, for one maps.png.")],
    sigma: Annotated[
        str, typer.Option(help="Noise level on the 0..255 scale; auto estimates it.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = (
        False
    ),
    model: Annotated[
        str | None, typer.Option(help="A model's name (see nlrn models) or a .safetensors file.")
    ] = None,
    channel: Annotated[
        int, typer.Option(help="Of a colour image, for a gray model: 0 red, 1 green, 2 blue.")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
) -> None:
    """Draw where the network looks for one pixel: the weights of its neighbours, by state."""
    with _errors_in_one_line():
        position = _pixel(at)
        level = _number(sigma, "sigma", "auto")
        import numpy as np

        from nlrn import images

        picture = images.read(image)
        blank = images.Image(np.zeros((1, 1, 3), np.uint8))
        images.check_writable(output, blank, overwrite=overwrite)
        from nlrn.explain import explain, figure

        maps = explain(picture.pixels, position, level, model, channel=channel, device=device)
        images.write(output, images.Image(figure(maps)), overwrite=overwrite)
    typer.echo(output)


def _pixel(text: str) -> tuple[int, int]:
    row, _, column = text.partition(",")
    if not (row.strip().isdecimal() and column.strip().isdecimal()):
        raise ValueError(f"at must be a row and a column such as 120,80, got {text!r}")
    return int(row), int(column)


@app.command()
def web(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="fp32, or bf16: faster on recent hardware.")] = "fp32",
    model: Annotated[
        list[str] | None, typer.Option(help="A .safetensors file of yours to offer too.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page where there is a desktop.")] = True,
) -> None:
    """Restore pictures in the browser, and see where the network looks."""
    with _errors_in_one_line():
        from pathlib import Path

        try:
            from nlrn.web.server import serve
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("nlrn"):
                raise
            missing = f"nlrn web needs {error.name}: pip install 'nlrn[web]'"
            raise ValueError(missing) from error
        from nlrn.web.studio import Options

        desktop = sys.platform in ("darwin", "win32") or bool(
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        )
        options = Options(host, device, dtype, tuple(map(Path, model or [])))
        serve(options, port, browser=browser and desktop)


@app.command()
def info(
    name: Annotated[
        str, typer.Argument(help="A configuration, a model's name, or a .safetensors file.")
    ] = "nlrn",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Parameters, depth and work of a network, with or without weights."""
    with _errors_in_one_line():
        from nlrn import describe

        facts = describe.network(name)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        typer.echo(f"{key.replace('_', ' '):<24} {shown}")


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The trained models in this package, and the configurations that nlrn info knows."""
    with _errors_in_one_line():
        from nlrn import describe

        facts = describe.everything()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo("trained models:")
    for weight in facts["weights"]:
        typer.echo(f"  {weight['name']:<22} {weight['description']}")
    if not facts["weights"]:
        typer.echo("  none in this version yet: train one, or give a file with --model FILE")
    typer.echo("configurations (see nlrn info NAME):")
    for config in facts["configurations"]:
        typer.echo(f"  {config['name']:<22} {config['parameters']:>9,} parameters")


data_app = typer.Typer(help="The image sets for training and tables.")
app.add_typer(data_app, name="data")
SHOWN_PROBLEMS = 12  # lines: one for each folder that lacks images, and one for each damaged file


@data_app.command("check")
def check_data(
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What is there of each image set, by sha256; exit code 1 if anything is missing or damaged."""
    with _errors_in_one_line():
        from nlrn import data as sets

        root = sets.find_root(data)
        states = sets.check(root)
    if as_json:
        facts = [asdict(s) | {"found": s.found, "state": s.state} for s in states]
        typer.echo(json.dumps({"root": str(root), "sets": facts}, indent=2))
    else:
        typer.echo(f"{'set':<18} {'folders':<29} {'images':>7}  state")
        for s in states:
            where, images = " + ".join(s.folders), f"{s.found}/{s.expected}"
            typer.echo(f"{s.name:<18} {where:<29} {images:>7}  {s.state}")
    problems = sets.complaints(root, states)
    for line in problems[:SHOWN_PROBLEMS]:
        typer.echo(f"error: {line}", err=True)
    if len(problems) > SHOWN_PROBLEMS:
        typer.echo(f"error: and {len(problems) - SHOWN_PROBLEMS} more (see --json)", err=True)
    raise typer.Exit(1 if problems else 0)


@app.command()
def train(
    config: Annotated[
        str | None, typer.Argument(help="What to train, a .toml file (see configs/).")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Only draw the curves of a run's folder.", metavar="DIR")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")
    ] = False,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop, with everything saved, after 90s, 8m or 1.5h.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; runs/NAME otherwise.")] = None,
    devices: Annotated[int, typer.Option(help="GPUs, or CPU processes, of each node.")] = 1,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    start_from: Annotated[
        str | None, typer.Option(help="Begin with these weights instead of the config's.")
    ] = None,
) -> None:
    """Train a network; a run that was stopped or killed goes on with --resume."""
    with _errors_in_one_line():
        if (config is None) == (plot is None):
            raise ValueError("give a config to train, or --plot DIR")
        from nlrn import training

        if config is None:
            typer.echo(training.plot(str(plot)))
            return
        seconds = None if time_budget is None else training.seconds(time_budget)
        training.run(
            config,
            resume=resume,
            time_budget_seconds=seconds,
            data_root=data,
            out=out,
            devices=devices,
            nodes=nodes,
            start_from=start_from,
        )


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]", help="Table to run: denoise-bsd400, denoise-bsd300, sr, complexity."
        ),
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Some of its sets: Set12,BSD68.")] = None,
    levels: Annotated[
        str | None, typer.Option(help="Some of its noise levels or scales: 15,25.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods: noisy,BM3D,NLRN; a wrong one lists all.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="The first N images of each set only.")] = None,
    protocol: Annotated[
        str, typer.Option(help="Networks on the whole image, or overlap: averaged patches.")
    ] = "whole",
    weight: Annotated[
        str | None, typer.Option(help="A weight of yours to run networks with, .safetensors.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="fp32, or bf16: faster on recent hardware.")] = "fp32",
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Folder of rows: what is there is not computed again.")
    ] = "rows",
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write rows and means.", metavar="FILE")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", help="Write the table.", metavar="FILE")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Run nothing: join the rows of the files given.")
    ] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Put the rows into README.md and docs/.")
    ] = False,
) -> None:
    """A table of the paper with our figures beside the printed ones.

    Rows are kept image by image: a run that was stopped goes on where it was. Files of rows from
    several machines are joined by nlrn bench --merge rows/*.json.
    """
    with _errors_in_one_line():
        from pathlib import Path

        from nlrn.bench import documents, report, tables
        from nlrn.bench import run as runs

        for file in (as_json, as_markdown):
            if file is not None and not Path(file).absolute().parent.is_dir():
                raise ValueError(f"{file}: its folder does not exist")
        if merge:
            found = runs.read_rows(names or [])
        elif names and len(names) == 1:
            setting = (protocol, dtype, device, weight)
            found = _run_table(
                names[0], setting, sets, levels, methods, limit, seed, data, Path(rows)
            )
        elif names or not write_docs:
            raise ValueError("give one TABLE, or --merge FILES, or --write-docs")
        else:
            found = []
        shown = report.everything(found)
        if not merge and names and not found:  # nothing can run yet: what the paper has
            shown = [report.shown(tables.find(names[0]), [], everywhere=True)]
        if as_json is not None:
            runs.write_json(Path(as_json), report.to_json(found))
        if as_markdown is not None:
            runs.write_text(Path(as_markdown), "\n".join(map(report.markdown, shown)))
        if write_docs:
            for path in documents.write(found, Path()):
                typer.echo(f"wrote {path}", err=True)
    typer.echo("\n\n".join(map(report.text, shown)))


def _run_table(
    name: str,
    setting: tuple[str, str, str, str | None],
    sets: str | None,
    levels: str | None,
    wanted: str | None,
    limit: int | None,
    seed: int,
    root: str | None,
    folder: Path,
) -> list[Row]:
    """Runs a table with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from nlrn import data
    from nlrn.bench import run as runs
    from nlrn.bench import tables
    from nlrn.bench.methods import Setting

    numbers = None if levels is None else [_level(text) for text in levels.split(",")]
    cells, notes = runs.plan(
        tables.find(name),
        data.find_root(root),
        Setting(*setting),
        sets=None if sets is None else sets.split(","),
        levels=numbers,
        wanted=None if wanted is None else wanted.split(","),
        limit=limit,
    )
    for note in notes:
        typer.echo(f"left out: {note}", err=True)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)

        def on_image(cell: Cell, done: int, total: int) -> None:
            label = f"{cell.set} {cell.table.level(cell.level)} {cell.method}"
            progress.update(bar, description=label, completed=done, total=total)

        return runs.run(cells, folder, seed=seed, on_image=on_image)


def _level(text: str) -> int:
    try:
        return int(text.removeprefix("x"))
    except ValueError:
        raise ValueError(f"levels must be whole numbers such as 15,25, got {text!r}") from None
