"""Equation 1 of the paper in code: every non-local method as Phi, G and delta.

    Z = diag(delta(X))^-1 Phi(X) G(X)

X has a row for each of N places, a patch or the features of a pixel. G(X) says what is taken from a
place, Phi(X)_ij how much of place j goes into place i, and delta divides by the sum.

Soft block matching (non-local means, `NonLocal2d`) compares each place with all of its window.
Hard block matching (BM3D, WNNM, LSSC) forms groups C of K places. What a group does to its members
is a K x K matrix M_C, and the groups together are

    Phi = sum_C w_C S_C^T M_C S_C,   delta = sum_C w_C S_C^T 1,

S_C choosing the rows of the group and w_C being its weight. BM3D and LSSC treat every coefficient
of a patch in its own way: they have a Phi for each channel of G.

The matrices are written out, N x N. That is to be read, and to test the fast functions against, on
images of a few hundred pixels; nothing here is fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.classic import bm3d, lssc, nlm, patches, transforms
from nlrn.ops import AFFINITIES


@dataclass(frozen=True)
class NonLocal:
    """A non-local operation.

    Attributes:
        phi: [N, N], or [k, N, N] with a matrix for each channel.
        g: [N, k].
        delta: [N].
    """

    phi: Tensor
    g: Tensor
    delta: Tensor

    def output(self) -> Tensor:
        """Z [N, k]; 0 for a place that is in no group, whose delta is 0."""
        phi = self.phi.expand(self.g.shape[1], -1, -1)
        product = torch.einsum("kij,jk->ik", phi, self.g)
        return product / self.delta.where(self.delta > 0, 1)[:, None]


# --- soft block matching --------------------------------------------------------------------------


def non_local_means(
    image: Tensor, patch: int, window: int, a: float, h: float, bias: float = 0.0
) -> NonLocal:
    """Equation 3 for an image [H, W]: Gaussian-weighted distance of patches, G the identity.

    Args:
        image: [H, W].
        patch: odd side.
        window: odd side of the neighbourhood.
        a: deviation of the Gaussian.
        h: degree of filtering, on the image's scale.
        bias: taken off the squared distance, on the image's scale.

    Returns:
        Z holds a patch for each pixel; the image is its middle column.
    """
    padded = F.pad(image[None, None], (patch // 2,) * 4, mode="reflect")[0, 0]
    x = patches.extract(padded, patch).flatten(0, 1)  # N p*p
    kernel = nlm.gaussian(patch, a).to(x)
    weights = (kernel[:, None] * kernel).flatten()
    distance = _squared_distances(x * weights.sqrt(), x * weights.sqrt())
    phi = torch.exp(-(distance - bias).clamp(min=0) / h**2)
    phi = phi * _neighbors(image.shape, window).to(x)
    return NonLocal(phi, x, phi.sum(1))


def attention(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    size: tuple[int, int],
    window: int,
    affinity: str,
    bandwidth: float = 10.0,
) -> NonLocal:
    """What `NonLocal2d` adds to its input (equations 4 to 6), with the mask border.

    Args:
        theta: X W_theta [N, l].
        psi: X W_psi [N, l].
        g: X W_g [N, m].
        size: height and width; N is their product.
        window: odd side of the neighbourhood.
        affinity: a name of `nlrn.ops.AFFINITIES`.
        bandwidth: h of the euclidean affinity.
    """
    kind, near = AFFINITIES[affinity], _neighbors(size, window).to(theta)
    scores = theta @ psi.T
    if kind.distance:
        scores = -_squared_distances(theta, psi) / bandwidth**2
    if kind.softmax:
        phi = scores.exp() * near
        return NonLocal(phi, g, phi.sum(1))
    return NonLocal(scores * near, g, near.sum(1))  # their sum can be 0: divided by their number


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).square().sum(2)


def _neighbors(size: Sequence[int], window: int) -> Tensor:
    """Whether pixel j lies in the window around pixel i [N, N]."""
    y, x = torch.cartesian_prod(*map(torch.arange, size)).T
    apart = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs())
    return apart <= window // 2


# --- hard block matching --------------------------------------------------------------------------


def _of_groups(
    g: Tensor, parts: Iterable[tuple[Tensor, Tensor, Tensor]], channels: int | None = None
) -> NonLocal:
    """The operation that groups make up.

    Args:
        g: [N, k].
        parts: numbers of the places in groups [B, K], their M_C [B, K, K] (or [B, k, K, K]) and
            their weights w_C [B].
        channels: k if there is a matrix for each channel.
    """
    count = len(g)
    phi, delta = g.new_zeros(channels or 1, count, count), g.new_zeros(count)
    for index, matrices, weights in parts:
        blocks = matrices.view(len(index), channels or 1, *matrices.shape[-2:])
        for numbers, block, weight in zip(index, blocks, weights, strict=True):
            rows, columns = torch.meshgrid(numbers, numbers, indexing="ij")
            for channel, matrix in zip(phi, block, strict=True):
                channel.index_put_((rows, columns), weight * matrix, accumulate=True)
            delta.index_add_(0, numbers, weight.expand(len(numbers)))
    return NonLocal(phi if channels else phi[0], g, delta)


def bm3d_step(
    noisy: Tensor,
    guide: Tensor | None,
    sigma: float,
    stage: bm3d.Stage,
    shrinkage: bm3d.Shrinkage,
) -> NonLocal:
    """A step of BM3D for planes [H, W]: tau^-1(diag(omega) tau(X_C)), linear once omega is known.

    G is the transform of each patch. With H, Haar's transform across the group, coefficient k of
    the patches is multiplied by M_C = H^T diag(omega_k) H.
    """
    given = bm3d.spectra(noisy, stage)
    guiding = given if guide is None else bm3d.spectra(guide, stage)
    parts = []
    for index in bm3d.matched_groups(guiding, stage):
        haar = transforms.haar(index.shape[1]).to(given)
        group, example = (haar @ part.flatten(0, 1)[index] for part in (given, guiding))
        omega, energy = shrinkage(group, example, sigma)
        matrices = torch.einsum("fa,gfk,fb->gkab", haar, omega.to(haar), haar)
        parts.append((index, matrices, 1 / (sigma**2 * energy)))
    return _of_groups(given.flatten(0, 1), parts, stage.patch**2)


def bm3d_image(step: NonLocal, shape: torch.Size, stage: bm3d.Stage) -> Tensor:
    """The plane [H, W] of that shape from a step's patches, which delta weights."""
    rows, columns = (side - stage.patch + 1 for side in shape)
    total = step.output() * step.delta[:, None]
    return bm3d.aggregate(total.view(rows, columns, -1), step.delta.view(rows, columns), stage)


