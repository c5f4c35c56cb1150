"""The image in memory, which everything in the package works on."""

from dataclasses import dataclass, replace

import numpy as np

from nlrn.images.metadata import Dpi
from nlrn.images.samples import DTYPES, Array, Stored


@dataclass(frozen=True, eq=False)
class Image:
    """An image, upright, and what its file said about it.

    Attributes:
        pixels: gray [H, W] or RGB [H, W, 3]; uint8, uint16, float32 or float64.
        alpha: opacity [H, W] of the same type, or None.
        exif: EXIF block without the "Exif" prefix of JPEG, its orientation 1; or None.
        icc: colour profile, or None.
        dpi: pixels per inch across and down, or None.
        color: chunks of a PNG that say what color its values mean (gAMA, cHRM and the like), or
            None.
        notes: what of the file is not in here, or may be wrong, in words.
        stored: type of the samples in the file and their white, where `read` was told the white;
            the pixels then are floats in [0, 1], and `write` undoes that.
    """

    pixels: Array
    alpha: Array | None = None
    exif: bytes | None = None
    icc: bytes | None = None
    dpi: Dpi | None = None
    color: bytes | None = None
    notes: tuple[str, ...] = ()
    stored: Stored | None = None

    def __post_init__(self) -> None:
        shape, dtype = self.pixels.shape, self.pixels.dtype
        if dtype.name not in DTYPES:
            raise ValueError(f"pixels must be one of {', '.join(DTYPES)}, got {dtype}")
        if len(shape) not in (2, 3) or shape[2:] not in ((), (3,)) or 0 in shape:
            raise ValueError(f"pixels must be [H, W] or [H, W, 3], got {list(shape)}")
        if self.alpha is not None and (self.alpha.shape, self.alpha.dtype) != (shape[:2], dtype):
            got = f"{self.alpha.dtype} {list(self.alpha.shape)}"
            raise ValueError(f"alpha must be {dtype} {list(shape[:2])} like the pixels, got {got}")

    @property
    def height(self) -> int:
        """H, rows."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """W, columns."""
        return int(self.pixels.shape[1])

    @property
    def samples(self) -> Array:
        """The pixels, and behind them alpha if there is one: [H, W] or [H, W, 2 to 4]."""
        return self.pixels if self.alpha is None else np.dstack([self.pixels, self.alpha])

    def with_pixels(self, pixels: Array, alpha: Array | None = None) -> "Image":
        """A copy with other pixels of the same type and number of dimensions.

        Args:
            pixels: [H', W'] or [H', W', 3].
            alpha: [H', W']; None keeps the present one, which then has to fit.
        """
        if (pixels.dtype, pixels.ndim) != (self.pixels.dtype, self.pixels.ndim):
            was = f"{self.pixels.dtype} with {self.pixels.ndim} dimensions"
            raise ValueError(f"pixels must be {was}, got {pixels.dtype} with {pixels.ndim}")
        return replace(self, pixels=pixels, alpha=self.alpha if alpha is None else alpha)
