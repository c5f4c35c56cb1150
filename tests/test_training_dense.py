"""Attention over all pairs of pixels against the operator."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from nlrn.models.dense_attention import DenseAttention
from nlrn.ops import neighborhood_attention

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("patch", "window", "border"),
    [(6, 5, "mask"), (7, 15, "mask"), (7, 5, "circular"), (5, 5, "circular")],
)
def test_dense_attention_equals_the_operator(patch: int, window: int, border: str) -> None:
    torch.manual_seed(0)
    dense = DenseAttention(patch, window, border, CPU)
    common: dict[str, Any] = {
        "window": window,
        "affinity": "embedded_gaussian",
        "border": border,
        "bandwidth": 1.0,
    }
    inputs = [torch.randn(2, c, patch, patch, dtype=torch.float64) for c in (3, 3, 4) * 2]
    results = []
    operators: list[Any] = [dense, neighborhood_attention]
    for operator in operators:
        leaves = [t.clone().requires_grad_() for t in inputs]
        out1, prior = operator(*leaves[:3], prior=None, keep_correlation=True, **common)
        out2, last = operator(*leaves[3:], prior=prior, keep_correlation=True, **common)
        (out1.square().sum() + out2.sin().sum()).backward()
        assert last is not None
        results.append([out1, out2, last.scores(), *(t.grad for t in leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_dense_attention_keeps_large_scores_exact_in_half_precision() -> None:
    """Trained networks have scores in the hundreds, where bfloat16 has steps of whole units."""
    torch.manual_seed(0)
    dense = DenseAttention(6, 5, "mask", CPU)
    inputs = [(6 * torch.randn(2, 16, 6, 6)).bfloat16() for _ in range(4)]
    g = torch.randn(2, 4, 6, 6)

    def two_states(operator: Any, dtype: torch.dtype) -> Tensor:
        common: dict[str, Any] = {"window": 5, "affinity": "embedded_gaussian", "border": "mask"}
        theta1, psi1, theta2, psi2 = (t.to(dtype) for t in inputs)
        values = g.to(dtype)
        _, prior = operator(theta1, psi1, values, bandwidth=1.0, prior=None,
                            keep_correlation=True, **common)  # fmt: skip
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out, _ = operator(theta2, psi2, values, bandwidth=1.0, prior=prior,
                              keep_correlation=False, **common)  # fmt: skip
        return cast(Tensor, out)

    found = two_states(dense, torch.bfloat16).double()
    wanted = two_states(neighborhood_attention, torch.float64)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2


def test_dense_attention_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="window 9 wraps over a patch of 8"):
        DenseAttention(8, 9, "circular", CPU)
