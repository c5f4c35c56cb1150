"""What all CUDA kernels of the operator share: which keys a tile of queries sees, and where.

Queries are the H x W pixels of an image, cut into tiles of TILE_H x TILE_W = TILE pixels, or
(LINEAR) into runs of TILE pixels in reading order. Keys are the KEY_H x KEY_W pixels of the image,
or of the image padded by PAD for the circular border. A tile sees a rectangular region of keys: the
rows that the window of any of its pixels reaches, times REGION_W columns (all of them when LINEAR).
The keys of the region, row by row, are the tile's slots; scores are stored as [B, tiles, TILE,
stride], one line of slots per query, so that every access to them is contiguous. FULL says that
every query sees every key (circular border on a window x window patch): then nothing is masked.
BOXED says that REGION_W is rounded up to whole blocks, so that a block of keys is a box of one
image row that the copy engine can fetch; such a region may stick out of the key plane on both
sides.

Masked slots hold a hugely negative score. A sum of scores keeps it, so only the first state pays
for computing the mask.
"""

# ruff: noqa: N803 - capitals are what the compiler takes as constants, and the image sizes
# mypy: ignore-errors

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1.0e30)  # score of a masked slot; becomes -inf in float16, which works too
LOWEST = tl.constexpr(-1.0e20)  # where the running maximum starts: above MASKED, so exp gives 0
ABSENT = tl.constexpr(1.0e30)  # log-sum-exp of a query outside the image: its weights become 0


@triton.jit
def channel_mask(rows_inside, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Mask [rows, BLOCK] of the elements that exist; the column test vanishes when it can."""
    mask = rows_inside[:, None]
    if WIDTH != BLOCK:
        mask = mask & (channels < WIDTH)[None, :]
    return mask


@triton.jit
def query_pixels(
    tile, index,
    H, W, tiles_x,
    LINEAR: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    """Row, column and existence of the tile's pixels number `index`."""
    if LINEAR:
        pixel = tile * TILE + index
        y = pixel // W
        x = pixel % W
    else:
        y = (tile // tiles_x) * TILE_H + index // TILE_W
        x = (tile % tiles_x) * TILE_W + index % TILE_W
    return y, x, (y < H) & (x < W)


@triton.jit
def region(
    tile,
    H, W, KEY_H, KEY_W, tiles_x,
    LINEAR: tl.constexpr, FULL: tl.constexpr, BOXED: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
    REGION_W: tl.constexpr, RADIUS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """First key row, number of key rows and first key column of the tile's region."""
    if FULL:
        row = tile * 0
        rows = row + KEY_H
        column = row
    else:
        if LINEAR:
            first = (tile * TILE) // W
            last = tl.minimum(tile * TILE + TILE - 1, H * W - 1) // W
            column = tile * 0
        else:
            first = (tile // tiles_x) * TILE_H
            last = tl.minimum(first + TILE_H, H) - 1
            column = (tile % tiles_x) * TILE_W + (PAD - RADIUS)
            if not BOXED:
                column = tl.maximum(tl.minimum(column, KEY_W - REGION_W), 0)
        row = tl.maximum(first + (PAD - RADIUS), 0)
        rows = tl.minimum(last + (PAD + RADIUS + 1), KEY_H) - row
    return row, rows, column


@triton.jit
def keys_of_slots(
    slot, slots_inside, row, column,
    KEY_W,
    LINEAR: tl.constexpr, BOXED: tl.constexpr,
    REGION_W: tl.constexpr,
):  # fmt: skip
    """Index of the key of each slot of a region, and whether there is one."""
    exists = slot < slots_inside
    if LINEAR:
        key = row * KEY_W + slot
    else:
        key_x = column + slot % REGION_W
        key = (row + slot // REGION_W) * KEY_W + key_x
        if BOXED:
            exists = exists & (key_x >= 0) & (key_x < KEY_W)
    return key, exists
