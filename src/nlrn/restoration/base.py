"""What the restorations have in common: their results, and what they ask of images and levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from nlrn.errors import warn
from nlrn.images import Image, from_float, to_float
from nlrn.images.samples import likely_white
from nlrn.inference.engine import Engine
from nlrn.models import Network
from nlrn.noise import NoiseEstimate, estimate_map, estimate_noise
from nlrn.progress import Progress

LARGEST_SIGMA = 255  # on the 0..255 scale: beyond it there is nothing to find
FLOAT_RANGE_LIMIT = 16.0  # a float image with values beyond it is hardly on the [0, 1] scale
TWELVE_BIT_MAX = 4095  # a 16-bit image with no larger value probably comes from 12 bits
SAME = 1e-5  # by how much values may differ through rounding alone
WORTH_MEASURING = 100_000  # pixels of work; fewer are done in a few seconds

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
        raise ValueError(f"sigma must be a number, or None to estimate it, got {got}")
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
    if sigma is None:
        noise = estimate_noise(image.pixels)
        if noise.level > LARGEST_SIGMA:
            found = f"noise of sigma {noise.level:.0f} found"
            raise ValueError(f"{found}: float values are to be in [0, 1]")
        if 1 in (image.height, image.width):
            warn("one row or column is too little to estimate noise")
    else:
        level = check_level(sigma)
        noise = NoiseEstimate(level, white=level, jpeg=0.0)
        if image.pixels.dtype.kind == "f" and 0 < level < 1:
            warn(f"sigma {level:g} is on the 0..255 scale, also for float images: hardly any noise")
    warn_of_range(image)
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


def warn_of_range(image: Image) -> None:
    """Warns if the values of a float or 16-bit image are hardly on the scale of its type."""
    dtype, most = image.pixels.dtype, np.abs(image.pixels).max(initial=0)
    if dtype.kind == "f" and most > FLOAT_RANGE_LIMIT:
        warn(
            "float values are to be in [0, 1]; these are far beyond it: divide them by their white"
        )
    if dtype == np.uint16 and 0 < most <= TWELVE_BIT_MAX:
        how = f"divide them by it, or read them with white={likely_white(image.pixels)}"
        warn(f"no value is above {most} of 65535: if white is there, {how}")


def check_batch(x: Tensor) -> None:
    """Raises unless it is a batch of gray or RGB images."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor [B, C, H, W], got {type(x).__name__}")
    if x.dim() != 4 or x.shape[1] not in (1, 3) or 0 in x.shape:
        raise ValueError(f"x must be [B, 1, H, W] or [B, 3, H, W], got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point in [0, 1], got {x.dtype}")
    if not x.isfinite().all():
        raise ValueError("x has NaN or infinite values")


def batch_levels(x: Tensor, sigma: float | Tensor | None) -> list[float]:
    """The noise level of each image of a batch on the 0..255 scale; None estimates it.

    Args:
        x: [B, C, H, W].
        sigma: in the units of x, a number or [B].
    """
    if sigma is None:
        arrays = x.detach().float().permute(0, 2, 3, 1).cpu().numpy()  # B H W C
        return [check_level(estimate_noise(array).level) for array in arrays]
    sigma = sigma.cpu() if isinstance(sigma, Tensor) else sigma  # not every device has float64
    try:
        given = torch.as_tensor(sigma, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"sigma must be a number or a tensor [B], got {sigma!r}") from None
    if len(given) not in (1, len(x)):
        raise ValueError(f"sigma must be a number or one for each of {len(x)}, got {len(given)}")
    for level in given:
        if not 0 <= level <= 1:
            unit = "sigma must be between 0 and 1, in the units of x (25 of 255 is 0.098)"
            raise ValueError(f"{unit}, got {level:g}")
    levels = [level * 255 for level in given]
    return levels * len(x) if len(levels) == 1 else levels


def to_planes(x: Tensor, channels: int) -> Tensor:
    """Images [B, C, H, W] for a network of that many input channels.

    A gray network takes the channels of color one by one; a color network takes gray as color.
    """
    if channels not in (1, 3):
        raise ValueError(f"a network of {channels} input channels takes no gray or RGB image")
    if channels == 1:
        return x.reshape(-1, 1, *x.shape[2:])
    return x.expand(-1, 3, -1, -1)


def from_planes(planes: Tensor, like: Tensor) -> Tensor:
    """What became of `to_planes(like)`, in the shape and type of `like`."""
    if planes.shape[1] == 3 and like.shape[1] == 1:
        planes = planes.mean(1, keepdim=True)
    return planes.reshape(like.shape).to(like.dtype)


def is_flat(images: Tensor, reach: int) -> Tensor:
    """Where all pixels of [B, C, H, W] that are up to `reach` away are equal, but for rounding."""
    side = 2 * reach + 1
    highest = max_pool2d(images, side, stride=1, padding=reach)
    lowest = -max_pool2d(-images, side, stride=1, padding=reach)
    return highest - lowest < SAME
