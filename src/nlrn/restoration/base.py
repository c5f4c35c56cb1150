"""What the restorations have in common: their results, and what they ask of images and levels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

from nlrn.errors import warn
from nlrn.hardware import CPU, free_memory
from nlrn.images import Image, from_float, to_float
from nlrn.images.samples import FLOAT_RANGE_LIMIT, check_scale, likely_white
from nlrn.inference.engine import Engine
from nlrn.models import Network
from nlrn.models.base import noise_map_for
from nlrn.noise import NoiseEstimate, Tone, estimate_map, estimate_noise, tone_of
from nlrn.noise.tone import shows_gray
from nlrn.progress import Progress
from nlrn.restoration.resize import continued

LARGEST_SIGMA = 255  # on the 0..255 scale: beyond it there is nothing to find
TWELVE_BIT_MAX = 4095  # a 16-bit image with no larger value probably comes from 12 bits
MEANS = 5  # side of the blocks whose means tell the range of values: there noise is weak
SAME = 1e-5  # by how much values may differ through rounding alone
WORTH_MEASURING = 100_000  # pixels of work; fewer are done in a few seconds

AUTO: Literal["auto"] = "auto"
MAP: Literal["map"] = "map"
Sigma: TypeAlias = float | Literal["map"] | None
"""A noise level on the 0..255 scale; "map" estimates it pixel by pixel, None once for an image."""

Announce = Callable[[float], None]  # called before long work with the seconds it may take


@dataclass(frozen=True)
class Restored:
    """A restored image, and what was done to it: method, model, noise level or scale.

    Attributes:
        image: the result.
        facts: what was done.
        full: pixels of the result at full strength, float32, from which `at_strength` makes any
            other; None where nothing was changed, or strength has no meaning.
    """

    image: Image
    facts: dict[str, Any]
    full: np.ndarray | None = None


class Restoration(Protocol):
    """Something that restores images, ready to run; it can be pickled."""

    def restore(
        self,
        image: Image,
        *,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The restored image with its alpha and metadata."""


def announce_time(
    engine: Engine, size: tuple[int, int], planes: int, announce: Announce | None
) -> None:
    """Says how long an image of (H, W) will take, unless that is little."""
    if announce is not None and engine.planned_pixels(size) * planes >= WORTH_MEASURING:
        announce(engine.seconds(size, planes))


def check_strength(strength: float) -> float:
    """The share of the effect as a float; raises unless it is one."""
    if not isinstance(strength, Real) or isinstance(strength, bool) or not 0 <= strength <= 1:
        shown = f"{strength:g}" if isinstance(strength, float) else repr(strength)
        raise ValueError(f"strength must be between 0 and 1, got {shown}")
    return float(strength)


def at_strength(image: Image, full: np.ndarray | None, strength: float) -> Image:
    """The image with a share of what a restoration changes in it.

    Args:
        image: as it came.
        full: `Restored.full`.
        strength: 1 for the full effect, 0 for none.
    """
    if full is None or strength == 0:
        return image.with_pixels(image.pixels.copy())
    if strength != 1:
        pixels = to_float(image.pixels)
        full = pixels + np.float32(strength) * (full - pixels)
    return image.with_pixels(from_float(full, image.pixels.dtype))


def is_map(sigma: object) -> bool:
    """Whether a map is asked for; an array would be compared value by value."""
    return isinstance(sigma, str) and sigma == MAP


def check_level(sigma: float | Literal["map"]) -> float:
    """The noise level as a float; raises unless it makes sense."""
    if is_map(sigma):
        raise ValueError("this method takes one noise level, not a map of them")
    if not isinstance(sigma, Real) or isinstance(sigma, bool):
        got = repr(sigma) if isinstance(sigma, str | bool) else type(sigma).__name__
        raise ValueError(f"sigma must be a number, 'map', or None to estimate it, got {got}")
    if not 0 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma must be 0 or more, at most {LARGEST_SIGMA}, got {sigma:g}")
    return float(sigma)


