"""The way from an array to planes on a device and back, common to the four public functions."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from nlrn import images
from nlrn.hardware import choose_device, mind_fork
from nlrn.images.samples import plain_array
from nlrn.progress import Progress, part_of

LARGEST_SIGMA = 255  # on the 0..255 scale: beyond it there is nothing to find


def restore(
    image: np.ndarray,
    sigma: float,
    patch: int,
    work: Callable[[Tensor], Tensor],
    device: str | torch.device,
) -> np.ndarray:
    """The result of `work` for an array, in the array's shape and type.

    Args:
        image: [H, W] or [H, W, 3]; uint8, uint16 or float on the [0, 1] scale.
        sigma: standard deviation of the noise on the 0..255 scale; 0 gives a copy of the image.
        patch: side of the largest patch; a smaller image is mirrored until it has that size.
        work: planes [C, H, W] in float32 -> planes of the same shape.
        device: where it works; "auto" takes a GPU where there is one.
    """
    mind_fork()
    image = plain_array(image)
    if sigma == 0:
        return image.copy()
    pixels = images.to_float(image)
    height, width = pixels.shape[:2]
    missing = [(0, max(0, patch - side)) for side in (height, width)]
    padded = np.pad(pixels, [*missing, (0, 0)][: pixels.ndim], mode="symmetric")
    planes = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(padded).transpose(2, 0, 1)))
    with torch.inference_mode():
        result = work(planes.to(choose_device(device))).cpu()[:, :height, :width]  # C H W
    restored = result.permute(1, 2, 0).numpy().reshape(pixels.shape)
    return images.from_float(np.ascontiguousarray(restored), image.dtype)


def check(image: np.ndarray, sigma: float) -> float:
    """The noise level; raises what is wrong with it or the image, in one line."""
    if not isinstance(image, np.ndarray):
        raise ValueError(f"image must be a NumPy array, got {type(image).__name__}")
    if image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)) or 0 in image.shape:
        raise ValueError(f"image must be [H, W] or [H, W, 3] and not empty, got {image.shape}")
    if not isinstance(sigma, Real) or isinstance(sigma, bool) or not 0 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma must be a number from 0 to {LARGEST_SIGMA}, got {sigma!r}")
    return float(sigma)


def each(
    method: Callable[[Tensor, Progress], Tensor], progress: Progress | None
) -> Callable[[Tensor], Tensor]:
    """A method for one plane [H, W], applied to the colour channels one after the other."""

    def work(planes: Tensor) -> Tensor:
        count = len(planes)
        done = [method(plane, part_of(progress, c, count)) for c, plane in enumerate(planes)]
        return torch.stack(done)

    return work


def check_positive(**values: float) -> None:
    """Raises for the first parameter that is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value!r}")


def check_odd(**values: int) -> None:
    """Raises for the first parameter that is not an odd number above 0."""
    for name, value in values.items():
        if value < 1 or value % 2 == 0:
            raise ValueError(f"{name} must be odd and positive, got {value!r}")


def check_share(**values: float) -> None:
    """Raises for the first parameter that is not between 0 and 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value!r}")


def check_group(count: int) -> None:
    """Raises if a group has nothing in common with another patch."""
    if count < 2:
        raise ValueError(f"group must be at least 2, got {count!r}")


def check_covers(step: int, patch: int) -> None:
    """Raises if pixels lie between the reference patches."""
    if step > patch:
        raise ValueError(f"step must be at most the patch ({patch}), got {step!r}")
