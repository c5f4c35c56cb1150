"""nlrn denoise, nlrn upscale: images in, images out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlrn.cli.entry import errors_in_one_line, number

if TYPE_CHECKING:
    from nlrn.batch import Job, Report
    from nlrn.inference import Settings
    from nlrn.restoration.base import Sigma


def _models() -> list[str]:
    from nlrn import weights

    return list(weights.manifest())


# Options that both commands have.
Inputs = Annotated[
    list[str],
    typer.Argument(
        help="Images, stacks, folders, patterns, URLs (s3://...) or @LIST, a text file with a path "
        "in each line; - is the standard input."
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", help="File, or folder for several images; - is the standard output."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="A model's name (see nlrn models), a .safetensors file or a run's folder.",
        autocompletion=_models,
    ),
]
Quality = Annotated[
    str,
    typer.Option(
        help="Without --model: fast, balanced, or best, which is slow.",
        autocompletion=lambda: ["fast", "balanced", "best"],
    ),
]
Tile = Annotated[
    str,
    typer.Option(
        "--tile", "-t", help="Side of the result's tiles, 16 or more; auto by memory, 0 for none."
    ),
]
Exact = Annotated[bool, typer.Option("--exact", help="Tiles that equal the whole image; slower.")]
Views = Annotated[int, typer.Option(help="Average at least so many flips and rotations, up to 8.")]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:1, mps or xpu.")]
Dtype = Annotated[str, typer.Option(help="Precision: fp32, or bf16, faster on recent CPUs.")]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="Include everything below the folders.")
]
SkipExisting = Annotated[
    bool, typer.Option("--skip-existing", help="Skip images whose result exists and is whole.")
]
White = Annotated[
    float | None,
    typer.Option(help="The value of white in the files, where that is not the type's: 4095."),
]
JpegQuality = Annotated[int, typer.Option(help="Quality of JPEGs that are written, 1 to 100.")]
Pages = Annotated[
    str | None, typer.Option(help="Pages of stacks to take, from 1: 1-10,15. All without it.")
]
Axis = Annotated[
    str | None, typer.Option(help="Axis that --pages counts along, where there are several: Z.")
]
Axes = Annotated[
    str | None, typer.Option(help="Axes of stacks that do not say them, such as ZCYX.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="Write the report to this .json or .parquet file too."),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local: one file after the other; ray: several at a time, on a cluster too.",
        autocompletion=lambda: ["local", "ray"],
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="With --engine ray: the address of a cluster; without it Ray starts here."),
]
Workers = Annotated[
    int | None,
    typer.Option(help="With --engine ray: number of workers; one on each GPU, or on each core."),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(help="With --engine ray: GPUs of each worker, 0.5 for two on one, 0 for none."),
]


def denoise(
    inputs: Inputs,
    output: Output = None,
    sigma: Annotated[
        str,
        typer.Option(
            help="Noise level on the 0..255 scale; auto estimates it per image, map per pixel."
        ),
    ] = "auto",
    method: Annotated[
        str,
        typer.Option(
            help="nlrn: the network; without training: nlm, bm3d, and slow: wnnm, lssc. "
            "--model, --tile, --exact, --views and --dtype are for nlrn alone.",
            autocompletion=lambda: ["nlrn", "nlm", "bm3d", "wnnm", "lssc"],
        ),
    ] = "nlrn",
    strength: Annotated[float, typer.Option(help="1 for the full effect, 0 for none.")] = 1.0,
    overwrite: Overwrite = False,
    suffix: Annotated[
        str, typer.Option(help="Added to the name of results beside their input.")
    ] = "_denoised",
    model: Model = None,
    quality: Quality = "balanced",
    tile: Tile = "auto",
    exact: Exact = False,
    views: Views = 1,
    device: Device = "auto",
    dtype: Dtype = "fp32",
    recursive: Recursive = False,
    skip_existing: SkipExisting = False,
    white: White = None,
    jpeg_quality: JpegQuality = 95,
    pages: Pages = None,
    axis: Axis = None,
    axes: Axes = None,
    as_json: AsJson = False,
    report: ReportFile = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
) -> None:
    """Remove noise: NAME_denoised.EXT is written beside each image unless -o says otherwise.

    All methods expect white Gaussian noise; for other noise, as in a camera's JPEG, auto finds a
    level that removes it nevertheless. map is for networks that take one: all but the paper's.
    """
    with errors_in_one_line():
        from nlrn import batch
        from nlrn.cli.display import Display, check_report

        files = batch.FileOptions(overwrite, skip_existing, white, jpeg_quality, pages, axis, axes)
        run = _runner(engine, address, workers, gpus_per_worker)
        given = number(sigma, "sigma", "auto", "map")
        level: Sigma = "map" if sigma == "map" else given
        side = number(tile, "tile", "auto")
        jobs = batch.collect(inputs, output, suffix, recursive=recursive)
        _check_pipe(jobs, as_json)
        check_report(report, overwrite=overwrite)
        # Loads torch: only after the paths were found good.
        from nlrn.restoration import make_denoiser

        settings = _settings(side, exact, views, dtype, device)
        denoiser = make_denoiser(
            method.lower(), model, settings, quality, sigma=level, strength=strength
        )
        unknown = batch.unknown_files(inputs, recursive=recursive)
        with Display(jobs, as_json, unknown, report) as show:
            run(jobs, denoiser, files, show)
        show.exit()


def upscale(
    inputs: Inputs,
    scale: Annotated[
        str, typer.Option("--scale", "-s", help="More than 1, up to 4; trained for 2, 3 and 4.")
    ] = "2",
    output: Output = None,
    overwrite: Overwrite = False,
    suffix: Annotated[
        str | None,
        typer.Option(help="Added to the name of results beside their input; _x2 for scale 2."),
    ] = None,
    model: Model = None,
    quality: Quality = "balanced",
    denoise: Annotated[
        bool, typer.Option("--denoise", help="Remove noise first, its level estimated.")
    ] = False,
    tile: Tile = "auto",
    exact: Exact = False,
    views: Views = 1,
    device: Device = "auto",
    dtype: Dtype = "fp32",
    recursive: Recursive = False,
    skip_existing: SkipExisting = False,
    white: White = None,
    jpeg_quality: JpegQuality = 95,
    pages: Pages = None,
    axis: Axis = None,
    axes: Axes = None,
    as_json: AsJson = False,
    report: ReportFile = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
) -> None:
    """Enlarge: NAME_x2.EXT is written beside each image unless -o says otherwise.

    Factors between 2, 3 and 4 work too: enlarged by the next larger one and shrunk. The
    models expect images that were shrunk by bicubic interpolation, without noise.
    """
    with errors_in_one_line():
        from nlrn import batch
        from nlrn.cli.display import Display, check_report

        files = batch.FileOptions(overwrite, skip_existing, white, jpeg_quality, pages, axis, axes)
        run = _runner(engine, address, workers, gpus_per_worker)
        factor = number(scale, "scale")
        assert factor is not None
        side = number(tile, "tile", "auto")
        ending = suffix if suffix is not None else f"_x{factor:g}"
        jobs = batch.collect(inputs, output, ending, recursive=recursive)
        _check_pipe(jobs, as_json)
        check_report(report, overwrite=overwrite)
        # Loads torch: only after the paths were found good.
        from nlrn.restoration import Upscaler

        settings = _settings(side, exact, views, dtype, device)
        upscaler = Upscaler(
            factor, model or "auto", quality=quality, denoise=denoise, settings=settings
        )
        unknown = batch.unknown_files(inputs, recursive=recursive)
        with Display(jobs, as_json, unknown, report) as show:
            run(jobs, upscaler, files, show)
        show.exit()


def _runner(
    engine: str, address: str | None, workers: int | None, gpus_per_worker: float | None
) -> Callable[..., Report]:
    """What runs the jobs: one after the other, or several at a time by Ray."""
    from nlrn import batch, bulk

    if engine == "ray":
        bulk.check_installed()
        return functools.partial(bulk.run, cluster=bulk.Cluster(address, workers, gpus_per_worker))
    if engine != "local":
        raise ValueError(f"engine must be local or ray, got {engine!r}")
    if (address, workers, gpus_per_worker) != (None, None, None):
        raise ValueError("--address, --workers and --gpus-per-worker are for --engine ray")
    return batch.run


def _check_pipe(jobs: list[Job], as_json: bool) -> None:
    """Raises if the result would go to the standard output, and that is no place for it."""
    from nlrn.batch import PIPE

    if jobs[0].target != PIPE:
        return
    if as_json:
        raise ValueError("the standard output gets the image: --json has no place there")
    if sys.stdout.isatty():
        raise ValueError("the result would go to the terminal: name a file with -o, or use > FILE")


def _settings(tile: float | None, exact: bool, views: int, dtype: str, device: str) -> Settings:
    from nlrn.inference import Settings

    return Settings(None if tile is None else int(tile), exact, views, dtype, device)
