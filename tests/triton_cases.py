"""Random cases for the kernels, and what they have to agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nlrn.models.nlrn import NLRN, NLRNConfig, random_network
from nlrn.ops import AttentionSpec, Correlation
from nlrn.ops import attend as attend_with

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}


BANDWIDTH = 3.0


class Case(NamedTuple):
    batch: int
    embed: int
    channels: int
    height: int
    width: int
    window: int
    border: str
    dtype: torch.dtype
    prior: bool
    affinity: str = "embedded_gaussian"

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.window, self.affinity, self.border, BANDWIDTH)


def attend(
    operands: Sequence[Tensor],
    case: Case,
    prior: Correlation | Tensor | None,
    keep_correlation: bool = True,
    reuse_prior: bool = False,
    skip: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Any]:
    query, key, value = operands
    return attend_with(
        query, key, value, case.spec, prior_scores=prior, keep_correlation=keep_correlation,
        reuse_prior=reuse_prior, skip=skip, backend="triton",
    )  # fmt: skip


def loops(
    operands: Sequence[Tensor], case: Case, prior: Correlation | Tensor | None
) -> tuple[Tensor, Any]:
    query, key, value = operands
    return attend_with(query, key, value, case.spec, prior_scores=prior, backend="reference")


def random_inputs(case: Case, device: str = "cpu") -> list[Tensor]:
    """Query, key, value of two states, and the scores before the first where the case has them."""
    size = (case.height, case.width)
    channels = [case.embed, case.embed, case.channels] * 2
    inputs = [torch.randn(case.batch, c, *size, device=device) for c in channels]
    inputs = [t if i % 3 == 2 else t / case.embed**0.25 for i, t in enumerate(inputs)]
    if case.prior:
        inputs.append(torch.randn(case.batch, *size, case.window**2, device=device))
    return [t.to(case.dtype) for t in inputs]


def two_states(
    attention: Callable[..., tuple[Tensor, Any]],
    inputs: list[Tensor],
    case: Case,
    cotangents: list[Tensor],
) -> list[Tensor]:
    """Outputs of both states, the last scores, and the gradients of all inputs."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    first, correlation = attention(leaves[:3], case, leaves[6] if case.prior else None)
    second, correlation = attention(leaves[3:6], case, correlation)
    outputs = [first, second, correlation.scores()]
    return outputs + list(torch.autograd.grad(outputs, leaves, cotangents))


def assert_parity(case: Case, device: str = "cpu") -> None:
    torch.manual_seed(0)
    inputs = random_inputs(case, device)
    out = (case.batch, case.channels, case.height, case.width)
    scores = (case.batch, case.height, case.width, case.window**2)
    cotangents = [torch.randn(s, device=device).to(case.dtype) for s in (out, out, scores)]
    got = two_states(attend, inputs, case, cotangents)
    exact = two_states(loops, [t.double().cpu() for t in inputs], case,
                       [t.double().cpu() for t in cotangents])  # fmt: skip
    names = ["out1", "out2", "scores", "query1", "key1", "value1", "query2", "key2", "value2",
             "prior"]  # fmt: skip
    for name, a, b in zip(names, got, exact, strict=False):
        assert a.dtype == case.dtype
        assert a.shape == b.shape, name
        error = float((a.detach().double().cpu() - b.detach()).norm() / b.detach().norm())
        assert error < TOLERANCE[case.dtype], f"{name}: relative error {error:.1e}"


def assert_slices_and_skip(case: Case, device: str = "cpu") -> None:
    """The inference path: the operands as slices of one tensor, the skip in the same kernel."""
    torch.manual_seed(0)
    inputs = random_inputs(case, device)
    sliced = []
    for state in (inputs[:3], inputs[3:6]):
        together = torch.cat(state, 1).contiguous(memory_format=torch.channels_last)
        sliced.append(together.split([case.embed, case.embed, case.channels], 1))
    x = torch.randn_like(inputs[2]).contiguous(memory_format=torch.channels_last)
    factor = torch.randn(case.channels, device=device).to(case.dtype)
    first, before = attend(sliced[0], case, None, skip=(x, factor))
    second, after = attend(sliced[1], case, before, reuse_prior=True, skip=(x, factor))
    last, nothing = attend(sliced[1], case, after, keep_correlation=False, skip=(x, factor))
    assert nothing is None
    exact = [t.double().cpu() for t in inputs]
    added = x.double().cpu() * factor.double().cpu().view(1, -1, 1, 1)
    wanted_first, scores = loops(exact[:3], case, None)
    wanted_second, scores = loops(exact[3:6], case, scores)
    wanted_last, _ = loops(exact[3:6], case, scores)
    wanted = [wanted_first + added, wanted_second + added, wanted_last + added, scores.scores()]
    for a, b in zip([first, second, last, after.scores()], wanted, strict=True):
        assert float((a.double().cpu() - b).norm() / b.norm()) < TOLERANCE[case.dtype]


def assert_network(
    config: NLRNConfig, dtype: torch.dtype, size: tuple[int, ...], device: str = "cpu"
) -> None:
    """The folded network on Triton's kernels against the plain network in float64."""
    model: NLRN = random_network(config)
    torch.nn.init.normal_(model.conv_out.weight, std=0.1)
    image = torch.rand(size, generator=torch.Generator().manual_seed(0))
    steps: list[int] = []
    result = model.for_inference(dtype, device)(image.to(device), lambda: steps.append(1))
    assert len(steps) == config.steps
    with torch.no_grad():
        wanted = model.double()(image.double())
    change = (wanted - image).norm()
    error = float((result.double().cpu() - wanted).norm() / change)
    assert result.dtype == torch.float32
    assert error < 2 * TOLERANCE[dtype], f"relative error {error:.1e}"
