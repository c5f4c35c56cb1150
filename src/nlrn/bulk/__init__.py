"""Many files on many machines: Ray Data hands them to a pool of workers, and has the queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlrn import __version__
from nlrn.batch import PIPE, FileOptions, InputError, Job, Observer, Outcome, Report
from nlrn.bulk.pool import Pool, plan, session
from nlrn.bulk.report import write_report
from nlrn.bulk.worker import Place, Worker

if TYPE_CHECKING:  # with torch, which finding files needs not
    from nlrn.restoration import Restoration

__all__ = ["Cluster", "check_installed", "run", "write_report"]

ROUNDS = 2  # what a lost worker or a passing fault left over is tried again, file by file
RETRIES = 2  # of the files that a worker was at when it was lost, in each round
LARGEST_BLOCK = 32  # files that travel together
BLOCKS_EACH = 16  # for each worker, so that none waits long for the last one
LISTING_THREADS = 16  # that ask which results exist: over a network an answer takes a while
LOST = "its worker was lost after it was written: what was done to it is not known"


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs, and how many workers it gets.

    Attributes:
        address: of a cluster, "auto" on one of its machines; None starts Ray here, for this run.
        workers: processes that each hold one restoration; None for one on each GPU, or on each
            core where there is none.
        gpus_per_worker: 0.5 for two workers on a GPU, 0 for none; None for 1 where there are GPUs.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be 1 or more, got {self.workers}")
        if self.gpus_per_worker is not None and not self.gpus_per_worker >= 0:
            raise InputError(f"gpus_per_worker must be 0 or more, got {self.gpus_per_worker:g}")


def check_installed() -> None:
    """Raises an InputError that names what is missing."""
    missing = [name for name in ("ray", "pyarrow") if find_spec(name) is None]
    if missing:
        how = "in a checkout of nlrn: pip install '.[bulk]'"
        raise InputError(f"the engine ray needs {' and '.join(missing)}; {how}")


def run(
    jobs: list[Job],
    restoration: Restoration,
    options: FileOptions | None = None,
    observer: Observer | None = None,
    cluster: Cluster | None = None,
) -> Report:
    """Restores files with a pool of workers, as `nlrn.batch.run` does one after the other.

    Results are the same byte for byte as those of `batch.run` with as many threads as a worker has.

    Args:
        jobs: what to do; every worker must reach the files under these names.
        restoration: what restores an image; each worker gets a copy.
        options: how files are read and written.
        observer: told of each file that is done, in the order in which they are.
        cluster: where Ray runs; None starts it here, with a worker on each core or GPU.
    """
    options, observer = options or FileOptions(), observer or Observer()
    cluster = cluster or Cluster()
    if any(PIPE in (job.source, job.target) for job in jobs):
        raise InputError("the engine ray takes files, not the standard input or output")
    check_installed()
    ledger = _Ledger(jobs, options, observer)
    if ledger.left:
        with session(cluster.address):
            pool = plan(cluster.workers, cluster.gpus_per_worker, len(ledger.left))
            for last in (False,) * (ROUNDS - 1) + (True,):
                ledger.keep(_stream(ledger.left, restoration, options, pool, last), last)
    return ledger.close()


class _Ledger:
    """Which jobs are left, and what became of the others."""

    def __init__(self, jobs: list[Job], options: FileOptions, observer: Observer) -> None:
        self._jobs, self._observer = jobs, observer
        self._existed = set() if options.overwrite else _existing(jobs)
        refused = set() if options.skip_existing else self._existed
        self.left = {number: job for number, job in enumerate(jobs) if number not in refused}
        for number in sorted(refused):
            told = f"{jobs[number].target}: exists already; overwrite=True replaces it"
            self._add(number, Outcome("failed", {"input": "", "error": told}))

    def keep(self, outcomes: Iterator[tuple[int, Outcome]], last: bool) -> None:
        """Takes in what comes back; what may pass stays left unless this is the last round."""
        for number, outcome in outcomes:
            if number in self.left and (last or not outcome.is_passing):
                del self.left[number]
                self._add(number, outcome)

    def close(self) -> Report:
        """The report in the order of the jobs, with those whose workers were lost each time."""
        tries = ROUNDS * (RETRIES + 1)
        for number, job in self.left.items():
            told = f"{job.source}: its worker was lost (killed, or no memory) {tries} times"
            self._add(number, Outcome("failed", {"input": "", "error": told}))
        report = self._observer.report
        order = {str(job.source): number for number, job in enumerate(self._jobs)}
        report.done.sort(key=lambda facts: order[facts["input"]])
        report.failed.sort(key=lambda facts: order[facts["input"]])
        report.skipped.sort(key=lambda name: order[name])
        return report

    def _add(self, number: int, outcome: Outcome) -> None:
        job = self._jobs[number]
        facts = outcome.facts | {"input": str(job.source)}
        if outcome.status == "skipped" and number not in self._existed:
            known = {"output": str(job.target), "warnings": [LOST], "seconds": 0.0}
            outcome = Outcome("done", facts | known)
        else:
            outcome = replace(outcome, facts=facts)
        self._observer.report.add(outcome)
        if outcome.status == "done":
            self._observer.on_done(outcome.facts)
        self._observer.on_count(self._observer.report.count, len(self._jobs))


def _existing(jobs: list[Job]) -> set[int]:
    """Numbers of the jobs whose results were there before."""
    with ThreadPoolExecutor(LISTING_THREADS) as threads:
        found = threads.map(lambda job: job.target.exists(), jobs)
        return {number for number, there in enumerate(found) if there}


def _stream(
    left: dict[int, Job], restoration: Restoration, options: FileOptions, pool: Pool, alone: bool
) -> Iterator[tuple[int, Outcome]]:
    """What becomes of the jobs, as soon as it is known; each in a block `alone`, or several."""
    if not left:
        return
    rows = [
        {"number": number, "source": str(job.source), "target": str(job.target)}
        for number, job in left.items()
    ]
    side = 1 if alone else min(LARGEST_BLOCK, -(-len(rows) // (pool.workers * BLOCKS_EACH)))
    place = Place(str(Path.cwd()), pool.threads, pool.gpus, pool.share, __version__)
    # A file that a lost worker has written is whole and not done again, as after a restart.
    again = replace(options, skip_existing=not options.overwrite)
    for text in pool.map(rows, side, Worker, (restoration, again, place), RETRIES):
        row: dict[str, Any] = json.loads(text)
        yield row.pop("number"), Outcome(**row)
