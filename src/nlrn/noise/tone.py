"""Pictures of one tone: sepia, scans of black and white, gray with a mark of color.

Their channels share one noise. What knows noise that differs by channel takes it for detail.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nlrn.images import to_float
from nlrn.noise.blocks import blocks

BLOCK = 16  # pixels: four scales, of 1, 2, 4 and 8 pixels
MAX_BLOCKS = 2**9  # bounds the time: a millisecond or two
FEWEST = 16  # of the differences at a scale: fewer say nothing of it
# The share of the differences' variance that lies along one axis of color, at every scale. Where
# noise differs by channel it is 0.34 to 0.7 at the finest, in photographs without noise and in a
# camera's at most 0.97, but not at every scale; in gray and sepia 0.97 to 1 at all of them.
ONE_TONE = 0.97


@dataclass(frozen=True, eq=False)
class Tone:
    """How a picture of one tone is shown as gray; noise t there is t times `axis` in the picture.

    Attributes:
        axis: how much the channels have of what varies [3], float32; the mean square is one.
    """

    axis: np.ndarray

    @cached_property
    def strongest(self) -> float:
        """How many times as strong as in the gray picture the noise of the strongest channel is."""
        return float(np.abs(self.axis).max())

    @cached_property
    def offset(self) -> float:
        """What is added to the gray picture, so that mid-gray stays where it is."""
        return 0.5 - 0.5 * float(self.axis.mean())

    def gray(self, pixels: np.ndarray) -> np.ndarray:
        """The gray picture [H, W] of float pixels [H, W, 3]."""
        if (self.axis == 1).all():
            return np.ascontiguousarray(pixels[..., 0])
        shown: np.ndarray = pixels @ (self.axis / 3)
        return shown + np.float32(self.offset)


GRAY = Tone(np.ones(3, np.float32))


def tone_of(pixels: np.ndarray) -> Tone | None:
    """The tone of [H, W, 3] if it has but one, `GRAY` if all channels are equal; None for color.

    None for [H, W] too, which is gray already.
    """
    if pixels.ndim == 2:
        return None
    if shows_gray(pixels):
        return GRAY
    axis = shared_axis(pixels)
    return None if axis is None else Tone(axis.astype(np.float32))


def shows_gray(pixels: np.ndarray) -> bool:
    """Whether [H, W] or [H, W, 3] is gray, if only three times the same."""
    if pixels.ndim == 2:
        return True
    some = pixels[:: max(1, len(pixels) // 16)]  # where color mostly shows already
    return all(bool((part == part[..., :1]).all()) for part in (some, pixels))


def shared_axis(pixels: np.ndarray) -> np.ndarray | None:
    """By how much the channels of an image [H, W, 3] share one noise, if nothing else differs.

    Noise t becomes t times that in each channel; the mean square is one, and the largest is
    positive. None for an image in color, and where too little varies for an answer.
    """
    parts = to_float(blocks(pixels, BLOCK, MAX_BLOCKS))
    axis = None
    while parts.shape[1] > 1:
        corners = [parts[:, y::2, x::2] for y in (0, 1) for x in (0, 1)]
        found = _main_axis((corners[0] - corners[1] - corners[2] + corners[3]).reshape(-1, 3))
        if found is None:
            break
        share, main = found
        if share < ONE_TONE:
            return None
        axis = main if axis is None else axis  # the finest has the most noise
        parts = np.mean(corners, axis=0)
    return axis


def _main_axis(differences: np.ndarray) -> tuple[float, np.ndarray] | None:
    """The share of the variance of [N, 3] along its main axis, and that; None for too few."""
    if len(differences) < FEWEST:
        return None
    size = np.abs(differences).sum(axis=1)
    if (median := np.median(size)) == 0:
        return None
    usual = differences[size <= 2 * median]  # without edges, marks and stamps
    variances, axes = np.linalg.eigh(usual.T @ usual)
    axis = axes[:, 2] * np.sign(axes[np.abs(axes[:, 2]).argmax(), 2])
    return float(variances[2] / variances.sum()), axis * np.sqrt(3)