def wnnm_round(x: Tensor, index: Tensor, level: Tensor, c: float) -> NonLocal:
    """A round of WNNM: the group becomes U diag(t / s) U^T X_C, apart from its mean.

    U are the left singular vectors of the group, its mean taken off; t of s as in `denoise_wnnm`.

    Args:
        x: patches [N, p*p].
        index: numbers of the patches in each group [B, K].
        level: noise in each group [B].
        c: of the weights.
    """
    size = index.shape[1]
    mean = x.new_full((size, size), 1 / size)
    centered = x[index] - mean @ x[index]
    u, s, _ = torch.linalg.svd(centered, full_matrices=False)
    kept = 1 - 4 * c * math.sqrt(size) * level[:, None].square() / s.square().clamp(min=1e-30)
    factor = torch.where(kept > 0, 0.5 + 0.5 * kept.clamp(min=0).sqrt(), 0)
    matrices = (u * factor[:, None]) @ u.mT + mean
    return _of_groups(x, [(index, matrices, x.new_ones(len(index)))])


def lssc_round(x: Tensor, index: Tensor, atoms: Tensor, bound: float) -> NonLocal:
    """A round of LSSC with a unitary dictionary: eta(X_C D), before D^T.

    G(X) = X D, the codes. A group keeps an atom or leaves it out: M_C = 1 or 0.

    Args:
        x: patches [N, p*p].
        index: numbers of the patches in each group [B, K].
        atoms: D [p*p, p*p].
        bound: of the squared error of a patch.
    """
    codes, size = x @ atoms, index.shape[1]
    groups = codes[index]
    used = lssc.joint_threshold(groups, bound * size).abs().sum(1) > 0  # B k
    matrices = used[:, :, None, None] * torch.eye(size).to(x)
    parts = [(index, matrices, x.new_ones(len(index)))]
    return _of_groups(codes, parts, codes.shape[1])


def mean_image(patches_: Tensor, delta: Tensor, shape: torch.Size) -> Tensor:
    """The plane [H, W] of that shape: overlapping patches [N, p*p], weighted by delta [N]."""
    side = math.isqrt(patches_.shape[1])
    rows, columns = (length - side + 1 for length in shape)
    weights = delta.expand(side * side, -1)
    value, weight = (
        patches.overlap_add(part.view(-1, rows, columns), side)
        for part in (patches_.T * weights, weights)
    )
    return value / weight
