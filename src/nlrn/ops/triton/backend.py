"""The operator on CUDA: fused Triton kernels, forward and backward.

Scores live in device memory in the dtype of the embeddings, laid out tile by tile as
`regions` describes, and each state adds to them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

import torch
from torch import Tensor

from nlrn.ops.affinity import AttentionSpec
from nlrn.ops.correlation import Correlation, Request, add_skip, plain_scores
from nlrn.ops.tracing import constant
from nlrn.ops.triton.launch import INTERPRETED
from nlrn.ops.triton.layout import MASKED, plan_for

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_EMBED = 256
MAX_CHANNELS = 256
DISTANCE_CHANNELS = 4  # what `_distance_as_dot` adds to the embeddings

Shape = tuple[int, int, int, bool, int, int]  # height, width, window, circular, embed, channels


class PackedScores(Correlation):
    """Scores in the kernels' own layout [B, lines, stride], hugely negative where masked."""

    def __init__(self, packed: Tensor, shape: Shape) -> None:
        self.packed = packed
        self.shape = shape

    def scores(self) -> Tensor:
        return torch.ops.nlrn.unpack_scores(self.packed, *self.shape)


def no_kernels(device: torch.device) -> str | None:
    """Says why no Triton kernel can run on the device, or None when it can."""
    if device.type != "cuda" and not INTERPRETED:
        return f"the triton backend needs CUDA tensors, got {device.type}"
    return _missing(device)


@constant
def _missing(device: torch.device) -> str | None:
    return _looked_for(device)


@functools.lru_cache(maxsize=16)
def _looked_for(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if INTERPRETED:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the triton backend needs a GPU of compute capability 8.0 or later"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "triton needs a C compiler, found neither gcc nor clang"
    return None


def unsupported(query: Tensor, spec: AttentionSpec, channels: int) -> str | None:
    """Says why the kernels cannot run this call, or None when they can."""
    _, embed, height, width = query.shape
    return _unsupported((height, width, embed, channels), spec, query.dtype, query.device)


def _unsupported(
    shape: tuple[int, int, int, int], spec: AttentionSpec, dtype: torch.dtype, device: torch.device
) -> str | None:
    if reason := no_kernels(device):
        return reason
    if dtype not in DTYPES:
        return f"the triton backend takes bfloat16, float16 and float32, got {dtype}"
    if not spec.kind.softmax:
        return f"the triton backend has no affinity {spec.affinity!r}, only those with a softmax"
    height, width, embed, channels = shape
    if embed > MAX_EMBED - DISTANCE_CHANNELS * spec.kind.distance or channels > MAX_CHANNELS:
        return f"too many channels for the triton backend: embed {embed}, values {channels}"
    if height * width * max(embed, channels) >= 2**31:
        return f"image too large for the triton backend: {height} x {width}"
    return None


def packed_bytes(
    shape: tuple[int, int, int, int], spec: AttentionSpec, dtype: torch.dtype, device: torch.device
) -> int | None:
    """Bytes of the scores of (height, width, embed, channels); None where others compute them."""
    if _unsupported(shape, spec, dtype, device):
        return None
    height, width, embed, channels = shape
    embed += DISTANCE_CHANNELS * spec.kind.distance
    plan = plan_for(height, width, spec.window, spec.circular, embed, channels, dtype)
    return plan.lines * plan.stride * dtype.itemsize


def attend(
    query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, request: Request
) -> tuple[Tensor, Correlation | None]:
    """The contract of `dispatch.attend`, [B, C, H, W] in and out (channels last)."""
    from nlrn.ops.triton import operators  # noqa: F401 - torch.ops.nlrn; takes seconds to load

    if spec.kind.distance:
        query, key = _distance_as_dot(query, key, spec.bandwidth)
    _, embed, height, width = query.shape
    shape: Shape = (height, width, spec.window, spec.circular, embed, value.shape[1])
    keep, skip = request.keep_correlation, request.skip
    packed, ours = _packed_prior(request.prior_scores, query, spec, shape)
    # B C H W -> B H W C, free for channels-last tensors
    query, key, value = (t.permute(0, 2, 3, 1) for t in (query, key, value))
    grads = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (query, key, value, packed, *(skip or ()))
    )
    if grads:
        # Backward takes nothing else: better copied once, here. The sum below has its gradients.
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    added = (skip[0].permute(0, 2, 3, 1), skip[1]) if skip and not grads else ()
    if packed is not None and keep and not grads and (request.reuse_prior or not ours):
        out = torch.ops.nlrn.attend_update(query, key, value, packed, *shape[2:4], *added)
    else:
        out, packed, _ = torch.ops.nlrn.attend(
            query, key, value, packed, *shape[2:4], keep or grads, *added
        )
    out = add_skip(out.permute(0, 3, 1, 2), skip if grads else None)
    return out, PackedScores(packed, shape) if keep else None


def _packed_prior(
    prior: Correlation | Tensor | None, query: Tensor, spec: AttentionSpec, shape: Shape
) -> tuple[Tensor | None, bool]:
    """The prior in the kernels' layout, and whether that is the caller's own memory."""
    if prior is None:
        return None, False
    ours = (len(query), query.dtype, shape)
    if isinstance(prior, PackedScores) and ours == (
        len(prior.packed), prior.packed.dtype, prior.shape
    ):  # fmt: skip
        return prior.packed, True
    plain = plain_scores(prior, query, spec).to(query.dtype).contiguous()
    return torch.ops.nlrn.pack_scores(plain, MASKED, *shape[2:]), False


def _distance_as_dot(query: Tensor, key: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """Embeddings whose dot product is -|query_i - key_j|^2 / bandwidth^2.

    The squared norms ride along as extra channels, each split in two so that half precision keeps
    them to about float32.
    """
    scale = 1.0 / bandwidth**2
    ones = torch.ones_like(query[:, :1])
    query_norm = _split(query.float().square().sum(1, keepdim=True) * -scale, query.dtype)
    key_norm = _split(key.float().square().sum(1, keepdim=True) * -scale, query.dtype)
    queries = torch.cat([query * (2.0 * scale), *query_norm, ones, ones], dim=1)
    keys = torch.cat([key, ones, ones, *key_norm], dim=1)
    return queries, keys


def _split(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of the dtype whose sum is the value; the gradient goes through the first."""
    high = value.to(dtype)
    return high, (value - high).detach().to(dtype)
