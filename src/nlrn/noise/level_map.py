"""The level of white noise pixel by pixel, where it depends on the place or on the brightness."""

from __future__ import annotations

import numpy as np

from nlrn import images
from nlrn.noise.level import estimate_noise
from nlrn.noise.white import (
    MANY_PATCHES,
    MIN_PATCHES,
    Bounds,
    clipped_to,
    estimate_channel,
    live_patches,
    noise_in,
)

# Groups of patches by brightness: not narrower, as all patches of a narrow one would have the same
# mean, noise or not, and that is taken for a direction without noise.
SHADES = 8
TILE = 64  # pixels: smaller ones have too few patches for an estimate
MOST_TILES = 256  # bounds the time: the tiles of larger images are larger
TILE_PATCHES = 2**12
REACH = 3  # pixels around one over which brightness is averaged


def estimate_map(image: images.ImageLike) -> np.ndarray:
    """Estimated level of the noise at every pixel, on the 0..255 scale: [H, W], float32.

    The patches of an image are grouped by brightness, and `estimate_sigma`'s way of measuring is
    applied to each group; then the same to each tile of 64 x 64 pixels or more, which tells by how
    much the noise is stronger or weaker there than its brightness says. Both are smoothed.

    Correlated noise (`NoiseEstimate.is_correlated`) and images below 128 pixels get one level
    everywhere. Edges of the noise, as in a collage, come out soft.

    Args:
        image: as `estimate_sigma` takes it.
    """
    pixels = images.to_float(images.as_image(image).pixels)
    height, width = pixels.shape[:2]
    noise = estimate_noise(pixels)
    if noise.is_correlated or min(height, width) < 2 * TILE:
        return np.full((height, width), noise.level, np.float32)
    channels = pixels.reshape(height, width, -1)
    maps = [_channel_map(channels[..., c]) for c in range(channels.shape[2])]
    return (255 * np.mean(maps, axis=0)).astype(np.float32)


def _channel_map(channel: np.ndarray) -> np.ndarray:
    """Level of the noise in channel [H, W] at every pixel, on its own scale."""
    bounds = clipped_to(channel)
    patches = live_patches(channel, bounds)
    if len(patches) < MIN_PATCHES:  # nearly all of it is clipped
        return np.full(channel.shape, estimate_channel(channel).sigma)
    shades, levels = _by_brightness(patches, bounds)
    expected = np.interp(_local_mean(channel), shades, levels)
    return expected * _by_place(channel, expected, bounds)


def _by_brightness(patches: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Brightnesses, rising, and the level of the noise in those of patches [N, DIM]."""
    shade = np.clip(patches.mean(axis=1) * SHADES, 0, SHADES - 1).astype(int)
    groups = [patches[shade == number] for number in range(SHADES)]
    # Where all are few, they have to do together.
    groups = [group for group in groups if len(group) >= MANY_PATCHES] or [patches]
    levels = np.array([noise_in(group, *bounds).sigma for group in groups])
    return np.array([group.mean() for group in groups]), _median_of_neighbors(levels[None])[0]


def _by_place(channel: np.ndarray, expected: np.ndarray, bounds: Bounds) -> np.ndarray:
    """How many times the expected level [H, W] the noise has at every pixel: [H, W]."""
    side = max(TILE, int(np.ceil(np.sqrt(channel.size / MOST_TILES))))
    rows, columns = (np.linspace(0, n, n // side + 1).astype(int) for n in channel.shape)
    ratios = np.ones((len(rows) - 1, len(columns) - 1))
    for i, j in np.ndindex(ratios.shape):
        tile = np.s_[rows[i] : rows[i + 1], columns[j] : columns[j + 1]]
        patches = live_patches(channel[tile], bounds, TILE_PATCHES)
        mean = np.sqrt(np.square(expected[tile]).mean())
        if len(patches) >= MIN_PATCHES and mean > 0:
            ratios[i, j] = noise_in(patches, *bounds).sigma / mean
    return _enlarge(_median_of_neighbors(ratios), rows, columns)


def _median_of_neighbors(grid: np.ndarray) -> np.ndarray:
    """The median of each cell of [R, C] and the up to eight around it."""
    padded = np.pad(grid, 1, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, (3, 3)), axis=(2, 3))


def _enlarge(grid: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Values [R, C] of the cells between those edges, linear between their middles: [H, W]."""
    y, x = ((edges[1:] + edges[:-1] - 1) / 2 for edges in (rows, columns))
    wide = np.array([np.interp(np.arange(columns[-1]), x, line) for line in grid])
    return np.array([np.interp(np.arange(rows[-1]), y, line) for line in wide.T]).T


def _local_mean(channel: np.ndarray) -> np.ndarray:
    """The mean of the up to 7 x 7 pixels around each one of channel [H, W]."""
    for axis in (0, 1):
        padding = [(0, 0), (0, 0)]
        padding[axis] = (REACH + 1, REACH)
        sums = np.cumsum(np.pad(channel.astype(np.float64), padding, mode="edge"), axis=axis)
        side, length = 2 * REACH + 1, channel.shape[axis]
        upper = np.take(sums, range(side, side + length), axis=axis)
        channel = (upper - np.take(sums, range(length), axis=axis)) / side
    return channel