def model_name(model: str | Path | Network) -> str:
    """What a model is called; raises unless it can be one."""
    if isinstance(model, Network):
        return model.card.name or "unnamed"
    if not isinstance(model, str | Path):
        known = "a name (nlrn.list_models), a file or a network of nlrn"
        raise ValueError(f"model must be {known}, got {type(model).__name__}")
    return str(model)


def check_image(image: Image) -> None:
    """Raises unless it is an image of the package."""
    if not isinstance(image, Image):
        got = f"{type(image).__name__}; nlrn.images.as_image makes one of it"
        raise ValueError(f"restore takes an nlrn.images.Image, got {got}")


def noise_of(image: Image, sigma: Sigma) -> NoiseEstimate:
    """The given noise level if it makes sense, the estimated noise if none is given."""
    check_image(image)
    check_range(image)
    if sigma is None:
        noise = _estimated(_visible(image))
        if 1 in (image.height, image.width):
            warn("one row or column is too little to estimate noise")
    else:
        level = check_level(sigma)
        noise = NoiseEstimate(level, white=level, jpeg=0.0)
        if image.pixels.dtype.kind == "f" and 0 < level < 1:
            warn(f"sigma {level:g} is on the 0..255 scale, also for float images: hardly any noise")
    return noise


def without_hidden(image: Image) -> np.ndarray:
    """The pixels of an image; those that are transparent have the colors that show around them.

    Their own would show at the edge, which denoisers take for one of the picture.
    """
    if image.alpha is None or image.alpha.all():
        return image.pixels
    shows = (image.alpha > 0).astype(np.float32)
    pixels = to_float(image.pixels)
    return continued(pixels, shows if pixels.ndim == 2 else shows[..., None])


def keep_hidden(full: np.ndarray, image: Image) -> None:
    """Puts back what is transparent in an image, as it came."""
    if image.alpha is not None:
        hidden = image.alpha == 0
        full[hidden] = to_float(image.pixels[hidden])


def _visible(image: Image) -> np.ndarray:
    """Its pixels, black where it is transparent: of what is hidden there noise says nothing."""
    if image.alpha is None:
        return image.pixels
    hidden = image.alpha == 0
    return np.where(hidden if image.pixels.ndim == 2 else hidden[..., None], 0, image.pixels)


def _estimated(pixels: np.ndarray) -> NoiseEstimate:
    """The noise that is found in pixels; raises if there cannot be so much."""
    noise = estimate_noise(pixels)
    if noise.level > LARGEST_SIGMA:
        scale = "values are to be in [0, 1]"
        raise ValueError(f"noise of sigma {noise.level:.0f} found, above {LARGEST_SIGMA}: {scale}")
    return noise


def noise_facts(noise: NoiseEstimate) -> dict[str, Any]:
    """What a restoration tells of the noise: its level, and whether it was found correlated."""
    return {"sigma": round(noise.level, 2)} | ({"correlated": True} if noise.is_correlated else {})


def map_for(x: Tensor) -> Tensor:
    """The estimated noise level of every pixel of a batch [B, C, H, W], on the 0..255 scale.

    [B, 1, H, W].
    """
    arrays = x.detach().float().permute(0, 2, 3, 1).cpu().numpy()  # B H W C
    return torch.stack([torch.from_numpy(estimate_map(array))[None] for array in arrays])


def check_range(image: Image) -> None:
    """Raises if the values of a float image cannot be on its scale; warns of 16 bits like that."""
    check_scale(image.pixels)
    most = image.pixels.max(initial=0) if image.pixels.dtype == np.uint16 else 0
    if 0 < most <= TWELVE_BIT_MAX:
        how = f"divide them by it, or read them with white={likely_white(image.pixels)}"
        warn(f"no value is above {most} of 65535: if white is there, {how}")


