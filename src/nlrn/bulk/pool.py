"""Ray, quietly: a session, the size of the pool, and rows through it. Nothing else imports ray."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nlrn.errors import one_line

STORE = 128 * 2**20  # bytes of Ray's shared memory: names and reports pass through it, no images

CONNECT_SECONDS = 10.0


class ClusterError(OSError):
    """Ray cannot be started or reached, or its workers cannot begin."""


@dataclass(frozen=True)
class Pool:
    """The workers of a run.

    Attributes:
        workers: how many.
        cores: of each; below 1 where there are more workers than cores.
        gpus: of each.
        share: of a machine's, or a GPU's, memory that each may plan with.
    """

    workers: int
    cores: float
    gpus: float
    share: float

    @property
    def threads(self) -> int:
        """Threads that a worker computes with."""
        return max(1, int(self.cores))

    def map(
        self,
        rows: list[dict[str, Any]],
        side: int,
        worker: type,
        given: tuple[Any, ...],
        retries: int,
    ) -> Iterator[str]:
        """Rows -> what the workers return for them, in the order in which it comes.

        Rows that a worker is lost with are given to another, up to `retries` times, and are
        missing after that.

        Args:
            rows: jobs.
            side: rows that travel together.
            worker: the class that Ray makes the workers of.
            given: to its constructor; the first is pickled.
            retries: for rows that a worker was lost with.
        """
        import ray

        data, (first, *rest) = _data(), given
        with _errors_in_one_line(), warnings.catch_warnings():
            # Ray has no other way to say max_task_retries, and without it a picture that kills
            # its worker would do so for ever.
            warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated", DeprecationWarning)
            results = data.from_items(rows, override_num_blocks=-(-len(rows) // side)).map_batches(
                worker,
                fn_constructor_args=(ray.cloudpickle.dumps(first), *rest),
                batch_size=None if not self.gpus else side,  # Ray wants a number where GPUs are
                compute=data.ActorPoolStrategy(
                    size=min(self.workers, -(-len(rows) // side)),
                    # One at work, one that waits; what waits at a worker is lost with it too.
                    max_tasks_in_flight_per_actor=1 if side == 1 else 2,
                ),
                num_cpus=self.cores,
                num_gpus=self.gpus or None,
                max_restarts=-1,
                max_task_retries=retries,
            )
        with _errors_in_one_line():
            for row in results.iter_rows():
                yield row["outcome"]


def plan(workers: int | None, gpus_each: float | None, files: int) -> Pool:
    """The pool for a cluster that Ray is connected to.

    Args:
        workers: how many; None for as many as there is room for.
        gpus_each: for each worker; None for 1 where there are GPUs.
        files: more workers than these are of no use.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpu = [m for m in machines if m.get("GPU", 0) > 0]
    each = (1.0 if with_gpu else 0.0) if gpus_each is None else gpus_each
    if each:
        room = sum(int(m["GPU"] / each) for m in with_gpu)
        machines = with_gpu or machines
    else:
        room = int(sum(m.get("CPU", 0) for m in machines))
    count = max(1, min(workers or room, files))
    if each and not room:
        raise ClusterError(f"no machine of the cluster has {each:g} GPUs")
    has = [m.get("CPU", 0) for m in machines]
    cores = cores_each(has, count) or 1.0  # none: machines that are yet to come
    return Pool(count, cores, each, min(1.0, each or cores / max(*has, 1)))


def cores_each(machines: list[float], workers: int) -> float:
    """The most cores for each worker with which all of them find room; below 1 if they share."""
    for cores in range(int(max(machines)), 0, -1):
        if sum(int(has // cores) for has in machines) >= workers:
            return float(cores)
    return int(100 * sum(machines) / workers) / 100


@contextlib.contextmanager
def session(address: str | None) -> Iterator[None]:
    """A connection to a cluster, or a Ray of our own; one that the caller has is left as it is."""
    # To be said before Ray is loaded: no questions, no C++ messages, and nothing that the
    # machines print among our lines.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(where)
    import ray

    if ray.is_initialized():
        yield
        return
    ours: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE}
    with _errors_in_one_line(), _silent_stderr():
        ray.init(
            address=where,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(ours if where == "local" else {}),
        )
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raises at once where Ray would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]]+)\]?:(\d+)", address)
    if found is None:  # a word
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray at {address} ({one_line(error)})") from error


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drops what C++ writes: that it was told to be silent it says aloud."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _data() -> Any:
    """Ray Data without bars and messages of its own; lost blocks are ours to tell of."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return ray.data


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"Ray: {_last_line(error)}") from error


def _last_line(error: BaseException) -> str:
    """The reason at the end of a traceback that came from a worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else one_line(error)
