"""The front door of the operator: checks the arguments, chooses the backend."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from nlrn.ops import blocked, dense, reference
from nlrn.ops.affinity import AttentionSpec
from nlrn.ops.blocks import BLOCK, Geometry
from nlrn.ops.correlation import Correlation, Request
from nlrn.ops.triton import backend as triton


class Backend(Protocol):
    """What a module of BACKENDS offers."""

    def unsupported(self, query: Tensor, spec: AttentionSpec, channels: int) -> str | None:
        """Says why the backend cannot run this call, or None when it can."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, request: Request
    ) -> tuple[Tensor, Correlation | None]:
        """The attended values [B, C, H, W] and the correlation, of arguments that were checked."""


BACKENDS: dict[str, Backend] = {
    "triton": triton,
    "blocked": blocked,
    "reference": reference,
    "dense": dense,
}
AUTO = ("triton", "blocked", "reference")  # in the order in which "auto" tries them
DEFAULT_WORKSPACE = 64 * 2**20


def neighborhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec | int,
    *,
    prior_scores: Correlation | Tensor | None = None,
    keep_correlation: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Correlation | None]:
    """Returns the attention of every pixel over its window, and the scores behind it.

    For a pixel i and the pixels j of the window x window neighbourhood centred on it,
    score(i, j) = query_i . key_j + prior(i, j) and out_i = sum_j softmax_j(score(i, j)) value_j.

    Args:
        query: embedding of each pixel as the one that looks [B, D, H, W].
        key: embedding of each pixel as the one that is looked at [B, D, H, W].
        value: what each pixel gives [B, C, H, W].
        spec: window, affinity, border and bandwidth; an integer is the window of a default spec.
        prior_scores: correlation of the previous state, or scores [B, H, W, window**2].
        keep_correlation: whether the correlation is wanted; without it None comes back.
        backend: "auto", or a name of BACKENDS, which then runs or raises with the reason.

    Returns:
        The attended values [B, C, H, W] and the correlation for the next state.
    """
    if not isinstance(spec, AttentionSpec):
        spec = AttentionSpec(spec)
    return attend(
        query, key, value, spec,
        prior_scores=prior_scores, keep_correlation=keep_correlation, backend=backend,
    )  # fmt: skip


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    *,
    prior_scores: Correlation | Tensor | None = None,
    keep_correlation: bool = True,
    reuse_prior: bool = False,
    skip: tuple[Tensor, Tensor] | None = None,
    workspace: int = DEFAULT_WORKSPACE,
    backend: str = "auto",
) -> tuple[Tensor, Correlation | None]:
    """Returns what `neighborhood_attention` does, with what only networks ask for.

    Beside the arguments of that function:
        reuse_prior: lets a backend overwrite `prior_scores` when no gradient is recorded, so that
            one copy of the scores is enough; they must not be used afterwards.
        skip: features [B, C, H, W] and a factor for each channel [C], whose product is added to
            the attended values: a skip connection in the same pass over memory.
        workspace: bytes that the blocked backend may take for temporaries.
    """
    _check(query, key, value, skip)
    request = Request(prior_scores, keep_correlation, reuse_prior, skip, workspace)
    return _choose(backend, query, spec, value.shape[1]).attend(query, key, value, spec, request)


def correlation_bytes(
    height: int,
    width: int,
    spec: AttentionSpec,
    *,
    embed: int,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Bytes that the correlation of an image takes on the device at most, for planning."""
    if device.type == "cuda":
        shape = (height, width, embed, channels)
        packed = triton.packed_bytes(shape, spec, dtype, device)
        if packed is not None:
            return packed
    if spec.kind.distance:
        dtype = torch.promote_types(dtype, torch.float32)
    blocks = Geometry(1, height, width, spec)
    return blocks.rows * blocks.cols * BLOCK**2 * blocks.region**2 * dtype.itemsize


def kernels_run_on(device: torch.device) -> bool:
    """Whether Triton's kernels can run on the device."""
    return triton.no_kernels(device) is None


def unsupported(backend: str, query: Tensor, spec: AttentionSpec, channels: int = 1) -> str | None:
    """Says why the backend cannot run this call, or None when it can.

    Args:
        backend: a name of BACKENDS.
        query: query embedding [B, D, H, W].
        spec: window, affinity, border and bandwidth.
        channels: C, channels of the values.
    """
    if backend not in BACKENDS:
        return f"backend must be 'auto' or one of {', '.join(BACKENDS)}, got {backend!r}"
    if not query.is_floating_point():
        return f"the operator takes floating-point tensors, got {query.dtype}"
    return BACKENDS[backend].unsupported(query, spec, channels)


def _choose(backend: str, query: Tensor, spec: AttentionSpec, channels: int) -> Backend:
    reasons = []
    for name in AUTO if backend == "auto" else (backend,):
        reason = unsupported(name, query, spec, channels)
        if reason is None:
            return BACKENDS[name]
        reasons.append(reason)
    raise ValueError("; ".join(reasons))


def _check(query: Tensor, key: Tensor, value: Tensor, skip: tuple[Tensor, Tensor] | None) -> None:
    if query.dim() != 4 or query.shape != key.shape:
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ValueError(f"query and key must both be [B, D, H, W], got {shapes}")
    if value.dim() != 4 or value.shape[:1] + value.shape[2:] != query.shape[:1] + query.shape[2:]:
        raise ValueError(f"value must be [B, C, H, W] like query, got {tuple(value.shape)}")
    if not query.dtype == key.dtype == value.dtype:
        dtypes = f"query {query.dtype}, key {key.dtype}, value {value.dtype}"
        raise ValueError(f"dtypes differ: {dtypes}")
    if 0 in query.shape or 0 in value.shape:
        shapes = f"query {tuple(query.shape)}, value {tuple(value.shape)}"
        raise ValueError(f"empty tensor: {shapes}")
    if skip is not None and (skip[0].shape != value.shape or skip[1].shape != value.shape[1:2]):
        shapes = f"{tuple(skip[0].shape)} and {tuple(skip[1].shape)}"
        raise ValueError(f"skip must be features like value and factors [C], got {shapes}")
