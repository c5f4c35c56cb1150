"""How coarsely an image has gone through JPEG, seen from its pixels alone."""

from __future__ import annotations

import numpy as np

from nlrn.noise.blocks import blocks

BLOCK = 8
MAX_BLOCKS = 2**14  # bounds the time; a megapixel has as many
LUMA = np.array([0.299, 0.587, 0.114])
# JPEG's example table for luminance, of quality 50 (ITU-T T.81, annex K); others are about
# multiples of it.
TABLE = np.array(
    [[16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
     [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
     [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
     [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99]]
)  # fmt: skip
_INDEX = np.arange(BLOCK)
# Rows are the basis functions of the orthonormal discrete cosine transform.
DCT = np.cos(np.pi / 16 * np.outer(_INDEX, 2 * _INDEX + 1)) / 2
DCT[0] /= np.sqrt(2)
FREQUENCIES = np.argwhere(np.add.outer(_INDEX, _INDEX) >= 3)  # below, the steps are small
SMALLEST_STEP = 2.5  # what rounding to 8 bits leaves of a coefficient that was zero is far below
MIN_COEFFICIENTS = 20  # at one frequency: fewer do not show their step


def compression(pixels: np.ndarray) -> float:
    """Strength of the JPEG compression that an image has gone through last; 0 for none.

    In multiples of the table of quality 50: 0.5 for quality 75, 0.2 for 90. Found by the steps in
    which the coefficients of 8 x 8 blocks lie, so the upper left corner must be the file's own, or
    a multiple of 8 away from it.

    Args:
        pixels: [H, W] or [H, W, C] on the [0, 1] scale.
    """
    parts = 255 * blocks(pixels, BLOCK, MAX_BLOCKS).astype(np.float64)  # N 8 8 C
    parts = parts[((parts > 0) & (parts < 255)).all((1, 2, 3))]  # clipping breaks the steps
    luma = parts @ LUMA if parts.shape[-1] == 3 else parts[..., 0]
    coefficients = np.abs(DCT @ luma @ DCT.T)
    found = [_step(coefficients[:, u, v]) / TABLE[u, v] for u, v in FREQUENCIES]
    known = np.array([strength for strength in found if not np.isnan(strength)])
    if len(known) < 3 or (known > 0).mean() < 0.5:
        return 0.0
    low, middle, high = np.quantile(known[known > 0], [0.25, 0.5, 0.75])
    # Patterns that repeat exactly have steps too, but not those of a table.
    return float(middle) if high < 1.5 * low else 0.0


def _step(magnitudes: np.ndarray) -> float:
    """The step of which magnitudes [N] are multiples; 0 if of none, NaN if too few are not zero."""
    present = magnitudes[magnitudes > SMALLEST_STEP]
    if len(present) < MIN_COEFFICIENTS:
        return np.nan
    step = np.quantile(present, 0.1)  # most are one step, a few of them are off by clipping
    near = present[present < 2.5 * step]
    off = np.abs(near - step * np.round(near / step))
    # By chance they would lie evenly between the steps.
    return float(step) if step > 4 and (off < 1).mean() > 0.5 + 1 / step else 0.0
