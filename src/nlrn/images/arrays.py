"""Images that callers hold in memory: NumPy arrays, PIL images and tensors, taken and given back.

Whoever has a PIL image or a tensor has loaded its library; for the others it is never loaded here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, overload

import numpy as np

from nlrn.images.files import read
from nlrn.images.image import Image
from nlrn.images.samples import (
    CHANNELS,
    DTYPES,
    OPEN_DTYPES,
    TWO_CHANNELS,
    Array,
    check_finite,
    likely_white,
    plain_array,
    split_alpha,
)

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
    from torch import Tensor

ImageLike: TypeAlias = "Array | PillowImage | Tensor | str | os.PathLike[str]"
"""What `as_image` takes."""

_PILLOW_MODES = {"1": "L", "L": "L", "LA": "LA", "P": "RGB", "RGB": "RGB", "RGBA": "RGBA",
                 "I;16": "I;16"}  # fmt: skip
_TENSOR_CHANNELS = (1, 3, 4)


def as_image(given: ImageLike) -> Image:
    """The image in an array, a PIL image, a tensor or a file; array and tensor are not copied.

    Args:
        given: one of
            a NumPy array [H, W] or [H, W, C] with gray, gray and alpha, RGB or RGBA; uint8,
            uint16, or float on the [0, 1] scale, none of it masked;
            a PIL image of mode 1, L, LA, P, RGB, RGBA or I;16, whose EXIF orientation is left
            alone;
            a tensor [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels, on any device;
            uint8, or float on the [0, 1] scale;
            the path of an image file.

    Raises:
        ValueError: if it is something else, empty, or has NaN or infinite values.
    """
    if isinstance(given, str | os.PathLike):
        return read(given)
    if _is_pillow(given):
        samples = _from_pillow(given)
    elif _is_tensor(given):
        samples = _from_tensor(given)
    elif isinstance(given, np.ndarray):
        samples = plain_array(given)
    else:
        kind = type(given).__name__
        known = "a NumPy array (np.asarray makes one), a PIL image, a tensor or a path"
        raise ValueError(f"image must be {known}, got {kind}")
    notes = (TWO_CHANNELS,) if samples.shape[2:] == (2,) and not _is_pillow(given) else ()
    return Image(*split_alpha(_checked(samples)), notes=notes)


@overload
def as_array(result: Image, given: PillowImage) -> PillowImage: ...
@overload
def as_array(result: Image, given: Tensor) -> Tensor: ...
@overload
def as_array(result: Image, given: Array | str | os.PathLike[str]) -> Array: ...


def as_array(result: Image, given: ImageLike) -> Array | PillowImage | Tensor:
    """The result as that which was given to `as_image`; an array for a file.

    An array or a tensor has the axes and type of the given one, a tensor its device too, but
    never its gradient. A PIL image has its mode and metadata; 1 becomes L and P becomes RGB or
    RGBA, since a restored image has more values than they hold.
    """
    samples = result.samples
    if isinstance(given, np.ndarray):
        return _with_axes(samples, given.ndim).astype(given.dtype, copy=False)
    if _is_tensor(given):
        return _to_tensor(_with_axes(samples, given.ndim), given)
    return _to_pillow(samples, given) if _is_pillow(given) else samples


def _with_axes(samples: Array, count: int) -> Array:
    """Gray [H, W] as [H, W, 1] where there are to be three axes."""
    return samples[..., None] if samples.ndim < count else samples


def _checked(array: Array) -> Array:
    """The array, float16 as float32, if it can be an image."""
    if array.ndim < 2 or array.shape[2:] not in CHANNELS or 0 in array.shape:
        raise ValueError(f"image must be [H, W] or [H, W, 1 to 4], got {array.shape}")
    if array.dtype.name not in (*DTYPES, "float16"):
        is_open = array.dtype.name in OPEN_DTYPES
        advice = f": divide it by its white (image / {likely_white(array)})" if is_open else ""
        raise ValueError(f"image must be one of {', '.join(DTYPES)}, got {array.dtype}{advice}")
    check_finite(array)
    return array.astype(np.float32) if array.dtype.name == "float16" else array


def _is_pillow(given: object) -> TypeGuard[PillowImage]:
    return "PIL.Image" in sys.modules and isinstance(given, sys.modules["PIL.Image"].Image)


def _from_pillow(given: PillowImage) -> Array:
    mode = _PILLOW_MODES.get(given.mode)
    if mode is None:
        known = ", ".join(_PILLOW_MODES)
        raise ValueError(f"image must be a PIL image of mode {known}, got {given.mode}")
    if mode in ("L", "RGB") and given.has_transparency_data:  # of a palette, or one colour
        mode += "A"
    return np.array(given.convert(mode))


def _to_pillow(samples: Array, given: PillowImage) -> PillowImage:
    import PIL.Image

    picture = PIL.Image.fromarray(np.ascontiguousarray(samples))
    picture.info = {key: value for key, value in given.info.items() if key != "transparency"}
    return picture


def _is_tensor(given: object) -> TypeGuard[Tensor]:
    return "torch" in sys.modules and isinstance(given, sys.modules["torch"].Tensor)


def _from_tensor(given: Tensor) -> Array:
    import torch

    shape = list(given.shape)
    if given.ndim == 4:
        doors = "nlrn.Denoiser and nlrn.Upscaler take batches"
        raise ValueError(f"image must have no batch axis, got {shape}; {doors}")
    if given.layout != torch.strided or given.is_meta:
        kind = "meta" if given.is_meta else str(given.layout).removeprefix("torch.")
        raise ValueError(f"image must be a dense tensor with values, got a {kind} one")
    if given.dtype != torch.uint8 and not given.is_floating_point():
        raise ValueError(f"image must be a tensor of floats or uint8, got {given.dtype}")
    plain = given.detach().cpu()
    if given.is_floating_point() and given.element_size() < 4:  # NumPy knows no bfloat16
        plain = plain.float()
    return np.moveaxis(plain.numpy(), 0, -1) if _channels_first(shape) else plain.numpy()


def _to_tensor(samples: Array, given: Tensor) -> Tensor:
    import torch

    if _channels_first(list(given.shape)):
        samples = np.moveaxis(samples, -1, 0)
    # A copy: what is given back is writable, and never the memory of what was given.
    return torch.from_numpy(np.array(samples, order="C")).to(given.device, given.dtype)


def _channels_first(shape: list[int]) -> bool:
    """Whether a tensor is [C, H, W]; raises where it is no image, or cannot be told."""
    if len(shape) == 2:
        return False
    if len(shape) != 3 or not {shape[0], shape[2]} & set(_TENSOR_CHANNELS):
        raise ValueError(
            f"image must be a tensor [H, W], [H, W, C] or [C, H, W] with C 1, 3 or 4, got {shape}"
        )
    if shape[0] in _TENSOR_CHANNELS and shape[2] in _TENSOR_CHANNELS:
        raise ValueError(
            f"image {shape} may be [C, H, W] or [H, W, C]: permute it into the other order, "
            "or index a single channel [H, W]"
        )
    return shape[0] in _TENSOR_CHANNELS
