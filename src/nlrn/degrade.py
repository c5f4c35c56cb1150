"""Steps from a clean test image to the input of a method, as MATLAB has them where papers used it.

Every table of the field starts from these steps, and a different bicubic kernel or rounding moves
PSNR by more than the methods differ: so gray, luminance and resize follow MATLAB's definitions,
and the noise depends on a seed and the image's name alone.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

# First row of the inverse of MATLAB's YIQ matrix [1 .956 .621; 1 -.272 -.647; 1 -1.106 1.703].
# With these all of BSD68 is the rounded gray of its BSDS500 originals; with the four digits of
# MATLAB's help (0.2989, 0.5870, 0.1140) 61 of the 68 images are off somewhere.
GRAY = (0.298936021293775, 0.587043074451121, 0.114020904255103)
# Thousandths of the coefficients of rgb2ycbcr: 194 colours lie halfway between two values, where
# integers round the same on every machine.
LUMINANCE = (65481, 128553, 24966)


def rgb2gray(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Gray [H, W] of an image [H, W, 3]: MATLAB's rgb2gray, 0.299 R + 0.587 G + 0.114 B."""
    _check_rgb(rgb)
    # No colour comes nearer than 4e-6 to a half, so the order of the sum does not matter.
    return np.floor(rgb @ np.array(GRAY) + 0.5).astype(np.uint8)


