"""Square blocks of an image, so many at most: what an estimate reads instead of all pixels."""

from __future__ import annotations

import numpy as np


def blocks(pixels: np.ndarray, side: int, most: int) -> np.ndarray:
    """Blocks side by side of [H, W] or [H, W, C], on an even grid of at most so many.

    [N, side, side, C].
    """
    channels = pixels.reshape(*pixels.shape[:2], -1)
    rows, columns = channels.shape[0] // side, channels.shape[1] // side
    cut = channels[: rows * side, : columns * side]
    grid = cut.reshape(rows, side, columns, side, channels.shape[2]).swapaxes(1, 2)
    stride = 1
    while -(-rows // stride) * -(-columns // stride) > most:
        stride += 1
    return grid[::stride, ::stride].reshape(-1, side, side, channels.shape[2])
