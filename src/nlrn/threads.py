"""Threads beside other programs: how they wait for each other, and how many there are.

A parallel step ends with its last thread. A thread that shares its core with another program takes
twice as long or more, and the others wait for it: one thread fewer is then quicker.

Loads no torch by itself: what it sets has to be there before.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STATISTICS = Path("/proc/stat")
LOOK_EVERY = 0.2  # seconds; the system counts in hundredths
TAKEN = 0.4  # of a core: who shares one with a thread of ours has half of it
# Rounds in which a waiting thread of GNU OpenMP looks for work before it sleeps. By its own choice
# of 300,000 everything becomes several times slower as soon as another program wants the cores too;
# this much costs nothing when alone.
SPINS = "20000"
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def wait_politely() -> None:
    """Lets waiting threads sleep soon, if torch is not loaded yet and the user has not chosen."""
    if "torch" not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPINS


class Cores:
    """The cores of this process, and how many of them other programs keep busy."""

    def __init__(self) -> None:
        self.taken = 0
        try:
            self._names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            self._last = time.monotonic(), self._seconds_of_others()
        except (AttributeError, OSError):  # not Linux
            self._names = set()

    def threads(self, limit: int) -> int:
        """How many of at most `limit` threads to compute with; half of the cores in any case."""
        count = len(self._names)
        if limit == 1 or limit > count or "OMP_NUM_THREADS" in os.environ:
            return limit  # somebody has decided
        with contextlib.suppress(OSError):
            self._look()
        return min(limit, max(count - self.taken, (count + 1) // 2))

    def _look(self) -> None:
        """Counts the cores that others took since the last look, if that is long enough ago."""
        now, (before, used) = time.monotonic(), self._last
        if now - before < LOOK_EVERY:
            return
        self._last = now, self._seconds_of_others()
        self.taken = int((self._last[1] - used) / (now - before) + 1 - TAKEN)

    def _seconds_of_others(self) -> float:
        """Processor time that others have had of these cores so far."""
        lines = (line.split() for line in STATISTICS.read_text(encoding="ascii").splitlines())
        ticks = 0
        for name, *times in lines:
            if name in self._names:  # user, nice, system, idle, waiting, interrupts (2), stolen
                ticks += sum(map(int, times[:3])) + sum(map(int, times[5:8]))
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


CORES = Cores()


@contextlib.contextmanager
def beside_others() -> Iterator[Callable[[], None]]:
    """Leaves other programs their cores inside the block.

    What it gives is to be called now and then, to look again.
    """
    import torch

    limit = torch.get_num_threads()

    def look() -> None:
        wanted = CORES.threads(limit)
        if wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)

    look()
    try:
        yield look
    finally:
        if torch.get_num_threads() != limit:
            torch.set_num_threads(limit)
