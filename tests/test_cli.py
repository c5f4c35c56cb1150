"""The command line as a user meets it: good, odd and broken input."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import tifffile
from command_line import SMALL, assert_one_clear_line, names, nlrn, picture, png_header

from nlrn import cli, images, weights
from nlrn.cli import display
from nlrn.inference import Settings
from nlrn.models.nlrn import CONFIGS, random_network
from nlrn.restoration import Denoiser, base, classic
from nlrn.restoration.base import Restored
from nlrn.weights import ModelCard


def test_every_setting_reaches_the_network(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple] = []

    def restore(denoiser: Denoiser, image: images.Image, **_: object) -> Restored:
        seen.append((denoiser.sigma, denoiser.strength, denoiser.settings))
        return Restored(image, {"sigma": denoiser.sigma})

    monkeypatch.setattr(Denoiser, "restore", restore)
    given = ("--sigma", 33, "--strength", 0.25, "--tile", 40, "--exact", "--views", 3)
    more = ("--device", "cpu", "--dtype", "bf16")
    source = picture(tmp_path / "a.png")
    assert nlrn("denoise", source, "--model", model, *given, *more).exit_code == 0
    assert seen == [(33.0, 0.25, Settings(40, True, 3, "bf16", "cpu"))]


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sigma", "-1"], ["sigma", "-1"]),
        (["--sigma", "loud"], ["sigma must be auto, map or a number", "loud"]),
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


@pytest.mark.parametrize("method", classic.METHODS)
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
    weights.save(path, ModelCard(), config, network.state_dict())
    result = nlrn("denoise", source, "--model", path)
    assert_one_clear_line(result, "window must be odd", "44")


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
    monkeypatch.setattr(display, "LONG", 0.0)
    monkeypatch.setattr(base, "WORTH_MEASURING", 0)
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
    result = nlrn("denoise", source, "--sigma", 5, "--model", "denoise-gray-s15")
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


def test_maps_do_not_replace_the_picture(tmp_path: Path) -> None:
    source = picture(tmp_path / "a.png")
    before = source.read_bytes()
    result = nlrn("explain", source, "--at", "0,0", "-o", source, "--overwrite")
    assert_one_clear_line(result, "a.png: would be replaced by its own maps")
    assert source.read_bytes() == before


@pytest.mark.filterwarnings("always:one row")
def test_a_warning_is_one_line_without_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(picture(tmp_path / "a.png", (1, 1)))
    command = ["nlrn", "explain", source, "--at", "0,0", "-o", str(tmp_path / "maps.png")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    expected = "warning: one row or column is too little to estimate noise\n"
    assert stop.value.code == 0 and capsys.readouterr().err == expected


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
