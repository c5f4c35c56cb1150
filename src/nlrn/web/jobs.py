"""One thread that works on one thing at a time, and the short queue in front of it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from nlrn.errors import one_line
from nlrn.hardware import is_out_of_memory
from nlrn.web.uploads import DECODING

log = logging.getLogger("nlrn.web")
FINISHED = ("done", "failed", "cancelled")
MAX_FINISHED = 60  # finished jobs that can still be asked for


class CancelledError(Exception):
    """The job is not wanted any more."""


class BusyError(Exception):
    """The queue is full."""


class Job:
    """A piece of work; all but the worker only read it and set `cancelled`.

    Args:
        kind: what is done, for the page.
        run: does it, and returns facts for the page; it calls `report` as often as it can.
    """

    def __init__(self, kind: str, run: Callable[[Job], dict[str, Any]]) -> None:
        self.id = secrets.token_urlsafe(12)
        self.kind, self.run = kind, run
        self.state, self.error = "waiting", ""
        self.done, self.total = 0, 0
        self.began = self.ended = 0.0
        self.facts: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.cancelled = threading.Event()
        self.finished: Future[None] = Future()

    def report(self, done: int, total: int) -> None:
        """Progress in equal units of work; raises if the job is not wanted any more."""
        self.done, self.total = done, total
        if self.cancelled.is_set():
            raise CancelledError

    def seconds_left(self) -> float | None:
        """Estimate from the work done so far; None before there is any."""
        if self.state != "running" or not self.done:
            return None
        return (time.monotonic() - self.began) * (self.total - self.done) / self.done

    def seconds(self) -> float:
        """How long it has been worked on."""
        if not self.began:
            return 0.0
        return (self.ended or time.monotonic()) - self.began


class Worker:
    """Runs jobs in a thread of its own, one after the other.

    Args:
        max_waiting: further jobs are refused.
        on_forget: called with the id of a job that can no longer be asked for.
    """

    def __init__(self, max_waiting: int, on_forget: Callable[[str], None]) -> None:
        self._max_waiting, self._on_forget = max_waiting, on_forget
        self._waiting: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition()
        self.stopping = False
        self._thread = threading.Thread(target=self._work, name="nlrn-worker", daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, first: bool = False) -> Job:
        """Puts the job at the end of the queue, or at its front."""
        with self._changed:
            if self.stopping or len(self._waiting) >= self._max_waiting:
                raise BusyError
            (self._waiting.appendleft if first else self._waiting.append)(job)
            self._jobs[job.id] = job
            self._changed.notify()
        self._forget_old()
        return job

    def find(self, identifier: str) -> Job | None:
        """The job of this id, if it is still known."""
        return self._jobs.get(identifier)

    def waiting(self) -> int:
        """Jobs in the queue, the one that is worked on not counted."""
        return len(self._waiting)

    def cancel(self, job: Job) -> None:
        """Takes the job out of the queue, or stops it at its next sign of progress."""
        with self._changed:
            job.cancelled.set()
            if job in self._waiting:
                self._waiting.remove(job)
                self._finish(job, "cancelled")

    def begin_to_stop(self) -> None:
        """Cancels everything; whoever waits for a job has to look at `stopping` too."""
        with self._changed:
            self.stopping = True
            for job in list(self._jobs.values()):
                self.cancel(job)
            self._changed.notify()

    def stop(self) -> None:
        """Cancels everything and waits for the thread."""
        self.begin_to_stop()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.stopping)
                if self.stopping:
                    return
                job = self._waiting.popleft()
                job.began, job.state = time.monotonic(), "running"
            self._run(job)

    def _run(self, job: Job) -> None:
        state = "failed"
        try:
            job.report(0, 0)
            job.facts = _with_warnings(job)
            state = "done"
        except CancelledError:
            state = "cancelled"
        except (ValueError, OSError) as error:
            job.error = one_line(error, 1000)
        except Exception as error:
            job.error = "not enough memory"
            if not is_out_of_memory(error):  # a mistake of ours: the log learns what
                log.exception("job failed")
                job.error = "internal error; the terminal of nlrn web shows more"
        self._finish(job, state)

    def _finish(self, job: Job, state: str) -> None:
        job.ended, job.state = time.monotonic(), state
        job.run = _nothing  # and with it the upload
        job.finished.set_result(None)

    def _forget_old(self) -> None:
        with self._changed:
            finished = [job.id for job in self._jobs.values() if job.state in FINISHED]
            old = finished[:-MAX_FINISHED]
            for identifier in old:
                del self._jobs[identifier]
        for identifier in old:
            self._on_forget(identifier)


def _with_warnings(job: Job) -> dict[str, Any]:
    """Runs the job and keeps what the library warns about for the page."""
    recorder = warnings.catch_warnings(record=True)
    # Python's filters are global: a decoder that enters before us and leaves after us would put
    # back what it found. So nobody decodes while we enter or leave.
    with DECODING:
        caught = recorder.__enter__()
        warnings.simplefilter("always", UserWarning)
    try:
        return job.run(job)
    finally:
        with DECODING:
            recorder.__exit__(None, None, None)
        job.warnings = [str(w.message) for w in caught or [] if w.category is UserWarning]


def _nothing(job: Job) -> dict[str, Any]:
    return {}
