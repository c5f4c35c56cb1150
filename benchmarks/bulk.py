"""What Ray costs: pictures per second of the engine ray beside the local engine, in one run.

Both restore the same folder of gray PNGs with a network of denoise-gray-fast's shape (random
weights: they do not change the time). They take turns. The local engine
computes with all threads; each worker with its share of them. Ray's time is told twice: from the
first results on, which is what a long job sees, and with the start of Ray and of its workers.

Processor time is told too, which other programs on the machine disturb less: of all processes of
Ray, and of the local engine with one thread, since several spend time on waiting for each other.
Where Ray keeps all cores busy, the second divided by the first is the least that its rate can be
of the local one's: that of a local engine whose threads never wait.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as the command line has it, before torch

import argparse
import contextlib
import functools
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpu_everyday import network

from nlrn import batch, bulk, images
from nlrn.bulk.pool import session
from nlrn.restoration import Denoiser

SIGMA = 25.0
GOAL = 0.85


@dataclass
class Clock(batch.Observer):
    """Notes when files are done."""

    report: batch.Report = field(default_factory=batch.Report)
    times: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)

    def on_done(self, facts: dict[str, Any]) -> None:
        """Notes the time, and the processor time so far."""
        self.times.append(time.perf_counter())
        self.used.append(processor_seconds())

    @property
    def first(self) -> int:
        """How many files came first, and together."""
        return sum(t < self.times[0] + 0.05 for t in self.times)

    @property
    def rate(self) -> float:
        """Files per second after the first ones."""
        return (len(self.times) - self.first) / (self.times[-1] - self.times[self.first - 1])

    @property
    def cost(self) -> float:
        """Seconds of processor time for each file after the first ones."""
        return (self.used[-1] - self.used[self.first - 1]) / (len(self.used) - self.first)


def processor_seconds() -> float:
    """Processor time of this process and of all that it has started, directly or not."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            values = file.read_text().rpartition(")")[2].split()
            number = int(file.parent.name)
            parents[number] = int(values[1])
            seconds[number] = (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")

    def is_ours(number: int) -> bool:
        while number > 1 and number != os.getpid():
            number = parents.get(number, 0)
        return number == os.getpid()

    return sum(used for number, used in seconds.items() if is_ours(number))


def make_pictures(folder: Path, count: int, size: int) -> None:
    """Noise: hard to compress, as noisy pictures are."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        pixels = rng.integers(0, 256, (size, size), np.uint8)
        images.write(folder / f"{i:05}.png", images.Image(pixels))


def timed(run: Any, folder: Path, out: Path, denoiser: Denoiser) -> tuple[Clock, float]:
    """When each file was done, and the seconds of the whole."""
    clock, start = Clock(), time.perf_counter()
    jobs = batch.collect([str(folder)], str(out), "", recursive=False)
    report = run(jobs, denoiser, batch.FileOptions(overwrite=True), clock)
    assert len(report.done) == len(jobs), report.failed
    return clock, time.perf_counter() - start


def measure(root: Path, count: int, workers: int, rounds: int) -> dict[str, Any]:
    """Rates of both engines, one for each round, and how long Ray takes to start."""
    network("denoise-gray-fast").save_pretrained(root / "fast.safetensors")
    denoiser = Denoiser(str(root / "fast.safetensors"), sigma=SIGMA)
    cluster = bulk.Cluster(workers=workers)
    names = ("local", "ray", "ray_whole", "local_cpu", "ray_cpu", "workers_start")
    found: dict[str, Any] = {name: [] for name in names}
    start = time.perf_counter()
    with session(None):
        found["ray_start"] = time.perf_counter() - start
        for _ in range(rounds):
            clock, _ = timed(batch.run, root / "in", root / "local", denoiser)
            found["local"].append(clock.rate)
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            clock, _ = timed(batch.run, root / "in", root / "local", denoiser)
            found["local_cpu"].append(clock.cost)
            torch.set_num_threads(threads)
            by_ray, begin = functools.partial(bulk.run, cluster=cluster), time.perf_counter()
            clock, seconds = timed(by_ray, root / "in", root / "ray", denoiser)
            found["ray"].append(clock.rate)
            found["ray_cpu"].append(clock.cost)
            found["ray_whole"].append(count / seconds)
            found["workers_start"].append(clock.times[0] - begin)
    files = (root / "local").iterdir()
    same = (file.read_bytes() == (root / "ray" / file.name).read_bytes() for file in files)
    found["same"] = sum(same)
    return found


def main(count: int, size: int, workers: int, rounds: int) -> dict[str, Any]:
    """Measures and prints."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder) / "in", count, size)
        found = measure(Path(folder), count, workers, rounds)
    local, by_ray = max(found["local"]), max(found["ray"])
    threads = torch.get_num_threads()
    print(f"{count} pictures of {size} x {size}, {workers} workers, {os.cpu_count()} cores, "
          f"{threads} threads of the local engine, load before {load:.1f}")  # fmt: skip
    for name in ("local", "ray", "ray_whole"):
        print(f"{name:<10} pictures/s, each round: " + " ".join(f"{r:6.2f}" for r in found[name]))
    for name in ("local_cpu", "ray_cpu"):
        print(f"{name:<10} s a picture, each round: " + " ".join(f"{r:.3f}" for r in found[name]))
    ratios = [b / a for a, b in zip(found["local"], found["ray"], strict=True)]
    print(f"ray / local, best of each {by_ray / local:.2f}, goal {GOAL}; each round: "
          + " ".join(f"{ratio:.2f}" for ratio in ratios))  # fmt: skip
    cost = min(found["local_cpu"]) / min(found["ray_cpu"])
    print(f"local with one thread / ray by processor time, least of each {cost:.2f}")
    print(f"start of Ray {found['ray_start']:.1f} s, first results after "
          f"{min(found['workers_start']):.1f} s more; {found['same']} of {count} results "
          "are the same bytes")  # fmt: skip
    print(f"per core hour: {3600 * by_ray / workers:.0f} pictures")
    return found | {"size": size, "count": count, "workers": workers, "load": load}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=argparse.FileType("w"))
    arguments = parser.parse_args()
    measured = main(arguments.count, arguments.size, arguments.workers, arguments.rounds)
    if arguments.json:
        json.dump(measured, arguments.json, indent=2)
