"""The operator as its definition reads: plain loops over pixels and neighbours, in float64.

Slow on purpose. Every other backend is tested against it, forward and gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.ops.affinity import AFFINITIES
from nlrn.ops.correlation import Correlation, Scores


def attend(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    window: int,
    affinity: str,
    border: str,
    bandwidth: float,
    prior: Correlation | Tensor | None,
    keep_correlation: bool,
) -> tuple[Tensor, Correlation | None]:
    """The contract of `neighborhood_attention`, one pixel after the other."""
    dtype = g.dtype
    theta, psi, g = theta.double(), psi.double(), g.double()
    batch, _, height, width = theta.shape
    if isinstance(prior, Correlation):
        prior = prior.scores()
    outputs, scores = [], []
    for b in range(batch):
        for y in range(height):
            for x in range(width):
                pixel_prior = None if prior is None else prior[b, y, x].double()
                out, score = _attend_pixel(
                    theta[b, :, y, x], psi[b], g[b], pixel_prior, (y, x), window, affinity,
                    border, bandwidth,
                )  # fmt: skip
                outputs.append(out)
                scores.append(score)
    out = torch.stack(outputs).reshape(batch, height, width, -1).permute(0, 3, 1, 2)
    score = torch.stack(scores).reshape(batch, height, width, window * window)
    return out.to(dtype), Scores(score.to(dtype)) if keep_correlation else None


def _attend_pixel(
    theta_i: Tensor,
    psi: Tensor,
    g: Tensor,
    prior_i: Tensor | None,
    position: tuple[int, int],
    window: int,
    affinity: str,
    border: str,
    bandwidth: float,
) -> tuple[Tensor, Tensor]:
    """One pixel's output [C] and its scores [window**2], 0 where the neighbour is masked."""
    _, height, width = psi.shape
    kind, radius = AFFINITIES[affinity], window // 2
    offsets, rows, columns = [], [], []
    for offset in range(window * window):
        y = position[0] + offset // window - radius
        x = position[1] + offset % window - radius
        if border == "circular":
            y, x = y % height, x % width
        elif not (0 <= y < height and 0 <= x < width):
            continue
        offsets.append(offset)
        rows.append(y)
        columns.append(x)
    psi_j, g_j = psi[:, rows, columns], g[:, rows, columns]  # [D, neighbours], [C, neighbours]
    if kind.distance:
        score_j = -((theta_i[:, None] - psi_j) ** 2).sum(0) / bandwidth**2
    else:
        score_j = (theta_i[:, None] * psi_j).sum(0)
    if prior_i is not None:
        score_j = score_j + prior_i[offsets]
    weight_j = torch.softmax(score_j, 0) if kind.softmax else score_j / len(offsets)
    index = torch.tensor(offsets, device=psi.device)
    scores = torch.zeros(window * window, dtype=score_j.dtype, device=psi.device)
    return (weight_j * g_j).sum(1), scores.index_put((index,), score_j)
