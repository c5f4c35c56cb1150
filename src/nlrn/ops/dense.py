"""The operator as plain matrix products over all pairs of pixels.

For training on small patches where no fused kernels run: no loops over blocks, so that
`torch.compile` sees one graph, and autograd differentiates it as often as wanted. Memory grows with
the square of the patch's area.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.ops.affinity import AttentionSpec, distance_as_product
from nlrn.ops.correlation import Correlation, Request, add_skip, plain_scores
from nlrn.ops.tracing import kept
from nlrn.ops.window import masked_score, neighbor_counts, neighbors, positions

MAX_PIXELS = 2**14  # a GiB of scores for each image
MOST_KEPT = 2  # masks that stay in memory: up to 256 MiB each

Shape = tuple[int, int, AttentionSpec, torch.device]  # height and width first


class DenseCorrelation(Correlation):
    """Scores of all pairs of pixels [B, N, N], N = height * width; junk outside the windows."""

    def __init__(self, pairs: Tensor, shape: Shape) -> None:
        self.pairs = pairs
        self.shape = shape

    def scores(self) -> Tensor:
        index, inside = _key_of_offset(*self.shape), neighbors(*self.shape)
        scores = self.pairs.gather(2, index.expand(len(self.pairs), -1, -1))
        return scores.view(-1, *inside.shape).masked_fill(~inside, 0.0)


def unsupported(query: Tensor, spec: AttentionSpec, channels: int) -> str | None:
    """Says why the scores of all pairs of pixels will not do, or None when they will."""
    height, width = query.shape[2:]
    if height * width > MAX_PIXELS:
        return f"the dense backend takes up to {MAX_PIXELS} pixels, got {height} x {width}"
    if spec.circular and spec.window > min(height, width):
        # A pixel would be its own neighbour several times.
        return f"the dense backend cannot wrap a window of {spec.window} over {height} x {width}"
    return None


def attend(
    query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, request: Request
) -> tuple[Tensor, Correlation | None]:
    """The contract of `dispatch.attend`, [B, C, H, W] in and out."""
    height, width = query.shape[2:]
    shape: Shape = (height, width, spec, query.device)
    # Scores of trained networks reach hundreds, where bfloat16 has steps of whole units, and
    # compiled for CUDA that ended in NaN (docs/inference.md).
    exact = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        prior = _prior_pairs(request.prior_scores, query, shape, exact)
        if spec.kind.distance:
            query, key = distance_as_product(query, key, spec.bandwidth)
        pairs = query.flatten(2).transpose(1, 2).to(exact) @ key.flatten(2).to(exact)  # B N N
        if prior is not None:
            pairs = pairs + prior
    weights = _weights(pairs, shape).to(value.dtype)
    out = value.flatten(2) @ weights.transpose(1, 2)  # B C N
    out = add_skip(out.unflatten(2, (height, width)), request.skip)
    return out, DenseCorrelation(pairs, shape) if request.keep_correlation else None


def _weights(pairs: Tensor, shape: Shape) -> Tensor:
    """The weights of all pairs [B, N, N], 0 outside the windows."""
    height, width, spec, _ = shape
    reach = max(height, width) // 2 if spec.circular else max(height, width) - 1
    if spec.radius < reach:  # otherwise every pixel sees every pixel
        masked = masked_score(pairs.dtype) if spec.kind.softmax else 0.0
        pairs = pairs.masked_fill(_outside(*shape), masked)
    if spec.kind.softmax:
        return pairs.softmax(-1)
    return pairs / neighbor_counts(*shape).view(-1, 1)


@kept(MOST_KEPT)
def _outside(height: int, width: int, spec: AttentionSpec, device: torch.device) -> Tensor:
    """Which pairs of pixels are no neighbours [N, N], bool."""

    def near(length: int) -> Tensor:
        line = torch.arange(length, device=device)
        distance = (line[:, None] - line).abs()
        if spec.circular:
            distance = torch.minimum(distance, length - distance)
        return distance <= spec.radius

    inside = near(height)[:, None, :, None] & near(width)[None, :, None, :]
    return ~inside.reshape(height * width, -1)


def _prior_pairs(
    prior: Correlation | Tensor | None, query: Tensor, shape: Shape, dtype: torch.dtype
) -> Tensor | None:
    """The prior as scores of all pairs [B, N, N]."""
    if prior is None:
        return None
    batch, pixels = len(query), shape[0] * shape[1]
    if isinstance(prior, DenseCorrelation) and (len(prior.pairs), prior.shape) == (batch, shape):
        return prior.pairs.to(dtype)
    scores = plain_scores(prior, query, shape[2]).to(dtype).masked_fill(~neighbors(*shape), 0.0)
    index = _key_of_offset(*shape).expand(batch, -1, -1)
    pairs = scores.new_zeros(batch, pixels, pixels)
    return pairs.scatter_add(2, index, scores.flatten(1, 2))


def _key_of_offset(height: int, width: int, spec: AttentionSpec, device: torch.device) -> Tensor:
    """For each pixel and offset the pixel there, wrapped around if outside [N, window**2]."""
    y, x = positions(height, spec, device) % height, positions(width, spec, device) % width
    return (y[:, None, :, None] * width + x[None, :, None, :]).reshape(height * width, -1)
