"""How much longer a restoration takes while another program keeps one of two cores busy.

Prints the seconds of one colour image alone and beside a busy loop, and their ratio: with the
threads as torch has them by itself, and as nlrn sets them. Both kinds of rounds take turns. Only
rounds count in which third programs had little of the two cores; the shortest is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

MOST = 2.2  # times as long as alone: what is aimed at
DISTURBED = 0.15  # of a core: what third programs may have in a round that counts
BUSY_LOOP = "import os\nos.sched_setaffinity(0, {%d})\nwhile True:\n    pass"
STATISTICS = Path("/proc/stat")


def seconds_used(cores: list[int]) -> float:
    """Processor time that all programs together have had of these cores."""
    ticks = 0
    for name, *times in map(str.split, STATISTICS.read_text(encoding="ascii").splitlines()):
        if name in {f"cpu{core}" for core in cores}:
            ticks += sum(map(int, times[:3])) + sum(map(int, times[5:8]))
    return ticks / os.sysconf("SC_CLK_TCK")


def seconds_of(process: int) -> float:
    """Processor time of another process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(size: int, duration: float, as_torch_has_it: bool) -> dict[str, object]:
    """Seconds and share of third programs of each round, alone and beside a busy loop."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    if as_torch_has_it:
        import torch  # noqa: F401  # before nlrn, which then leaves the waiting alone
    import numpy as np

    from nlrn import Denoiser
    from nlrn.images import Image

    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), np.uint8)
    denoiser, image = Denoiser(sigma=25), Image(pixels)
    denoiser.restore(image)
    rounds: dict[str, list[tuple[float, float]]] = {"alone": [], "beside": []}
    end = time.monotonic() + duration
    while time.monotonic() < end:
        for kind, found in rounds.items():
            loop = _start_loop(cores[0]) if kind == "beside" else None
            try:
                for _ in range(4):
                    found.append(_one_round(denoiser, image, cores, loop))
            finally:
                if loop is not None:
                    loop.kill()
                    loop.wait()
    return {"rounds": rounds}


def _start_loop(core: int) -> subprocess.Popen[bytes]:
    loop = subprocess.Popen([sys.executable, "-c", BUSY_LOOP % core])
    while seconds_of(loop.pid) < 0.3:
        time.sleep(0.01)
    return loop


def _one_round(denoiser, image, cores, loop) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    def third() -> float:
        known = time.process_time() + (seconds_of(loop.pid) if loop else 0)
        return seconds_used(cores) - known

    before, start = third(), time.perf_counter()
    denoiser.restore(image)
    took = time.perf_counter() - start
    return took, (third() - before) / took


def shortest(rounds: list[tuple[float, float]]) -> tuple[float, int]:
    """Seconds of the shortest undisturbed round, or of all; and how many were undisturbed."""
    calm = [seconds for seconds, share in rounds if share < DISTURBED]
    return min(calm or [seconds for seconds, _ in rounds]), len(calm)


def main(size: int, duration: float) -> dict[str, float]:
    """Measures both in processes of their own and prints it."""
    ratios = {}
    for name in ("torch", "nlrn"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
        if name == "torch":
            environment["OMP_NUM_THREADS"] = "2"  # as it would have them; nlrn keeps to it
        command = [sys.executable, __file__, "--measure", name, "--size", str(size)]
        said = subprocess.run(
            [*command, "--seconds", str(duration)], env=environment, check=True,
            stdout=subprocess.PIPE,
        ).stdout  # fmt: skip
        rounds = json.loads(said)["rounds"]
        (alone, calm), (beside, calm_beside) = map(shortest, (rounds["alone"], rounds["beside"]))
        ratios[name] = beside / alone
        print(f"threads of {name:<5}  alone {alone:.3f} s  beside a busy core {beside:.3f} s  "
              f"{ratios[name]:.2f} times")  # fmt: skip
        if not (calm and calm_beside):
            print("  no round was undisturbed: other programs had these cores too")
    print(f"at most {MOST} times: {'yes' if ratios['nlrn'] <= MOST else 'no'}")
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--measure", choices=["torch", "nlrn"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        found = measure(arguments.size, arguments.seconds, arguments.measure == "torch")
        print(json.dumps(found))
    else:
        main(arguments.size, arguments.seconds)
