"""The CUDA kernels of the neighbourhood operator, in Triton; `layout` says where their data lie.

Geometry shared by all kernels. Queries are the H x W pixels of an image, cut into tiles of
TILE_H x TILE_W = TILE pixels, or (LINEAR) into runs of TILE pixels in reading order. Keys are the
KEY_H x KEY_W pixels of the image, or of the image padded by PAD for the circular border. A tile
sees a rectangular region of keys: the rows that the window of any of its pixels reaches, times
REGION_W columns (all of them when LINEAR). The keys of the region, row by row, are the tile's
slots; scores are stored as [B, tiles, TILE, stride], one line of slots per query, so that every
access to them is contiguous. FULL says that every query sees every key (circular border on a
window x window patch): then nothing is masked. BOXED says that REGION_W is rounded up to whole
blocks, so that a block of keys is a box of one image row that the copy engine can fetch; such a
region may stick out of the key plane on both sides.

Masked slots hold a hugely negative score. A sum of scores keeps it, so only the first state pays
for computing the mask.
"""

# ruff: noqa: N803, N806 - capitals are what the compiler takes as constants, and the image sizes
# mypy: ignore-errors

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1.0e30)  # score of a masked slot; becomes -inf in float16, which works too
LOWEST = tl.constexpr(-1.0e20)  # where the running maximum starts: above MASKED, so exp gives 0
ABSENT = tl.constexpr(1.0e30)  # log-sum-exp of a query outside the image: its weights become 0


