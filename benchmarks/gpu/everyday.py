"""The everyday networks for run.py: small images, recorded or not, and whole photos."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from infer import settings
from measure import Report, Setup, milliseconds, peak_gib, wall_milliseconds

from nlrn import models
from nlrn.images import Image
from nlrn.inference.recorded import record
from nlrn.models.nlrn_residual import ResidualConfig
from nlrn.restoration import Denoiser, Upscaler

DENOISERS = ("denoise-rgb", "denoise-rgb-fast", "denoise-gray", "denoise-gray-fast")


def everyday(setup: Setup, report: Report, _: str | None) -> None:
    """The bars first, then the other networks."""
    report.attempt("photo", photo, setup, report)
    for name in DENOISERS:
        report.attempt(name, network_alone, setup, report, name)
    report.attempt("enlarging", enlarging, setup, report)


@torch.inference_mode()
def network_alone(setup: Setup, report: Report, name: str) -> None:
    """One network on the device alone: launched piece by piece, and as a recording."""
    model = models.load(name)
    assert isinstance(model.config, ResidualConfig)
    height, width = setup.main
    prepared = model.for_inference(setup.dtype, setup.device)
    image = torch.rand(1, model.in_channels, height, width, device=setup.device)
    given = model.input_for(image, 0.1)
    flop = model.flop_per_pixel * height * width
    run = functools.partial(prepared, given)
    works: dict[str, Callable[[], object]] = {"launched": run}
    if setup.on_gpu:
        run()
        works["recorded"] = record(prepared, given).replay
    for how, work in works.items():
        ms = milliseconds(work, setup)
        report.row(section="everyday", what=f"{name} {height}x{width}", who=how, ms=ms,
                   tflops=flop / ms * 1e-9, role=name)  # fmt: skip


def photo(setup: Setup, report: Report) -> None:
    """What somebody with a photo waits for, from 8 bits in host memory to 8 bits there."""
    rng = np.random.default_rng(0)
    for size, role in ((setup.tiled, "photo"), (setup.main, "small photo")):
        picture = Image(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
        denoiser = Denoiser("denoise-rgb", settings=settings(setup))
        run = functools.partial(denoiser.restore, picture, 25)
        run()
        ms, peak = wall_milliseconds(run), peak_gib(run, setup)
        report.row(section="everyday", what=f"denoise-rgb {size[0]}x{size[1]}",
                   who="Denoiser host to host", ms=ms, peak_gib=peak, role=role)  # fmt: skip


def enlarging(setup: Setup, report: Report) -> None:
    """The same picture four times as large by each network."""
    height, width = setup.small
    picture = Image(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    for name in ("sr-rgb", "sr-rgb-fast", "sr-y"):
        upscaler = Upscaler(4, name, settings=settings(setup))
        ms = wall_milliseconds(functools.partial(upscaler.restore, picture))
        report.row(section="everyday", what=f"{name} x4 {height}x{width}",
                   who="Upscaler host to host", ms=ms, role=name)  # fmt: skip
