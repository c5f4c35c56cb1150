"""The command line and its streams: pipes, closed ones, letters that a terminal does not know."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from command_line import assert_one_clear_line, names, nlrn, picture, runner
from typer.testing import Result

from nlrn import batch, cli, images
from nlrn.cli.display import Display
from nlrn.cli.entry import errors_in_one_line

FAST = ("--method", "nlm", "--sigma", "20")


def piped(content: bytes, *arguments: object) -> Result:
    return runner.invoke(cli.app, [str(a) for a in arguments], input=content)


# Pipes


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".npy", ".jp2"])
def test_an_image_goes_through_a_pipe(tmp_path: Path, suffix: str) -> None:
    source = picture(tmp_path / f"a{suffix}")
    assert nlrn("denoise", source, *FAST, "-o", tmp_path / f"b{suffix}").exit_code == 0
    expected = (tmp_path / f"b{suffix}").read_bytes()
    for arguments in (["-"], ["-", "-o", "-"]):
        result = piped(source.read_bytes(), "denoise", *FAST, *arguments)
        assert result.exit_code == 0, result.stderr
        assert result.stdout_bytes == expected
        assert result.stderr.startswith("- (sigma 20")
    assert nlrn("denoise", source, *FAST, "-o", "-").stdout_bytes == expected
    result = piped(source.read_bytes(), "denoise", *FAST, "-", "-o", tmp_path / "c.png")
    assert result.exit_code == 0 and "c.png (sigma 20" in result.stdout
    assert names(tmp_path) == sorted({f"a{suffix}", f"b{suffix}", "c.png"})


def test_no_folder_called_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    assert nlrn("denoise", "a.png", *FAST, "-o", "-").exit_code == 0
    assert names(tmp_path) == ["a.png"]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"hello", ["-"], ["standard input: not an image nlrn can read"]),
        (b"", ["-"], ["standard input: empty file"]),
        (b"", ["-", "a.png"], ["- is the standard input: no other image"]),
        (b"", ["-", "-o", "folder/"], ["folder/: a folder, but the standard input has no name"]),
        (b"", ["a.png", "b.png", "-o", "-"], ["2 images: one at a time"]),
        (b"", ["a.png", "-o", "-", "--json"], ["--json has no place there"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and len(value) > 1 else "",
)
def test_what_cannot_go_through_a_pipe(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    arguments: list[str],
    words: list[str],
) -> None:
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert_one_clear_line(piped(content, "denoise", *FAST, *arguments), *words)
    assert names(tmp_path) == ["a.png", "b.png"]


class Terminal(io.StringIO):
    """What can be seen by somebody."""

    def isatty(self) -> bool:
        return True


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Runs the command as a shell does; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["nlrn", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_images_neither_come_from_a_terminal_nor_go_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = picture(tmp_path / "a.png")
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert run_main(monkeypatch, "denoise", "-", *FAST, "-o", tmp_path / "b.png") == 2
    assert "closed or a terminal: send an image into it" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run_main(monkeypatch, "denoise", source, *FAST, "-o", "-") == 2
    assert "the result would go to the terminal" in capsys.readouterr().err
    assert names(tmp_path) == ["a.png"]


# Streams that are closed, full or do not know a letter


@pytest.mark.parametrize("closed", [["stdout"], ["stderr"], ["stdout", "stderr"]], ids=str)
def test_closed_streams_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: list[str]
) -> None:
    source = picture(tmp_path / "a.png")
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    assert run_main(monkeypatch, "denoise", source, *FAST) == 0
    for name in closed:
        getattr(sys, name).close()
    assert names(tmp_path) == ["a.png", "a_denoised.png"]


class Broken(io.StringIO):
    """A stream that fails with an error of the system."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))

    def fileno(self) -> int:
        return self._null

    def __enter__(self) -> Broken:
        self._null = os.open(os.devnull, os.O_WRONLY)
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._null)


