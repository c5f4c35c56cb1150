"""Progress of parts, told as progress of the whole."""

from __future__ import annotations

from nlrn.progress import part_of


def test_parts_follow_each_other() -> None:
    told: list[tuple[int, int]] = []
    for part in range(3):
        tell = part_of(lambda done, total: told.append((done, total)), part, 3)
        tell(1, 2)
        tell(2, 2)
    assert told == [(n, 6) for n in range(1, 7)]


def test_parts_of_parts() -> None:
    told: list[tuple[int, int]] = []
    half = part_of(lambda done, total: told.append((done, total)), 1, 2)
    part_of(half, 2, 3)(4, 5)
    assert told == [(29, 30)]


def test_nobody_listens() -> None:
    part_of(None, 0, 2)(1, 1)
