"""The kernels between plain scores and lines of slots; words as in `regions`."""

# ruff: noqa: N803, N806 - capitals are what the compiler takes as constants, and the image sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from nlrn.ops.triton.regions import (
    keys_of_slots,
    query_pixels,
    region,
)


@triton.jit
def pack_kernel(
    plain, packed,
    H, W, KEY_H, KEY_W, tiles_x, stride, fill,
    LINEAR: tl.constexpr, FULL: tl.constexpr, BOXED: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
    REGION_W: tl.constexpr, RADIUS: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Scores [B, H, W, window**2] into lines of slots, `fill` wherever no pair stands."""
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    index = tl.arange(0, TILE)
    y, x, inside = query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    row, rows, column = region(
        tile, H, W, KEY_H, KEY_W, tiles_x,
        LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
    )  # fmt: skip
    WINDOW: tl.constexpr = 2 * RADIUS + 1
    first_line = ((batch * tl.num_programs(0) + tile) * TILE).to(tl.int64)
    line = first_line * stride + index[:, None] * stride
    source = (batch.to(tl.int64) * H * W + y * W + x) * (WINDOW * WINDOW)
    for start in range(0, stride, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        dy = (row + slot // REGION_W - PAD + RADIUS)[None, :] - y[:, None]
        dx = (column + slot % REGION_W - PAD + RADIUS)[None, :] - x[:, None]
        if FULL:  # the wrapped offset; the sums lie above -WINDOW
            dy = (dy + WINDOW) % WINDOW
            dx = (dx + WINDOW) % WINDOW
        pair = (dy >= 0) & (dy < WINDOW) & (dx >= 0) & (dx < WINDOW) & inside[:, None]
        _, exists = keys_of_slots(
            slot, rows * REGION_W, row, column, KEY_W, LINEAR, BOXED, REGION_W
        )
        pair &= exists[None, :]
        value = tl.load(plain + source[:, None] + dy * WINDOW + dx, mask=pair, other=0.0)
        value = tl.where(pair, value.to(tl.float32), fill)
        tl.store(packed + line + slot[None, :], value.to(packed.dtype.element_ty))


@triton.jit
def unpack_kernel(
    packed, plain,
    H, W, KEY_H, KEY_W, tiles_x, stride,
    LINEAR: tl.constexpr, FULL: tl.constexpr, BOXED: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
    REGION_W: tl.constexpr, RADIUS: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Lines of slots into scores [B, H, W, window**2], 0 where the pair is masked."""
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    index = tl.arange(0, TILE)
    y, x, inside = query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    row, _, column = region(
        tile, H, W, KEY_H, KEY_W, tiles_x,
        LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
    )  # fmt: skip
    WINDOW: tl.constexpr = 2 * RADIUS + 1
    first_line = ((batch * tl.num_programs(0) + tile) * TILE).to(tl.int64)
    line = first_line * stride + index[:, None] * stride
    target = (batch.to(tl.int64) * H * W + y * W + x) * (WINDOW * WINDOW)
    for start in range(0, WINDOW * WINDOW, BLOCK):
        offset = start + tl.arange(0, BLOCK)
        key_y = y[:, None] + (offset // WINDOW - RADIUS + PAD)[None, :]
        key_x = x[:, None] + (offset % WINDOW - RADIUS + PAD)[None, :]
        if FULL:
            key_y = (key_y + KEY_H) % KEY_H
            key_x = (key_x + KEY_W) % KEY_W
        wanted = inside[:, None] & (offset < WINDOW * WINDOW)[None, :]
        pair = wanted & (key_y >= 0) & (key_y < KEY_H) & (key_x >= 0) & (key_x < KEY_W)
        slot = (key_y - row) * REGION_W + key_x - column
        value = tl.load(packed + line + slot, mask=pair, other=0.0)
        tl.store(plain + target[:, None] + offset[None, :], value, mask=wanted)
