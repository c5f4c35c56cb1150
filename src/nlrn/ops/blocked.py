"""The operator with matrix products: blocks of queries against the region of keys they can see.

An 8 x 8 block of queries sees a (window + 7) x (window + 7) region of keys, so scores and output
of a block are two matrix products, and a window of 45 costs 1.34 times its useful work. Nothing
larger than the scores themselves is ever formed. The scores stay in block order between the
states of a network, where the next state adds to them inside its own matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nlrn.ops.affinity import AFFINITIES
from nlrn.ops.blocks import BLOCK, BlockScores, Geometry, in_window, masked_score
from nlrn.ops.correlation import Correlation


def attend(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    *,
    window: int,
    affinity: str,
    circular: bool,
    bandwidth: float,
    prior: Correlation | Tensor | None,
    keep_correlation: bool,
    reuse_prior: bool,
    workspace: int,
) -> tuple[Tensor, Correlation | None]:
    """The contract of `neighborhood_attention`, [B, C, H, W] in and out (channels last)."""
    kind, dtype = AFFINITIES[affinity], g.dtype
    if kind.distance:
        theta, psi = _distance_as_product(theta, psi, bandwidth)
        g = g.to(theta.dtype)
    batch, _, height, width = theta.shape
    geometry = Geometry(batch, height, width, window, circular)
    blocks, reusable = _prior_blocks(prior, geometry, kind.softmax, theta.dtype)
    theta, psi, g = (t.permute(0, 2, 3, 1) for t in (theta, psi, g))  # B H W C
    inputs = [t for t in (theta, psi, g, blocks) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        out, scores = _Attend.apply(
            theta, psi, g, blocks, geometry, kind.softmax, keep_correlation, workspace
        )
    else:
        if reuse_prior and isinstance(prior, BlockScores) and reusable:
            prior.take()
        elif blocks is not None and reusable:
            blocks = blocks.clone()
        out, scores = _forward(
            theta, psi, g, blocks, geometry, kind.softmax, keep_correlation, workspace
        )
    out = out.permute(0, 3, 1, 2).to(dtype)
    if not keep_correlation:
        return out, None
    return out, BlockScores(scores, geometry, softmax=kind.softmax)


def _distance_as_product(theta: Tensor, psi: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """Vectors whose products are -|theta_i - psi_j|^2 / h^2; float32 at least, for the squares."""
    dtype = torch.promote_types(theta.dtype, torch.float32)
    theta, psi = theta.to(dtype) / bandwidth, psi.to(dtype) / bandwidth
    ones = torch.ones_like(theta[:, :1])
    theta_square = (theta * theta).sum(1, keepdim=True)
    psi_square = (psi * psi).sum(1, keepdim=True)
    return torch.cat([2 * theta, -theta_square, ones], 1), torch.cat([psi, ones, -psi_square], 1)


def _prior_blocks(
    prior: Correlation | Tensor | None, geometry: Geometry, softmax: bool, dtype: torch.dtype
) -> tuple[Tensor | None, bool]:
    """The prior in block order, and whether that is the caller's own storage."""
    if prior is None:
        return None, False
    if isinstance(prior, BlockScores) and (prior.geometry, prior.softmax) == (geometry, softmax):
        blocks = prior.blocks.to(dtype)
        return blocks, blocks is prior.blocks
    scores = prior.scores() if isinstance(prior, Correlation) else prior
    expected = (geometry.batch, geometry.height, geometry.width, geometry.window**2)
    if scores.shape != expected:
        raise ValueError(f"prior must be {expected}, got {tuple(scores.shape)}")
    return BlockScores.from_scores(scores.to(dtype), geometry, softmax=softmax).blocks, False


@dataclass(frozen=True)
class _Chunk:
    """Blocks handled at once: all of one block row in some images, or some of one in one image."""

    row: int
    images: slice
    first: int  # block column
    last: int
    blocks: slice  # the same blocks, counted along N

    @property
    def size(self) -> int:
        return self.blocks.stop - self.blocks.start


