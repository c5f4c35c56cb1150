"""Launches of the Triton kernels on [B, H, W, channels]; triton is imported on first use."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

from nlrn.ops.triton.layout import Plan, padded

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton's CPU simulation, for tests


def _descriptor(tensor: Tensor, rows: int, columns: int) -> Any:
    """A descriptor of the tensor as a matrix of lines, moved in blocks of rows x columns."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    matrix = tensor.view(-1, tensor.shape[-1])
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def _box_descriptor(plane: Tensor, columns: int, depth: int) -> Any:
    """A descriptor of [B, H, W, C] as rows of pixels, moved in pieces of one row."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(plane.flatten(0, 1), [1, columns, depth])


@functools.lru_cache(maxsize=16)
def _has_descriptors(device: torch.device) -> bool:
    return INTERPRETED or torch.cuda.get_device_capability(device) >= (9, 0)


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"


def new_packed(plan: Plan, like: Tensor) -> Tensor:
    return like.new_empty(like.shape[0], plan.lines, plan.stride)


def evenly_spaced(image: Tensor) -> Tensor:
    """[B, H, W, C] as it is where the forward kernel can read it, else a copy without gaps.

    It can if all pixels are equally far apart, as in a slice of the channels of a larger tensor.
    """
    if image.is_contiguous():
        return image
    _, height, width, _ = image.shape
    step, bytes_each = image.stride(2), image.element_size()
    even = image.stride() == (height * width * step, width * step, step, 1)
    # What the copy engine asks for, and offsets that 32 bits hold.
    aligned = image.data_ptr() % 16 == 0 and step * bytes_each % 16 == 0
    if even and aligned and height * width * step < 2**31:
        return image
    return image.contiguous()


def _step(image: Tensor) -> int:
    """Elements from one pixel to the next; the stride of an axis of length 1 says nothing."""
    return image.shape[-1] if image.is_contiguous() else image.stride(2)


def wrap(keys: Tensor, pad: int) -> Tensor:
    """Keys [B, H, W, C] continued around the border by `pad` pixels."""
    if not pad:
        return keys
    for axis in (1, 2):
        size = keys.shape[axis]
        source = torch.arange(-pad, size + pad, device=keys.device) % size
        keys = keys.index_select(axis, source)
    return keys


def unwrap(grad: Tensor, pad: int) -> Tensor:
    """The gradient of `wrap`: copies of a pixel add up."""
    if not pad:
        return grad
    for axis in (1, 2):
        padded = grad.shape[axis]
        size = padded - 2 * pad
        shape = list(grad.shape)
        shape[axis] = size
        folded = grad.new_zeros(shape)
        begin = 0
        while begin < padded:
            # padded position p holds pixel (p - pad) mod size
            pixel = (begin - pad) % size
            count = min(size - pixel, padded - begin)
            folded.narrow(axis, pixel, count).add_(grad.narrow(axis, begin, count))
            begin += count
        grad = folded
    return grad


def launch_forward(
    plan: Plan,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prior: Tensor | None,
    scores: Tensor | None,
    exact: bool = True,
    skip: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Runs the forward kernel on keys already wrapped; `scores` (may be `prior`) is written.

    The operands must be `evenly_spaced`. With `exact` the weights are those of the scores as
    stored, which backward needs. `skip` is features [B, H, W, C] and factors [C], without gaps,
    whose product is added to the attended values.

    Returns:
        The attended values [B, H, W, C] and the log-sum-exp of each line [B, lines].
    """
    from nlrn.ops.triton.forward import forward_kernel

    batch, height, width, embed = query.shape
    channels = values.shape[-1]
    skipped, factor = skip or (query, query)
    tuning = plan.tuning
    block, warps, stages = tuning.forward
    block_d, block_c = padded(embed), padded(channels)
    out = query.new_empty(batch, height, width, channels)
    lse = query.new_empty(batch, plan.lines, dtype=torch.float32)
    tma_scores = tuning.tma_scores and _has_descriptors(query.device)
    tma_keys = (
        tuning.tma_operands
        and (plan.linear or plan.boxed)
        and (block_d, block_c) == (embed, channels)
        and _has_descriptors(query.device)
    )

    def as_lines(lines: Tensor) -> Any:
        return _descriptor(lines, tuning.tile, block) if tma_scores else lines

    def as_keys(plane: Tensor, depth: int) -> Any:
        if not tma_keys:
            return plane
        if plan.linear:
            return _descriptor(plane, block, depth)
        return _box_descriptor(plane, block, depth)

    forward_kernel[(plan.tiles, batch)](
        query,
        as_keys(keys, block_d),
        as_keys(values, block_c),
        query if prior is None else as_lines(prior),
        query if scores is None else as_lines(scores),
        out,
        lse,
        skipped,
        factor,
        *plan.sizes,
        D=embed,
        C=channels,
        QUERY_STEP=_step(query),
        KEY_STEP=_step(keys),
        VALUE_STEP=_step(values),
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        **plan.window(),
        BLOCK=block,
        HAS_PRIOR=prior is not None,
        HAS_SKIP=skip is not None,
        STORE_SCORES=scores is not None,
        ROUND=exact,
        TMA_SCORES=tma_scores,
        TMA_KEYS=tma_keys,
        PRECISION=_precision(query.dtype),
        STAGES=stages,
        num_warps=warps,
        maxnreg=tuning.max_registers,
    )
    return out, lse


