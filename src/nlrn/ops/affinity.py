"""How two pixels are compared, and which pixels: what the operator computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Affinity(NamedTuple):
    """How a pair of pixels becomes a weight.

    Attributes:
        embedded: which learned embeddings the pair goes through first: "none", "shared" or "both".
        distance: whether the score is -|query_i - key_j|^2 / h^2 instead of query_i . key_j.
        softmax: whether the scores are exponentiated and normalised by their sum; the others are
            divided by the number of neighbours, because their sum can be zero.
    """

    embedded: str
    distance: bool
    softmax: bool


# The rows of the paper's Table 1.
AFFINITIES = {
    "euclidean": Affinity("none", distance=True, softmax=True),
    "dot": Affinity("none", distance=False, softmax=False),
    "embedded_dot": Affinity("both", distance=False, softmax=False),
    "gaussian": Affinity("none", distance=False, softmax=True),
    "symmetric_embedded_gaussian": Affinity("shared", distance=False, softmax=True),
    "embedded_gaussian": Affinity("both", distance=False, softmax=True),
}
BORDERS = ("mask", "circular")


@dataclass(frozen=True)
class AttentionSpec:
    """What the operator computes for every pixel; checked when it is made.

    Attributes:
        window: odd side q of the neighbourhood; it may be larger than the image.
        affinity: a name of AFFINITIES; the ones without a softmax divide by the number of
            neighbours inside the image.
        border: "mask" leaves pixels outside the image out, "circular" wraps around.
        bandwidth: h of the euclidean affinity, exp(-|query_i - key_j|^2 / h^2).
    """

    window: int
    affinity: str = "embedded_gaussian"
    border: str = "mask"
    bandwidth: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.window, int):
            raise ValueError(f"window must be an integer, got {self.window!r}")
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window must be odd and positive, got {self.window}")
        if self.affinity not in AFFINITIES:
            names = ", ".join(AFFINITIES)
            raise ValueError(f"affinity must be one of {names}, got {self.affinity!r}")
        if self.border not in BORDERS:
            raise ValueError(f"border must be one of {', '.join(BORDERS)}, got {self.border!r}")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0, got {self.bandwidth}")

    @property
    def kind(self) -> Affinity:
        """How the affinity makes weights of pairs."""
        return AFFINITIES[self.affinity]

    @property
    def radius(self) -> int:
        """How far a pixel sees along each axis."""
        return self.window // 2

    @property
    def circular(self) -> bool:
        """Whether the neighbourhood wraps around the image."""
        return self.border == "circular"


def distance_as_product(query: Tensor, key: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """Vectors whose products are -|query_i - key_j|^2 / h^2; float32 at least, for the squares."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(dtype) / bandwidth, key.to(dtype) / bandwidth
    ones = torch.ones_like(query[:, :1])
    query_square = (query * query).sum(1, keepdim=True)
    key_square = (key * key).sum(1, keepdim=True)
    return torch.cat([2 * query, -query_square, ones], 1), torch.cat([key, ones, -key_square], 1)