def _chunks(geometry: Geometry, like: Tensor, bytes_per_block: int, workspace: int) -> list[_Chunk]:
    """Cuts the work so that temporaries take at most `workspace` bytes, but for a single block.

    On a CPU, no more blocks at once than keep the cores busy: what is small stays in the cache.
    """
    limit = max(1, workspace // bytes_per_block)
    if like.device.type == "cpu":
        limit = min(limit, max(8, _threads()))
    cols, chunks = geometry.cols, []
    images, width = max(1, min(geometry.batch, limit // cols)), min(cols, limit)
    for row in range(geometry.rows):
        for b in range(0, geometry.batch, images):
            end = min(b + images, geometry.batch)
            for first in range(0, cols, width):
                last = min(first + width, cols)
                blocks = slice(b * cols + first, (end - 1) * cols + last)
                chunks.append(_Chunk(row, slice(b, end), first, last, blocks))
    return chunks


@torch.compiler.assume_constant_result  # what the compiler cannot look into
def _threads() -> int:
    return torch.get_num_threads()


def _gather(padded: Tensor, geometry: Geometry, chunk: _Chunk, out: Tensor) -> Tensor:
    """Copies what each block of the chunk sees into `out` [>= n, region**2, C]; n of it returned.

    The regions overlap, and bfloat16 matrix products want them as separate matrices.
    """
    region, channels = geometry.region, padded.shape[-1]
    top, left = chunk.row * BLOCK, chunk.first * BLOCK
    corner = padded[chunk.images, top:, left:]
    batch, row, col, channel = corner.stride()
    size = (corner.shape[0], chunk.last - chunk.first, region, region, channels)
    seen = corner.as_strided(size, (batch, BLOCK * col, row, col, channel))
    out = out[: chunk.size]
    out.view(size).copy_(seen)
    return out


def _scatter_add(padded: Tensor, geometry: Geometry, chunk: _Chunk, values: Tensor) -> None:
    """The transpose of `_gather`."""
    region, top = geometry.region, chunk.row * BLOCK
    values = values.view(-1, chunk.last - chunk.first, region, region, values.shape[-1])
    for i, column in enumerate(range(chunk.first, chunk.last)):
        left = column * BLOCK
        padded[chunk.images, top : top + region, left : left + region] += values[:, i]


class _Mask:
    """Fills, applies and counts the mask of one chunk of blocks."""

    def __init__(self, geometry: Geometry, like: Tensor, softmax: bool) -> None:
        self.geometry, self.softmax = geometry, softmax
        self.device, self.dtype = like.device, like.dtype
        self.inside = in_window(geometry.window, like.device)
        low = masked_score(like.dtype) if softmax else 0.0
        self.start = torch.zeros_like(self.inside, dtype=like.dtype).masked_fill_(~self.inside, low)
        if not softmax:
            # Padded queries have no neighbours; they are cut off later, 1 avoids 0/0.
            count = geometry.neighbour_counts(like.device).to(like.dtype)  # H W
            count = count.expand(geometry.batch, -1, -1)[..., None]
            self.count = geometry.to_blocks(count).clamp_(min=1)

    def begin(self, scores: Tensor, chunk: _Chunk) -> None:
        """Sets scores [n, Q, K] to what they are before the product is added."""
        if not self.softmax:
            scores.zero_()
            return
        outside = self._outside(chunk)
        low = torch.zeros_like(outside, dtype=self.dtype)
        low.masked_fill_(outside, masked_score(self.dtype))
        torch.add(self.start, low[:, None, :], out=scores)

    def weights(self, scores: Tensor, chunk: _Chunk, out: Tensor | None = None) -> Tensor:
        """The weights of all keys, 0 outside the window [n, Q, K]."""
        if self.softmax:
            return torch.softmax(scores, -1, out=out)
        return torch.mul(scores, self.factor(chunk), out=out)

    def factor(self, chunk: _Chunk) -> Tensor:
        """1 / (number of neighbours) in the window, 0 outside [n, Q, K]; not for softmax."""
        inside = self.inside & ~self._outside(chunk)[:, None, :]
        return inside / self.count[chunk.row, chunk.blocks]

    def _outside(self, chunk: _Chunk) -> Tensor:
        images = chunk.images.stop - chunk.images.start
        return self.geometry.outside(chunk.row, images, chunk.first, chunk.last, self.device)


def _forward(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    blocks: Tensor | None,
    geometry: Geometry,
    softmax: bool,
    keep: bool,
    workspace: int,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, W, C] and scores in block order; overwrites `blocks`, the prior, with them."""
    query = geometry.to_blocks(theta)
    padded_psi, padded_g = geometry.with_surround(psi), geometry.with_surround(g)
    rows, count, queries, embed = query.shape
    keys, channels, given = geometry.region**2, g.shape[-1], blocks is not None
    if blocks is None and keep:
        blocks = theta.new_empty(rows, count, queries, keys)
    out = g.new_empty(rows, count, queries, channels)
    mask = _Mask(geometry, theta, softmax)
    scratch_rows = embed + channels + queries * (1 if blocks is not None else 2)
    chunks = _chunks(geometry, theta, keys * scratch_rows * g.element_size(), workspace)
    most = max(chunk.size for chunk in chunks)
    key_buffer, value_buffer = theta.new_empty(most, keys, embed), g.new_empty(most, keys, channels)
    weight_buffer = theta.new_empty(most, queries, keys)
    score_buffer = None if blocks is not None else torch.empty_like(weight_buffer)
    for chunk in chunks:
        scores = _scores_of(chunk, blocks, score_buffer)
        if not given:
            mask.begin(scores, chunk)
        key = _gather(padded_psi, geometry, chunk, key_buffer)
        scores.baddbmm_(query[chunk.row, chunk.blocks], key.transpose(1, 2))
        weights = mask.weights(scores, chunk, out=weight_buffer[: chunk.size])
        value = _gather(padded_g, geometry, chunk, value_buffer)
        torch.bmm(weights, value, out=out[chunk.row, chunk.blocks])
    return geometry.from_blocks(out), out.new_empty(0) if blocks is None else blocks


def _scores_of(chunk: _Chunk, blocks: Tensor | None, buffer: Tensor | None) -> Tensor:
    if blocks is not None:
        return blocks[chunk.row, chunk.blocks]
    assert buffer is not None
    return buffer[: chunk.size]


class _Attend(torch.autograd.Function):
    """`_forward` with gradients; the backward pass goes through the same chunks again."""

    @staticmethod
    def forward(
        ctx: Any,
        theta: Tensor,
        psi: Tensor,
        g: Tensor,
        prior: Tensor | None,
        geometry: Geometry,
        softmax: bool,
        keep: bool,
        workspace: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.geometry, ctx.softmax, ctx.workspace = geometry, softmax, workspace
        blocks = None if prior is None else prior.clone()
        out, scores = _forward(theta, psi, g, blocks, geometry, softmax, keep, workspace)
        ctx.save_for_backward(theta, psi, g, scores)
        return out, scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_scores: Tensor | None) -> tuple[Any, ...]:
        theta, psi, g, scores = ctx.saved_tensors
        kept = scores.numel() > 0
        grads = _backward(
            theta, psi, g,
            scores if kept else None,
            torch.zeros_like(g) if d_out is None else d_out,
            d_scores if kept else None,
            ctx.geometry, ctx.softmax, ctx.workspace, ctx.needs_input_grad[3],
        )  # fmt: skip
        return (*grads, None, None, None, None)


def _backward(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    blocks: Tensor | None,
    d_out: Tensor,
    d_scores: Tensor | None,
    geometry: Geometry,
    softmax: bool,
    workspace: int,
    prior_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of theta, psi, g [B, H, W, C] and of the prior in block order."""
    query, d_out = geometry.to_blocks(theta), geometry.to_blocks(d_out)
    padded_psi, padded_g = geometry.with_surround(psi), geometry.with_surround(g)
    # Up to 49 blocks add to one key: in half precision the sums would lose the small ones.
    exact = torch.promote_types(theta.dtype, torch.float32)
    d_psi = torch.zeros_like(padded_psi, dtype=exact)
    d_g = torch.zeros_like(padded_g, dtype=exact)
    d_query = torch.empty_like(query)
    d_prior = torch.empty_like(blocks) if prior_wanted and blocks is not None else None
    mask = _Mask(geometry, theta, softmax)
    keys, (queries, embed), channels = geometry.region**2, query.shape[2:], g.shape[-1]
    block_bytes = keys * (2 * embed + 2 * channels + 4 * queries) * g.element_size()
    chunks = _chunks(geometry, theta, block_bytes, workspace)
    most = max(chunk.size for chunk in chunks)
    key_buffer, value_buffer = theta.new_empty(most, keys, embed), g.new_empty(most, keys, channels)
    score_buffer = None if blocks is not None else theta.new_empty(most, queries, keys)
    for chunk in chunks:
        here = (chunk.row, chunk.blocks)
        key = _gather(padded_psi, geometry, chunk, key_buffer)
        value = _gather(padded_g, geometry, chunk, value_buffer)
        scores = _scores_of(chunk, blocks, score_buffer)
        if blocks is None:
            mask.begin(scores, chunk)
            scores.baddbmm_(query[here], key.transpose(1, 2))
        weights = mask.weights(scores, chunk)
        d = torch.bmm(d_out[here], value.transpose(1, 2))
        if softmax:
            d = weights * (d - (weights * d).sum(-1, keepdim=True))
        else:
            d = d * mask.factor(chunk)
        if d_scores is not None:
            d += d_scores[here]
        if d_prior is not None:
            d_prior[here] = d
        d_query[here] = torch.bmm(d, key)
        _scatter_add(d_psi, geometry, chunk, torch.bmm(d.transpose(1, 2), query[here]))
        _scatter_add(d_g, geometry, chunk, torch.bmm(weights.transpose(1, 2), d_out[here]))
    return (
        geometry.from_blocks(d_query),
        geometry.without_surround(d_psi).to(psi.dtype),
        geometry.without_surround(d_g).to(g.dtype),
        d_prior,
    )
