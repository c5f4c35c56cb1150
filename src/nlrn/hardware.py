"""The machine: which device to compute on, how much memory is free, who keeps freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from nlrn.errors import one_line, warn

CPU = torch.device("cpu")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt, from glibc's malloc.h
_LARGEST_INT = 2**31 - 1
_process = os.getpid()  # whose threads torch has


def choose_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" is CUDA, then Apple's MPS, Intel's XPU, the CPU."""
    if device == "auto":
        backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
        there = (name for name, backend in backends.items() if backend.is_available())
        return torch.device(next(there, "cpu"))
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        known = "auto, cpu, cuda, cuda:1, mps, xpu or the like"
        raise ValueError(f"device must be {known}, got {device!r}") from error
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' cannot be used: it is of Apple's computers, none is here")
    if chosen.type == "meta":
        raise ValueError("device 'meta' cannot be used: it computes nothing")
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = one_line(error, 100)
        raise ValueError(f"device {str(device)!r} cannot be used: {reason}") from error
    return chosen


def mind_fork() -> None:
    """Leaves a forked process one thread, with a warning; to be called before work begins.

    The threads that its parent had are not in it, and work that is shared out among them would
    wait for ever.
    """
    global _process
    if os.getpid() == _process:
        return
    _process = os.getpid()
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        warn("this process was forked and computes with one thread; processes that are started by "
             "spawn (multiprocessing.get_context) may use more")  # fmt: skip


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device; a cautious guess where that cannot be asked."""
    if device.type == "cuda":
        # What PyTorch holds for its next tensors is free too.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    if device.type == "xpu":
        kept = torch.xpu.memory_reserved(device) - torch.xpu.memory_allocated(device)
        return torch.xpu.mem_get_info(device)[0] + kept
    if device.type == "mps":  # shared with the CPU
        return max(0, torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable"))
        return min(int(available.split()[1]) * 1024, *_container_limits(), _process_limit())
    except (OSError, StopIteration):
        return 4 * 2**30


def _container_limits() -> list[int]:
    """What the limits of a container leave, by both versions of Linux's control groups."""
    left = [2**62]
    second = (CONTROL_GROUPS, "memory.max", "memory.current", "inactive_file")
    first = (CONTROL_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
             "total_inactive_file")  # fmt: skip
    for folder, limit, used, cache in (second, first):
        try:
            names = (limit, used, "memory.stat")
            texts = [(folder / name).read_text(encoding="ascii") for name in names]
            # Copies of files that nobody reads any more make room when it is needed.
            lines = (line.split() for line in texts[2].splitlines())
            files = sum(int(words[1]) for words in lines if words[0] == cache)
            left.append(max(0, int(texts[0]) - max(0, int(texts[1]) - files)))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return left


def _process_limit() -> int:
    """What `ulimit -v` leaves, as batch systems and careful users set it."""
    import resource  # not on Windows, where /proc is not either

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 2**62
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(0, limit - pages * resource.getpagesize())


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out; PyTorch's on a CPU have no class of their own."""
    words = ("can't allocate memory", "std::bad_alloc", "could not create a memory object",
             "backend out of memory")  # fmt: skip
    known = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, known) or any(word in str(error) for word in words)


def give_back_memory(device: torch.device) -> None:
    """Lets others have what PyTorch keeps for its next tensors on the device."""
    if device.type in ("cuda", "mps", "xpu"):
        getattr(torch, device.type).empty_cache()


class Fallback:
    """The CPU in place of devices that cannot do something: MPS and XPU lack some operators."""

    def __init__(self) -> None:
        self._unfit: set[torch.device] = set()

    def device(self, wanted: torch.device) -> torch.device:
        """The device, or the CPU once it was found to lack something."""
        return CPU if wanted in self._unfit else wanted

    def takes(self, error: Exception, device: torch.device) -> bool:
        """Whether the error says that the device lacks something; then it is told, once."""
        missing = _what_is_missing(error)
        if missing is None or device == CPU:
            return False
        warn(f"{device} has no {missing}: computing on the CPU")
        self._unfit.add(device)
        return True


def _what_is_missing(error: Exception) -> str | None:
    """An operator such as aten::im2col, or a type; None for errors of another kind."""
    if isinstance(error, TypeError) and "doesn't support float64" in str(error):
        return "float64"
    if not isinstance(error, NotImplementedError):
        return None
    found = re.search(r"aten::[\w.]+", str(error))
    return found.group() if found else one_line(error, 60)


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keeps freed memory with the process inside the block, and gives all of it back at the end.

    glibc returns every freed block above 32 MiB to the system at once. A feature map of a large
    image is that big, and the next one would have to be had page by page again, which took a fifth
    of the time of a 256 x 256 image in float32. Elsewhere than on glibc this does nothing.

    Not around tiles of several sizes: what a smaller one has freed has no room for a larger one.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _LARGEST_INT)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, 65536)  # glibc's default
        libc.mallopt(_MMAP_THRESHOLD, 2**25)  # where glibc's own adjustment would end up
        libc.mallopt(_TRIM_THRESHOLD, 2**26)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if hasattr(libc, "gnu_get_libc_version") else None
    except OSError:  # another C library
        return None
