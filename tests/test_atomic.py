"""Files appear whole or not at all, never by halves and never over another by accident."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nlrn import atomic


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_new_file_and_replaced_file(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "a", b"one")
    atomic.write_text(tmp_path / "b", "Ærø\n")
    assert content(tmp_path) == {"a": b"one", "b": "Ærø\n".encode()}
    atomic.write_bytes(tmp_path / "a", b"two")
    atomic.write_text(tmp_path / "b", "")
    assert content(tmp_path) == {"a": b"two", "b": b""}


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002], ids=oct)
def test_permissions_are_those_of_any_new_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        atomic.write_bytes(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask


def test_an_existing_file_is_kept_where_it_may_not_be_replaced(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "a", b"old", overwrite=False)
    with pytest.raises(FileExistsError):
        atomic.write_bytes(tmp_path / "a", b"new", overwrite=False)
    with pytest.raises(FileExistsError):
        atomic.write_text(tmp_path / "a", "new", overwrite=False)
    assert content(tmp_path) == {"a": b"old"}


def test_of_several_writers_one_wins(tmp_path: Path) -> None:
    outcomes = []
    start = threading.Barrier(8)

    def race(name: str) -> None:
        start.wait()
        try:
            atomic.write_text(tmp_path / "a", name, overwrite=False)
            outcomes.append(name)
        except FileExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=race, args=(f"writer {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 7
    assert content(tmp_path) == {"a": max(outcomes).encode()}  # "w" comes after "r"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("target", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_write_cut_short_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    target: str,
    overwrite: bool,
) -> None:
    old = {"a": b"old"} if overwrite else {}
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(target, fail)
    with pytest.raises(type(error)):
        atomic.write_bytes(tmp_path / "a", b"new", overwrite=overwrite)
    assert content(tmp_path) == old


def test_the_file_before_is_kept_under_another_name(tmp_path: Path) -> None:
    for data in (b"one", b"two", b"three"):
        atomic.write_bytes(tmp_path / "a", data, previous=tmp_path / "before")
    assert content(tmp_path) == {"a": b"three", "before": b"two"}


def test_missing_folder_and_a_folder_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*nowhere/a'$"):
        atomic.write_bytes(tmp_path / "nowhere" / "a", b"")
    missing = pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*nowhere/a'$")
    with missing, atomic.new_file(tmp_path / "nowhere" / "a"):
        pass
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match=r"Is a directory: '.*/b'$"):
        atomic.write_bytes(tmp_path / "b", b"")
    assert [file.name for file in tmp_path.iterdir()] == ["b"]
    assert not list((tmp_path / "b").iterdir())


def test_a_file_has_its_name_when_the_block_ends(tmp_path: Path) -> None:
    with atomic.new_file(tmp_path / "a") as file:
        file.write(b"one")
        file.seek(1)
        assert file.read() == b"ne"
        assert content(tmp_path) == {}, "a killed process would leave this"
    assert content(tmp_path) == {"a": b"one"}
    with pytest.raises(FileExistsError), atomic.new_file(tmp_path / "a", overwrite=False):
        pass
    with pytest.raises(KeyboardInterrupt), atomic.new_file(tmp_path / "a") as file:
        file.write(b"two")
        raise KeyboardInterrupt
    assert content(tmp_path) == {"a": b"one"}


def test_a_file_where_none_can_be_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_unnamed", lambda folder: None)
    with pytest.raises(KeyboardInterrupt), atomic.new_file(tmp_path / "a") as file:
        file.write(b"two")
        raise KeyboardInterrupt
    assert content(tmp_path) == {}
    with atomic.new_file(tmp_path / "a") as file:
        file.write(b"one")
    assert content(tmp_path) == {"a": b"one"}


@pytest.mark.parametrize("mask", [0o022, 0o077], ids=oct)
def test_permissions_of_a_file_without_a_name(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with atomic.new_file(tmp_path / "a"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with atomic.new_folder(tmp_path / "a") as folder:
            (folder / "inside").write_text(text)
        assert [p.name for p in tmp_path.iterdir()] == ["a"]
        assert content(tmp_path / "a") == {"inside": text.encode()}
    with pytest.raises(FileExistsError), atomic.new_folder(tmp_path / "a", overwrite=False):
        pass
    with pytest.raises(KeyboardInterrupt), atomic.new_folder(tmp_path / "b"):
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert content(tmp_path / "a") == {"inside": b"two"}
