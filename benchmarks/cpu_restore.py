"""How fast a CPU restores a 256 x 256 image, as a share of the matrix products it can do.

Prints, from one run: the rate of a 2048-cubed float32 matrix product (the best of all rounds,
since other work on the machine can only slow it down); seconds, useful FLOP rate and its share
of that rate for the network in float32 and bfloat16; peak memory above the idle process; and
what people would use instead: a DnCNN-sized stack of convolutions, and non-local means.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import skimage.restoration
import torch
from torch import nn

from nlrn.hardware import keep_freed_memory
from nlrn.inference import Engine, Settings
from nlrn.models import Network
from nlrn.models.nlrn import CONFIGS, random_network

GEMM = 2048
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  # as `Settings` has them


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Shortest of several runs after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def gemm_rate(dtype: torch.dtype, repeats: int = 5) -> float:
    """FLOP/s of a square matrix product on random data."""
    a, b = torch.randn(2, GEMM, GEMM).to(dtype)
    return 2 * GEMM**3 / best_seconds(lambda: a @ b, repeats)


def dncnn_like() -> nn.Module:
    """17 layers of 64 channels, batch norm already folded: DnCNN's size."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(15):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(inplace=True)]
    layers.append(nn.Conv2d(64, 1, 3, padding=1))
    network = nn.Sequential(*layers)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def non_local_means(image: np.ndarray) -> np.ndarray:
    """scikit-image's fast mode with its usual settings for sigma 25."""
    sigma = 25 / 255
    return skimage.restoration.denoise_nl_means(
        image, patch_size=5, patch_distance=11, h=0.8 * sigma, sigma=sigma, fast_mode=True
    )


def memory_bytes(kind: str) -> int:
    """Memory of this process: VmRSS now, VmHWM at most (unlike getrusage, not the parent's)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) * 1024


def restore(model: Network, image: torch.Tensor, dtype: str) -> torch.Tensor:
    """The whole image through the network, which is prepared for it first."""
    return Engine(model, Settings(tile=0, dtype=DTYPES[dtype], device="cpu"))(image)


def measure_memory(size: int, dtype: str) -> int:
    """Peak memory of one restoration above the idle process, in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", dtype, "--size", str(size)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_memory(size: int, dtype: str) -> None:
    """Child process of `measure_memory`."""
    model = random_network(CONFIGS["nlrn"])
    restore(model, torch.rand(1, 1, 16, 16), dtype)  # all loaded
    before = memory_bytes("VmRSS")
    restore(model, torch.rand(1, 1, size, size), dtype)
    print(memory_bytes("VmHWM") - before)


@torch.inference_mode()
def main(size: int, rounds: int) -> dict[str, object]:
    """Measures everything once and prints it."""
    config = CONFIGS["nlrn"]
    image = torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    model, plain = random_network(config), dncnn_like()
    useful = model.flop_per_pixel * size * size
    channels_last = image.to(memory_format=torch.channels_last)
    picture = image[0, 0].numpy()
    rate, half_rate = 0.0, 0.0
    plain_half = copy.deepcopy(plain).bfloat16()
    others: dict[str, Callable[[], object]] = {
        "dncnn float32": lambda: plain(channels_last),
        "dncnn bfloat16": lambda: plain_half(channels_last.bfloat16()),
        "nlm": lambda: non_local_means(picture),
    }
    seconds = dict.fromkeys([*DTYPES, *others], float("inf"))
    for _ in range(rounds):  # taking turns, so that all meet the same state of the machine
        rate = max(rate, gemm_rate(torch.float32))
        half_rate = max(half_rate, gemm_rate(torch.bfloat16))
        for name in DTYPES:
            start = time.perf_counter()
            restore(model, image, name)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
        with keep_freed_memory():  # as the network has it
            for name, work in others.items():
                seconds[name] = min(seconds[name], best_seconds(work, 2))
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads,")
    print(f"torch {torch.__version__}, {size} x {size} gray, T={config.steps}, q={config.window}")
    print(f"GEMM {GEMM}^3: fp32 {rate / 1e9:.0f} GFLOP/s, bf16 {half_rate / 1e9:.0f} GFLOP/s")
    report: dict[str, object] = {"gemm_fp32": rate, "gemm_bf16": half_rate, "seconds": seconds}
    for name in DTYPES:
        share = useful / seconds[name] / rate
        memory = measure_memory(size, name)
        report |= {f"share_{name}": share, f"memory_{name}": memory}
        print(
            f"nlrn {name:<9} {seconds[name]:6.2f} s   {useful / seconds[name] / 1e9:5.0f} GFLOP/s  "
            f" share {share:.2f}   peak memory {memory / 2**30:.2f} GiB"
        )
    print(f"DnCNN-sized stack        float32 {seconds['dncnn float32']:.2f} s, "
          f"bfloat16 {seconds['dncnn bfloat16']:.2f} s")  # fmt: skip
    print(f"scikit-image NLM         {seconds['nlm']:.2f} s")
    for name in DTYPES:
        ratios = [seconds[name] / seconds[f"dncnn {name}"], seconds[name] / seconds["nlm"]]
        report[f"slower_{name}"] = dict(zip(("dncnn", "nlm"), ratios, strict=True))
        print(f"nlrn {name:<9} takes {ratios[0]:.0f} times as long as the stack in {name}, "
              f"{ratios[1]:.0f} times as long as NLM")  # fmt: skip
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=argparse.FileType("w"))
    parser.add_argument("--memory-of", choices=DTYPES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print_memory(arguments.size, arguments.memory_of)
    else:
        report = main(arguments.size, arguments.rounds)
        if arguments.json:
            json.dump(report, arguments.json, indent=2)
