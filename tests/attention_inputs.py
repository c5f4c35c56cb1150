"""Inputs for the operator, and a run that gives everything to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nlrn.ops import (
    AttentionSpec,
    Correlation,
    attend,
    neighborhood_attention,
)

FAST_BACKENDS = ["blocked", "dense"]


TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


# batch, embed, channels, height, width, window: never square, window beyond the image, blocks cut
SHAPES = [(1, 4, 6, 7, 9, 3), (2, 3, 5, 11, 3, 5), (1, 2, 3, 2, 13, 7), (2, 2, 2, 1, 5, 3)]


def make_inputs(
    shape: tuple[int, ...], with_prior: bool, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    batch, embed, channels, height, width, window = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    tensors = [draw(batch, c, height, width) for c in (embed, embed, channels)]
    if with_prior:
        tensors.append(draw(batch, height, width, window * window))
    return [t.requires_grad_() for t in tensors]


def attended(
    operands: Sequence[Tensor], spec: AttentionSpec, **options: Any
) -> tuple[Tensor, Correlation | None]:
    """`attend` on the first three tensors."""
    query, key, value, *_ = operands
    return attend(query, key, value, spec, **options)


def run(inputs: list[Tensor], spec: AttentionSpec, backend: str) -> list[Tensor]:
    """Output, scores and the gradients of a fixed random functional of both."""
    query, key, value, *rest = inputs
    prior = rest[0] if rest else None
    out, correlation = neighborhood_attention(
        query, key, value, spec, prior_scores=prior, backend=backend
    )
    assert correlation is not None
    scores = correlation.scores()
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)).sum()
        for t in (out, scores)
    )
    assert isinstance(loss, Tensor)
    return [out, scores, *torch.autograd.grad(loss, inputs)]
