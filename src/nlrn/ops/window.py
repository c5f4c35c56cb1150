"""Which pixels are neighbours: tables that the backends share."""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.ops.affinity import AttentionSpec


def neighbors(height: int, width: int, spec: AttentionSpec, device: torch.device) -> Tensor:
    """Which offsets lie inside the image [H, W, window**2], bool."""

    def along(length: int) -> Tensor:
        there = positions(length, spec, device)
        return (there >= 0) & (there < length) | spec.circular

    inside = along(height)[:, None, :, None] & along(width)[None, :, None, :]  # H W q q
    return inside.reshape(height, width, -1)


def neighbor_counts(height: int, width: int, spec: AttentionSpec, device: torch.device) -> Tensor:
    """How many offsets of each pixel lie inside the image [H, W]."""
    if spec.circular:
        return torch.full((height, width), spec.window**2, device=device)

    def along(length: int) -> Tensor:
        i = torch.arange(length, device=device)
        last, first = (i + spec.radius).clamp(max=length - 1), (i - spec.radius).clamp(min=0)
        return last - first + 1

    return along(height)[:, None] * along(width)


def positions(length: int, spec: AttentionSpec, device: torch.device) -> Tensor:
    """Where the offsets of each pixel of a line lead, inside or not [length, window]."""
    step = torch.arange(-spec.radius, spec.radius + 1, device=device)
    return torch.arange(length, device=device)[:, None] + step


def masked_score(dtype: torch.dtype) -> float:
    """A score that the softmax turns into exactly 0, with room for sums, without infinities."""
    return -3e4 if dtype == torch.float16 else -1e30
