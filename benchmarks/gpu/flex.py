"""The window as a block mask of FlexAttention, for comparison; it cannot hand scores on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measure import Setup, Training
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from nlrn.ops import neighborhood_attention

TILE_H, TILE_W = 8, 16  # pixels that lie side by side in the sequence: one block of the mask
BLOCK = TILE_H * TILE_W


def window_mask(height: int, width: int, window: int, device: torch.device) -> BlockMask:
    """Which blocks of 8 x 16 pixels see which, and the test for the ones that see some only.

    Tiles instead of rows: a block of 128 pixels of one row would see three times as many blocks.
    """
    radius, across = window // 2, width // TILE_W
    tile = torch.arange(height // TILE_H * across, device=device)
    top, left = tile // across * TILE_H, tile % across * TILE_W

    def gap(start: Tensor, side: int, nearest: bool) -> Tensor:
        """Distance between the nearest or the farthest pixels of two tiles along an axis."""
        apart = (start[:, None] - start[None, :]).abs()
        return (apart - side + 1).clamp(min=0) if nearest else apart + side - 1

    sees = (gap(top, TILE_H, True) <= radius) & (gap(left, TILE_W, True) <= radius)
    full = (gap(top, TILE_H, False) <= radius) & (gap(left, TILE_W, False) <= radius)

    def listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
        count = blocks.sum(1, dtype=torch.int32)
        order = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        return count[None, None], order.to(torch.int32)[None, None]

    def inside(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        def place(index: Tensor) -> tuple[Tensor, Tensor]:
            tile, within = index // BLOCK, index % BLOCK
            y = tile // across * TILE_H + within // TILE_W
            return y, tile % across * TILE_W + within % TILE_W

        (y, x), (key_y, key_x) = place(query), place(key)
        return ((y - key_y).abs() <= radius) & ((x - key_x).abs() <= radius)

    partly = listed(sees & ~full)
    return BlockMask.from_kv_blocks(*partly, *listed(full), BLOCK_SIZE=BLOCK, mask_mod=inside)


def to_tiles(image: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, 1, H * W, C], the pixels of a tile one after the other."""
    batch, channels, height, width = image.shape
    tiles = image.view(batch, channels, height // TILE_H, TILE_H, width // TILE_W, TILE_W)
    return tiles.permute(0, 2, 4, 3, 5, 1).reshape(batch, 1, height * width, channels)


def operands(setup: Setup, batch: int, height: int, width: int) -> list[Tensor]:
    """Random query, key and value [B, C, H, W] with scores of about one."""
    model = setup.model
    scales = (model.embed**-0.25, model.embed**-0.25, 1.0)
    return [
        (torch.randn(batch, c, height, width, device=setup.device) * scale).to(setup.dtype)
        for c, scale in zip((model.embed, model.embed, model.channels), scales, strict=True)
    ]


def attention(setup: Setup) -> Callable[..., Any]:
    if not setup.on_gpu:
        return flex_attention
    return torch.compile(flex_attention, dynamic=False)


def inference(setup: Setup, size: tuple[int, int]) -> tuple[Callable[[], Any], float]:
    """All states' attention on an image, and the relative error of one against the operator."""
    flex, mask = attention(setup), window_mask(*size, setup.model.window, setup.device)
    query, key, value = operands(setup, 1, *size)
    sequences = [to_tiles(t) for t in (query, key, value)]

    @torch.no_grad()
    def states() -> Any:
        for _ in range(setup.model.steps):
            out = flex(*sequences, block_mask=mask, scale=1.0)
        return out

    with torch.no_grad():
        wanted, _ = neighborhood_attention(
            query, key, value, setup.model.window, keep_correlation=False
        )
        error = (states() - to_tiles(wanted.contiguous())).float().norm() / wanted.float().norm()
    return states, float(error)


def training(setup: Setup, shape: Training) -> Callable[[], Any]:
    """All states' attention on a batch, forward and backward."""
    flex, side = attention(setup), shape.patch
    dense = shape.border == "circular"  # on patches of the window's size
    mask = None if dense else window_mask(side, side, setup.model.window, setup.device)
    inputs = operands(setup, shape.batch, side, side)
    if dense:
        sequences = [t.flatten(2).transpose(1, 2).unsqueeze(1).contiguous() for t in inputs]
    else:
        sequences = [to_tiles(t) for t in inputs]
    leaves = [t.detach().requires_grad_() for t in sequences]
    gradient = torch.randn_like(sequences[2])

    def states() -> Any:
        for _ in range(setup.model.steps):
            out = flex(*leaves, block_mask=mask, scale=1.0)
            grads = torch.autograd.grad(out, leaves, gradient)
        return grads

    return states
