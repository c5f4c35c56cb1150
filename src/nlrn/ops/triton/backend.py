"""The operator on CUDA: fused Triton kernels, forward and backward.

Scores live in device memory in the dtype of the embeddings, laid out tile by tile as
`triton_kernels` describes, and each state adds to them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

import torch
from torch import Tensor

from nlrn.ops.affinity import AFFINITIES
from nlrn.ops.correlation import Correlation, add_skip
from nlrn.ops.triton import operators as triton_ops  # registers torch.ops.nlrn
from nlrn.ops.triton.launch import INTERPRETED
from nlrn.ops.triton.layout import plan_for

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_EMBED = 256
MAX_CHANNELS = 256


class PackedScores(Correlation):
    """Scores in the kernels' own layout [B, lines, stride], hugely negative where masked."""

    def __init__(self, packed: Tensor, shape: tuple[int, int, int, bool, int, int]) -> None:
        """Takes the scores and (height, width, window, circular, embed, channels)."""
        self.packed = packed
        self.shape = shape

    def scores(self) -> Tensor:
        return torch.ops.nlrn.unpack_scores(self.packed, *self.shape)


@torch.compiler.assume_constant_result  # so that the compiler need not look into it
def no_kernels(device: torch.device) -> str | None:
    """Says why no Triton kernel can run on the device, or None when it can."""
    return _no_kernels(device)


@functools.lru_cache(maxsize=16)
def _no_kernels(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if INTERPRETED:
        return None
    if device.type != "cuda":
        return f"the triton backend needs CUDA tensors, got {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the triton backend needs a GPU of compute capability 8.0 or later"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "triton needs a C compiler, found neither gcc nor clang"
    return None


def unsupported(theta: Tensor, affinity: str, channels: int = 1) -> str | None:
    """Says why the kernels cannot run this call, or None when they can."""
    _, embed, height, width = theta.shape
    return _unsupported(theta.device, theta.dtype, affinity, (height, width, embed, channels))


def _unsupported(
    device: torch.device, dtype: torch.dtype, affinity: str, shape: tuple[int, int, int, int]
) -> str | None:
    if reason := no_kernels(device):
        return reason
    if dtype not in DTYPES:
        return f"the triton backend takes bfloat16, float16 and float32, got {dtype}"
    if not AFFINITIES[affinity].softmax:
        return f"the triton backend has no affinity {affinity!r}, only those with a softmax"
    height, width, embed, channels = shape
    if embed > MAX_EMBED - 4 * AFFINITIES[affinity].distance or channels > MAX_CHANNELS:
        return f"too many channels for the triton backend: embed {embed}, values {channels}"
    if height * width * max(embed, channels) >= 2**31:
        return f"image too large for the triton backend: {height} x {width}"
    return None


def packed_bytes(
    device: torch.device,
    dtype: torch.dtype,
    affinity: str,
    shape: tuple[int, int, int, int],
    window: int,
    circular: bool,
) -> int | None:
    """Bytes of the scores of (height, width, embed, channels); None where others compute them."""
    if _unsupported(device, dtype, affinity, shape):
        return None
    height, width, embed, channels = shape
    embed += 4 * AFFINITIES[affinity].distance  # as in `_distance_as_dot`
    plan = plan_for(height, width, window, circular, embed, channels, dtype)
    return plan.lines * plan.stride * dtype.itemsize


def attend(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    *,
    window: int,
    affinity: str,
    circular: bool,
    bandwidth: float,
    prior: Correlation | Tensor | None,
    keep_correlation: bool,
    reuse_prior: bool,
    skip: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Correlation | None]:
    """The operator of `dispatch.neighborhood_attention` on arguments it has checked."""
    if AFFINITIES[affinity].distance:
        theta, psi = _distance_as_dot(theta, psi, bandwidth)
    # B C H W -> B H W C, free for channels-last tensors
    theta, psi, g = (t.permute(0, 2, 3, 1) for t in (theta, psi, g))
    _, height, width, embed = theta.shape
    shape = (height, width, window, circular, embed, g.shape[-1])
    packed, ours = _packed_prior(prior, shape, theta.dtype)
    grads = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (theta, psi, g, packed, *(skip or ()))
    )
    if grads:
        # Backward takes nothing else: better copied once, here. The sum below has its gradients.
        theta, psi, g = theta.contiguous(), psi.contiguous(), g.contiguous()
    added = (skip[0].permute(0, 2, 3, 1), skip[1]) if skip and not grads else ()
    if packed is not None and keep_correlation and not grads and (reuse_prior or not ours):
        out = torch.ops.nlrn.attend_update(theta, psi, g, packed, window, circular, *added)
    else:
        out, packed, _ = torch.ops.nlrn.attend(
            theta, psi, g, packed, window, circular, keep_correlation or grads, *added
        )
    correlation = PackedScores(packed, shape) if keep_correlation else None
    out = out.permute(0, 3, 1, 2)
    return add_skip(out, skip if grads else None), correlation


def _packed_prior(
    prior: Correlation | Tensor | None,
    shape: tuple[int, int, int, bool, int, int],
    dtype: torch.dtype,
) -> tuple[Tensor | None, bool]:
    """The prior in the kernels' layout, and whether that is the caller's own memory."""
    if prior is None:
        return None, False
    if isinstance(prior, PackedScores) and prior.shape == shape and prior.packed.dtype == dtype:
        return prior.packed, True
    plain = prior if isinstance(prior, Tensor) else prior.scores()
    _, _, window, circular, embed, channels = shape
    plain = plain.to(dtype).contiguous()
    return torch.ops.nlrn.pack_scores(
        plain, triton_ops.MASKED, window, circular, embed, channels
    ), False


def _distance_as_dot(theta: Tensor, psi: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """Embeddings whose dot product is -|theta_i - psi_j|^2 / bandwidth^2.

    The squared norms ride along as extra channels, each split in two so that half precision keeps
    them to about float32.
    """
    scale = 1.0 / bandwidth**2
    ones = torch.ones_like(theta[:, :1])
    theta_norm = _split(theta.float().square().sum(1, keepdim=True) * -scale, theta.dtype)
    psi_norm = _split(psi.float().square().sum(1, keepdim=True) * -scale, theta.dtype)
    queries = torch.cat([theta * (2.0 * scale), *theta_norm, ones, ones], dim=1)
    keys = torch.cat([psi, ones, ones, *psi_norm], dim=1)
    return queries, keys


def _split(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of the dtype whose sum is the value; the gradient goes through the first."""
    high = value.to(dtype)
    return high, (value - high).detach().to(dtype)
