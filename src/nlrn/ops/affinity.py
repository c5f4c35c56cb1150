"""How two pixels are compared, and which pixels: what the operator computes."""

from __future__ import annotations

from typing import NamedTuple


class Affinity(NamedTuple):
    """How a pair of pixels becomes a weight.

    Attributes:
        embedded: which learned embeddings the pair goes through first: "none", "shared" or "both".
        distance: whether the score is -|theta_i - psi_j|^2 / h^2 instead of theta_i . psi_j.
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
