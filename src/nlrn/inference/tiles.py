"""Cuts an image into tiles that fit into memory, and puts the results together without a seam."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nlrn.models.nlrn import NLRNConfig
from nlrn.ops import AFFINITIES, AttentionSpec, correlation_bytes

CPU = torch.device("cpu")
HALO = 48  # pixels around a tile by default; docs/inference.md has its measured error
FADE = 8  # neighbouring tiles are cross-faded over twice this width, so that no seam shows
SMALLEST_TILE = 32
FEATURE_MAPS = 12  # tensors of the size of a state that the network and its libraries hold at most


@dataclass(frozen=True)
class Tile:
    """Rows and columns that a tile answers for, and the larger part of the image it reads."""

    core: tuple[slice, slice]
    seen: tuple[slice, slice]
    fade: int = 0  # how far beyond the core it is cross-faded with its neighbours


def exact_halo(config: NLRNConfig) -> int:
    """How far away a pixel can still change the result: T (floor(q/2) + 2) + 2.

    Less where some states have no non-local module.
    """
    radius = config.window // 2
    return 2 + sum(2 + radius * config.is_non_local(t) for t in range(config.steps))


def network_memory(
    config: NLRNConfig,
    height: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device = CPU,
) -> int:
    """Bytes that the network takes at most for an image: the scores and a dozen feature maps."""
    channels = config.channels
    if device.type == "cuda" and height * width * (channels + 2 * config.embed) >= 2**31:
        return 2**62  # kernels count elements in 32 bits: no memory is enough
    features = FEATURE_MAPS * height * width * channels * dtype.itemsize
    if not config.non_local_every:
        return features
    embedded = AFFINITIES[config.affinity].embedded != "none"
    return features + correlation_bytes(
        height,
        width,
        AttentionSpec(config.window, config.affinity, config.border, config.bandwidth),
        embed=config.embed if embedded else channels,
        channels=channels,
        dtype=dtype,
        device=device,
    )


def plan(
    config: NLRNConfig,
    size: torch.Size | tuple[int, int],
    tile: int | None,
    exact: bool,
    dtype: torch.dtype,
    budget: int,
    device: torch.device = CPU,
) -> list[Tile]:
    """Cuts an image of size (H, W) into tiles that the network can hold in `budget` bytes."""
    height, width = size

    def need(height: int, width: int) -> int:
        return network_memory(config, height, width, dtype, device)

    everything = Tile((slice(0, height), slice(0, width)), (slice(0, height), slice(0, width)))
    if tile == 0 or (tile is None and need(height, width) <= budget):
        return [everything]
    halo = exact_halo(config) if exact else min(HALO, exact_halo(config))
    if tile is None:
        # In steps of 8, the side of the blocks that memory is counted in.
        smallest = SMALLEST_TILE + 2 * halo
        sides = range(smallest, max(height, width, smallest) + 2 * halo + 8, 8)
        fitting = bisect.bisect_right(sides, budget, key=lambda side: need(side, side))
        tile = sides[max(0, fitting - 1)] - 2 * halo
        least = need(smallest, smallest)
        if least > budget and (exact or least > 2**30):  # less than a GiB is taken all the same
            raise ValueError(
                f"tiles with a halo of {halo} pixels need {least / 2**30:.1f} GiB, "
                f"the memory budget is {budget / 2**30:.1f} GiB"
            )
    tiles = cut(size, tile, halo, fade=0 if halo == exact_halo(config) else FADE)
    if len(tiles) > 1 and config.border == "circular" and exact:
        raise ValueError("tiles of a network with circular border cannot equal the whole image")
    return tiles


def cut(
    size: torch.Size | tuple[int, int], tile: int, halo: int, *, fade: int = FADE
) -> list[Tile]:
    """Tiles of at most that side, which read `halo` pixels around them, for an image (H, W)."""
    height, width = size
    rows, columns = _pieces(height, tile), _pieces(width, tile)
    narrowest = min(piece.stop - piece.start for piece in rows + columns)
    fade = min(fade, halo, narrowest // 2)
    return [
        Tile((row, column), (_grow(row, halo, height), _grow(column, halo, width)), fade)
        for row in rows
        for column in columns
    ]


def _pieces(length: int, step: int) -> list[slice]:
    """Nearly equal pieces of at most `step`."""
    count = -(-length // step)
    edges = [length * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _grow(piece: slice, by: int, length: int) -> slice:
    return slice(max(0, piece.start - by), min(length, piece.stop + by))


def paste(out: Tensor, part: Tensor, tile: Tile) -> None:
    """Adds a tile, cross-faded with its neighbours, to the result [C, H, W]."""
    used, ramps, fade = [], [], tile.fade
    for axis in (0, 1):
        length, core, seen = out.shape[axis + 1], tile.core[axis], tile.seen[axis]
        reach = _grow(core, fade, length)
        position = torch.arange(reach.start, reach.stop) + 0.5
        ramp = torch.ones_like(position)
        if fade and core.start > 0:
            ramp *= ((position - core.start + fade) / (2 * fade)).clamp(0, 1)
        if fade and core.stop < length:
            ramp *= ((core.stop + fade - position) / (2 * fade)).clamp(0, 1)
        used.append((reach, slice(reach.start - seen.start, reach.stop - seen.start)))
        ramps.append(ramp)
    (rows, part_rows), (columns, part_columns) = used
    out[:, rows, columns] += part[:, part_rows, part_columns] * ramps[0][:, None] * ramps[1]
