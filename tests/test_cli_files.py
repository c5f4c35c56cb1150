"""Files on the command line: which are read, where results go, what happens after a bad one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import assert_one_clear_line, names, nlrn, picture

from nlrn import cli, images
from nlrn.restoration import Denoiser


def test_result_goes_beside_the_input(tmp_path: Path, model: str) -> None:
    source = picture(tmp_path / "photo.png")
    before = source.read_bytes()
    result = nlrn("denoise", source, "--model", model, "--sigma", 25)
    assert result.exit_code == 0, result.output
    assert names(tmp_path) == ["photo.png", "photo_denoised.png"]
    assert source.read_bytes() == before
    assert "photo_denoised.png (sigma 25" in result.stdout
    out = images.read(tmp_path / "photo_denoised.png")
    assert out.pixels.shape == (10, 13, 3) and out.pixels.dtype == np.uint8


def test_existing_results_are_not_replaced_unasked(tmp_path: Path, model: str) -> None:
    source = picture(tmp_path / "a.png")
    target = picture(tmp_path / "a_denoised.png", seed=1)
    before = target.read_bytes()
    arguments = ("denoise", source, "--model", model, "--sigma", 25)
    assert_one_clear_line(
        nlrn(*arguments),
        "a_denoised.png",
        "exists already",
        "--overwrite replaces it",
        "--skip-existing leaves it",
    )
    assert target.read_bytes() == before
    skipped = nlrn(*arguments, "--skip-existing")
    assert skipped.exit_code == 0 and "1 skipped" in skipped.stderr
    assert target.read_bytes() == before
    assert nlrn(*arguments, "--overwrite").exit_code == 0
    assert target.read_bytes() != before


def test_output_file_folder_suffix_and_format(tmp_path: Path, model: str) -> None:
    source = picture(tmp_path / "a.png")
    options = ("--model", model, "--sigma", 20)
    assert nlrn("denoise", source, *options, "-o", tmp_path / "b.tif").exit_code == 0
    assert nlrn("denoise", source, *options, "-o", tmp_path / "out").exit_code == 0
    assert nlrn("denoise", source, *options, "--suffix", "-clean").exit_code == 0
    assert names(tmp_path) == ["a-clean.png", "a.png", "b.tif", "out/a.png"]
    same = images.read(tmp_path / "b.tif").pixels
    assert np.array_equal(same, images.read(tmp_path / "out" / "a.png").pixels)


def test_folders_patterns_and_trees(tmp_path: Path, model: str) -> None:
    for name in ("in/a.png", "in/b.JPG", "in/.hidden.png", "in/sub/c.bmp", "in/sub/deep/d.webp"):
        picture(tmp_path / name)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    options = ("--model", model, "--sigma", 20)
    assert nlrn("denoise", tmp_path / "in", *options, "-o", tmp_path / "one").exit_code == 0
    assert names(tmp_path / "one") == ["a.png", "b.JPG"]
    out = tmp_path / "all"
    assert nlrn("denoise", tmp_path / "in", *options, "-o", out, "--recursive").exit_code == 0
    assert names(out) == ["a.png", "b.JPG", "sub/c.bmp", "sub/deep/d.webp"]
    out = tmp_path / "pattern"
    assert nlrn("denoise", tmp_path / "in" / "*.png", *options, "-o", out).exit_code == 0
    assert names(out) == ["a.png"]


def test_results_of_an_earlier_run_are_not_denoised_again(tmp_path: Path, model: str) -> None:
    picture(tmp_path / "a.png")
    arguments = ("denoise", tmp_path, "--model", model, "--sigma", 20, "--skip-existing")
    assert nlrn(*arguments).exit_code == 0
    assert nlrn(*arguments).exit_code == 0
    assert names(tmp_path) == ["a.png", "a_denoised.png"]


def test_a_folder_of_results_inside_the_input_is_no_input(tmp_path: Path, model: str) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "sub" / "b.png")
    options = ("--model", model, "--sigma", 20, "--skip-existing", "-r")
    for _ in range(2):
        for source in (tmp_path, tmp_path / "**" / "*.png"):
            assert nlrn("denoise", source, *options, "-o", tmp_path / "clean").exit_code == 0
    assert names(tmp_path) == ["a.png", "clean/a.png", "clean/sub/b.png", "sub/b.png"]


def test_results_may_go_above_the_input(tmp_path: Path, model: str) -> None:
    picture(tmp_path / "in" / "a.png")
    options = ("--model", model, "--sigma", 20)
    assert nlrn("denoise", tmp_path / "in", *options, "-o", tmp_path).exit_code == 0
    assert names(tmp_path) == ["a.png", "in/a.png"]


def test_an_empty_name_is_not_the_present_folder(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "a.png")
    for command in ("denoise", "upscale"):
        options = ("--sigma", 20) if command == "denoise" else ("--scale", 2)
        assert_one_clear_line(nlrn(command, "", *options), "the name of the input is empty")
        result = nlrn(command, "a.png", *options, "-o", "")
        assert_one_clear_line(result, "the name of the output is empty")
    assert names(tmp_path) == ["a.png"]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interruption_tells_what_is_done(
    as_json: bool, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.png", "b.png", "c.png", "d.png"):
        picture(tmp_path / name)
    (tmp_path / "a.png").write_text("broken")
    read = images.read

    def interrupted(path: str | Path, **options: Any) -> images.Image:
        if Path(path).name == "c.png":
            raise KeyboardInterrupt
        return read(path, **options)

    monkeypatch.setattr(images, "read", interrupted)
    result = nlrn("denoise", tmp_path, "--model", model, "--sigma", 20, *["--json"] * as_json)
    assert result.exit_code == 130
    assert "1 of 2 files failed" in result.stderr and "a.png" in result.stderr
    assert result.stderr.endswith("interrupted: 2 of 4 files left\n")
    if as_json:
        report = json.loads(result.stdout)
        assert [Path(fact["input"]).name for fact in report["done"]] == ["b.png"]
    else:
        assert "b_denoised.png (sigma 20" in result.stdout


def test_two_inputs_for_one_output_are_refused(tmp_path: Path, model: str) -> None:
    first, second = picture(tmp_path / "x" / "a.png"), picture(tmp_path / "y" / "a.png")
    result = nlrn("denoise", first, second, "--model", model, "-o", tmp_path / "out")
    assert_one_clear_line(result, "would both be written")


@pytest.mark.parametrize("inputs", [["a.png", "b.png"], ["."], ["*.png"]], ids=str)
def test_several_images_do_not_go_into_one_file(
    inputs: list[str], tmp_path: Path, model: str
) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png")
    paths = [tmp_path / name for name in inputs]
    result = nlrn("denoise", *paths, "--model", model, "-o", tmp_path / "out.png")
    assert_one_clear_line(
        result, "out.png: one file; folders, patterns and several images need a folder"
    )
    assert names(tmp_path) == ["a.png", "b.png"]


def test_one_file_given_twice_is_done_once(tmp_path: Path, model: str) -> None:
    source = picture(tmp_path / "a.png")
    result = nlrn("denoise", source, source, "--model", model, "--sigma", 20)
    assert result.exit_code == 0 and result.stdout.count("a_denoised.png") == 1


@pytest.mark.parametrize("options", [["--suffix", ""], ["-o", "{folder}"], ["-o", "{source}"]])
def test_a_result_never_replaces_its_own_input(
    tmp_path: Path, model: str, options: list[str]
) -> None:
    source = picture(tmp_path / "a.png")
    before = source.read_bytes()
    given = [o.format(folder=tmp_path, source=source) for o in options]
    result = nlrn("denoise", source, "--model", model, "--overwrite", *given)
    assert_one_clear_line(result, "a.png", "its own result")
    assert source.read_bytes() == before


def test_outputs_with_a_slash_or_an_unknown_suffix(tmp_path: Path, model: str) -> None:
    source = picture(tmp_path / "a.png")
    options = ("--model", model, "--sigma", 20, "-o")
    assert nlrn("denoise", source, *options, f"{tmp_path}/c.png/").exit_code == 0
    assert_one_clear_line(nlrn("denoise", source, *options, tmp_path / "b.gif"), "'.gif'")
    assert names(tmp_path) == ["a.png", "c.png/a.png"]


def test_patterns_keep_the_tree_and_leave_results_alone(tmp_path: Path, model: str) -> None:
    picture(tmp_path / "in" / "a.png")
    picture(tmp_path / "in" / "x" / "b.png")
    options = ("--model", model, "--sigma", 20)
    pattern = f"{tmp_path}/in/**/*.png"
    assert nlrn("denoise", pattern, *options, "-o", tmp_path / "out").exit_code == 0
    assert names(tmp_path / "out") == ["a.png", "x/b.png"]
    for _ in range(2):
        assert nlrn("denoise", pattern, *options, "--skip-existing").exit_code == 0
    assert len(names(tmp_path / "in")) == 4


def test_a_file_whose_values_break_the_network_stops_nothing_else(
    tmp_path: Path, model: str
) -> None:
    for name in ("a.png", "c.png"):
        picture(tmp_path / "in" / name)
    np.save(tmp_path / "in" / "b.npy", np.full((5, 6), 1e300))
    result = nlrn("denoise", tmp_path / "in", "--model", model, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert names(tmp_path / "out") == ["a.png", "c.png"]
    assert "b.npy" in result.stderr


def test_json_report(tmp_path: Path, model: str) -> None:
    picture(tmp_path / "a.png", (40, 50))
    (tmp_path / "b.png").write_bytes(b"")
    result = nlrn("denoise", tmp_path, "--model", model, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    (done,) = report["done"]
    assert done["width"] == 50 and done["height"] == 40 and done["sigma"] > 30
    assert (
        report["failed"][0]["input"].endswith("b.png") and "empty" in report["failed"][0]["error"]
    )


def test_one_bad_file_among_ten(tmp_path: Path, model: str) -> None:
    for i in range(9):
        picture(tmp_path / "in" / f"{i}.png")
    (tmp_path / "in" / "5b.png").write_text("not a picture")
    result = nlrn("denoise", tmp_path / "in", "--model", model, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert names(tmp_path / "out") == [f"{i}.png" for i in range(9)]
    assert "1 of 10 files failed" in result.stderr and "5b.png" in result.stderr


def test_a_folder_without_images(tmp_path: Path, model: str) -> None:
    assert_one_clear_line(nlrn("denoise", tmp_path, "--model", model), "no images in")
    assert_one_clear_line(nlrn("denoise", tmp_path / "*.png", "--model", model), "no file matches")


def test_an_output_folder_that_cannot_be_written(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = picture(tmp_path / "a.png")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere: ask as someone who may not
        allowed = os.access
        monkeypatch.setattr(os, "access", lambda p, mode: p != locked and allowed(p, mode))
    result = nlrn("denoise", source, "--model", model, "-o", locked)
    assert_one_clear_line(result, "locked", "not writable")
    assert names(tmp_path) == ["a.png"]


def test_an_output_folder_below_a_file(tmp_path: Path, model: str) -> None:
    source = picture(tmp_path / "a.png")
    result = nlrn("denoise", source, "--model", model, "-o", source / "out")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert names(tmp_path) == ["a.png"]


def test_a_format_that_cannot_hold_the_result_is_refused_before_the_work(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.write(tmp_path / "a.tif", images.Image(np.zeros((5, 6), np.float32)))
    monkeypatch.setattr(Denoiser, "restore", lambda *_, **__: pytest.fail("worked for nothing"))
    result = nlrn("denoise", tmp_path / "a.tif", "--model", model, "-o", tmp_path / "a.jpg")
    assert_one_clear_line(result, "JPEG cannot hold float32")


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    source = picture(tmp_path / "a.png")
    monkeypatch.setattr(Denoiser, "restore", interrupted)
    monkeypatch.setattr(sys, "argv", ["nlrn", "denoise", str(source), "--model", model])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130
    assert names(tmp_path) == ["a.png"]
