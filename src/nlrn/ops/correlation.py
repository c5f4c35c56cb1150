"""What one state of the network hands to the next: the correlation of every pixel's window."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


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


def add_skip(out: Tensor, skip: tuple[Tensor, Tensor] | None) -> Tensor:
    """The attended values with the skip connection of `neighborhood_attention`."""
    if skip is None:
        return out
    features, factor = skip
    return torch.addcmul(out, features, factor.view(1, -1, 1, 1))