@pytest.mark.parametrize("arguments", [["models"], ["--help"], ["denoise"]], ids=str)
def test_full_and_broken_streams_are_no_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    if arguments == ["denoise"]:
        arguments = ["denoise", str(picture(tmp_path / "a.png")), *FAST]
    with Broken(errno.ENOSPC) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run_main(monkeypatch, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and line.endswith("No space left on device")
    with Broken(errno.EPIPE) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run_main(monkeypatch, *arguments, *["--overwrite"] * (len(arguments) > 1)) == 1
    assert capsys.readouterr().err == ""


def test_letters_that_the_terminal_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(tmp_path / "in" / "a☃.png")
    picture(tmp_path / "in" / "b.png")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run_main(monkeypatch, "denoise", tmp_path / "in", *FAST, "-o", tmp_path / "out") == 0
    sys.stdout.flush()
    assert rb"a\u2603.png (sigma 20" in raw.getvalue() and b"b.png" in raw.getvalue()
    assert names(tmp_path / "out") == ["a☃.png", "b.png"]


@pytest.mark.parametrize("name", ["[red].png", "a[/b].png", ":smile:.png"])
def test_every_character_of_a_name_is_in_the_bar(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    job = batch.Job(Path(name.replace("/", "")), Path("b.png"))
    with Display([job], as_json=False, unknown=[]) as show:
        show.on_file(job, 0)
        show.progress(1, 2)
    assert isinstance(sys.stderr, Terminal)
    assert f"1/1 {job.source.name}" in sys.stderr.getvalue()


# Memory


def test_little_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = picture(tmp_path / "a.png")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500 * 2**20, resource.RLIM_INFINITY))
    result = nlrn("denoise", source, *FAST)
    assert_one_clear_line(result, "not enough memory: torch needs", "ulimit -v allows 500")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_no_room_for_torch_is_one_line(error: Exception, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(typer.Exit), errors_in_one_line():
        raise error
    assert capsys.readouterr().err == "error: not enough memory to load torch\n"
    with pytest.raises(RuntimeError), errors_in_one_line():
        raise RuntimeError("a mistake of ours")


def test_memory_that_runs_out_in_a_file_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr("nlrn.restoration.ClassicDenoiser.restore", fail)
    source = picture(tmp_path / "a.png")
    assert_one_clear_line(nlrn("denoise", source, *FAST), f"{source}: not enough memory")


# Files that are no files


def test_a_link_that_points_to_itself(tmp_path: Path) -> None:
    loop, source = tmp_path / "loop.png", picture(tmp_path / "a.png")
    loop.symlink_to(loop)
    assert_one_clear_line(nlrn("denoise", loop, *FAST), "loop.png: Too many levels of symbolic")
    result = nlrn("denoise", source, *FAST, "-o", loop)
    assert_one_clear_line(result, "loop.png: exists already")
    assert nlrn("denoise", source, *FAST, "-o", loop / "b.png").exit_code == 2
    assert nlrn("denoise", source, "--model", loop, "--sigma", 20).exit_code == 2
    result = nlrn("denoise", tmp_path, *FAST)
    assert result.exit_code == 0 and names(tmp_path) == ["a.png", "a_denoised.png"]


def test_files_of_no_known_kind_are_named(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a.png")
    for name in ("photo.heic", "notes.txt", ".hidden", "sub/b.svg"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("?")
    result = nlrn("denoise", tmp_path / "in", *FAST, "-o", tmp_path / "out")
    folder = tmp_path / "in"
    expected = f"left alone, of no known kind: {folder / 'notes.txt'}, {folder / 'photo.heic'}\n"
    assert result.exit_code == 0 and result.stderr == expected
    result = nlrn("denoise", folder, *FAST, "-o", tmp_path / "all", "-r", "--json")
    unknown = json.loads(result.stdout)["unknown"]
    assert [Path(name).name for name in unknown] == ["notes.txt", "photo.heic", "b.svg"]
    for number in range(9):
        (folder / f"{number}.txt").write_text("?")
    result = nlrn("denoise", folder, *FAST, "-o", tmp_path / "more")
    assert "4.txt and 6 more" in result.stderr


# Options of files


def test_what_a_file_loses_is_said(tmp_path: Path) -> None:
    source = tmp_path / "a.tif"
    images.write(source, images.Image(np.zeros((9, 12), np.uint8), icc=b"a profile"))
    result = nlrn("denoise", source, *FAST, "-o", tmp_path / "a.bmp")
    assert result.exit_code == 0
    assert result.stderr == f"warning: {source}: not kept by BMP: the color profile\n"


def test_overwrite_and_skip_existing_contradict_each_other(tmp_path: Path) -> None:
    source = picture(tmp_path / "a.png")
    result = nlrn("denoise", source, "--overwrite", "--skip-existing")
    assert_one_clear_line(result, "overwrite and skip-existing contradict each other")


def test_quality_of_jpegs(tmp_path: Path) -> None:
    source = picture(tmp_path / "a.png", (40, 50, 3))
    for quality in (10, 90):
        options = ("--jpeg-quality", quality, "-o", tmp_path / f"{quality}.jpg")
        assert nlrn("denoise", source, *FAST, *options).exit_code == 0
    assert 2 * (tmp_path / "10.jpg").stat().st_size < (tmp_path / "90.jpg").stat().st_size
    result = nlrn("denoise", source, "--jpeg-quality", 0)
    assert_one_clear_line(result, "jpeg-quality must be in 1..100, got 0")


def test_white_of_twelve_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(2000, 200, (24, 30)).clip(0, 4095)
    images.write(tmp_path / "a.png", images.Image(values.astype(np.uint16)))
    plain = nlrn("denoise", tmp_path / "a.png", "--method", "nlm", "--json")
    facts = json.loads(plain.stdout)["done"][0]
    assert facts["sigma"] < 1 and "read them with white=4095" in facts["warnings"][0]
    (tmp_path / "a_denoised.png").unlink()
    shown = nlrn("denoise", tmp_path / "a.png", "--method", "nlm")
    assert "read them with --white 4095" in shown.stderr
    options = ("--method", "nlm", "--white", 4095, "--overwrite", "--json")
    result = nlrn("denoise", tmp_path / "a.png", *options)
    facts = json.loads(result.stdout)["done"][0]
    assert facts["sigma"] == pytest.approx(12.5, rel=0.2) and not facts["warnings"]
    after = images.read(tmp_path / "a_denoised.png").pixels
    assert after.dtype == np.uint16 and after.std() < 60 and abs(after.mean() - 2000) < 20
    assert_one_clear_line(nlrn("denoise", tmp_path / "a.png", "--white", 0), "white", "got 0")


def test_signed_numbers_need_their_white(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((9, 12), 3000, np.int16))
    result = nlrn("denoise", tmp_path / "a.npy", *FAST)
    assert_one_clear_line(result, "int16 samples up to 3000", "(--white 4095)")
    assert nlrn("denoise", tmp_path / "a.npy", *FAST, "--white", 4095).exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "a_denoised.npy"), np.full((9, 12), 3000))


# Help


@pytest.mark.parametrize("command", [[], ["denoise"], ["bench"], ["bench", "run"], ["data"]])
def test_help_in_one_letter(command: list[str]) -> None:
    result = nlrn(*command, "-h")
    assert result.exit_code == 0 and result.stdout == nlrn(*command, "--help").stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["nlrn", "den"], "denoise"),
        (["nlrn", "denoise", "--jpeg"], "--jpeg-quality"),
        (["nlrn", "denoise", "--model", "denoise-r"], "denoise-rgb"),
        (["nlrn", "denoise", "--method", "b"], "bm3d"),
    ],
)
def test_the_shell_completes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    found: str,
) -> None:
    monkeypatch.setenv("_NLRN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    run_main(monkeypatch)
    assert found in capsys.readouterr().out.split()
