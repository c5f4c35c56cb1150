"""What one state of the network hands to the next: the correlation of every pixel's window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from nlrn.ops.affinity import AttentionSpec


class Correlation(ABC):
    """The correlation state s_corr, in whatever form the backend that made it keeps it.

    The network passes it on unopened, so that a backend may hold scores in the layout that suits
    it, or the embeddings of all states, without the network knowing.
    """

    @abstractmethod
    def scores(self) -> Tensor:
        """Scores before the softmax [B, H, W, window**2], offsets row by row, 0 where masked."""


class Scores(Correlation):
    """A correlation held as the plain tensor of the contract."""

    def __init__(self, scores: Tensor) -> None:
        self._scores = scores

    def scores(self) -> Tensor:
        return self._scores


class Request(NamedTuple):
    """What a backend is asked for beside what it computes; see `dispatch.attend` for each."""

    prior_scores: Correlation | Tensor | None
    keep_correlation: bool
    reuse_prior: bool
    skip: tuple[Tensor, Tensor] | None
    workspace: int


def plain_scores(prior: Correlation | Tensor, query: Tensor, spec: AttentionSpec) -> Tensor:
    """The prior's scores [B, H, W, window**2] for queries [B, D, H, W]; refuses other shapes."""
    scores = prior.scores() if isinstance(prior, Correlation) else prior
    batch, _, height, width = query.shape
    expected = (batch, height, width, spec.window**2)
    if scores.shape != expected:
        raise ValueError(f"prior_scores must be {expected}, got {tuple(scores.shape)}")
    return scores


def add_skip(out: Tensor, skip: tuple[Tensor, Tensor] | None) -> Tensor:
    """The attended values with the skip connection of `dispatch.attend`."""
    if skip is None:
        return out
    features, factor = skip
    return torch.addcmul(out, features, factor.view(1, -1, 1, 1))


def no_second_derivatives(backend: str) -> RuntimeError:
    """The error of a backend whose gradients cannot be differentiated again."""
    return RuntimeError(
        f"the {backend} backend has no second derivatives; the dense and reference ones have"
    )
