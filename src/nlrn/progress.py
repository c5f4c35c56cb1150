"""Callbacks by which long work says where it stands."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (done, total), in units that take equal time; total stays the same in a call."""


def part_of(progress: Progress | None, part: int, parts: int) -> Progress:
    """Progress of one of several equal parts, told as progress of the whole.

    Args:
        progress: that of the whole; None gives one that does nothing.
        part: which one, from 0.
        parts: how many.
    """

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(part * total + done, parts * total)

    return tell