def check_batch(x: Tensor) -> None:
    """Raises unless it is a batch of gray or RGB images."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor [B, C, H, W], got {type(x).__name__}")
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        raise ValueError(f"x must be [B, 1, H, W] or [B, 3, H, W], got {tuple(x.shape)}")
    if x.layout != torch.strided or x.is_meta:
        kind = "meta" if x.is_meta else str(x.layout).removeprefix("torch.")
        raise ValueError(f"x must be a dense tensor with values, got a {kind} one")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point in [0, 1], got {x.dtype}")
    if x.numel() == 0:
        raise ValueError(f"x is empty: {tuple(x.shape)}")
    most = float(x.detach().abs().max())  # NaN if there is one
    if not math.isfinite(most):
        raise ValueError("x has NaN or infinite values")
    if most > FLOAT_RANGE_LIMIT:
        raise ValueError(f"x is to be in [0, 1], got values up to {most:g}")


def batch_levels(x: Tensor, sigma: float | Tensor | np.ndarray | None) -> list[float]:
    """The noise level of each image of a batch on the 0..255 scale; None estimates it.

    Args:
        x: [B, C, H, W].
        sigma: in the units of x, a number or [B].
    """
    if sigma is None:
        arrays = x.detach().float().permute(0, 2, 3, 1).cpu().numpy()  # B H W C
        return [_estimated(array).level for array in arrays]
    sigma = sigma.cpu() if isinstance(sigma, Tensor) else sigma  # not every device has float64
    try:
        given = torch.as_tensor(None if isinstance(sigma, bool) else sigma, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"sigma must be a number or a tensor [B], got {sigma!r}") from None
    if given.dim() == 4 and given.numel() > 1:
        raise ValueError("this method takes one noise level, not a map of them")
    if given.dim() > 1 and given.numel() > 1:
        known = "a number or [B], or a map [B, 1, H, W] for networks that take one"
        raise ValueError(f"sigma must be {known}, got {tuple(given.shape)}")
    levels = given.flatten().tolist()
    if len(levels) not in (1, len(x)):
        raise ValueError(f"sigma must be a number or one for each of {len(x)}, got {len(levels)}")
    _check_units(min(levels), max(levels))
    return [level * 255 for level in levels] * (len(x) if len(levels) == 1 else 1)


def check_map(x: Tensor, sigma: Tensor | np.ndarray) -> Tensor:
    """The noise level of every pixel of a batch [B, C, H, W] on the 0..255 scale: [B, 1, H, W].

    Args:
        x: the batch.
        sigma: a map in the units of x, that can be expanded to all of its pixels.
    """
    if isinstance(sigma, np.ndarray):
        try:
            sigma = np.array(sigma, np.float32)  # also of what torch takes no view of
        except ValueError:
            raise ValueError(f"sigma must be a map of numbers, got {sigma.dtype}") from None
    levels = noise_map_for(x.to(torch.promote_types(x.dtype, torch.float32)), sigma)
    _check_units(float(levels.min()), float(levels.max()))
    return levels * 255


def _check_units(*levels: float) -> None:
    for level in levels:
        if not 0 <= level <= 1:
            unit = "sigma must be between 0 and 1, in the units of x (25 of 255 is 0.098)"
            raise ValueError(f"{unit}, got {level:g}")


def range_of(x: Tensor, sigma: float) -> tuple[float, float]:
    """The lowest and the highest value of images [B, C, H, W] but for their noise.

    0 and 1, unless some are beyond them: light in float images, values below black.

    Args:
        x: the images.
        sigma: level of their noise on the 0..255 scale, at most.
    """
    block = min(MEANS, x.shape[2]), min(MEANS, x.shape[3])
    means = avg_pool2d(x.detach().float(), block)
    low, high = float(means.min()), float(means.max())
    slack = 5 * sigma / 255 / math.sqrt(block[0] * block[1])  # five times the noise of a mean
    return low if low < -slack else 0.0, high if high > 1 + slack else 1.0


def to_planes(x: Tensor, channels: int) -> Tensor:
    """Images [B, C, H, W] for a network of that many input channels.

    A gray network takes the channels of color one by one; a color network takes gray as color, of
    which `in_color` makes what it knows.
    """
    if channels not in (1, 3):
        raise ValueError(f"a network of {channels} input channels takes no gray or RGB image")
    if channels == 1:
        return x.reshape(-1, 1, *x.shape[2:])
    return x.expand(-1, 3, -1, -1)


def in_color(gray: Tensor, level: float | Tensor) -> tuple[Tensor, float | Tensor]:
    """Gray images [B, 3, H, W] and the level of their noise, as networks for color know noise.

    They know noise that differs by channel, and take for detail what all channels share. So noise
    without brightness is added, as much as makes the whole white: root of three times the level.
    The mean of the channels stays, and what they find in it is what a gray network finds.

    Args:
        gray: in [0, 1].
        level: on the 0..255 scale, one or [B, 1, H, W].
    """
    generator = torch.Generator(gray.device).manual_seed(0)
    one = gray[:1]  # for all the same, whatever is beside an image
    noise = torch.randn(one.shape, generator=generator, device=gray.device, dtype=gray.dtype)
    level = math.sqrt(3) * (level.to(gray) if isinstance(level, Tensor) else level)
    return gray + level / 255 * (noise - noise.mean(1, keepdim=True)), level


def from_planes(planes: Tensor, like: Tensor) -> Tensor:
    """What became of `to_planes(like)`, in the shape and type of `like`."""
    if planes.shape[1] == 3 and like.shape[1] == 1:
        planes = planes.mean(1, keepdim=True)
    return planes.reshape(like.shape).to(like.dtype)


def to_pixels(pixels: Tensor, dtype: np.dtype[Any]) -> np.ndarray:
    """Restored pixels [H, W] or [H, W, C] as an array of the image's type, as `from_float` does."""
    if pixels.is_cuda and dtype == np.uint8:  # a quarter of the bytes on their way
        return (pixels.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return from_float(pixels.cpu().numpy(), dtype)


def is_flat(images: Tensor, reach: int) -> Tensor:
    """Where all pixels of [B, C, H, W] that are up to `reach` away are equal, but for rounding."""
    # Of blocks side by side every window holds a whole one, or the last of its line: where none of
    # them is flat, which takes one look at every pixel, nothing is.
    block, both = reach + 1, (images, -images)
    highest, lowest = (max_pool2d(x, block, stride=block, ceil_mode=True) for x in both)
    if not (highest + lowest < SAME).any():
        return torch.zeros_like(images, dtype=torch.bool)
    highest, lowest = both
    for side, pad in (((2 * reach + 1, 1), (reach, 0)), ((1, 2 * reach + 1), (0, reach))):
        highest, lowest = (max_pool2d(x, side, stride=1, padding=pad) for x in (highest, lowest))
    return highest + lowest < SAME


def tone_for(pixels: np.ndarray, tone: Tone | Literal["auto"] | None) -> Tone | None:
    """The tone by which [H, W] or [H, W, 3] is to be denoised as gray, or None.

    Args:
        pixels: of an image.
        tone: what counts for an image that is not exactly gray; "auto" looks.
    """
    return tone_of(pixels) if tone == AUTO or shows_gray(pixels) else tone


def to_batch(pixels: np.ndarray, device: torch.device, copies: int) -> Tensor:
    """Pixels [H, W] or [H, W, C] as float32 [1, C, H, W], where the network will run if it can be.

    A GPU does what is around the network in no time, where a CPU takes longer than the network.

    Args:
        pixels: of an image.
        device: of the network.
        copies: for how many float32 images of that size there must be room.
    """
    there = device.type == "cuda" and 4 * copies * pixels.size <= free_memory(device) // 4
    if there and pixels.dtype == np.uint8:  # a quarter of the bytes on their way
        batch = torch.from_numpy(pixels.copy()).to(device).float() / 255
    else:
        batch = torch.from_numpy(to_float(pixels)).to(device if there else CPU)
    return batch.reshape(1, *pixels.shape[:2], -1).permute(0, 3, 1, 2)
