"""Messages of other libraries in one line."""

from __future__ import annotations

import pytest

from nlrn.errors import one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\n  b\t c "), "a b c"),
        (ValueError("x" * 300), "x" * 200),
        (ValueError(), "ValueError"),
        (MemoryError(" \n"), "MemoryError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_one_line(error: BaseException, line: str) -> None:
    assert one_line(error) == line


def test_the_limit_is_an_argument() -> None:
    assert one_line(ValueError("a b c"), limit=3) == "a b"
