"""The kernels of the gradients; words as in `regions`."""

# ruff: noqa: N803, N806 - capitals are what the compiler takes as constants, and the image sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from nlrn.ops.triton.regions import (
    LOG2E,
    channel_mask,
    keys_of_slots,
    query_pixels,
    region,
)


@triton.jit
def delta_kernel(
    out, d_out, delta,
    H, W, tiles_x,
    C: tl.constexpr, BLOCK_C: tl.constexpr,
    LINEAR: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    """Returns out . d_out of every query, in the order of the score lines; 0 outside the image."""
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    index = tl.arange(0, TILE)
    channel = tl.arange(0, BLOCK_C)
    y, x, inside = query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    offset = batch.to(tl.int64) * H * W * C + (y * W + x)[:, None] * C + channel[None, :]
    mask = channel_mask(inside, channel, C, BLOCK_C)
    product = tl.load(out + offset, mask=mask, other=0.0).to(tl.float32)
    product *= tl.load(d_out + offset, mask=mask, other=0.0).to(tl.float32)
    line = (batch * tl.num_programs(0) + tile) * TILE + index
    tl.store(delta + line, tl.sum(product, 1))


@triton.jit
def backward_keys_kernel(
    queries, values, scores, lse, delta, d_out, d_next, d_scores, d_keys, d_values,
    H, W, KEY_H, KEY_W, tiles_x, stride, tiles,
    D: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_C: tl.constexpr,
    LINEAR: tl.constexpr, FULL: tl.constexpr, BOXED: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
    REGION_W: tl.constexpr, RADIUS: tl.constexpr, PAD: tl.constexpr,
    KEYS: tl.constexpr, KEYS_W: tl.constexpr, QUERIES: tl.constexpr,
    HAS_NEXT: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One block of keys against all tiles that see it: d_scores, d_keys and d_values.

    All matrices are held transposed, [keys, queries], so that the weights leave one matrix product
    in the layout that the next one takes. d_next is the gradient that later states send to the
    scores. With TMA, queries, d_out, scores, d_next and d_scores are descriptors; no block of keys
    may stick out of a line of slots.
    """
    block = tl.program_id(0)
    batch = tl.program_id(1)
    wide_batch = batch.to(tl.int64)
    index = tl.arange(0, KEYS)
    depth = tl.arange(0, BLOCK_D)
    channel = tl.arange(0, BLOCK_C)

    # The keys of this block, and the range of tiles whose region touches it.
    if LINEAR:
        key = block * KEYS + index
        key_y = key // KEY_W
        key_x = key % KEY_W
        top = (block * KEYS) // KEY_W
        bottom = tl.minimum(block * KEYS + KEYS - 1, KEY_H * KEY_W - 1) // KEY_W
    else:
        blocks_x = (KEY_W + KEYS_W - 1) // KEYS_W
        left = (block % blocks_x) * KEYS_W
        top = (block // blocks_x) * (KEYS // KEYS_W)
        bottom = top + KEYS // KEYS_W - 1
        right = left + KEYS_W - 1
        key_y = top + index // KEYS_W
        key_x = left + index % KEYS_W
        key = key_y * KEY_W + key_x
    key_exists = (key_y < KEY_H) & (key_x < KEY_W)
    first_y = tl.maximum(top - (PAD + RADIUS), 0)
    last_y = tl.minimum(bottom + (RADIUS - PAD), H - 1)
    if FULL:
        first_tile = block * 0
        steps = tiles
        first_column = first_tile
        columns = first_tile + 1
    elif LINEAR:
        first_tile = (first_y * W) // TILE
        steps = tl.maximum((last_y * W + W - 1) // TILE + 1 - first_tile, 0)
        first_column = block * 0
        columns = first_column + 1
    else:
        first_tile = first_y // TILE_H
        tile_rows = tl.maximum(last_y // TILE_H + 1 - first_tile, 0)
        first_column = (tl.maximum(left - REGION_W - PAD + RADIUS, -1) + TILE_W) // TILE_W
        last_column = tl.minimum(tl.maximum(right + RADIUS - PAD, 0) // TILE_W, tiles_x - 1)
        if not BOXED:
            # The region is clamped into the key plane: a block inside the leftmost region is
            # touched by all tiles from the first on, one inside the rightmost up to the last.
            first_column = tl.where(left < REGION_W, 0, first_column)
            last_column = tl.where(right >= KEY_W - REGION_W, tiles_x - 1, last_column)
        columns = tl.maximum(last_column + 1 - first_column, 1)
        steps = tile_rows * columns

    value = tl.load(
        values + wide_batch * KEY_H * KEY_W * C + key[:, None] * C + channel[None, :],
        mask=channel_mask(key_exists, channel, C, BLOCK_C),
        other=0.0,
    )
    grad_keys = tl.zeros([KEYS, BLOCK_D], tl.float32)
    grad_values = tl.zeros([KEYS, BLOCK_C], tl.float32)
    PARTS: tl.constexpr = TILE // QUERIES
    for step in tl.range(0, steps * PARTS, num_stages=STAGES):
        visit = step // PARTS
        if LINEAR:
            tile = first_tile + visit
        else:
            tile = (first_tile + visit // columns) * tiles_x + first_column + visit % columns
        within = (step % PARTS) * QUERIES + tl.arange(0, QUERIES)
        line = (batch * tiles + tile) * TILE + within
        first_line = (batch * tiles + tile) * TILE + (step % PARTS) * QUERIES
        row, rows, column = region(
            tile, H, W, KEY_H, KEY_W, tiles_x,
            LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
        )  # fmt: skip
        if LINEAR:
            slot = key - row * KEY_W
            touched = (slot >= 0) & (slot < rows * KEY_W)
        else:
            slot = (key_y - row) * REGION_W + key_x - column
            touched = (key_y >= row) & (key_y < row + rows)
            touched &= (key_x >= column) & (key_x < column + REGION_W)
        # FULL: lines are padded beyond the last key, and what happens to the keys there is never
        # looked at: no mask.
        if TMA:
            first_slot = block * KEYS - row * KEY_W
            first_query = batch * H * W + tile * TILE + (step % PARTS) * QUERIES
            query = queries.load([first_query, 0])
            grad_out = d_out.load([first_query, 0])
            score = tl.trans(scores.load([first_line, first_slot])).to(tl.float32)
        else:
            y, x, inside = query_pixels(tile, within, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
            pixel = y * W + x
            query = tl.load(
                queries + wide_batch * H * W * D + pixel[:, None] * D + depth[None, :],
                mask=channel_mask(inside, depth, D, BLOCK_D),
                other=0.0,
            )
            grad_out = tl.load(
                d_out + wide_batch * H * W * C + pixel[:, None] * C + channel[None, :],
                mask=channel_mask(inside, channel, C, BLOCK_C),
                other=0.0,
            )
            place = first_line.to(tl.int64) * stride + (
                slot[:, None] + (tl.arange(0, QUERIES) * stride)[None, :]
            )
            if FULL:
                score = tl.load(scores + place).to(tl.float32)
            else:
                score = tl.load(scores + place, mask=touched[:, None], other=float("-inf"))
                score = score.to(tl.float32)
        grad_weight = tl.dot(value, tl.trans(grad_out), input_precision=PRECISION)
        exponent = score * LOG2E - tl.load(lse + line)[None, :]
        # Adding nothing that comes out of a matrix product ties the exponent to its layout;
        # otherwise the compiler computes every exp twice, once in the layout of each consumer.
        weight = tl.exp2(exponent + grad_weight * 0.0)
        grad_values = tl.dot(
            weight.to(value.dtype), grad_out, grad_values, input_precision=PRECISION
        )
        grad_score = weight * (grad_weight - tl.load(delta + line)[None, :])
        if HAS_NEXT:
            if TMA:
                later = tl.trans(d_next.load([first_line, first_slot])).to(tl.float32)
            elif FULL:
                later = tl.load(d_next + place).to(tl.float32)
            else:
                later = tl.load(d_next + place, mask=touched[:, None], other=0.0).to(tl.float32)
            grad_score += later
        rounded = grad_score.to(value.dtype)
        if TMA:
            d_scores.store([first_line, first_slot], tl.trans(rounded))
        elif FULL:
            tl.store(d_scores + place, rounded)
        else:
            tl.store(d_scores + place, rounded, mask=touched[:, None])
        grad_keys = tl.dot(rounded, query, grad_keys, input_precision=PRECISION)

    tl.store(
        d_keys + wide_batch * KEY_H * KEY_W * D + key[:, None] * D + depth[None, :],
        grad_keys.to(d_keys.dtype.element_ty),
        mask=channel_mask(key_exists, depth, D, BLOCK_D),
    )
    tl.store(
        d_values + wide_batch * KEY_H * KEY_W * C + key[:, None] * C + channel[None, :],
        grad_values.to(d_values.dtype.element_ty),
        mask=channel_mask(key_exists, channel, C, BLOCK_C),
    )


@triton.jit
def backward_queries_kernel(
    keys, d_scores, d_queries,
    H, W, KEY_H, KEY_W, tiles_x, stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
    LINEAR: tl.constexpr, FULL: tl.constexpr, BOXED: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
    REGION_W: tl.constexpr, RADIUS: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TMA_SCORES: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of queries against its region: d_queries = d_scores . keys."""
    tile = tl.program_id(0)
    # Last image first: of the scores' gradient, its part is the one that may still be cached.
    batch = tl.num_programs(1) - 1 - tl.program_id(1)
    wide_batch = batch.to(tl.int64)
    index = tl.arange(0, TILE)
    depth = tl.arange(0, BLOCK_D)
    y, x, inside = query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    row, rows, column = region(
        tile, H, W, KEY_H, KEY_W, tiles_x,
        LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
    )  # fmt: skip
    slots_inside = rows * REGION_W
    first_line = (batch * tl.num_programs(0) + tile) * TILE
    line = first_line.to(tl.int64) * stride + index[:, None] * stride
    grad = tl.zeros([TILE, BLOCK_D], tl.float32)
    for start in tl.range(0, slots_inside, BLOCK, num_stages=STAGES):
        slot = start + tl.arange(0, BLOCK)
        key, exists = keys_of_slots(slot, slots_inside, row, column, KEY_W, LINEAR, BOXED, REGION_W)
        key_block = tl.load(
            keys + wide_batch * KEY_H * KEY_W * D + key[:, None] * D + depth[None, :],
            mask=channel_mask(exists, depth, D, BLOCK_D),
            other=0.0,
        )
        if TMA_SCORES:
            grad_score = d_scores.load([first_line, start])
        else:
            grad_score = tl.load(d_scores + line + slot[None, :])
        # Slots beyond the region may hold anything, and anything times 0 may be NaN.
        grad_score = tl.where(exists[None, :], grad_score, 0.0).to(key_block.dtype)
        grad = tl.dot(grad_score, key_block, grad, input_precision=PRECISION)
    tl.store(
        d_queries + wide_batch * H * W * D + (y * W + x)[:, None] * D + depth[None, :],
        grad.to(d_queries.dtype.element_ty),
        mask=channel_mask(inside, depth, D, BLOCK_D),
    )
