"""The operator as its definition reads: plain loops over pixels and neighbours, in float64.

Slow on purpose. Every other backend is tested against it, forward and gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.ops.affinity import AttentionSpec
from nlrn.ops.correlation import Correlation, Request, Scores, add_skip, plain_scores


def unsupported(query: Tensor, spec: AttentionSpec, channels: int) -> str | None:
    """None: this backend runs every call."""
    return None


def attend(
    query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, request: Request
) -> tuple[Tensor, Correlation | None]:
    """The contract of `dispatch.attend`, one pixel after the other."""
    dtype, prior = value.dtype, request.prior_scores
    if prior is not None:
        prior = plain_scores(prior, query, spec).double()
    query, key, value = query.double(), key.double(), value.double()
    batch, _, height, width = query.shape
    outputs, scores = [], []
    for b in range(batch):
        for y in range(height):
            for x in range(width):
                prior_i = None if prior is None else prior[b, y, x]
                out, score = _attend_pixel(
                    query[b, :, y, x], key[b], value[b], prior_i, (y, x), spec
                )
                outputs.append(out)
                scores.append(score)
    out = torch.stack(outputs).reshape(batch, height, width, -1).permute(0, 3, 1, 2).to(dtype)
    score = torch.stack(scores).reshape(batch, height, width, -1).to(dtype)
    return add_skip(out, request.skip), Scores(score) if request.keep_correlation else None


def _attend_pixel(
    query_i: Tensor,
    key: Tensor,
    value: Tensor,
    prior_i: Tensor | None,
    position: tuple[int, int],
    spec: AttentionSpec,
) -> tuple[Tensor, Tensor]:
    """One pixel's output [C] and its scores [window**2], 0 where the neighbour is masked."""
    _, height, width = key.shape
    offsets, rows, columns = [], [], []
    for offset in range(spec.window**2):
        y = position[0] + offset // spec.window - spec.radius
        x = position[1] + offset % spec.window - spec.radius
        if spec.circular:
            y, x = y % height, x % width
        elif not (0 <= y < height and 0 <= x < width):
            continue
        offsets.append(offset)
        rows.append(y)
        columns.append(x)
    key_j, value_j = key[:, rows, columns], value[:, rows, columns]  # [D or C, neighbours]
    if spec.kind.distance:
        score_j = -((query_i[:, None] - key_j) ** 2).sum(0) / spec.bandwidth**2
    else:
        score_j = (query_i[:, None] * key_j).sum(0)
    if prior_i is not None:
        score_j = score_j + prior_i[offsets]
    weight_j = torch.softmax(score_j, 0) if spec.kind.softmax else score_j / len(offsets)
    index = torch.tensor(offsets, device=key.device)
    scores = torch.zeros(spec.window**2, dtype=score_j.dtype, device=key.device)
    return (weight_j * value_j).sum(1), scores.index_put((index,), score_j)
