"""Eigenvectors of many small matrices, and what does without them.

PyTorch's eigh takes matrices larger than 32 x 32 one after the other on CUDA, a millisecond each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.classic import parallel

LARGEST_BATCHED_ON_CUDA = 32
PIECE = 32  # matrices that a thread of the CPU takes at a time
# An odd polynomial that pushes 0 < x <= 1 towards 1, small x by the factor 3.4 (the coefficients of
# the optimiser Muon). Twelve times: eigenvalues a millionth of the largest away from the limit
# have arrived.
_PUSH, _PUSHES = (3.4445, -4.7750, 2.0315), 12
_POLISHES = 4  # of Newton and Schulz, which converge from there to +-1 quadratically
_ROOT_STEPS = 10
_SMALLEST = 1e-6  # limit, as a share of the norm, that float32 can tell from 0


def eigenvectors(matrices: Tensor) -> Tensor:
    """The eigenvectors of symmetric matrices [B, n, n], as columns.

    Where the matrices' device would be slow, the CPU computes them.
    """
    if matrices.device.type == "cuda" and not _is_slow(matrices):
        return _eigh(matrices)[1]
    pieces = matrices.cpu().split(PIECE)
    found = parallel.each(lambda piece: _eigh(piece)[1], pieces, torch.device("cpu"))
    return torch.cat(list(found)).to(matrices.device)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [B, n] and eigenvectors [B, n, n]."""
    try:
        values, vectors = torch.linalg.eigh(matrices)
    except torch.linalg.LinAlgError:
        # Many equal eigenvalues, as of patches with few different values: float32 may not converge.
        values, vectors = torch.linalg.eigh(matrices.double())
    return values.to(matrices), vectors.to(matrices)


def _is_slow(matrices: Tensor) -> bool:
    return matrices.device.type == "cuda" and matrices.shape[-1] > LARGEST_BATCHED_ON_CUDA


def shrinkage(gram: Tensor, limit: Tensor) -> Tensor:
    """Matrices [B, n, n] by which WNNM shrinks groups [B, K, n] of these Gram matrices [B, n, n].

    An eigenvalue v of the Gram matrix, the square of a singular value, becomes the factor
    (1 + sqrt(1 - limit / v)) / 2 if it is above the limit [B], and 0 otherwise.
    """
    if _is_slow(gram):
        return by_products(gram, limit)
    return by_eigenvectors(gram, limit)


def by_eigenvectors(gram: Tensor, limit: Tensor) -> Tensor:
    """The matrices of `shrinkage`, as they are defined."""
    values, vectors = _eigh(gram)
    kept = (1 - limit[:, None] / values.clamp(min=1e-30)).clamp(min=0).sqrt()
    factor = torch.where(values > limit[:, None], 0.5 + 0.5 * kept, 0)
    return (vectors * factor[:, None]) @ vectors.mT


def by_products(gram: Tensor, limit: Tensor) -> Tensor:
    """The matrices of `shrinkage` without eigenvectors, equal to them but for rounding.

    With P the projection on the eigenvectors above the limit and A = (gram - limit) P, it is
    (P + sqrt(A (A + limit)^-1)) / 2; both P and the root are limits of matrix polynomials.
    """
    one = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    least = (_SMALLEST * torch.linalg.matrix_norm(gram)).clamp(min=1e-12)
    floor = limit.maximum(least)[:, None, None] * one
    above = gram - floor
    size = torch.linalg.matrix_norm(above, keepdim=True)
    projection = (one + _sign(above / size, one)) / 2
    rest = _symmetric(above @ projection)
    share = _symmetric(torch.linalg.solve(rest + floor, rest))
    return (projection + _root(share, one)) / 2


def _sign(x: Tensor, one: Tensor) -> Tensor:
    """The symmetric matrices [B, n, n], of norm 1 at most, with eigenvalues -1 and 1."""
    a, b, c = _PUSH
    for _ in range(_PUSHES):
        square = x @ x
        x = x @ (a * one + b * square + c * (square @ square))
    for _ in range(_POLISHES):
        x = x @ (1.5 * one - 0.5 * (x @ x))
    return x


def _root(x: Tensor, one: Tensor) -> Tensor:
    """Square roots of symmetric matrices [B, n, n] with eigenvalues from 0 to 1."""
    root, inverse = x, one.expand_as(x)
    for _ in range(_ROOT_STEPS):
        step = 1.5 * one - 0.5 * (inverse @ root)
        root, inverse = root @ step, step @ inverse
    return root


def _symmetric(x: Tensor) -> Tensor:
    return (x + x.mT) / 2
