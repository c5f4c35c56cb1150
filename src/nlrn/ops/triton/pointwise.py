"""What follows a convolution in one pass over memory; PyTorch takes one for the bias alone."""

# ruff: noqa: N803 - capitals are what the compiler takes as constants

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _finish_kernel(  # type: ignore[no-untyped-def]
    image,
    bias,
    added,
    factor,
    count,
    C: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = index % C
    inside = index < count
    value = tl.load(image + index, mask=inside).to(tl.float32)
    value += tl.load(bias + channel).to(tl.float32)
    if HAS_ADDED:
        more = tl.load(added + index, mask=inside).to(tl.float32)
        value += more * tl.load(factor + channel).to(tl.float32)
    value = tl.where(value < 0, 0.0, value)  # unlike a maximum, keeps what is not a number
    tl.store(image + index, value.to(image.dtype.element_ty), mask=inside)


def finish_(
    image: Tensor, bias: Tensor, added: Tensor | None = None, factor: Tensor | None = None
) -> Tensor:
    """ReLU(image + bias + added * factor), written over `image`.

    Args:
        image: [B, C, H, W], what a convolution gave.
        bias: one for each channel [C].
        added: like `image`, or None.
        factor: of `added`, one for each channel [C].
    """
    last = torch.channels_last
    both = (image,) if added is None else (image, added)
    if not all(t.is_contiguous(memory_format=last) for t in both):
        if added is not None and factor is not None:
            image.addcmul_(added, factor.view(1, -1, 1, 1))
        return image.add_(bias.view(1, -1, 1, 1)).relu_()
    _finish_kernel[(triton.cdiv(image.numel(), _BLOCK),)](
        image,
        bias,
        image if added is None else added,
        bias if factor is None else factor,
        image.numel(),
        C=image.shape[1],
        HAS_ADDED=added is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return image


@triton.jit
def _add_norm_relu_kernel(  # type: ignore[no-untyped-def]
    stream,
    added,
    out,
    scale,
    shift,
    rows,
    epsilon,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK_C)
    index = row[:, None] * C + channel[None, :]
    inside = (row < rows)[:, None] & (channel < C)[None, :]
    value = tl.load(stream + index, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDED:
        value += tl.load(added + index, mask=inside, other=0.0).to(tl.float32)
        tl.store(stream + index, value.to(stream.dtype.element_ty), mask=inside)
    value *= tl.rsqrt(tl.sum(value * value, 1)[:, None] / C + epsilon)
    value *= tl.load(scale + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]
    value += tl.load(shift + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]
    value = tl.where(value < 0, 0.0, value)  # unlike a maximum, keeps what is not a number
    tl.store(out + index, value.to(out.dtype.element_ty), mask=inside)


def add_norm_relu(
    stream: Tensor, added: Tensor | None, scale: Tensor, shift: Tensor, epsilon: float
) -> Tensor:
    """ReLU(norm(stream + added)) in the dtype of `scale`; the sum is written over `stream`.

    Args:
        stream: [B, C, H, W], channels last.
        added: like it, or None.
        scale: after the norm over the channels of each pixel [C].
        shift: after the scale [C].
        epsilon: added to the mean square.
    """
    last = torch.channels_last
    if added is not None:
        added = added.contiguous(memory_format=last)
    out = torch.empty_like(stream, dtype=scale.dtype, memory_format=last)
    channels = stream.shape[1]
    rows, block = stream.numel() // channels, triton.next_power_of_2(channels)
    at_once = max(1, 2048 // block)
    _add_norm_relu_kernel[(triton.cdiv(rows, at_once),)](
        stream,
        stream if added is None else added,
        out,
        scale,
        shift,
        rows,
        epsilon,
        C=channels,
        BLOCK_C=block,
        HAS_ADDED=added is not None,
        ROWS=at_once,
        num_warps=4,
    )
    return out
