"""Errors of other libraries in one line, and warnings that point at the caller."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator

_filters_lock = threading.Lock()


def one_line(error: BaseException, limit: int = 200) -> str:
    """The error's message on one line of at most `limit` characters, or its class if empty."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def warn(message: str) -> None:
    """Warns, and names the line outside of the package that led here."""
    frame, level = sys._getframe(1), 2  # level 1 is this function
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_inside(module: str) -> bool:
    """Whether a module is ours, or one of PyTorch's that ours are called through."""
    return module.partition(".")[0] in ("nlrn", "torch")


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Drops what a library warns about, for example a header.

    Two threads that save and restore Python's global filters at the same time would leave them
    at "ignore": hence the lock, and hence only for what is quick.
    """
    with _filters_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
