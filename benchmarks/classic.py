"""The classic methods: time beside the bm3d package, and peak memory, in one run.

    python benchmarks/classic.py                                  # on a CPU: beside the package
    python benchmarks/classic.py --device cuda --beside cpu.json  # on a GPU without the package

The noise is Gaussian of sigma 25 on a gray picture made up of shading, edges and texture. Memory is
measured in a process of its own, above what the process had before. On a GPU the package, which
runs on a CPU alone, is what `--beside` says: the file that the first command wrote elsewhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlrn.degrade import add_noise
from nlrn.restoration.denoiser import CLASSIC

SIGMA = 25
SIZES = (256, 512)
SLOWEST = 3.0  # our BM3D on a CPU, times the package
FASTEST = 10.0  # the package, times our BM3D on a GPU
MOST_MEMORY = 2 * 2**30  # at 512 x 512


def picture(size: int) -> np.ndarray:
    """A gray picture with noise, float [size, size]: smooth shading, edges and texture."""
    y, x = np.mgrid[:size, :size] / 128
    shading = 0.5 + 0.2 * np.sin(2 * x + y) + 0.15 * np.sign(np.sin(3 * x) * np.cos(4 * y))
    texture = 0.1 * np.sin(40 * x + 25 * y) * (np.sin(x) > 0)
    return add_noise(np.clip(shading + texture, 0, 1), SIGMA, 0, "classic")


def package(image: np.ndarray) -> np.ndarray:
    """BM3D by the program of its authors."""
    import bm3d

    return np.asarray(bm3d.bm3d(image, SIGMA / 255))


def peak_memory(method: str, size: int, device: str) -> int:
    """Bytes that one call takes above the idle process, measured in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", method, "--size", str(size)]
    command += ["--device", device]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_memory(method: str, size: int, device: str) -> None:
    """Child process of `peak_memory`."""
    CLASSIC[method](picture(24), SIGMA, device=device)  # everything loaded
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    before = _memory("VmRSS") if device == "cpu" else torch.cuda.memory_allocated()
    CLASSIC[method](picture(size), SIGMA, device=device)
    most = _memory("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated()
    print(most - before)


def _memory(kind: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) * 1024


def measure_times(device: str, methods: list[str], sizes: list[int], rounds: int) -> dict[str, Any]:
    """Seconds by method and size, the package's among them where it is installed."""
    works: dict[str, Callable[[np.ndarray], object]] = {
        name: lambda image, name=name: CLASSIC[name](image, SIGMA, device=device)  # type: ignore[misc]
        for name in methods
    }
    if device == "cpu" and importlib.util.find_spec("bm3d"):
        works["bm3d package"] = package
    found: dict[str, Any] = {name: {} for name in works}
    for size in sizes:
        image = picture(size)
        for name in works:  # to load and to compile
            works[name](picture(24) if device == "cpu" else image)
        for _ in range(rounds):  # taking turns, so that all meet the same state of the machine
            for name, work in works.items():
                slow = name not in ("nlm", "bm3d", "bm3d package")
                if slow and device == "cpu" and size in found[name]:
                    continue  # minutes: once is enough
                start = time.perf_counter()
                work(image)
                took = time.perf_counter() - start
                # The shortest: other work on the machine can only slow it down.
                found[name][size] = min(took, found[name].get(size, float("inf")))
    return found


def measure_memory(device: str, methods: list[str], sizes: list[int]) -> dict[str, Any]:
    """Peak bytes by method and size."""
    return {m: {size: peak_memory(m, size, device) for size in sizes} for m in methods}


def ratios(times: dict[str, Any], beside: dict[str, Any] | None, device: str) -> dict[str, float]:
    """Our BM3D's time over the package's by size; the package's from `beside` if given."""
    other = times.get("bm3d package")
    if other is None and beside is not None:
        other = {int(size): took for size, took in beside["seconds"]["bm3d package"].items()}
    if other is None or "bm3d" not in times:
        return {}
    return {str(s): times["bm3d"][s] / other[s] for s in times["bm3d"] if s in other}


def verdict(passed: bool) -> str:
    return "ok" if passed else "MISSED"


def show(report: dict[str, Any], beside: dict[str, Any] | None) -> None:
    """Prints the report as tables, with the bars beside the figures."""
    print(f"{report['machine']}, torch {report['torch']}, gray, sigma {SIGMA}")
    sizes = [str(size) for size in report["sizes"]]
    print(f"{'seconds':<14}" + "".join(f"{size + ' x ' + size:>14}" for size in sizes))
    for name, row in report["seconds"].items():
        print(f"{name:<14}" + "".join(f"{row[int(size)]:>14.3f}" for size in sizes))
    where = "in this run" if "bm3d package" in report["seconds"] else ""
    if not where and beside is not None:
        where = f"measured elsewhere: {beside['machine']}"
    for size, ratio in report["ratio"].items():
        if report["device"] == "cpu":
            bar = f"at most {SLOWEST:g}: {verdict(ratio <= SLOWEST)}"
            print(f"our BM3D takes {ratio:.2f} times the package's time at {size} ({where}; {bar})")
        else:
            bar = f"at least {FASTEST:g}: {verdict(1 / ratio >= FASTEST)}"
            print(f"our BM3D is {1 / ratio:.0f} times as fast as the package at {size} "
                  f"({where}; {bar})")  # fmt: skip
    if not report["ratio"]:
        print("the bm3d package is not installed here: no ratio")
    for name, row in report["memory"].items():
        small, large = (row[size] for size in (report["sizes"][0], report["sizes"][-1]))
        growth = large / small / (report["sizes"][-1] / report["sizes"][0]) ** 2
        print(f"peak memory {name:<6} {small / 2**20:>7.0f} MiB -> {large / 2**20:>7.0f} MiB "
              f"(under 2 GiB: {verdict(large < MOST_MEMORY)}; "
              f"{growth:.2f} times linear growth)")  # fmt: skip


def main(
    device: str = "cpu",
    methods: list[str] | None = None,
    sizes: list[int] | None = None,
    rounds: int = 3,
    beside: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measures everything and prints it."""
    chosen, sides = methods or list(CLASSIC), sizes or list(SIZES)
    times = measure_times(device, chosen, sides, rounds)
    cores = f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}"
    report = {
        "device": device,
        "machine": cores if device == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "sizes": sides,
        "seconds": times,
        "ratio": ratios(times, beside, device),
        "memory": measure_memory(device, chosen, sides),
    }
    show(report, beside)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", help=f"some of {','.join(CLASSIC)}")
    parser.add_argument("--sizes", default="256,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="JSON of a run with the bm3d package")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print_memory(options.memory_of, options.size, options.device)
        sys.exit()
    found = main(
        options.device,
        options.methods.split(",") if options.methods else None,
        [int(size) for size in options.sizes.split(",")],
        options.rounds,
        json.loads(options.beside.read_text()) if options.beside else None,
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
