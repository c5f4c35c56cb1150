"""The command line as a user meets it: good, odd and broken input."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import tifffile
from typer.testing import CliRunner, Result

from nlrn import cli, images, weights
from nlrn.cli import files
from nlrn.models.nlrn import CONFIGS, random_network
from nlrn.restoration import denoise as tasks
from nlrn.restoration.denoiser import Settings

SMALL = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=2, channels=8, embed=4)
runner = CliRunner()


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    random_network(SMALL).save_pretrained(path)
    return str(path)


def picture(path: Path, shape: tuple[int, ...] = (10, 13, 3), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, shape, np.uint8)
    images.write(path, images.Image(values))
    return path


def nlrn(*arguments: object) -> Result:
    return runner.invoke(cli.app, [str(a) for a in arguments])


def assert_one_clear_line(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    for word in words:
        assert word in lines[0], lines[0]


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


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
    assert_one_clear_line(nlrn(*arguments), "a_denoised.png", "exists already")
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

    def interrupted(path: str | Path) -> images.Image:
        if Path(path).name == "c.png":
            raise KeyboardInterrupt
        return read(path)

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
    assert_one_clear_line(nlrn("denoise", source, *options, tmp_path / "b.jp2"), "'.jp2'")
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


def test_every_setting_reaches_the_network(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple] = []

    def denoise_image(image, sigma, network, strength, settings, progress):
        seen.append((sigma, strength, settings))
        return image

    monkeypatch.setattr("nlrn.restoration.denoiser.denoise_image", denoise_image)
    given = ("--sigma", 33, "--strength", 0.25, "--tile", 40, "--exact", "--views", 3)
    more = ("--device", "cpu", "--dtype", "bf16")
    source = picture(tmp_path / "a.png")
    assert nlrn("denoise", source, "--model", model, *given, *more).exit_code == 0
    assert seen == [(33.0, 0.25, Settings(40, True, 3, "bf16", "cpu"))]


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


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def truncated(path: Path) -> None:
    path.write_bytes(picture(path.with_name("whole.png"), (60, 70, 3)).read_bytes()[:500])


BROKEN = {
    "truncated.png": truncated,
    "empty.png": lambda path: path.write_bytes(b""),
    "text.png": lambda path: path.write_text("hello"),
    "huge.png": lambda path: path.write_bytes(png_header(60000, 60000)),
    "nothing.npy": lambda path: np.save(path, np.zeros((0, 5), np.uint8)),
    "nan.tif": lambda path: tifffile.imwrite(path, np.full((4, 5), np.nan, np.float32)),
    "missing.png": lambda path: None,
    "folder.png": lambda path: path.mkdir(),
    "picture.xyz": lambda path: path.write_bytes(b"?"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_input_gives_one_line_and_nothing_else(
    tmp_path: Path, model: str, name: str
) -> None:
    BROKEN[name](tmp_path / name)
    before = names(tmp_path)
    result = nlrn("denoise", tmp_path / name, "--model", model)
    assert_one_clear_line(result, name)
    assert names(tmp_path) == before


def test_a_folder_without_images(tmp_path: Path, model: str) -> None:
    assert_one_clear_line(nlrn("denoise", tmp_path, "--model", model), "no images in")
    assert_one_clear_line(nlrn("denoise", tmp_path / "*.png", "--model", model), "no file matches")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sigma", "-1"], ["sigma", "-1"]),
        (["--sigma", "loud"], ["sigma must be auto or a number", "loud"]),
        (["--sigma", "nan"], ["sigma must be a number"]),
        (["--tile", "-5"], ["tile", "-5"]),
        (["--tile", "7.5"], ["whole number"]),
        (["--strength", "2"], ["strength", "2"]),
        (["--views", "0"], ["views", "0"]),
        (["--dtype", "fp8"], ["dtype", "fp8"]),
        (["--device", "toaster"], ["device", "toaster"]),
        (["--model", "no-such-model"], ["no-such-model"]),
    ],
    ids=lambda value: "=".join(value) if value[0].startswith("--") else "",
)
def test_bad_options_are_named(tmp_path: Path, model: str, options: list, words: list) -> None:
    source = picture(tmp_path / "a.png")
    given = options if "--model" in options else ["--model", model, *options]
    assert_one_clear_line(nlrn("denoise", source, *given), *words)
    assert names(tmp_path) == ["a.png"]


@pytest.mark.parametrize("method", tasks.CLASSIC)
def test_classic_methods_keep_depth_alpha_and_profile(tmp_path: Path, method: str) -> None:
    values = np.random.default_rng(0).integers(0, 65535, (12, 9, 4), np.uint16)
    source = images.Image(values[..., :3].copy(), values[..., 3].copy(), None, b"a profile")
    images.write(tmp_path / "a.png", source)
    result = nlrn("denoise", tmp_path / "a.png", "--method", method, "--sigma", 15, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["done"][0]["method"] == method
    assert not result.stderr  # no bar without a terminal
    read = images.read(tmp_path / "a_denoised.png")
    assert read.pixels.dtype == np.uint16 and not np.array_equal(read.pixels, source.pixels)
    assert read.alpha is not None and np.array_equal(read.alpha, values[..., 3])
    assert read.icc == b"a profile"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "median"], ["method must be one of nlrn, nlm, bm3d", "'median'"]),
        (["--method", "bm3d", "--model", "m"], ["model is for method nlrn, not for bm3d"]),
        (["--method", "bm3d", "--tile", "64"], ["tile is for method nlrn"]),
        (["--method", "wnnm", "--exact"], ["exact is for method nlrn"]),
        (["--method", "nlm", "--views", "4"], ["views is for method nlrn"]),
        (["--method", "nlm", "--dtype", "bf16"], ["dtype is for method nlrn"]),
        (["--method", "nlm", "--sigma", "999"], ["sigma must be 0 or more, at most 255"]),
        (["--method", "nlm", "--device", "toaster"], ["device", "toaster"]),
    ],
    ids=lambda value: "=".join(value) if value[0].startswith("--") else "",
)
def test_what_a_classic_method_cannot_take_is_named(
    tmp_path: Path, options: list, words: list
) -> None:
    source = picture(tmp_path / "a.png")
    assert_one_clear_line(nlrn("denoise", source, *options), *words)
    assert names(tmp_path) == ["a.png"]


def test_a_weight_with_an_even_window(tmp_path: Path) -> None:
    source, path = picture(tmp_path / "a.png"), tmp_path / "even.safetensors"
    network = random_network(SMALL)
    config = dataclasses.asdict(SMALL) | {"window": 44}
    weights.save(path, config, network.state_dict(), {})
    result = nlrn("denoise", source, "--model", path)
    assert_one_clear_line(result, "window must be odd", "44")


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
    monkeypatch.setattr(
        "nlrn.restoration.denoiser.denoise_image", lambda *_: pytest.fail("worked for nothing")
    )
    result = nlrn("denoise", tmp_path / "a.tif", "--model", model, "-o", tmp_path / "a.jpg")
    assert_one_clear_line(result, "JPEG cannot hold float32")


def test_depth_alpha_and_metadata_survive(tmp_path: Path, model: str) -> None:
    values = np.random.default_rng(0).integers(0, 65535, (9, 12, 4), np.uint16)
    source = images.Image(values[..., :3].copy(), values[..., 3].copy(), None, None)
    images.write(tmp_path / "a.png", source)
    assert nlrn("denoise", tmp_path / "a.png", "--model", model, "--sigma", 5).exit_code == 0
    result = images.read(tmp_path / "a_denoised.png")
    assert result.pixels.dtype == np.uint16
    assert result.alpha is not None and np.array_equal(result.alpha, values[..., 3])


def test_long_work_is_announced(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONG", 0.0)
    monkeypatch.setattr(files, "WORTH_MEASURING", 0)
    source = picture(tmp_path / "a.png", (40, 50, 3))
    result = nlrn("denoise", source, "--model", model, "--sigma", 25)
    assert "50 x 40 pixels will take about" in result.stderr


def test_the_shipped_weights_denoise(tmp_path: Path) -> None:
    """Out of the box, offline, an image with noise comes back closer to the truth."""
    truth = images.to_float(skimage.data.camera()[60:124, 200:280])
    noise = np.random.default_rng(0).normal(0, 25 / 255, truth.shape)
    source = tmp_path / "noisy.png"
    images.write(source, images.Image(images.from_float(truth + noise, np.uint8)))
    result = nlrn("denoise", source)
    assert result.exit_code == 0, result.output
    before, after = (
        np.mean((images.to_float(images.read(tmp_path / name).pixels) - truth) ** 2)
        for name in ("noisy.png", "noisy_denoised.png")
    )
    assert after < before / 6


def test_warnings_are_one_line(tmp_path: Path) -> None:
    source = picture(tmp_path / "a.png", (12, 13))
    result = nlrn("denoise", source, "--sigma", 5)
    assert result.exit_code == 0
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("warning: ") and "a.png: noise of sigma 5 is weak" in line


def test_train_says_what_is_missing(tmp_path: Path) -> None:
    assert nlrn("train").exit_code == 2
    assert_one_clear_line(nlrn("train", tmp_path / "no.toml"), "no.toml")
    config = Path(__file__).parents[1] / "configs" / "tiny.toml"
    result = nlrn("train", config, "--time-budget", "soon")
    assert_one_clear_line(result, "8m", "soon")
    result = nlrn("train", config, "--data", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert_one_clear_line(result, "nowhere")


def test_info_prints_the_counts() -> None:
    result = nlrn("info", "nlrn")
    assert result.exit_code == 0
    for fact in ("330,625", "9,474", "38", "17,195,520"):
        assert fact in result.stdout
    facts = json.loads(nlrn("info", "rnn", "--json").stdout)
    assert facts["convolution_parameters"] == 330_886 and facts["non_local_every"] == 0


def test_info_of_a_file(model: str) -> None:
    facts = json.loads(nlrn("info", model, "--json").stdout)
    assert facts["window"] == 5 and facts["origin"] == "trained weights"
    assert_one_clear_line(nlrn("info", "nonsense"), "unknown network 'nonsense'")


def test_models_lists_configurations() -> None:
    listed = json.loads(nlrn("models", "--json").stdout)
    assert [c["name"] for c in listed["configurations"]] == list(CONFIGS)
    text = nlrn("models").stdout
    for name in CONFIGS:
        assert name in text


def test_version() -> None:
    from nlrn import __version__

    assert nlrn("--version").stdout.strip() == f"nlrn {__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["denoise"], ["Missing argument", "nlrn denoise --help"]),
        (["denoise", "a.png", "--strength", "strong"], ["--strength", "nlrn denoise --help"]),
        (["denoise", "a.png", "--sigme", "3"], ["--sigme"]),
        (["frobnicate"], ["frobnicate", "nlrn --help"]),
    ],
    ids=" ".join,
)
def test_mistakes_in_the_options_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["nlrn", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    source = picture(tmp_path / "a.png")
    monkeypatch.setattr("nlrn.restoration.denoiser.denoise_image", interrupted)
    monkeypatch.setattr(sys, "argv", ["nlrn", "denoise", str(source), "--model", model])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130
    assert names(tmp_path) == ["a.png"]
