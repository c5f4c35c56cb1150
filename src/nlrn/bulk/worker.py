"""What runs in a worker process: one restoration, and the function for a file that all share."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
from dataclasses import asdict, dataclass, replace
from typing import Any

from nlrn import __version__
from nlrn.batch import FileOptions, Job, Observer, restore_file
from nlrn.remote import as_path


@dataclass(frozen=True)
class Place:
    """What a worker has to itself.

    Attributes:
        folder: the present folder of the caller, which relative names begin at.
        threads: to compute with.
        gpus: how many, or which part of one.
        share: of a machine's, or a GPU's, free memory.
        version: of the caller's nlrn; results of another one may differ.
    """

    folder: str
    threads: int
    gpus: float
    share: float
    version: str


class Worker:
    """Restores files one after the other; Ray calls it with rows of jobs.

    Args:
        pickled: the restoration; in bytes, so that torch is not loaded before the environment is
            as it should be.
        options: how files are read and written.
        place: what this worker has to itself.
    """

    def __init__(self, pickled: bytes, options: FileOptions, place: Place) -> None:
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        if place.version != __version__:
            raise ValueError(f"nlrn {__version__} on {self._name}, {place.version} at the caller")
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as the command line does, and why there
        if not place.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = (
                ""  # Ray leaves all GPUs to those who asked for none
            )
        with contextlib.suppress(FileNotFoundError):  # absolute names need it not
            os.chdir(place.folder)
        import torch

        torch.set_num_threads(place.threads)
        self._restoration = pickle.loads(pickled)
        self._options = options
        _limit_memory(self._restoration, place.share)

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """Columns number, source and target -> a column of outcomes as JSON."""
        columns = zip(rows["number"], rows["source"], rows["target"], strict=True)
        return {"outcome": [self._restore(int(n), str(s), str(t)) for n, s, t in columns]}

    def _restore(self, number: int, source: str, target: str) -> str:
        job = Job(as_path(source), as_path(target))
        outcome = restore_file(job, self._restoration, self._options, Observer())
        if outcome.status == "done":
            outcome.facts["worker"] = self._name
        return json.dumps({"number": number} | asdict(outcome))


def _limit_memory(restoration: Any, share: float) -> None:
    """Keeps workers on one machine from each planning with half of its memory."""
    from nlrn.hardware import choose_device, free_memory
    from nlrn.inference import Settings

    settings = getattr(restoration, "settings", None)
    if isinstance(settings, Settings) and settings.memory is None:
        free = free_memory(choose_device(settings.device))
        restoration.settings = replace(settings, memory=max(1, int(free * share / 2)))
