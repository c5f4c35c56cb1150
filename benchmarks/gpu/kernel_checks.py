"""Comparisons of the Triton kernels with float64: outputs, scores and gradients of two states."""

from __future__ import annotations

import functools
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch
from torch import Tensor

from nlrn.ops import AttentionSpec, attend
from nlrn.ops.window import neighbors, positions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to try the checks
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}


class Check(NamedTuple):
    """One comparison with float64: shape, spec, dtype, and what stands before the first state."""

    batch: int
    embed: int
    channels: int
    size: tuple[int, int]
    spec: AttentionSpec
    dtype: str
    prior: bool

    @property
    def label(self) -> str:
        """The check in a line."""
        spec, (height, width) = self.spec, self.size
        what = f"{self.batch} x {height}x{width}, {self.embed} and {self.channels} channels"
        how = f"window {spec.window} {spec.border} {spec.affinity} {self.dtype}"
        return f"{what}, {how}{', prior' if self.prior else ''}"


def circular(window: int) -> AttentionSpec:
    return AttentionSpec(window, border="circular")


CHECKS = [
    Check(2, 64, 128, (45, 45), circular(45), "bfloat16", False),
    Check(2, 64, 128, (45, 45), circular(45), "bfloat16", True),
    Check(1, 64, 128, (45, 45), circular(45), "float32", True),
    Check(2, 64, 128, (48, 40), AttentionSpec(45), "bfloat16", True),
    Check(2, 64, 128, (48, 40), AttentionSpec(45), "float32", False),
    Check(1, 64, 128, (64, 64), AttentionSpec(45), "bfloat16", False),
    Check(2, 64, 128, (13, 37), AttentionSpec(7), "bfloat16", True),
    Check(2, 64, 128, (13, 37), AttentionSpec(7), "float32", True),
    Check(2, 64, 128, (13, 37), circular(7), "bfloat16", False),
    Check(1, 64, 128, (70, 101), AttentionSpec(45), "bfloat16", True),
    Check(1, 64, 128, (70, 101), AttentionSpec(45), "float16", False),
    Check(1, 64, 128, (61, 150), circular(21), "bfloat16", False),
    Check(1, 128, 256, (20, 27), AttentionSpec(11), "bfloat16", True),
    Check(1, 128, 256, (20, 27), AttentionSpec(11), "float32", False),
    Check(2, 20, 33, (5, 6), circular(9), "bfloat16", True),
    Check(2, 33, 20, (5, 6), AttentionSpec(63), "float32", True),
    Check(2, 64, 64, (17, 23), AttentionSpec(9, "euclidean"), "bfloat16", True),
    Check(2, 64, 64, (17, 23), AttentionSpec(9, "euclidean"), "float32", True),
]


