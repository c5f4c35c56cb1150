"""nlrn denoise, nlrn upscale: images in, images out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlrn.cli.entry import app, errors_in_one_line, number
from nlrn.cli.files import Work, announce_long_work, announce_slow_method, run_jobs

if TYPE_CHECKING:
    from nlrn.images import Image
    from nlrn.models.nlrn import NLRN
    from nlrn.restoration.denoise import Settings

# Options that both commands have.
Inputs = Annotated[list[str], typer.Argument(help="Images, folders or patterns.")]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="File, or folder for several images.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
Model = Annotated[
    str | None, typer.Option(help="A model's name (see nlrn models) or a .safetensors file.")
]
Tile = Annotated[
    str,
    typer.Option(
        "--tile", "-t", help="Side of the result's tiles, 16 or more; auto by memory, 0 for none."
    ),
]
Exact = Annotated[bool, typer.Option("--exact", help="Tiles that equal the whole image; slower.")]
Views = Annotated[int, typer.Option(help="Average over this many flips and rotations, up to 8.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="fp32, or bf16: faster on recent CPUs.")]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="Folders with all that is below them.")
]
SkipExisting = Annotated[
    bool, typer.Option("--skip-existing", help="Pass over images whose result exists.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


@app.command()
def denoise(
    inputs: Inputs,
    output: Output = None,
    sigma: Annotated[
        str, typer.Option(help="Noise level on the 0..255 scale; auto estimates it per image.")
    ] = "auto",
    method: Annotated[
        str,
        typer.Option(
            help="nlrn: the network; without training: nlm, bm3d, and slow: wnnm, lssc. "
            "--model, --tile, --exact, --views and --dtype are for nlrn alone."
        ),
    ] = "nlrn",
    strength: Annotated[float, typer.Option(help="1 for the full effect, 0 for none.")] = 1.0,
    overwrite: Overwrite = False,
    suffix: Annotated[
        str, typer.Option(help="Added to the name of results beside their input.")
    ] = "_denoised",
    model: Model = None,
    tile: Tile = "auto",
    exact: Exact = False,
    views: Views = 1,
    device: Device = "auto",
    dtype: Dtype = "fp32",
    recursive: Recursive = False,
    skip_existing: SkipExisting = False,
    as_json: AsJson = False,
) -> None:
    """Remove noise: NAME_denoised.EXT is written beside each image unless -o says otherwise.

    All methods expect white Gaussian noise. A camera's JPEG has other noise: expect less there.
    """
    with errors_in_one_line():
        from nlrn import batch

        level = number(sigma, "sigma", "auto")
        side = number(tile, "tile", "auto")
        plan = batch.collect(inputs, output, suffix, recursive=recursive)
        from nlrn.restoration.denoise import (
            Settings,  # loads torch: only after the paths were found good
        )

        settings = Settings(None if side is None else int(side), exact, views, dtype, device)
        work = _denoiser(level, strength, method.lower(), model, settings)
        run_jobs(plan, work, overwrite, skip_existing, as_json)


def _denoiser(
    sigma: float | None, strength: float, method: str, model: str | None, settings: Settings
) -> Work:
    """What to do with one image."""
    from nlrn.hardware import choose_device
    from nlrn.restoration import denoise as tasks

    if sigma is not None:
        tasks.check_level(sigma)
    tasks.check_strength(strength)
    tasks.check_method(method, model, settings)
    choose_device(settings.device)
    if method in tasks.CLASSIC:
        return _classic_denoiser(sigma, strength, method, settings.device)
    return _network_denoiser(sigma, strength, model, settings)


def _classic_denoiser(sigma: float | None, strength: float, method: str, device: str) -> Work:
    from nlrn.restoration import denoise as tasks

    rates: dict[str, float] = {}

    def work(image: Image, progress: Callable[[int, int], None]) -> tuple[Image, dict[str, Any]]:
        level = tasks.check_sigma(sigma, image)
        announce_slow_method(method, image, level, device, rates)
        result = tasks.denoise_classic(image, level, method, strength, device, progress)
        return result, {"sigma": round(level, 2), "method": method}

    return work


def _network_denoiser(
    sigma: float | None, strength: float, model: str | None, settings: Settings
) -> Work:
    """Models are loaded once."""
    from nlrn.restoration import denoise as tasks

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
        announce_long_work(name, network, size, planes, settings, rates)
        result = tasks.denoise_image(image, level, network, strength, settings, progress)
        return result, {"sigma": round(level, 2), "method": "nlrn", "model": name}

    return work


@app.command()
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
    tile: Tile = "auto",
    exact: Exact = False,
    views: Views = 1,
    device: Device = "auto",
    dtype: Dtype = "fp32",
    recursive: Recursive = False,
    skip_existing: SkipExisting = False,
    as_json: AsJson = False,
) -> None:
    """Enlarge: NAME_x2.EXT is written beside each image unless -o says otherwise.

    Factors between the trained ones work too; below 2, images are enlarged by 2 and shrunk. The
    models expect images that were shrunk by bicubic interpolation, without noise.
    """
    with errors_in_one_line():
        from nlrn import batch

        factor = number(scale, "scale", None)
        assert factor is not None
        side = number(tile, "tile", "auto")
        ending = suffix if suffix is not None else f"_x{factor:g}"
        plan = batch.collect(inputs, output, ending, recursive=recursive)
        from nlrn.restoration.denoise import (
            Settings,  # loads torch: only after the paths were found good
        )

        settings = Settings(None if side is None else int(side), exact, views, dtype, device)
        work = _upscaler(factor, model, settings)
        run_jobs(plan, work, overwrite, skip_existing, as_json)


def _upscaler(scale: float, model: str | None, settings: Settings) -> Work:
    """What to do with one image; the model is loaded once."""
    from nlrn.hardware import choose_device
    from nlrn.restoration import upscale as upscaling

    upscaling.check_scale(scale)
    choose_device(settings.device)
    name = model if model is not None else upscaling.choose_upscaler()
    network = upscaling.load_upscaler(name)
    rates: dict[str, float] = {}

    def work(image: Image, progress: Callable[[int, int], None]) -> tuple[Image, dict[str, Any]]:
        factor = max(scale, upscaling.SMALLEST_FACTOR)  # at which the network runs
        size = (math.ceil(image.height * factor), math.ceil(image.width * factor))
        announce_long_work(name, network, size, 1, settings, rates)
        result = upscaling.upscale_image(image, scale, network, settings, progress)
        return result, {"scale": scale, "model": name}

    return work
