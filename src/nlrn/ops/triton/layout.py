"""Where the Triton kernels find everything: tiles, regions, stored scores and block sizes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

MASKED = -1.0e30  # score of a masked slot, as in the kernels
SLOT_ALIGN = 128  # lines of slots are padded to it, so no block of slots crosses into the next one


class Tuning(NamedTuple):
    """Block sizes of the kernels; the first two also shape the stored scores.

    Attributes:
        tile: queries per tile.
        tile_width: columns of a two-dimensional tile.
        forward: slots per step, warps and pipeline stages of the forward kernel.
        keys: keys per program, key columns of a two-dimensional block, queries per step, warps and
            stages of the backward kernel that owns keys.
        queries: slots per step, warps and stages of the backward kernel that owns queries.
        tma_scores: whether scores move through tensor descriptors, on GPUs that have them.
        tma_operands: whether embeddings and values do too, where their rows are consecutive.
        max_registers: cap on the registers of a thread of the forward kernel, or None.
    """

    tile: int
    tile_width: int
    forward: tuple[int, int, int]
    keys: tuple[int, int, int, int, int]
    queries: tuple[int, int, int]
    tma_scores: bool = False
    tma_operands: bool = False
    max_registers: int | None = None


# Half precision with at most 64 + 128 channels, the network's own shape.
HALF_FULL = Tuning(64, 8, (64, 4, 3), (64, 16, 32, 4, 3), (64, 4, 3), True, True)
HALF_LINEAR = Tuning(64, 8, (64, 4, 3), (64, 16, 64, 4, 2), (64, 4, 3), True, True)
HALF_TILED = Tuning(64, 16, (64, 4, 3), (64, 16, 64, 8, 2), (64, 4, 3), True, True)
# More channels, or float32: small blocks that fit anywhere.
HALF_WIDE = Tuning(64, 8, (32, 8, 2), (32, 16, 64, 8, 1), (32, 4, 2))
FLOAT32 = Tuning(32, 8, (16, 8, 1), (32, 8, 16, 8, 1), (32, 4, 1))
# A tile of consecutive pixels reads consecutive keys; so much more work is it worth at most. With
# 1.5 times the pairs (64 x 64, window 23) it takes 0.35 ms for a training pass of 12 patches on an
# H200, where rectangular tiles take 0.56 ms.
LINEAR_ADVANTAGE = 1.6
# Rounding the rows of a region up to whole blocks must not add more than this factor.
BOX_OVERHEAD = 1.1


class Plan(NamedTuple):
    """Where everything lies for one shape of call; see `regions` for the words."""

    height: int
    width: int
    key_height: int
    key_width: int
    pad: int
    radius: int
    full: bool
    linear: bool
    boxed: bool
    tiles_x: int
    tiles: int
    region_width: int
    stride: int
    tuning: Tuning

    @property
    def lines(self) -> int:
        return self.tiles * self.tuning.tile

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """The numbers that the kernels that look at regions take, in their order."""
        sizes = (self.height, self.width, self.key_height, self.key_width)
        return *sizes, self.tiles_x, self.stride

    def geometry(self) -> dict[str, Any]:
        """The keyword arguments that all kernels share."""
        tuning = self.tuning
        return {
            "LINEAR": self.linear,
            "TILE": tuning.tile,
            "TILE_H": tuning.tile // tuning.tile_width,
            "TILE_W": tuning.tile_width,
        }

    def window(self) -> dict[str, Any]:
        """The keyword arguments of the kernels that look at regions."""
        return self.geometry() | {
            "FULL": self.full,
            "BOXED": self.boxed,
            "REGION_W": self.region_width,
            "RADIUS": self.radius,
            "PAD": self.pad,
        }


def make_plan(
    height: int, width: int, window: int, circular: bool, linear: bool, tuning: Tuning
) -> Plan:
    """Lays out the tiles, their regions and the stored scores."""
    if tuning.tile % tuning.keys[2] or tuning.tile % tuning.tile_width:
        raise ValueError(f"a tile must hold whole rows and whole steps of queries, got {tuning}")
    radius = window // 2
    full = circular and height == width == window
    pad = radius if circular and not full else 0
    key_height, key_width = height + 2 * pad, width + 2 * pad
    linear = linear or full
    tile_width = tuning.tile_width
    tile_height = tuning.tile // tile_width
    boxed = False
    if linear:
        tiles_x, tiles = 1, -(-height * width // tuning.tile)
        region_width = key_width
    else:
        tiles_x = -(-width // tile_width)
        tiles = tiles_x * -(-height // tile_height)
        region_width = min(tile_width + window - 1, key_width)
        box = -(-(tile_width + window - 1) // tuning.forward[0]) * tuning.forward[0]
        if tuning.tma_operands and box <= BOX_OVERHEAD * region_width:
            boxed, region_width = True, box
    plan = Plan(
        height, width, key_height, key_width, pad, radius, full, linear, boxed,
        tiles_x, tiles, region_width, 0, tuning,
    )  # fmt: skip
    slots = int(_region_rows(plan).max()) * region_width
    return plan._replace(stride=-(-slots // SLOT_ALIGN) * SLOT_ALIGN)


def _region_rows(plan: Plan) -> npt.NDArray[np.int64]:
    """Key rows in the region of the tiles: of each linear one, or of each row of the others."""
    if plan.full:
        return np.full(plan.tiles, plan.key_height)
    tile = plan.tuning.tile
    if plan.linear:
        pixel = np.arange(plan.tiles) * tile
        first = pixel // plan.width
        last = np.minimum(pixel + tile, plan.height * plan.width) - 1
        last //= plan.width
    else:
        tile_height = tile // plan.tuning.tile_width
        first = np.arange(0, plan.height, tile_height)
        last = np.minimum(first + tile_height, plan.height) - 1
    low, high = plan.pad - plan.radius, plan.pad + plan.radius + 1
    return np.minimum(last + high, plan.key_height) - np.maximum(first + low, 0)


def pairs_visited(plan: Plan) -> int:
    """Pairs of a query and a slot that the forward kernel goes through."""
    per_row = 1 if plan.linear else plan.tiles_x
    return int(_region_rows(plan).sum()) * plan.region_width * plan.tuning.tile * per_row


@functools.lru_cache(maxsize=256)
def plan_for(
    height: int,
    width: int,
    window: int,
    circular: bool,
    embed: int,
    channels: int,
    dtype: torch.dtype,
) -> Plan:
    """Chooses blocks and layout for a shape of call, always the same for the same shape."""
    small = padded(embed) <= 64 and padded(channels) <= 128
    if dtype == torch.float32:
        full = linear = tiled = FLOAT32
    elif not small:
        full = linear = tiled = HALF_WIDE
    else:
        full, linear, tiled = HALF_FULL, HALF_LINEAR, HALF_TILED
    if circular and height == width == window:
        return make_plan(height, width, window, circular, True, full)
    by_line = make_plan(height, width, window, circular, True, linear)
    by_tile = make_plan(height, width, window, circular, False, tiled)
    return (
        by_line if pairs_visited(by_line) <= LINEAR_ADVANTAGE * pairs_visited(by_tile) else by_tile
    )


def padded(channels: int) -> int:
    """The power of two, at least 16, that a block of channels is padded to."""
    return max(16, 1 << (channels - 1).bit_length())