@triton.jit
def _channel_mask(rows_inside, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Mask [rows, BLOCK] of the elements that exist; the column test vanishes when it can."""
    mask = rows_inside[:, None]
    if WIDTH != BLOCK:
        mask = mask & (channels < WIDTH)[None, :]
    return mask


@triton.jit
def _query_pixels(
    tile,
    index,
    H,
    W,
    tiles_x,
    LINEAR: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
):
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
def _region(
    tile,
    H,
    W,
    KEY_H,
    KEY_W,
    tiles_x,
    LINEAR: tl.constexpr,
    FULL: tl.constexpr,
    BOXED: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    REGION_W: tl.constexpr,
    RADIUS: tl.constexpr,
    PAD: tl.constexpr,
):
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
def _keys_of_slots(
    slot,
    slots_inside,
    row,
    column,
    KEY_W,
    LINEAR: tl.constexpr,
    BOXED: tl.constexpr,
    REGION_W: tl.constexpr,
):
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


@triton.jit
def _round_to(score, dtype: tl.constexpr):
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
    queries,
    keys,
    values,
    prior,
    scores,
    out,
    lse,
    skipped,
    factor,
    H,
    W,
    KEY_H,
    KEY_W,
    tiles_x,
    stride,
    D: tl.constexpr,
    C: tl.constexpr,
    QUERY_STEP: tl.constexpr,
    KEY_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    LINEAR: tl.constexpr,
    FULL: tl.constexpr,
    BOXED: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    REGION_W: tl.constexpr,
    RADIUS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_PRIOR: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    STORE_SCORES: tl.constexpr,
    ROUND: tl.constexpr,
    TMA_SCORES: tl.constexpr,
    TMA_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
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
    y, x, inside = _query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    pixel = y * W + x
    row, rows, column = _region(
        tile, H, W, KEY_H, KEY_W, tiles_x,
        LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
    )  # fmt: skip
    slots_inside = rows * REGION_W
    first_line = (batch * tl.num_programs(0) + tile) * TILE
    line = first_line.to(tl.int64) * stride + index[:, None] * stride
    first_key = wide_batch * KEY_H * KEY_W

    query = tl.load(
        queries + wide_batch * H * W * QUERY_STEP + pixel[:, None] * QUERY_STEP + depth[None, :],
        mask=_channel_mask(inside, depth, D, BLOCK_D),
        other=0.0,
    )
    highest = tl.full([TILE], LOWEST, tl.float32)  # in units of log2, like everything below
    total = tl.zeros([TILE], tl.float32)
    mean = tl.zeros([TILE, BLOCK_C], tl.float32)
    for start in tl.range(0, slots_inside, BLOCK, num_stages=STAGES):
        slot = start + tl.arange(0, BLOCK)
        key, exists = _keys_of_slots(
            slot, slots_inside, row, column, KEY_W, LINEAR, BOXED, REGION_W
        )
        box_row = batch * KEY_H + row + start // REGION_W
        box_column = column + start % REGION_W
        if TMA_KEYS and LINEAR:
            key_block = keys.load([batch * KEY_H * KEY_W + row * KEY_W + start, 0])
        elif TMA_KEYS:
            key_block = keys.load([box_row, box_column, 0]).reshape(BLOCK, BLOCK_D)
        else:
            key_block = tl.load(
                keys + first_key * KEY_STEP + key[:, None] * KEY_STEP + depth[None, :],
                mask=_channel_mask(exists, depth, D, BLOCK_D),
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
                score = _round_to(score, out.dtype.element_ty)
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
                mask=_channel_mask(exists, channel, C, BLOCK_C),
                other=0.0,
            )
        mean = tl.dot(weight.to(value_block.dtype), value_block, mean, input_precision=PRECISION)
        highest = new_highest

    # A query outside the image may have seen nothing: keep 0 / 0 out.
    total = tl.where(inside, total, 1.0)
    mean = mean / total[:, None]
    place = wide_batch * H * W * C + pixel[:, None] * C + channel[None, :]
    mask = _channel_mask(inside, channel, C, BLOCK_C)
    if HAS_SKIP:
        by = tl.load(factor + channel, mask=channel < C, other=0.0).to(tl.float32)
        mean += tl.load(skipped + place, mask=mask, other=0.0).to(tl.float32) * by[None, :]
    tl.store(out + place, mean.to(out.dtype.element_ty), mask=mask)
    tl.store(lse + first_line + index, tl.where(inside, highest + tl.log2(total), ABSENT))


@triton.jit
def delta_kernel(
    out,
    d_out,
    delta,
    H,
    W,
    tiles_x,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    LINEAR: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
):
    """Returns out . d_out of every query, in the order of the score lines; 0 outside the image."""
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    index = tl.arange(0, TILE)
    channel = tl.arange(0, BLOCK_C)
    y, x, inside = _query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    offset = batch.to(tl.int64) * H * W * C + (y * W + x)[:, None] * C + channel[None, :]
    mask = _channel_mask(inside, channel, C, BLOCK_C)
    product = tl.load(out + offset, mask=mask, other=0.0).to(tl.float32)
    product *= tl.load(d_out + offset, mask=mask, other=0.0).to(tl.float32)
    line = (batch * tl.num_programs(0) + tile) * TILE + index
    tl.store(delta + line, tl.sum(product, 1))


@triton.jit
def backward_keys_kernel(
    queries,
    values,
    scores,
    lse,
    delta,
    d_out,
    d_next,
    d_scores,
    d_keys,
    d_values,
    H,
    W,
    KEY_H,
    KEY_W,
    tiles_x,
    stride,
    tiles,
    D: tl.constexpr,
    C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    LINEAR: tl.constexpr,
    FULL: tl.constexpr,
    BOXED: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    REGION_W: tl.constexpr,
    RADIUS: tl.constexpr,
    PAD: tl.constexpr,
    KEYS: tl.constexpr,
    KEYS_W: tl.constexpr,
    QUERIES: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
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
        mask=_channel_mask(key_exists, channel, C, BLOCK_C),
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
        row, rows, column = _region(
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
            y, x, inside = _query_pixels(tile, within, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
            pixel = y * W + x
            query = tl.load(
                queries + wide_batch * H * W * D + pixel[:, None] * D + depth[None, :],
                mask=_channel_mask(inside, depth, D, BLOCK_D),
                other=0.0,
            )
            grad_out = tl.load(
                d_out + wide_batch * H * W * C + pixel[:, None] * C + channel[None, :],
                mask=_channel_mask(inside, channel, C, BLOCK_C),
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
        mask=_channel_mask(key_exists, depth, D, BLOCK_D),
    )
    tl.store(
        d_values + wide_batch * KEY_H * KEY_W * C + key[:, None] * C + channel[None, :],
        grad_values.to(d_values.dtype.element_ty),
        mask=_channel_mask(key_exists, channel, C, BLOCK_C),
    )


@triton.jit
def backward_queries_kernel(
    keys,
    d_scores,
    d_queries,
    H,
    W,
    KEY_H,
    KEY_W,
    tiles_x,
    stride,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LINEAR: tl.constexpr,
    FULL: tl.constexpr,
    BOXED: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    REGION_W: tl.constexpr,
    RADIUS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TMA_SCORES: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One tile of queries against its region: d_queries = d_scores . keys."""
    tile = tl.program_id(0)
    # Last image first: of the scores' gradient, its part is the one that may still be cached.
    batch = tl.num_programs(1) - 1 - tl.program_id(1)
    wide_batch = batch.to(tl.int64)
    index = tl.arange(0, TILE)
    depth = tl.arange(0, BLOCK_D)
    y, x, inside = _query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    row, rows, column = _region(
        tile, H, W, KEY_H, KEY_W, tiles_x,
        LINEAR, FULL, BOXED, TILE, TILE_H, TILE_W, REGION_W, RADIUS, PAD,
    )  # fmt: skip
    slots_inside = rows * REGION_W
    first_line = (batch * tl.num_programs(0) + tile) * TILE
    line = first_line.to(tl.int64) * stride + index[:, None] * stride
    grad = tl.zeros([TILE, BLOCK_D], tl.float32)
    for start in tl.range(0, slots_inside, BLOCK, num_stages=STAGES):
        slot = start + tl.arange(0, BLOCK)
        key, exists = _keys_of_slots(
            slot, slots_inside, row, column, KEY_W, LINEAR, BOXED, REGION_W
        )
        key_block = tl.load(
            keys + wide_batch * KEY_H * KEY_W * D + key[:, None] * D + depth[None, :],
            mask=_channel_mask(exists, depth, D, BLOCK_D),
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
        mask=_channel_mask(inside, depth, D, BLOCK_D),
    )


@triton.jit
def pack_kernel(
    plain,
    packed,
    H,
    W,
    KEY_H,
    KEY_W,
    tiles_x,
    stride,
    fill,
    LINEAR: tl.constexpr,
    FULL: tl.constexpr,
    BOXED: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    REGION_W: tl.constexpr,
    RADIUS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scores [B, H, W, window**2] into lines of slots, `fill` wherever no pair stands."""
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    index = tl.arange(0, TILE)
    y, x, inside = _query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    row, rows, column = _region(
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
        _, exists = _keys_of_slots(
            slot, rows * REGION_W, row, column, KEY_W, LINEAR, BOXED, REGION_W
        )
        pair &= exists[None, :]
        value = tl.load(plain + source[:, None] + dy * WINDOW + dx, mask=pair, other=0.0)
        value = tl.where(pair, value.to(tl.float32), fill)
        tl.store(packed + line + slot[None, :], value.to(packed.dtype.element_ty))


@triton.jit
def unpack_kernel(
    packed,
    plain,
    H,
    W,
    KEY_H,
    KEY_W,
    tiles_x,
    stride,
    LINEAR: tl.constexpr,
    FULL: tl.constexpr,
    BOXED: tl.constexpr,
    TILE: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    REGION_W: tl.constexpr,
    RADIUS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Lines of slots into scores [B, H, W, window**2], 0 where the pair is masked."""
    tile = tl.program_id(0)
    batch = tl.program_id(1)
    index = tl.arange(0, TILE)
    y, x, inside = _query_pixels(tile, index, H, W, tiles_x, LINEAR, TILE, TILE_H, TILE_W)
    row, _, column = _region(
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
