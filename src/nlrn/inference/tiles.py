"""Cuts an image into tiles that fit into memory, and puts the results together without a seam."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nlrn.models import Network

CPU = torch.device("cpu")
HALO = 48  # pixels around a tile by default; docs/inference.md has its measured error
BLEND = 8  # neighboring tiles are blended over twice this width, so that no seam shows
SMALLEST_TILE = 32


@dataclass(frozen=True)
class Tile:
    """A tile of an image.

    Attributes:
        output: rows and columns that it answers for.
        input: the larger part of the image that it reads.
        blend: how many pixels beyond its output it is blended with its neighbors.
    """

    output: tuple[slice, slice]
    input: tuple[slice, slice]
    blend: int = 0

    def scaled(self, scale: int) -> Tile:
        """The same tile of a result whose sides are `scale` times as long."""
        output, read = (
            (_scaled(rows, scale), _scaled(columns, scale))
            for rows, columns in (self.output, self.input)
        )
        return Tile(output, read, self.blend * scale)


def _scaled(piece: slice, scale: int) -> slice:
    return slice(piece.start * scale, piece.stop * scale)


def plan(
    network: Network,
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
        return network.memory(height, width, dtype, device)

    everything = Tile((slice(0, height), slice(0, width)), (slice(0, height), slice(0, width)))
    if tile == 0 or (tile is None and need(height, width) <= budget):
        return [everything]
    halo = network.halo if exact else min(HALO, network.halo)
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
    blend = 0 if halo == network.halo else BLEND
    tiles = cut(size, tile, halo, blend=blend, multiple=network.multiple)
    if len(tiles) > 1 and exact and not network.can_tile_exactly:
        raise ValueError("tiles of a network with circular border cannot equal the whole image")
    return tiles


def cut(
    size: torch.Size | tuple[int, int],
    tile: int,
    halo: int,
    *,
    blend: int = BLEND,
    multiple: int = 1,
) -> list[Tile]:
    """Tiles of about that side, which read `halo` pixels around them, for an image (H, W).

    What they read begins at multiples of `multiple`.
    """
    height, width = size
    rows, columns = _pieces(height, tile), _pieces(width, tile)
    narrowest = min(piece.stop - piece.start for piece in rows + columns)
    blend = min(blend, halo, narrowest // 2)
    return [
        Tile(
            (row, column),
            (_grow(row, halo, height, multiple), _grow(column, halo, width, multiple)),
            blend,
        )
        for row in rows
        for column in columns
    ]


def largest_input(tiles: list[Tile]) -> int:
    """Pixels that the largest of the tiles reads."""
    return max((y.stop - y.start) * (x.stop - x.start) for y, x in (t.input for t in tiles))


def _pieces(length: int, step: int) -> list[slice]:
    """Nearly equal pieces of at most `step`."""
    count = -(-length // step)
    edges = [length * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _grow(piece: slice, by: int, length: int, multiple: int = 1) -> slice:
    start, stop = max(0, piece.start - by), piece.stop + by
    return slice(start - start % multiple, min(length, stop + -stop % multiple))


def paste(out: Tensor, part: Tensor, tile: Tile) -> None:
    """Adds a tile, blended with its neighbors, to the result [C, H, W]."""
    used, ramps, blend = [], [], tile.blend
    for axis in (0, 1):
        length, output, read = out.shape[axis + 1], tile.output[axis], tile.input[axis]
        reach = _grow(output, blend, length)
        position = torch.arange(reach.start, reach.stop, device=out.device) + 0.5
        ramp = torch.ones_like(position)
        if blend and output.start > 0:
            ramp *= ((position - output.start + blend) / (2 * blend)).clamp(0, 1)
        if blend and output.stop < length:
            ramp *= ((output.stop + blend - position) / (2 * blend)).clamp(0, 1)
        used.append((reach, slice(reach.start - read.start, reach.stop - read.start)))
        ramps.append(ramp)
    (rows, part_rows), (columns, part_columns) = used
    out[:, rows, columns] += part[:, part_rows, part_columns] * ramps[0][:, None] * ramps[1]