def launch_delta(plan: Plan, out: Tensor, d_out: Tensor) -> Tensor:
    """Returns out . d_out of each line [B, lines]."""
    from nlrn.ops.triton.backward import delta_kernel

    batch, height, width, channels = out.shape
    delta = out.new_empty(batch, plan.lines, dtype=torch.float32)
    delta_kernel[(plan.tiles, batch)](
        out,
        d_out,
        delta,
        height,
        width,
        plan.tiles_x,
        C=channels,
        BLOCK_C=padded(channels),
        **plan.geometry(),
        num_warps=4,
    )
    return delta


def launch_backward_keys(
    plan: Plan,
    query: Tensor,
    values: Tensor,
    scores: Tensor,
    lse: Tensor,
    delta: Tensor,
    d_out: Tensor,
    d_next: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the scores, the wrapped keys and the wrapped values."""
    from nlrn.ops.triton.backward import backward_keys_kernel

    batch, embed, channels = query.shape[0], query.shape[-1], values.shape[-1]
    tuning = plan.tuning
    keys, keys_w, queries, warps, stages = tuning.keys
    block_d, block_c = padded(embed), padded(channels)
    d_scores = new_packed(plan, scores)
    # Copies of a wrapped pixel are summed afterwards: keep them in float32 until then.
    dtype = torch.float32 if plan.pad else query.dtype
    d_keys = query.new_empty(batch, plan.key_height, plan.key_width, embed, dtype=dtype)
    d_values = torch.empty_like(values, dtype=dtype)
    if plan.linear:
        blocks = -(-plan.key_height * plan.key_width // keys)
    else:
        blocks = -(-plan.key_height // (keys // keys_w)) * -(-plan.key_width // keys_w)
    # Only where no block of keys sticks out of the stored lines: of those that see every key, and
    # of whole rows that are cut into whole blocks. Blocks that begin before a line stopped an H200
    # with an illegal instruction.
    tma = (
        tuning.tma_operands
        and (plan.full or (plan.linear and plan.key_width % keys == 0))
        and (block_d, block_c) == (embed, channels)
        and _has_descriptors(query.device)
    )

    def as_lines(lines: Tensor) -> Any:
        return _descriptor(lines, queries, keys) if tma else lines

    backward_keys_kernel[(blocks, batch)](
        _descriptor(query, queries, block_d) if tma else query,
        values,
        as_lines(scores),
        lse,
        delta,
        _descriptor(d_out, queries, block_c) if tma else d_out,
        query if d_next is None else as_lines(d_next),
        as_lines(d_scores),
        d_keys,
        d_values,
        *plan.sizes,
        plan.tiles,
        D=embed,
        C=channels,
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        **plan.window(),
        KEYS=keys,
        KEYS_W=keys_w,
        QUERIES=queries,
        HAS_NEXT=d_next is not None,
        TMA=tma,
        PRECISION=_precision(query.dtype),
        STAGES=stages,
        num_warps=warps,
    )
    return d_scores, d_keys, d_values


def launch_backward_queries(plan: Plan, keys: Tensor, d_scores: Tensor) -> Tensor:
    """The gradient of the queries [B, H, W, D] from that of the scores."""
    from nlrn.ops.triton.backward import backward_queries_kernel

    batch, _, _, embed = keys.shape
    block, warps, stages = plan.tuning.queries
    d_query = keys.new_empty(batch, plan.height, plan.width, embed)
    tma = plan.tuning.tma_scores and _has_descriptors(keys.device)
    backward_queries_kernel[(plan.tiles, batch)](
        keys,
        _descriptor(d_scores, plan.tuning.tile, block) if tma else d_scores,
        d_query,
        *plan.sizes,
        D=embed,
        BLOCK_D=padded(embed),
        **plan.window(),
        BLOCK=block,
        TMA_SCORES=tma,
        PRECISION=_precision(keys.dtype),
        STAGES=stages,
        num_warps=warps,
    )
    return d_query


def launch_pack(plan: Plan, plain: Tensor, fill: float) -> Tensor:
    """Scores [B, H, W, window**2] as packed ones, `fill` where no pair stands."""
    from nlrn.ops.triton.packing import pack_kernel

    packed = new_packed(plan, plain)
    grid = (plan.tiles, plain.shape[0])
    pack_kernel[grid](plain, packed, *plan.sizes, fill, **plan.window(), BLOCK=64)
    return packed


def launch_unpack(plan: Plan, packed: Tensor) -> Tensor:
    """Packed scores as [B, H, W, window**2], 0 where masked."""
    from nlrn.ops.triton.packing import unpack_kernel

    window = 2 * plan.radius + 1
    plain = packed.new_empty(packed.shape[0], plan.height, plan.width, window**2)
    grid = (plan.tiles, packed.shape[0])
    unpack_kernel[grid](packed, plain, *plan.sizes, **plan.window(), BLOCK=64)
    return plain