def luminance(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Luminance [H, W], 16..235, of an image [H, W, 3]: Y of MATLAB's rgb2ycbcr for uint8."""
    _check_rgb(rgb)
    total = rgb.astype(np.int32) @ np.array(LUMINANCE, np.int32)
    return (16 + (total + 127_500) // 255_000).astype(np.uint8)


def imresize(
    image: np.ndarray, scale: float | None = None, *, size: tuple[int, int] | None = None
) -> np.ndarray:
    """The image at another size, as MATLAB's imresize makes it with its default, bicubic.

    The cubic kernel has a = -0.5 and is widened when shrinking, so that it also keeps aliases
    out; edges are mirrored. O(pixels) for a given scale.

    Args:
        image: [H, W] or [H, W, C]. uint8 is rounded and clipped after each of the two passes, as
            MATLAB does; float is neither, and keeps its type.
        scale: factor for both sides; a side becomes ceil(scale * side). Either this or `size`.
        size: the new (H, W); the factors are then new / old side.
    """
    _check_image(image)
    scales, lengths = _target((image.shape[0], image.shape[1]), scale, size)
    out = image.astype(np.float64)
    # The side that shrinks most first, the vertical one if both are the same: with rounding in
    # between the order shows.
    for axis in sorted((0, 1), key=lambda axis: scales[axis]):
        out = _resize_axis(out, axis, lengths[axis], scales[axis])
        if image.dtype == np.uint8:
            # Halves go up, away from zero: the same as MATLAB, the negative ones being clipped.
            out = np.floor(out + 0.5).clip(0, 255)
    return np.ascontiguousarray(out, dtype=image.dtype)


def enlarged_matrix(length: int, scale: int) -> npt.NDArray[np.float64]:
    """Matrix [length, length] that shrinks a line by the scale and enlarges it again.

    With M for the rows and N for the columns, M @ image @ N.T is what `imresize` gives for a float
    image that is shrunk and enlarged; for devices on which matrix products are cheap.
    """
    small = shrunk_matrix(length, scale)
    return imresize(small[:, :, None], size=(length, length))[..., 0]


def shrunk_matrix(length: int, scale: int) -> npt.NDArray[np.float64]:
    """Matrix [length / scale, length] that shrinks a line by the scale, as `imresize` does."""
    if scale < 1 or length % scale:
        raise ValueError(f"length must be a multiple of the scale {scale}, got {length}")
    return imresize(np.eye(length)[:, :, None], size=(length // scale, length))[..., 0]


def imresize_weights(scale: int, reach: int) -> npt.NDArray[np.float64]:
    """Weights [scale, 2 reach + 1] by which pixels make those of the first one that is enlarged.

    Row p has what the p-th new pixel of old pixel i takes of the old pixels i - reach, ...,
    i + reach.
    """
    centers = (np.arange(scale) + 0.5) / scale - 0.5
    weights = _cubic(centers[:, None] - np.arange(-reach, reach + 1))
    return weights / weights.sum(axis=1, keepdims=True)


def mod_crop(image: np.ndarray, scale: int) -> np.ndarray:
    """The image [H, W] or [H, W, C] cut at the right and bottom to multiples of scale: a view."""
    _check_image(image)
    if scale < 1:
        raise ValueError(f"scale must be a positive integer, got {scale}")
    height, width = (side - side % scale for side in image.shape[:2])
    if height == 0 or width == 0:
        raise ValueError(f"image must be at least {scale} x {scale}, got {image.shape}")
    return image[:height, :width]


def standard_noise(seed: int, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Standard normal noise that belongs to an image's name, the same on every machine."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    return generator.standard_normal(shape)


def add_noise(image: np.ndarray, sigma: float, seed: int, name: str) -> npt.NDArray[np.float64]:
    """The image on the [0, 1] scale plus white Gaussian noise, neither clipped nor rounded.

    Args:
        image: [H, W] or [H, W, C], float in [0, 1] or uint8.
        sigma: standard deviation of the noise on the 0..255 scale.
        seed: one for a whole table of results.
        name: the image's; another name gives other noise.
    """
    _check_image(image)
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"sigma must be 0 or more and finite, got {sigma}")
    clean = image.astype(np.float64) / (255 if image.dtype == np.uint8 else 1)
    return clean + sigma / 255 * standard_noise(seed, name, image.shape)


def _target(
    old: tuple[int, int], scale: float | None, size: tuple[int, int] | None
) -> tuple[tuple[float, float], tuple[int, int]]:
    """Factors and new lengths of the two sides, from the one of scale and size that is given."""
    if (scale is None) == (size is None):
        raise ValueError(f"give either scale or size, got scale={scale} and size={size}")
    if size is not None:
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"size must be a positive height and width, got {size}")
        return (size[0] / old[0], size[1] / old[1]), size
    if scale is None or not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale}")
    # MATLAB's ceil of the floating-point product, though its round-off may add a pixel (50 * 1.1
    # gives 56). It does not with 1/n for n below 75, checked up to 100000 n: on a multiple n * k
    # the error of 1/n is less than the product rounds away, so a mod-cropped side becomes k.
    return (scale, scale), (math.ceil(scale * old[0]), math.ceil(scale * old[1]))


def _resize_axis(image: np.ndarray, axis: int, length: int, scale: float) -> np.ndarray:
    """The float image with one axis resized to the given length."""
    source = np.ascontiguousarray(np.moveaxis(image, axis, 0))
    taps, weights = _contributions(len(source), length, scale)
    out = np.zeros((length, *source.shape[1:]))
    # One tap at a time: no array of all taps, and a sum whose order no BLAS changes.
    for tap, weight in zip(taps.T, weights.T, strict=True):
        out += source[tap] * weight.reshape(-1, *[1] * (source.ndim - 1))
    return np.moveaxis(out, 0, axis)


def _contributions(old: int, new: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Source pixels [new, taps] of each pixel of a row of length new, and their weights."""
    stretch = min(scale, 1.0)  # below 1 the kernel is widened by 1 / scale
    width = 4 / stretch
    # Pixel centres: the left edge of the first new pixel lies on that of the first old one.
    centers = (np.arange(new) + 0.5) / scale - 0.5
    # One pixel more than fits at either end, since round-off may shift the first by one.
    taps = np.floor(centers - width / 2)[:, None] + np.arange(math.ceil(width) + 2)
    weights = _cubic(stretch * (centers[:, None] - taps))
    weights /= weights.sum(axis=1, keepdims=True)
    used = weights.any(axis=0)
    # Mirrored with the edge pixel repeated, a row has period 2 * old: a b c c b a | a b c ...
    mirrored = taps[:, used].astype(np.int64) % (2 * old)
    return np.minimum(mirrored, 2 * old - 1 - mirrored), weights[:, used]


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys' cubic convolution kernel with a = -0.5, which is 0 beyond |x| = 2."""
    x = np.abs(x)
    inner = (1.5 * x - 2.5) * x * x + 1
    outer = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x <= 1, inner, np.where(x <= 2, outer, 0.0))


def _check_rgb(rgb: np.ndarray) -> None:
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8:
        raise ValueError(f"image must be uint8 [H, W, 3], got {rgb.dtype} {rgb.shape}")


def _check_image(image: np.ndarray) -> None:
    if image.ndim not in (2, 3) or image.size == 0:
        raise ValueError(f"image must be [H, W] or [H, W, C] and not empty, got {image.shape}")
    if image.dtype != np.uint8 and not np.issubdtype(image.dtype, np.floating):
        raise ValueError(f"image must be uint8 or float, got {image.dtype}")
