"""The operator on small patches as plain matrix products over all pairs of pixels.

For training on GPUs without fused kernels: no loops over blocks, so that `torch.compile` sees
one graph. Memory grows with the square of the patch's area.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.ops import Correlation

_MASKED = -1e30


class DenseCorrelation(Correlation):
    """Scores of all pairs of pixels [B, N, N], N = height * width; junk outside the windows."""

    def __init__(self, pairs: Tensor, attention: DenseAttention) -> None:
        self.pairs = pairs
        self.attention = attention

    def scores(self) -> Tensor:
        key, inside = self.attention.neighbours()  # N q*q
        scores = self.pairs.gather(2, key.expand(len(self.pairs), -1, -1))
        side = self.attention.patch
        return (scores * inside).unflatten(1, (side, side))


class DenseAttention:
    """`neighborhood_attention` for patches of one size, with the embedded Gaussian affinity.

    Args:
        patch: side of the patches.
        window: side of the neighbourhood.
        border: "mask" or "circular".
        device: where the patches are.
    """

    def __init__(self, patch: int, window: int, border: str, device: torch.device) -> None:
        if border == "circular" and window > patch:
            # A pixel would be its own neighbour several times.
            raise ValueError(f"dense attention: window {window} wraps over a patch of {patch}")
        self.patch, self.window, self.border = patch, window, border
        self.device = device
        line = torch.arange(patch, device=device)
        distance = (line[:, None] - line[None, :]).abs()
        if border == "circular":
            distance = torch.minimum(distance, patch - distance)
        near = distance <= window // 2
        outside = ~(near[:, None, :, None] & near[None, :, None, :]).reshape(patch**2, patch**2)
        self.mask: Tensor | None = None
        if bool(outside.any()):
            self.mask = torch.zeros(outside.shape, device=device).masked_fill_(outside, _MASKED)

    def __call__(
        self,
        theta: Tensor,
        psi: Tensor,
        g: Tensor,
        *,
        window: int,
        affinity: str,
        border: str,
        bandwidth: float,
        prior: Correlation | Tensor | None,
        keep_correlation: bool,
    ) -> tuple[Tensor, Correlation | None]:
        """The contract of `neighborhood_attention`, [B, C, H, W] in and out."""
        if affinity != "embedded_gaussian" or theta.shape[2:] != (self.patch, self.patch):
            got = f"{affinity!r} on {tuple(theta.shape)}"
            raise ValueError(f"dense attention is for {self.patch}-pixel patches, got {got}")
        # Scores of trained networks reach hundreds, where bfloat16 has steps of whole units, and
        # compiled for CUDA that ended in NaN (docs/inference.md).
        exact = torch.promote_types(theta.dtype, torch.float32)
        with torch.autocast(theta.device.type, enabled=False):
            pairs = theta.flatten(2).transpose(1, 2).to(exact) @ psi.flatten(2).to(exact)  # B N N
        if isinstance(prior, DenseCorrelation):
            pairs = pairs + prior.pairs
        elif prior is not None:
            raise ValueError(f"dense attention goes on from its own scores, got {type(prior)}")
        masked = pairs if self.mask is None else pairs + self.mask.to(pairs.dtype)
        weights = masked.softmax(-1).to(g.dtype)
        out = g.flatten(2) @ weights.transpose(1, 2)  # B C N
        correlation = DenseCorrelation(pairs, self) if keep_correlation else None
        return out.unflatten(2, (self.patch, self.patch)), correlation

    def neighbours(self) -> tuple[Tensor, Tensor]:
        """For each pixel and offset the pixel there, and whether it is inside [N, window**2]."""
        line = torch.arange(self.patch, device=self.device)
        offset = torch.arange(self.window, device=self.device) - self.window // 2
        there = line[:, None] + offset  # patch q
        inside = (there >= 0) & (there < self.patch) | (self.border == "circular")
        there = there % self.patch
        key = there[:, None, :, None] * self.patch + there[None, :, None, :]
        both = inside[:, None, :, None] & inside[None, :, None, :]
        return key.reshape(self.patch**2, -1), both.reshape(self.patch**2, -1)
