"""Small orthogonal and biorthogonal transforms as matrices."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

# Analysis low-pass of the biorthogonal wavelet bior1.5 around the pair of pixels it replaces; its
# high-pass is Haar's difference of the pair.
_BIOR = (3 / 256, -3 / 256, -22 / 256, 22 / 256, 0.5, 0.5, 22 / 256, -22 / 256, -3 / 256, 3 / 256)


@cache
def dct(side: int) -> Tensor:
    """Orthonormal DCT-II [side, side], float64; row k is the k-th cosine."""
    k = torch.arange(side, dtype=torch.float64)
    rows = torch.cos(math.pi / side * (k + 0.5) * k[:, None]) * math.sqrt(2 / side)
    rows[0] /= math.sqrt(2)
    return rows


@cache
def haar(side: int) -> Tensor:
    """Orthonormal Haar transform [side, side] of a power of two, float64, the mean first."""
    return _wavelet(side, (0.5, 0.5))


@cache
def bior(side: int) -> Tensor:
    """bior1.5 [side, side] of a power of two, float64, periodic, rows of unit length.

    Not orthogonal: its inverse is another matrix. White noise keeps its variance in every
    coefficient.
    """
    return _wavelet(side, _BIOR)


def _wavelet(side: int, lowpass: tuple[float, ...]) -> Tensor:
    """All levels down to a single mean; details of the coarsest level come first."""
    if side < 1 or side & (side - 1):
        raise ValueError(f"a wavelet transform needs a power of two, got {side}")
    means, details = torch.eye(side, dtype=torch.float64), []
    while len(means) > 1:
        pairs = torch.arange(0, len(means), 2)
        details.append(means[pairs] - means[pairs + 1])
        reach = len(lowpass) // 2 - 1
        taps = [w * means[(pairs + k - reach) % len(means)] for k, w in enumerate(lowpass)]
        means = torch.stack(taps).sum(0)
    rows = torch.cat([means, *reversed(details)])
    return rows / rows.norm(dim=1, keepdim=True)


def separable(rows: Tensor) -> Tensor:
    """The transform [p*p, p*p] that applies rows [p, p] to both sides of a flattened patch."""
    return torch.kron(rows, rows)
