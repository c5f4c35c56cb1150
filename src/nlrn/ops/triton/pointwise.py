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
