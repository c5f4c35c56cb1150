"""The forward kernel: scores, softmax and weighted sum in one pass; words as in `regions`."""

# ruff: noqa: N803 - capitals are what the compiler takes as constants, and the image sizes
# mypy: ignore-errors

import triton
import triton.language as tl

from nlrn.ops.triton.regions import (
    ABSENT,
    LOG2E,
    LOWEST,
    MASKED,
    channel_mask,
    keys_of_slots,
    query_pixels,
    region,
)


@triton.jit
def round_to(score, dtype: tl.constexpr):
    """The float32 score, rounded to what its dtype can hold."""
    if dtype == tl.bfloat16:
        # The conversion there and back runs at the rate of exp; this is two integer instructions.
        bits = score.to(tl.int32, bitcast=True)
        score = ((bits + 0x8000) & -65536).to(tl.float32, bitcast=True)
    else:
        score = score.to(dtype).to(tl.float32)
    return score


@triton.jit
def forward_kernel(
    queries, keys, values, prior, scores, out, lse, skipped, factor,
    H, W, KEY_H, KEY_W, tiles_x, stride,
    D: tl.constexpr, C: tl.constexpr,
    QUERY_STEP: tl.constexpr, KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_C: tl.constexpr,
    LINEAR: tl.constexpr, FULL: tl.constexpr, BOXED: tl.constexpr,
    TILE: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
    REGION_W: tl.constexpr, RADIUS: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr, HAS_PRIOR: tl.constexpr, HAS_SKIP: tl.constexpr,
    STORE_SCORES: tl.constexpr, ROUND: tl.constexpr,
    TMA_SCORES: tl.constexpr, TMA_KEYS: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of queries against its region: scores, softmax, weighted sum, log-sum-exp.

    With TMA_SCORES, `prior` and `scores` are descriptors of [B * tiles * TILE, stride]; with
    TMA_KEYS, `keys` and `values` are descriptors: of [B * KEY_H * KEY_W, channels] when LINEAR, of
    [B * KEY_H, KEY_W, channels] when BOXED. The _STEPs are the elements from a pixel to the next,
    so that queries, keys and values may be slices of one tensor. With HAS_SKIP, `skipped`
    [B, H, W, C] times `factor` [C] is added to the result.
    """
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    wide_batch = batch.to(tl.int64)
    index = tl.arange(0, TILE)
    depth = tl.arange(0, BLOCK_D)
    channel = tl.arange(0, BLOCK_C)
    y, x, inside = query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    pixel = y * W + x
    row, rows, column = region(
        tile, H, W, KEY_H, KEY_W, tiles_x,
        LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
    )  # fmt: skip
    slots_inside = rows * REGION_W
    first_line = (batch * tl.num_programs(0) + tile) * TILE
    line = first_line.to(tl.int64) * stride + index[:, None] * stride
    first_key = wide_batch * KEY_H * KEY_W

    query = tl.load(
        queries + wide_batch * H * W * QUERY_STEP + pixel[:, None] * QUERY_STEP + depth[None, :],
        mask=channel_mask(inside, depth, D, BLOCK_D),
        other=0.0,
    )
    highest = tl.full([TILE], LOWEST, tl.float32)  # in units of log2, like everything below
    total = tl.zeros([TILE], tl.float32)
    mean = tl.zeros([TILE, BLOCK_C], tl.float32)
    for start in tl.range(0, slots_inside, BLOCK, num_stages=STAGES):
        slot = start + tl.arange(0, BLOCK)
        key, exists = keys_of_slots(slot, slots_inside, row, column, KEY_W, LINEAR, BOXED, REGION_W)
        box_row = batch * KEY_H + row + start // REGION_W
        box_column = column + start % REGION_W
        if TMA_KEYS and LINEAR:
            key_block = keys.load([batch * KEY_H * KEY_W + row * KEY_W + start, 0])
        elif TMA_KEYS:
            key_block = keys.load([box_row, box_column, 0]).reshape(BLOCK, BLOCK_D)
        else:
            key_block = tl.load(
                keys + first_key * KEY_STEP + key[:, None] * KEY_STEP + depth[None, :],
                mask=channel_mask(exists, depth, D, BLOCK_D),
                other=0.0,
            )
        score = tl.dot(query, tl.trans(key_block), input_precision=PRECISION)
        if HAS_PRIOR:
            if TMA_SCORES:
                score += prior.load([first_line, start]).to(tl.float32)
            else:
                score += tl.load(prior + line + slot[None, :]).to(tl.float32)
        else:
            if FULL:
                score = tl.where(exists[None, :], score, MASKED)
            else:
                key_y = row + slot // REGION_W - PAD
                key_x = column + slot % REGION_W - PAD
                near_y = tl.abs(key_y[None, :] - y[:, None]) <= RADIUS
                near_x = tl.abs(key_x[None, :] - x[:, None]) <= RADIUS
                score = tl.where(near_y & near_x & exists[None, :], score, MASKED)
        if STORE_SCORES:
            if ROUND:  # so that the weights are those that backward will see
                score = round_to(score, out.dtype.element_ty)
            if TMA_SCORES:
                scores.store([first_line, start], score.to(scores.dtype))
            else:
                tl.store(scores + line + slot[None, :], score.to(scores.dtype.element_ty))
        new_highest = tl.maximum(highest, tl.max(score, 1) * LOG2E)
        weight = tl.exp2(score * LOG2E - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weight, 1)
        mean = mean * shrink[:, None]
        if TMA_KEYS and LINEAR:
            value_block = values.load([batch * KEY_H * KEY_W + row * KEY_W + start, 0])
        elif TMA_KEYS:
            value_block = values.load([box_row, box_column, 0]).reshape(BLOCK, BLOCK_C)
        else:
            value_block = tl.load(
                values + first_key * VALUE_STEP + key[:, None] * VALUE_STEP + channel[None, :],
                mask=channel_mask(exists, channel, C, BLOCK_C),
                other=0.0,
            )
        mean = tl.dot(weight.to(value_block.dtype), value_block, mean, input_precision=PRECISION)
        highest = new_highest

    # A query outside the image may have seen nothing: keep 0 / 0 out.
    total = tl.where(inside, total, 1.0)
    mean = mean / total[:, None]
    place = wide_batch * H * W * C + pixel[:, None] * C + channel[None, :]
    mask = channel_mask(inside, channel, C, BLOCK_C)
    if HAS_SKIP:
        by = tl.load(factor + channel, mask=channel < C, other=0.0).to(tl.float32)
        mean += tl.load(skipped + place, mask=mask, other=0.0).to(tl.float32) * by[None, :]
    tl.store(out + place, mean.to(out.dtype.element_ty), mask=mask)
    tl.store(lse + first_line + index, tl.where(inside, highest + tl.log2(total), ABSENT))
