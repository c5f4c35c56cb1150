"""Arguments of the wrong kind are named in one line, by every door of the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlrn
from nlrn.classic import denoise_nlm
from nlrn.inference.overlap import restore_patches
from nlrn.models.nlrn import NLRNConfig, random_network

GRAY = np.random.default_rng(0).integers(0, 256, (9, 12), np.uint8)
SMALL = random_network(NLRNConfig(window=5, steps=2, channels=8, embed=4))

SETTINGS: dict[str, Callable[[Any], Any]] = {
    "denoise": lambda settings: nlrn.denoise(GRAY, 25, settings=settings),
    "denoise classic": lambda settings: nlrn.denoise(GRAY, 25, method="nlm", settings=settings),
    "upscale": lambda settings: nlrn.upscale(GRAY, 2, settings=settings),
    "Denoiser": lambda settings: nlrn.Denoiser(settings=settings),
    "Upscaler": lambda settings: nlrn.Upscaler(settings=settings),
    "Engine": lambda settings: nlrn.Engine(SMALL, settings),
    "overlap": lambda settings: restore_patches(SMALL, torch.rand(1, 1, 9, 12), settings),
}


@pytest.mark.parametrize("door", SETTINGS)
@pytest.mark.parametrize(
    ("settings", "got"), [({"tile": 64}, "dict"), ("bf16", "str"), (nlrn.Settings, "a class")]
)
def test_settings_of_another_kind(door: str, settings: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"settings must be nlrn\.Settings\(.*\), got {got}$"):
        SETTINGS[door](settings)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": ["fp32"]}, r"dtype must be one of fp32, bf16, got \['fp32'\]"),
        ({"memory": "1GB"}, "memory must be a whole number, got '1GB'"),
        ({"views": None}, "views must be a whole number, got None"),
        ({"exact": "no"}, "exact must be True or False, got 'no'"),
    ],
)
def test_values_of_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nlrn.Settings(**values)


@pytest.mark.parametrize("given", [GRAY, torch.rand(9, 12), "photo.png", Path("photo.png"), None])
@pytest.mark.parametrize(
    "restoration", [nlrn.Denoiser(), nlrn.ClassicDenoiser("nlm"), nlrn.Upscaler()]
)
def test_restore_takes_images_of_the_package(restoration: Any, given: Any) -> None:
    got = f"got {type(given).__name__}; nlrn.images.as_image"
    with pytest.raises(ValueError, match=got):
        restoration.restore(given)


@pytest.mark.parametrize("model", [3, {"a": 1}, torch.nn.Conv2d(1, 1, 3)])
def test_models_of_another_kind(model: Any) -> None:
    message = f"model must be a name .*, got {type(model).__name__}"
    for door in (nlrn.Denoiser, lambda m: nlrn.Upscaler(2, m)):
        with pytest.raises(ValueError, match=message):
            door(model)
    with pytest.raises(ValueError, match=r"network must be one of nlrn\.models .*got str"):
        nlrn.Engine("denoise-gray-s25")  # type: ignore[arg-type]


def test_quality_of_another_kind() -> None:
    with pytest.raises(ValueError, match=r"quality must be one of .*, got \['best'\]"):
        nlrn.denoise(GRAY, 25, quality=["best"])  # type: ignore[call-overload]


def test_masked_values_are_refused_by_every_door() -> None:
    masked = np.ma.masked_greater(GRAY, 100)
    doors = (nlrn.denoise, nlrn.estimate_sigma, lambda x: nlrn.upscale(x, 2),
             lambda x: denoise_nlm(x, 25), lambda x: nlrn.explain(x, (3, 4), 25))  # fmt: skip
    for door in doors:
        with pytest.raises(ValueError, match="image has masked values"):
            door(masked)
    nothing = np.ma.array(GRAY)
    np.testing.assert_array_equal(nlrn.denoise(nothing, 0), GRAY)


def test_the_second_of_two_channels_is_not_restored_and_that_is_said() -> None:
    pair = np.dstack([GRAY, GRAY])
    for door in (lambda x: nlrn.denoise(x, 25), lambda x: nlrn.upscale(x, 2)):
        with pytest.warns(UserWarning, match="the second of two channels is taken for alpha"):
            door(pair)
