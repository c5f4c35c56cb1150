"""Work in pieces, on a CPU in several threads, each of which computes alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def each(work: Callable[[_In], _Out], items: Iterable[_In], device: torch.device) -> Iterator[_Out]:
    """The results for the items, in order.

    On a CPU, several threads inside a small problem mostly wait for each other, and LAPACK takes
    one matrix of a batch after the other: so one thread per core, each with its own items. At most
    two results per thread are kept waiting.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield from map(work, items)
        return
    waiting: deque[Future[_Out]] = deque()
    torch.set_num_threads(1)  # for what is done with the results: the cores are taken
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        torch.set_num_threads(threads)  # the setting of a worker is also that of new threads
