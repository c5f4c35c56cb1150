"""How long a run has taken and may still take, and who asked for its end."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import Any

from nlrn.training.config_tables import Stage
from nlrn.training.schedule import Progress, fraction_done

LONG = 10.0  # seconds: a single process looks at the clock at least that often


class Interrupt:
    """Ctrl-C and SIGTERM ask for an end after the present step; a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        os.write(2, b"stopping after this step; once more stops at once, without saving\n")


class Clock:
    """Time of the process, of the run and of the stage; the main process's for all of them.

    The stage's clock stands still during validation, saving and the compilation at its start.
    """

    def __init__(
        self,
        begun: float,
        budget: float | None,
        progress: Progress,
        fabric: Any,
        interrupt: Interrupt,
    ) -> None:
        self._begun, self._budget, self._fabric = begun, budget, fabric
        self._interrupt, self.is_interrupted = interrupt, False
        self._before = progress.seconds  # of earlier processes
        self._now = self._mark = self._read()
        self._last: dict[str, float] = {}

    def _read(self) -> float:
        """Seconds since the process began, the same in all processes."""
        state = (time.monotonic() - self._begun, self._interrupt.asked)
        if self._fabric.world_size > 1:
            state = self._fabric.broadcast(state)
        now, self.is_interrupted = state
        return now

    def start_stage(self) -> None:
        self.restart()
        for what in ("validation", "checkpoint"):
            self._last.setdefault(what, self._mark)

    def restart(self) -> None:
        """Begins the interval that the next tick ends."""
        self._mark = self._read()

    def tick(self, progress: Progress) -> float:
        """Adds the time since the last restart to the stage and the run; returns it."""
        self._now = self._read()
        seconds = self._now - self._mark
        progress.stage_seconds += seconds
        progress.seconds = self._before + self._now
        return seconds

    @property
    def ends_now(self) -> bool:
        """Whether someone asked for an end; several processes hear of it at the next tick."""
        return self._interrupt.asked and self._fabric.world_size == 1

    @property
    def is_late(self) -> bool:
        """Whether the last tick was long ago, as where a step takes seconds.

        Never of several processes, which have to tick at the same step.
        """
        since = time.monotonic() - self._begun - self._mark
        return since > LONG and self._fabric.world_size == 1

    @property
    def is_over(self) -> bool:
        return self.is_interrupted or (self._budget is not None and self._now >= self._budget)

    def is_due(self, what: str, minutes: float) -> bool:
        """Whether it is time again; asking starts the next interval."""
        if self._now - self._last[what] < 60 * minutes:
            return False
        self._last[what] = self._now
        return True

    def left(self, progress: Progress, stage: Stage) -> float:
        """Seconds to the end of the stage or of the time, at the present pace."""
        done = fraction_done(stage, progress)
        stage_left = progress.stage_seconds * (1 - done) / done if done else math.inf
        budget_left = math.inf if self._budget is None else self._budget - self._now
        left = min(stage_left, budget_left)
        return max(0.0, left) if math.isfinite(left) else 0.0
