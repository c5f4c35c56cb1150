"""The dense backend where it is more than one of the backends that `test_ops` goes through."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nlrn.ops import BORDERS, AttentionSpec, attend, dense, neighborhood_attention, unsupported


@pytest.mark.slow
@pytest.mark.parametrize("cast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("window", [9, 45])
def test_is_what_trained_the_weights_to_the_bit(window: int, border: str, cast: bool) -> None:
    """Two states on a patch of 45 x 45, written as the trainer once had them."""
    torch.manual_seed(0)
    inputs = [torch.randn(2, c, 45, 45) for c in (4, 4, 6) * 2]
    line = torch.arange(45)
    distance = (line[:, None] - line).abs()
    if border == "circular":
        distance = torch.minimum(distance, 45 - distance)
    near = distance <= window // 2
    outside = ~(near[:, None, :, None] & near[None, :, None, :]).reshape(2025, 2025)
    mask = torch.zeros(outside.shape).masked_fill_(outside, -1e30)

    def plainly(
        query: Tensor, key: Tensor, value: Tensor, prior: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            pairs = query.flatten(2).transpose(1, 2) @ key.flatten(2)
        if prior is not None:
            pairs = pairs + prior
        weights = (pairs + mask).softmax(-1).to(value.dtype)
        return (value.flatten(2) @ weights.transpose(1, 2)).unflatten(2, (45, 45)), pairs

    results = []
    spec = AttentionSpec(window, border=border)
    for old in (True, False):
        leaves = [t.clone().requires_grad_() for t in inputs]
        q1, k1, v1, q2, k2, v2 = leaves
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            if old:
                first, pairs = plainly(q1, k1, v1, None)
                second, _ = plainly(q2, k2, v2, pairs)
            else:
                first, prior = attend(q1, k1, v1, spec, backend="dense")
                second, _ = attend(q2, k2, v2, spec, prior_scores=prior, backend="dense")
        loss = first.float().square().sum() + second.float().sin().sum()
        results.append([first, second, *torch.autograd.grad(loss, leaves)])
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_keeps_large_scores_exact_in_half_precision() -> None:
    """Trained networks have scores in the hundreds, where bfloat16 has steps of whole units."""
    torch.manual_seed(0)
    inputs = [(6 * torch.randn(2, 16, 6, 7)).bfloat16() for _ in range(4)]
    value, spec = torch.randn(2, 4, 6, 7), AttentionSpec(5)

    def two_states(backend: str, dtype: torch.dtype) -> Tensor:
        query1, key1, query2, key2 = (t.to(dtype) for t in inputs)
        values = value.to(dtype)
        _, prior = attend(query1, key1, values, spec, backend=backend)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return attend(query2, key2, values, spec, prior_scores=prior, backend=backend)[0]

    found = two_states("dense", torch.bfloat16).double()
    wanted = two_states("blocked", torch.float64)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2


def test_makes_its_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query, spec = torch.randn(1, 3, 6, 11), AttentionSpec(5)
    wanted, _ = attend(query, query, query, spec, backend="dense")
    mask = dense._outside(6, 11, spec, query.device)
    assert mask is dense._outside(6, 11, spec, query.device)
    monkeypatch.setattr("torch.minimum", None)
    monkeypatch.setattr("torch.arange", None)  # what a mask is made of
    out, _ = attend(query, query, query, spec, backend="dense")
    assert torch.equal(out, wanted)


def test_says_what_it_cannot_do() -> None:
    wide, spec = torch.zeros(1, 1, 8, 20), AttentionSpec(9, border="circular")
    assert unsupported("dense", wide, spec) == (
        "the dense backend cannot wrap a window of 9 over 8 x 20"
    )
    assert unsupported("dense", wide, AttentionSpec(9)) is None
    large = torch.zeros(1, 1, 1, 1).expand(1, 1, 128, 129)
    assert unsupported("dense", large, AttentionSpec(9)) == (
        "the dense backend takes up to 16384 pixels, got 128 x 129"
    )
    with pytest.raises(ValueError, match="up to 16384 pixels"):
        neighborhood_attention(large, large, large, 9, backend="dense")
