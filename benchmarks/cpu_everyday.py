"""How long the everyday networks take on a CPU, beside stacks of convolutions that people know.

Prints, from one run and in both precisions: the rate of a plain float32 matrix product; for each
everyday network milliseconds, useful FLOP rate, its share of that rate, and how many times as long
as an FFDNet of the same channels it takes; DnCNN's size too. Networks that the package lacks, and
with --configs all of them, have the shape of configs/NAME.toml and random weights, which do not
change the time. With --photo also one photo of 4000 x 3000 pixels
through denoise-rgb in bfloat16, with its peak memory.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from cpu_restore import dncnn_like, gemm_rate, memory_bytes
from torch import Tensor, nn

from nlrn import models, weights
from nlrn.hardware import keep_freed_memory
from nlrn.inference import Engine, Settings
from nlrn.models import Network
from nlrn.models.nlrn_residual import ResidualConfig, random_residual
from nlrn.training import config as configuration

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = ("denoise-gray-fast", "denoise-gray", "denoise-rgb-fast", "denoise-rgb")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PHOTO = (3000, 4000)
FROM_CONFIGS = False


class FFDNetSized(nn.Module):
    """Convolutions on cells of 2 x 2 pixels with the noise level as one more channel.

    Gray: 15 layers of 64 channels, 0.24 MFLOP for a pixel; color: 12 of 96, 0.43.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        features, layers = (64, 15) if channels == 1 else (96, 12)
        sizes = [4 * channels + 1, *[features] * (layers - 1), 4 * channels]
        parts: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*parts[:-1])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image: Tensor) -> Tensor:
        """Image [B, C, H, W] -> alike; sides must be even."""
        cells = F.pixel_unshuffle(image, 2)
        cells = torch.cat([cells, torch.full_like(cells[:, :1], 0.1)], 1)
        return F.pixel_shuffle(self.layers(cells.contiguous(memory_format=torch.channels_last)), 2)


def network(name: str) -> Network:
    """The network of the package, or one of that config's shape where there is none yet."""
    if name in weights.manifest() and not FROM_CONFIGS:
        return models.load(name)
    shape = configuration.load(CONFIGS / f"{name}.toml").model
    assert isinstance(shape, ResidualConfig)
    return random_residual(shape)


def work_for(name: str, dtype: torch.dtype, size: int) -> Callable[[], object]:
    """A call that restores one image of size x size pixels."""
    channels = 1 if "gray" in name else 3
    image = torch.rand(1, channels, size, size, generator=torch.Generator().manual_seed(0))
    if name in NAMES:
        model = network(name)
        prepared, given = model.for_inference(dtype), model.input_for(image, 0.1)
        return lambda: prepared(given)
    stack: nn.Module = dncnn_like() if name.startswith("DnCNN") else FFDNetSized(channels)
    stack = copy.deepcopy(stack).to(dtype)
    image = image.contiguous(memory_format=torch.channels_last)
    return lambda: stack(image.to(dtype))


@torch.inference_mode()
def measure(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Shortest seconds of each network in each precision; all take turns."""
    names = (*NAMES, "FFDNet-sized gray", "FFDNet-sized rgb", "DnCNN-sized gray")
    found: dict[str, dict[str, float]] = {}
    for kind, dtype in DTYPES.items():
        found[kind] = shortest({name: work_for(name, dtype, size) for name in names}, rounds)
    return found


def shortest(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Shortest seconds of each work; all take turns, once more than `rounds` to warm up."""
    seconds = dict.fromkeys(works, float("inf"))
    with keep_freed_memory():
        for _ in range(rounds + 1):
            for name, work in works.items():
                start = time.perf_counter()
                work()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def restore_photo() -> tuple[float, int]:
    """Seconds and peak bytes above the idle process of one large photo."""
    model = network("denoise-rgb")
    engine = Engine(model, Settings(dtype="bf16", device="cpu", memory=3 * 2**30))
    image = torch.rand(1, 3, *PHOTO)
    engine(model.input_for(image[..., :64, :64], 0.1))
    before, start = memory_bytes("VmRSS"), time.perf_counter()
    engine(model.input_for(image, 0.1))
    return time.perf_counter() - start, memory_bytes("VmHWM") - before


def main(size: int, rounds: int, photo: bool) -> dict[str, object]:
    """Measures everything and prints it."""
    rate = max(gemm_rate(torch.float32) for _ in range(3))
    found = measure(size, rounds)
    rate = max(rate, *(gemm_rate(torch.float32) for _ in range(3)))
    threads = torch.get_num_threads()
    print(f"{platform.processor() or platform.machine()}, {threads} threads, {size} x {size}")
    print(f"float32 matrix product {rate / 1e9:.0f} GFLOP/s")
    for kind, seconds in found.items():
        for name, each in seconds.items():
            line = f"{kind:<9} {name:<18} {1e3 * each:7.0f} ms"
            if name in NAMES:
                work = network(name).flop_per_pixel * size**2 / each
                peer = seconds["FFDNet-sized gray" if "gray" in name else "FFDNet-sized rgb"]
                line += f"  {work / 1e9:5.0f} GFLOP/s  share {work / rate:.2f}"
                line += f"  {each / peer:5.2f} x FFDNet"
            print(line)
    report: dict[str, object] = {"gemm_fp32": rate, "size": size, "seconds": found}
    if photo:
        took, memory = restore_photo()
        limit = 31e12 / (0.8 * rate)
        print(f"4000 x 3000 denoise-rgb bfloat16: {took:.0f} s (31 TFLOP at 0.8 of the rate: "
              f"{limit:.0f} s), {memory / 2**30:.1f} GiB")  # fmt: skip
        report |= {"photo_seconds": took, "photo_bytes": memory}
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--photo", action="store_true")
    parser.add_argument("--configs", action="store_true")
    parser.add_argument("--json", type=argparse.FileType("w"))
    arguments = parser.parse_args()
    FROM_CONFIGS = arguments.configs
    measured = main(arguments.size, arguments.rounds, arguments.photo)
    if arguments.json:
        json.dump(measured, arguments.json, indent=2)