def dense_attention(
    check: Check, query: Tensor, key: Tensor, value: Tensor, prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The definition on explicit masks: out [B, C, H, W] and scores [B, H, W, window**2].

    The dense backend is not enough: here a window may wrap over an image more than once.
    """
    batch, (height, width), spec = check.batch, check.size, check.spec
    pixels = height * width
    y = positions(height, spec, query.device) % height
    x = positions(width, spec, query.device) % width
    index = (y[:, None, :, None] * width + x[None, :, None, :]).reshape(1, pixels, -1)
    index = index.expand(batch, -1, -1)
    valid = neighbors(height, width, spec, query.device).reshape(1, pixels, -1)
    queries, keys, values = (t.flatten(2).transpose(1, 2) for t in (query, key, value))
    if spec.kind.distance:
        table = -(torch.cdist(queries, keys) ** 2) / spec.bandwidth**2
    else:
        table = queries @ keys.transpose(1, 2)
    score = table.gather(2, index)
    if prior is not None:
        score = score + prior.reshape(batch, pixels, -1)
    weight = torch.softmax(score.masked_fill(~valid, float("-inf")), 2)
    weights = torch.zeros_like(table).scatter_add(2, index, weight)
    out = (weights @ values).transpose(1, 2).reshape(batch, -1, height, width)
    return out, score.masked_fill(~valid, 0.0).reshape(batch, height, width, -1)


def dense(check: Check) -> Callable[..., tuple[Tensor, Tensor]]:
    """`dense_attention` for the check, on (query, key, value, prior)."""
    return functools.partial(dense_attention, check)


def kernels(check: Check, reuse_prior: bool = False) -> Callable[..., tuple[Tensor, Any]]:
    """The Triton backend for the check, on (query, key, value, prior)."""

    def ours(query: Tensor, key: Tensor, value: Tensor, prior: Any) -> tuple[Tensor, Any]:
        return attend(
            query, key, value, check.spec, prior_scores=prior, reuse_prior=reuse_prior,
            backend="triton",
        )  # fmt: skip

    return ours


def two_states(
    attend: Callable[..., tuple[Tensor, Any]], leaves: list[Tensor], prior: Tensor | None
) -> tuple[Tensor, Tensor, Any]:
    """Two states on query, key, value, query, key, value, the second on top of the first."""
    first, correlation = attend(*leaves[:3], prior)
    second, correlation = attend(*leaves[3:6], correlation)
    return first, second, correlation


def run_check(check: Check, compiled: bool = False) -> dict[str, float]:
    """Relative errors of outputs, scores and gradients over two states."""
    torch.manual_seed(zlib.crc32(repr(check).encode()))
    # Uninitialised memory is filled with NaN, so that an element nobody wrote shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    inputs, grads = random_inputs(check)

    def run(attention: Callable[..., tuple[Tensor, Any]], double: bool) -> list[Tensor]:
        cast = torch.Tensor.double if double else (lambda t: t)
        leaves = [cast(t).detach().requires_grad_() for t in inputs]
        prior = leaves[6] if check.prior else None

        def states(*leaves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            first, second, correlation = two_states(attention, list(leaves), prior)
            return first, second, correlation if double else correlation.scores()

        if compiled and not double:
            states = torch.compile(states, fullgraph=True)
        outputs = states(*leaves[:6])
        gradients = torch.autograd.grad(outputs, leaves, [cast(t) for t in grads])
        return [t.detach().double() for t in (*outputs, *gradients)]

    names = ["out1", "out2", "scores", "query1", "key1", "value1", "query2", "key2", "value2"]
    wanted = run(dense(check), True)
    errors = {}
    for name, a, b in zip([*names, "prior"], wanted, run(kernels(check), False), strict=False):
        errors[name] = float((a - b).norm() / a.norm())
    if not check.prior:
        errors |= check_inference(check, inputs)
    return errors


def random_inputs(check: Check) -> tuple[list[Tensor], list[Tensor]]:
    """Operands of two states with their prior, and the gradients of both outputs and the scores."""
    dtype = getattr(torch, check.dtype)
    channels = [check.embed, check.embed, check.channels] * 2
    scale = [2.0 / check.embed**0.25, 1.0 / check.embed**0.25, 1.0] * 2

    def normal(*shape: int) -> Tensor:
        return torch.randn(check.batch, *shape, device=DEVICE).to(dtype)

    inputs = [
        (normal(c, *check.size) * s).contiguous(memory_format=torch.channels_last)
        for c, s in zip(channels, scale, strict=True)
    ]
    plain = (*check.size, check.spec.window**2)
    if check.prior:
        inputs.append(normal(*plain))
    return inputs, [normal(check.channels, *check.size) for _ in range(2)] + [normal(*plain)]


def check_inference(check: Check, inputs: list[Tensor]) -> dict[str, float]:
    """The in-place update of the scores, which only inference takes."""
    with torch.no_grad():
        _, _, wanted = two_states(dense(check), [t.double() for t in inputs], None)
        _, correlation = kernels(check)(*inputs[:3], None)
        kernels(check, reuse_prior=True)(*inputs[3:6], correlation)
        got = correlation.scores().double()
    return {"in_place": float((got - wanted).norm() / wanted.norm())}


def check_in_worker(number: int) -> tuple[Check, dict[str, float] | str]:
    """Runs a check; the number after the last is the first again, through torch.compile."""
    check = CHECKS[number % len(CHECKS)]
    try:
        return check, run_check(check, compiled=number >= len(CHECKS))
    except Exception:
        return check, traceback.format_exc()[-1500:]
