"""Restorations that are ready to run, and one function for each thing to do with an image."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from torch import Tensor

from nlrn import weights
from nlrn.errors import warn
from nlrn.images import Image, as_array, as_image
from nlrn.inference import Settings
from nlrn.inference.settings import check_settings
from nlrn.models import Network
from nlrn.progress import Progress
from nlrn.restoration.base import AUTO, Restoration, Restored, Sigma
from nlrn.restoration.choice import check_quality
from nlrn.restoration.classic import METHODS, ClassicDenoiser
from nlrn.restoration.denoiser import Denoiser
from nlrn.restoration.stacks import restore_pages, restore_stack
from nlrn.restoration.upscaler import Upscaler, check_scale

__all__ = ["ClassicDenoiser", "Denoiser", "Restoration", "Restored", "Upscaler", "denoise",
           "make_denoiser", "restore_pages", "restore_stack", "upscale"]  # fmt: skip

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

Pixels = TypeVar("Pixels", np.ndarray, Tensor, "PILImage")


@overload
def denoise(
    image: Pixels,
    sigma: Sigma = ...,
    *,
    strength: float = ...,
    method: str = ...,
    model: Network | str | Path | None = ...,
    quality: str = ...,
    settings: Settings | None = ...,
    progress: Progress | None = ...,
) -> Pixels: ...
@overload
def denoise(
    image: str | Path,
    sigma: Sigma = ...,
    *,
    strength: float = ...,
    method: str = ...,
    model: Network | str | Path | None = ...,
    quality: str = ...,
    settings: Settings | None = ...,
    progress: Progress | None = ...,
) -> np.ndarray: ...
def denoise(
    image: Any,
    sigma: Sigma = None,
    *,
    strength: float = 1.0,
    method: str = "nlrn",
    model: Network | str | Path | None = None,
    quality: str = "balanced",
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Any:
    """Returns the image without its noise, in the shape and type in which it came.

    All methods expect white Gaussian noise. For the noise in a camera's JPEG, which is not white,
    the estimated level is one that removes it nevertheless (`nlrn.estimate_noise`).

    Args:
        image: array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] (alpha is kept), uint8, uint16 or
            float in [0, 1]; a PIL image; a tensor [H, W], [H, W, C] or [C, H, W]; or the path of
            an image file, which gives an array.
        sigma: standard deviation of the noise on the 0..255 scale, also for float images; None
            estimates it, "map" pixel by pixel, for networks that take a map. (`nlrn.Denoiser` takes
            batches, with sigma in their units.)
        strength: 1 for the full effect, 0 for none.
        method: "nlrn" for the network, or a classic one: "nlm", "bm3d", "wnnm", "lssc".
        model: a network, the name of a weight in the package, or a file; None takes one for gray
            or for color.
        quality: of what is then chosen: "fast", "balanced", or "best", which is slow.
        settings: tiles, views, precision, device; a classic method knows the device alone.
        progress: called with (done, total) in equal units of work.
    """
    picture, settings = _taken(image), check_settings(settings)
    check_quality(quality)
    of_package = model is None or (isinstance(model, str) and model in weights.manifest())
    make = _kept_denoiser if of_package else make_denoiser
    denoiser = make(method, model, settings, quality)
    restored = denoiser.restore(picture, sigma, strength=strength, progress=progress)
    return as_array(restored.image, image)


@overload
def upscale(
    image: Pixels,
    scale: float,
    *,
    model: Network | str | Path | None = ...,
    quality: str = ...,
    denoise: bool = ...,
    settings: Settings | None = ...,
    progress: Progress | None = ...,
) -> Pixels: ...
@overload
def upscale(
    image: str | Path,
    scale: float,
    *,
    model: Network | str | Path | None = ...,
    quality: str = ...,
    denoise: bool = ...,
    settings: Settings | None = ...,
    progress: Progress | None = ...,
) -> np.ndarray: ...
def upscale(
    image: Any,
    scale: float,
    *,
    model: Network | str | Path | None = None,
    quality: str = "balanced",
    denoise: bool = False,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Any:
    """Returns the image `scale` times as high and wide, in the type in which it came.

    Args:
        image: as `denoise` takes it.
        scale: more than 1, at most 4; the models were trained with 2, 3 and 4.
        model: a network, the name of a weight in the package, or a file; None takes the package's.
        quality: of what is then taken: "fast", "balanced", or "best", which is slow.
        denoise: whether noise is removed first, its level estimated.
        settings: tiles, views, precision, device.
        progress: called with (done, total) in equal units of work.
    """
    picture, settings = _taken(image), check_settings(settings)
    check_scale(scale)
    if model is None:
        upscaler = _kept_upscaler(quality, denoise, settings)
    else:
        upscaler = Upscaler(scale, model, quality=quality, denoise=denoise, settings=settings)
    return as_array(upscaler.restore(picture, scale, progress=progress).image, image)


def _taken(given: Any) -> Image:
    """The image that was given; what is to be known about it becomes a warning."""
    image = as_image(given)
    for note in image.notes:
        if not note.startswith("not kept"):  # an array has no metadata anyway
            warn(note)
    return image


def make_denoiser(
    method: str = "nlrn",
    model: Network | str | Path | None = None,
    settings: Settings | None = None,
    quality: str = "balanced",
    *,
    sigma: Sigma = None,
    strength: float = 1.0,
) -> Denoiser | ClassicDenoiser:
    """The denoiser for a method; the arguments are those of `denoise`."""
    settings = check_settings(settings)
    if method == "nlrn":
        name = AUTO if model is None else model
        return Denoiser(name, quality=quality, sigma=sigma, strength=strength, settings=settings)
    if method not in METHODS:
        raise ValueError(f"method must be one of nlrn, {', '.join(METHODS)}, got {method!r}")
    for name, given in (("model", model is not None), ("quality", quality != "balanced")):
        if given:
            raise ValueError(f"{name} is for method nlrn, not for {method}")
    usual = Settings(device=settings.device)
    for name, value in vars(settings).items():
        if value != getattr(usual, name):
            raise ValueError(f"{name} is for method nlrn, not for {method}")
    return ClassicDenoiser(method, sigma=sigma, strength=strength, device=settings.device)


# What is of the package and cannot change is prepared once for all calls of a process.
_kept_denoiser = lru_cache(maxsize=8)(make_denoiser)


@lru_cache(maxsize=8)
def _kept_upscaler(quality: str, denoise: bool, settings: Settings) -> Upscaler:
    return Upscaler(quality=quality, denoise=denoise, settings=settings)
