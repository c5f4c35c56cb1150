"""ONNX Runtime beside the package on a CPU: seconds of both in one run, and how far they differ.

For each model: bytes of its file, and for 64 x 64, 97 x 130 and 512 x 768 pixels, with the noise
level as a number and as a map, the largest difference and the shortest time of either. It is the
processor's time, of one thread unless told otherwise: other programs do not count. A name that is
no model of the package is a config: its shape with random weights, which take as long. Models that
enlarge do it by --scale, and the pixels are those of the image they get.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlrn import models, weights
from nlrn.export.check import in_package, run, session
from nlrn.export.onnx_file import build
from nlrn.models import Network
from nlrn.models.nlrn_residual import ResidualConfig, random_residual
from nlrn.training import config as configuration

CONFIGS = Path(__file__).parents[1] / "configs"
SIZES = ((64, 64), (97, 130), (512, 768))
SIGMA = 0.1


def network(name: str) -> Network:
    """The model of the package, or one of a config's shape."""
    if name in weights.manifest():
        return models.load(name)
    shape = configuration.load(CONFIGS / f"{name}.toml").model
    assert isinstance(shape, ResidualConfig)
    model = random_residual(shape)
    torch.nn.init.normal_(model.conv_out.weight, std=0.02)
    model.card = dataclasses.replace(model.card, name=name, sigma_range=(0.0, 75.0))
    return model


def shortest(works: list[Callable[[], object]], rounds: int) -> tuple[list[Any], list[float]]:
    """What each gives, and its shortest seconds; they take turns."""
    results, seconds = [None] * len(works), [float("inf")] * len(works)
    for _ in range(rounds):
        for i, work in enumerate(works):
            start = time.process_time()
            results[i] = work()  # type: ignore[call-overload]
            seconds[i] = min(seconds[i], time.process_time() - start)
    return results, seconds


def levels(model: Network, height: int, width: int) -> dict[str, tuple[float | torch.Tensor, ...]]:
    """What a model is given beside an image, by its kind."""
    if model.factors:
        return {f"x{model.scale}": ()}
    if not model.takes_noise_map:
        return {"number": (SIGMA,)}
    noise_map = torch.linspace(0.02, 0.25, width).expand(1, 1, height, width).contiguous()
    return {"number": (SIGMA,), "map": (noise_map,)}


def compare(name: str, scale: int, rounds: int, sizes: tuple[tuple[int, int], ...]) -> None:
    """Prints the figures of one model."""
    model = network(name)
    if model.factors:
        model = model.with_scale(scale)
    content = build(model).SerializeToString()
    exported = session(content, torch.get_num_threads())
    package = in_package(model)
    print(f"{name}: {len(content) / 1e6:.2f} MB")
    for height, width in sizes:
        shape = (1, model.in_channels, height, width)
        smooth = 0.5 + 0.3 * torch.sin(torch.arange(width) / 9) * torch.ones(height, 1)
        image = smooth + SIGMA * torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for kind, given in levels(model, height, width).items():
            arrays = [x.numpy() if isinstance(x, torch.Tensor) else x for x in given]
            theirs = functools.partial(run, exported, image.numpy(), *arrays)
            ours = functools.partial(package, image, *given)
            (found, expected), seconds = shortest([theirs, ours], rounds)
            difference = np.abs(found - expected.numpy()).max()
            print(f"  {width:>3} x {height:<3} {kind:<6} difference {difference:.1e}  "
                  f"ONNX Runtime {seconds[0]:6.2f} s  nlrn {seconds[1]:6.2f} s")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  peak memory so far {peak:.1f} GiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["denoise-rgb", "denoise-gray"])
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="without the largest size")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for each in arguments.names:
        compare(each, arguments.scale, arguments.rounds, SIZES[:2] if arguments.small else SIZES)
