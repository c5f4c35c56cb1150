"""How long the networks that enlarge take on a CPU, beside sr-y, bicubic and an IMDN-sized network.

Prints, from one run in each precision: seconds for a picture enlarged by 4, how many times faster
than sr-y that is, and how many times as long as IMDN takes. Weights are random: they do not change
the time. With --photo also a photo of 1500 x 1000 pixels at x4 through sr-rgb in bfloat16, with
its peak memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from cpu_everyday import DTYPES, shortest
from cpu_restore import gemm_rate, memory_bytes
from torch import Tensor, nn

from nlrn.degrade import imresize
from nlrn.inference import Engine, Settings
from nlrn.models import Network
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.models.nlrn_sr import SuperResolutionConfig, random_super_resolution
from nlrn.training import config as configuration

CONFIGS = Path(__file__).parents[1] / "configs"
SCALE, SLOW = 4, "sr-y, luminance"
PHOTO = (1000, 1500)


class DistillationBlock(nn.Module):
    """A block of IMDN: after each convolution a quarter of the channels is kept for the end."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        kept = channels // 4
        sizes = [(channels, channels), *[(channels - kept, channels)] * 2, (channels - kept, kept)]
        self.steps = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in sizes)
        self.weigh = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1))
        self.join, self.kept = nn.Conv2d(channels, channels, 1), kept

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, 64, H, W] -> alike."""
        parts, rest = [], x
        for step in self.steps[:-1]:
            part, rest = F.leaky_relu(step(rest), 0.05).tensor_split([self.kept], 1)
            parts.append(part)
        joined = torch.cat([*parts, self.steps[-1](rest)], 1)
        contrast = joined.std((2, 3), keepdim=True) + joined.mean((2, 3), keepdim=True)
        return x + self.join(joined * self.weigh(contrast).sigmoid())


class IMDNSized(nn.Module):
    """Six blocks of 64 channels at the size of the input, 0.7 million parameters at x4."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.ModuleList(DistillationBlock() for _ in range(6))
        self.fuse, self.last = nn.Conv2d(6 * 64, 64, 1), nn.Conv2d(64, 64, 3, padding=1)
        self.tail = nn.Conv2d(64, 3 * SCALE**2, 3, padding=1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image: Tensor) -> Tensor:
        """Image [B, 3, H, W] -> [B, 3, 4 H, 4 W]."""
        start = x = self.first(image.contiguous(memory_format=torch.channels_last))
        found = []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = self.last(F.leaky_relu(self.fuse(torch.cat(found, 1)), 0.05)) + start
        return F.pixel_shuffle(self.tail(x), SCALE)


def enlarging(name: str) -> Network:
    """A network of that config's shape, for x4."""
    shape = configuration.load(CONFIGS / f"{name}.toml").model
    assert isinstance(shape, SuperResolutionConfig)
    return random_super_resolution(shape).with_scale(SCALE)


def works_for(dtype: torch.dtype, size: int) -> dict[str, Callable[[], object]]:
    """Calls that make a picture of size x size pixels out of one a quarter as wide and high."""
    small = torch.rand(1, 3, size // SCALE, size // SCALE)
    large, array = torch.rand(1, 1, size, size), small[0].permute(1, 2, 0).numpy().copy()
    imdn = IMDNSized().to(dtype)
    paper = random_network(NLRNConfig()).for_inference(dtype)
    works: dict[str, Callable[[], object]] = {
        "bicubic (imresize)": lambda: np.asarray(imresize(array, SCALE)),
        "IMDN-sized": lambda: imdn(small.to(dtype)),
        SLOW: lambda: paper(large),
    }
    for name in ("sr-rgb-fast", "sr-rgb"):
        prepared = enlarging(name).for_inference(dtype)
        works[name] = lambda prepared=prepared: prepared(small)  # type: ignore[misc]
    return works


@torch.inference_mode()
def measure(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Shortest seconds of each in each precision; sr-y takes half a minute and is not repeated."""
    found = {}
    for kind, dtype in DTYPES.items():
        works = works_for(dtype, size)
        slow = {SLOW: works.pop(SLOW)}
        found[kind] = shortest(works, rounds) | shortest(slow, 1)
    return found


def enlarge_photo() -> tuple[float, int]:
    """Seconds and peak bytes above the idle process of one photo."""
    network = enlarging("sr-rgb")
    engine = Engine(network, Settings(dtype="bf16", device="cpu", memory=3 * 2**30))
    image = torch.rand(1, 3, *PHOTO)
    engine(image[..., :64, :64])
    before, start = memory_bytes("VmRSS"), time.perf_counter()
    engine(image)
    return time.perf_counter() - start, memory_bytes("VmHWM") - before


def main(size: int, rounds: int, photo: bool) -> dict[str, dict[str, float]]:
    """Measures everything and prints it."""
    found = measure(size, rounds)
    rate = max(gemm_rate(torch.float32) for _ in range(3))
    print(f"x4 to {size} x {size}, {torch.get_num_threads()} threads, "
          f"float32 matrix product {rate / 1e9:.0f} GFLOP/s")  # fmt: skip
    for kind, seconds in found.items():
        for name, each in seconds.items():
            ratios = f"{seconds[SLOW] / each:7.1f} x faster than sr-y"
            peer = f"{each / seconds['IMDN-sized']:6.2f} x IMDN"
            print(f"{kind:<9} {name:<19} {1e3 * each:8.1f} ms {ratios} {peer}")
    if photo:
        took, memory = enlarge_photo()
        print(f"1500 x 1000 at x4, sr-rgb bfloat16: {took:.0f} s, {memory / 2**30:.1f} GiB")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--photo", action="store_true")
    arguments = parser.parse_args()
    main(arguments.size, arguments.rounds, arguments.photo)
