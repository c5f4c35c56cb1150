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

from nlrn.ops.affinity import AttentionSpec, distance_as_product
from nlrn.ops.blocks import BLOCK, BlockScores, Geometry, in_window
from nlrn.ops.correlation import (
    Correlation,
    Request,
    add_skip,
    no_second_derivatives,
    plain_scores,
)
from nlrn.ops.tracing import constant
from nlrn.ops.window import masked_score, neighbor_counts

CACHED = 2**22  # bytes of temporaries; windows of 11 and 15 gain 2 to 5 %


def unsupported(query: Tensor, spec: AttentionSpec, channels: int) -> str | None:
    """None: this backend runs every call."""
    return None


def attend(
    query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, request: Request
) -> tuple[Tensor, Correlation | None]:
    """The contract of `dispatch.attend`, [B, C, H, W] in and out (channels last)."""
    dtype, keep = value.dtype, request.keep_correlation
    batch, _, height, width = query.shape
    geometry = Geometry(batch, height, width, spec)
    if spec.kind.distance:
        query, key = distance_as_product(query, key, spec.bandwidth)
        value = value.to(query.dtype)
    prior = request.prior_scores
    blocks, reusable = _prior_blocks(prior, query, geometry)
    query, key, value = (t.permute(0, 2, 3, 1) for t in (query, key, value))  # B H W C
    inputs = [t for t in (query, key, value, blocks) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        out, scores = _Attend.apply(query, key, value, blocks, geometry, keep, request.workspace)
    else:
        if request.reuse_prior and isinstance(prior, BlockScores) and reusable:
            prior.take()
        elif blocks is not None and reusable:
            blocks = blocks.clone()
        out, scores = _forward(query, key, value, blocks, geometry, keep, request.workspace)
    out = add_skip(out.permute(0, 3, 1, 2).to(dtype), request.skip)
    return out, BlockScores(scores, geometry) if keep else None


def _prior_blocks(
    prior: Correlation | Tensor | None, query: Tensor, geometry: Geometry
) -> tuple[Tensor | None, bool]:
    """The prior in block order, and whether that is the caller's own storage."""
    if prior is None:
        return None, False
    if isinstance(prior, BlockScores) and prior.geometry == geometry:
        blocks = prior.blocks.to(query.dtype)
        return blocks, blocks is prior.blocks
    scores = plain_scores(prior, query, geometry.spec).to(query.dtype)
    return BlockScores.from_scores(scores, geometry).blocks, False


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

    On a CPU, no more blocks at once than keep the cores busy or stay in the cache.
    """
    limit = max(1, workspace // bytes_per_block)
    if like.device.type == "cpu":
        limit = min(limit, max(8, _threads(), CACHED // bytes_per_block))
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


@constant
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

    def __init__(self, geometry: Geometry, like: Tensor) -> None:
        spec = geometry.spec
        self.geometry, self.softmax = geometry, spec.kind.softmax
        self.device, self.dtype = like.device, like.dtype
        self.inside = in_window(spec.window, like.device)
        low = masked_score(like.dtype) if self.softmax else 0.0
        self.start = torch.zeros_like(self.inside, dtype=like.dtype).masked_fill_(~self.inside, low)
        if not self.softmax:
            # Padded queries have no neighbours; they are cut off later, 1 avoids 0/0.
            count = neighbor_counts(geometry.height, geometry.width, spec, like.device)  # H W
            count = count.to(like.dtype).expand(geometry.batch, -1, -1)[..., None]
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Tensor | None,
    geometry: Geometry,
    keep: bool,
    workspace: int,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, W, C] and scores in block order; overwrites `blocks`, the prior, with them."""
    queries = geometry.to_blocks(query)
    all_keys, all_values = geometry.with_surround(key), geometry.with_surround(value)
    rows, count, per_block, embed = queries.shape
    seen, channels, given = geometry.region**2, value.shape[-1], blocks is not None
    if blocks is None and keep:
        blocks = query.new_empty(rows, count, per_block, seen)
    out = value.new_empty(rows, count, per_block, channels)
    mask = _Mask(geometry, query)
    scratch_rows = embed + channels + per_block * (1 if blocks is not None else 2)
    chunks = _chunks(geometry, query, seen * scratch_rows * value.element_size(), workspace)
    most = max(chunk.size for chunk in chunks)
    key_buffer = query.new_empty(most, seen, embed)
    value_buffer = value.new_empty(most, seen, channels)
    weight_buffer = query.new_empty(most, per_block, seen)
    score_buffer = None if blocks is not None else torch.empty_like(weight_buffer)
    for chunk in chunks:
        here = (chunk.row, chunk.blocks)
        scores = _scores_of(chunk, blocks, score_buffer)
        if not given:
            mask.begin(scores, chunk)
        keys = _gather(all_keys, geometry, chunk, key_buffer)
        scores.baddbmm_(queries[here], keys.transpose(1, 2))
        weights = mask.weights(scores, chunk, out=weight_buffer[: chunk.size])
        values = _gather(all_values, geometry, chunk, value_buffer)
        torch.bmm(weights, values, out=out[here])
    return geometry.from_blocks(out), out.new_empty(0) if blocks is None else blocks


def _scores_of(chunk: _Chunk, blocks: Tensor | None, buffer: Tensor | None) -> Tensor:
    if blocks is not None:
        return blocks[chunk.row, chunk.blocks]
    assert buffer is not None
    return buffer[: chunk.size]


class _Attend(torch.autograd.Function):
    """`_forward` with gradients; the backward pass goes through the same chunks again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        query, key, value, prior, geometry, keep, workspace = inputs
        ctx.set_materialize_grads(False)
        ctx.geometry, ctx.workspace = geometry, workspace
        blocks = None if prior is None else prior.clone()
        out, scores = _forward(query, key, value, blocks, geometry, keep, workspace)
        ctx.save_for_backward(query, key, value, scores)
        return out, scores

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_scores: Tensor | None) -> tuple[Any, ...]:
        query, key, value, scores = ctx.saved_tensors
        kept = scores.numel() > 0
        grads = _Gradients.apply(
            query, key, value,
            scores if kept else None,
            torch.zeros_like(value) if d_out is None else d_out,
            d_scores if kept else None,
            ctx.geometry, ctx.workspace, ctx.needs_input_grad[3],
        )  # fmt: skip
        return (*grads, None, None, None)


class _Gradients(torch.autograd.Function):
    """`_backward` as a step that autograd knows of, and knows that it ends there."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        return _backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise no_second_derivatives("blocked")


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Tensor | None,
    d_out: Tensor,
    d_scores: Tensor | None,
    geometry: Geometry,
    workspace: int,
    prior_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value [B, H, W, C] and of the prior in block order."""
    queries, d_out = geometry.to_blocks(query), geometry.to_blocks(d_out)
    all_keys, all_values = geometry.with_surround(key), geometry.with_surround(value)
    # Up to 49 blocks add to one key: in half precision the sums would lose the small ones.
    exact = torch.promote_types(query.dtype, torch.float32)
    d_keys = torch.zeros_like(all_keys, dtype=exact)
    d_values = torch.zeros_like(all_values, dtype=exact)
    d_queries = torch.empty_like(queries)
    d_prior = torch.empty_like(blocks) if prior_wanted and blocks is not None else None
    mask = _Mask(geometry, query)
    seen, (per_block, embed), channels = geometry.region**2, queries.shape[2:], value.shape[-1]
    block_bytes = seen * (2 * embed + 2 * channels + 4 * per_block) * value.element_size()
    chunks = _chunks(geometry, query, block_bytes, workspace)
    most = max(chunk.size for chunk in chunks)
    key_buffer = query.new_empty(most, seen, embed)
    value_buffer = value.new_empty(most, seen, channels)
    score_buffer = None if blocks is not None else query.new_empty(most, per_block, seen)
    for chunk in chunks:
        here = (chunk.row, chunk.blocks)
        keys = _gather(all_keys, geometry, chunk, key_buffer)
        values = _gather(all_values, geometry, chunk, value_buffer)
        scores = _scores_of(chunk, blocks, score_buffer)
        if blocks is None:
            mask.begin(scores, chunk)
            scores.baddbmm_(queries[here], keys.transpose(1, 2))
        weights = mask.weights(scores, chunk)
        d = torch.bmm(d_out[here], values.transpose(1, 2))
        if mask.softmax:
            d = weights * (d - (weights * d).sum(-1, keepdim=True))
        else:
            d = d * mask.factor(chunk)
        if d_scores is not None:
            d += d_scores[here]
        if d_prior is not None:
            d_prior[here] = d
        d_queries[here] = torch.bmm(d, keys)
        _scatter_add(d_keys, geometry, chunk, torch.bmm(d.transpose(1, 2), queries[here]))
        _scatter_add(d_values, geometry, chunk, torch.bmm(weights.transpose(1, 2), d_out[here]))
    return (
        geometry.from_blocks(d_queries),
        geometry.without_surround(d_keys).to(key.dtype),
        geometry.without_surround(d_values).to(value.dtype),
        d_prior,
    )
