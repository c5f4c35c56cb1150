"""What the classic methods do with input that is odd or wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nlrn
from nlrn import images
from nlrn.classic import denoise_bm3d, denoise_lssc, denoise_nlm, denoise_wnnm, spectral
from nlrn.cli import app
from nlrn.degrade import add_noise
from nlrn.restoration import ClassicDenoiser, Restored

METHODS = [denoise_nlm, denoise_bm3d, denoise_wnnm, denoise_lssc]
QUICK: dict[Any, dict[str, Any]] = {
    denoise_wnnm: {"iterations": 2},
    denoise_lssc: {"iterations": 2},
}


def page() -> np.ndarray:
    """Black bars on white: patches with few different values, and many that are equal."""
    image = np.full((40, 52), 255, np.uint8)
    image[8:12, 5:47] = image[20:22, 5:30] = image[30:36, 10:14] = 0
    return image


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sigma", [25, 50])
def test_a_page_of_black_and_white(method: Callable[..., np.ndarray], sigma: float) -> None:
    result = method(page(), sigma, **QUICK.get(method, {}))
    assert np.abs(result.astype(float) - page()).mean() < 4


@pytest.mark.parametrize("method", [denoise_wnnm, denoise_lssc])
def test_eigenvectors_that_float32_does_not_find(
    method: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK gives up on some matrices with many equal eigenvalues; float64 finds them."""
    eigh, refused = torch.linalg.eigh, []

    def picky(matrices: torch.Tensor) -> Any:
        if matrices.dtype == torch.float32:
            refused.append(1)
            raise torch.linalg.LinAlgError("failed to converge")
        return eigh(matrices)

    noisy = add_noise(page(), 25, 0, "page")
    wanted = method(noisy, 25, **QUICK[method])
    monkeypatch.setattr(spectral.torch.linalg, "eigh", picky)
    np.testing.assert_allclose(method(noisy, 25, **QUICK[method]), wanted, atol=2e-2)
    assert refused


@pytest.mark.parametrize("method", METHODS)
def test_numbers_of_numpy_are_numbers_and_truth_is_none(method: Callable[..., np.ndarray]) -> None:
    image = page()[:16, :20]
    wanted = method(image, 25)
    for sigma in (np.float32(25), np.int64(25)):
        np.testing.assert_array_equal(method(image, sigma), wanted)
    with pytest.raises(ValueError, match="sigma must be a number"):
        method(image, True)


@pytest.mark.parametrize("method", METHODS)
def test_devices_as_everywhere(method: Callable[..., np.ndarray]) -> None:
    assert method(page()[:12, :14], 25, device="auto").shape == (12, 14)
    with pytest.raises(ValueError, match=r"device must be auto, cpu, .* got 'nowhere'"):
        method(page(), 25, device="nowhere")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (denoise_bm3d, {"step": (9, 3)}, "step must be at most the patch"),
        (denoise_bm3d, {"threshold": 0}, "threshold must be above 0"),
        (denoise_bm3d, {"beta": -1.0}, "beta must be 0 or more"),
        (denoise_bm3d, {"patch": 7}, "patch must be a power of two for transform 'bior1.5'"),
        (denoise_wnnm, {"step": 12}, "step must be at most the patch"),
        (denoise_wnnm, {"delta": float("nan")}, "delta must be between 0 and 1"),
        (denoise_wnnm, {"group": 1}, "group must be at least 2"),
        (denoise_lssc, {"step": 12, "dictionary": "unitary"}, "step must be at most the patch"),
        (denoise_lssc, {"group": 1}, "group must be at least 2"),
        (denoise_lssc, {"delta": 2.0}, "delta must be between 0 and 1"),
    ],
)
def test_parameters_that_make_no_sense(
    method: Callable[..., np.ndarray], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        method(page(), 25, **options)


def test_one_value_serves_both_steps_of_bm3d() -> None:
    noisy = add_noise(page(), 25, 0, "page")
    one = denoise_bm3d(noisy, 25, patch=8, window=21, transform="dct", beta=2.0)
    pairs = denoise_bm3d(noisy, 25, patch=(8, 8), window=(21, 21), transform=("dct", "dct"))
    np.testing.assert_array_equal(one, pairs)


def test_a_small_group_of_wnnm_stays_a_group() -> None:
    noisy = add_noise(page(), 25, 0, "page")
    result = denoise_wnnm(noisy, 25, group=10, iterations=2)
    assert np.abs(result - page() / 255).mean() < 0.7 * np.abs(noisy - page() / 255).mean()


def test_a_float_image_on_the_wrong_scale_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"to be in \[0, 1\], these reach 2[0-9]+: divide them"):
        nlrn.denoise(page().astype(np.float32), 25, method="nlm")


def test_twelve_bits_in_sixteen_are_noticed() -> None:
    twelve = page().astype(np.uint16) * 16
    with pytest.warns(UserWarning, match="no value is above [0-9]+ of 65535") as caught:
        nlrn.denoise(twelve, method="nlm")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nlrn.denoise(page().astype(np.uint16) * 257, 25, method="nlm")


def test_the_command_checks_the_level_before_any_file(tmp_path: Path) -> None:
    for name in "ab":
        images.write(tmp_path / f"{name}.png", images.Image(page()))
    found = CliRunner().invoke(
        app, ["denoise", str(tmp_path), "--sigma", "300", "--method", "BM3D"]
    )
    assert found.exit_code == 2
    assert found.stderr.count("\n") == 1
    assert "at most 255" in found.stderr


def test_a_method_that_fails_on_one_file_goes_on_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        images.write(tmp_path / f"{name}.png", images.Image(page()))
    usual, calls = ClassicDenoiser.restore, []

    def failing_first(*arguments: Any, **options: Any) -> Restored:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("eigh: failed\nto converge")
        return usual(*arguments, **options)

    monkeypatch.setattr(ClassicDenoiser, "restore", failing_first)
    found = CliRunner().invoke(app, ["denoise", str(tmp_path), "--sigma", "25", "--method", "nlm"])
    assert found.exit_code == 1
    assert "a.png: eigh: failed to converge" in found.stderr
    assert (tmp_path / "b_denoised.png").exists()


def test_slow_methods_say_how_long_they_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nlrn.restoration.classic.WORTH_MEASURING", 1000)
    monkeypatch.setattr("nlrn.cli.display.LONG", 0.0)
    monkeypatch.setattr("nlrn.restoration.classic.SAMPLE", 12)
    images.write(tmp_path / "a.png", images.Image(page()))
    arguments = ["denoise", str(tmp_path / "a.png"), "--sigma", "25", "--method"]
    assert "52 x 40 pixels will take about" in CliRunner().invoke(app, [*arguments, "lssc"]).stderr
    again = CliRunner().invoke(app, [*arguments, "nlm", "--overwrite"])
    assert again.exit_code == 0
    assert "will take" not in again.stderr
