"""Images in blocks: which keys a block of queries sees, and the scores in that order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.ops.affinity import AttentionSpec
from nlrn.ops.correlation import Correlation
from nlrn.ops.tracing import kept
from nlrn.ops.window import masked_score, neighbors

BLOCK = 8  # queries per side of a block; measured on CPUs: 4 and 16 are slower at window 45
MOST_KEPT = 16  # windows and devices whose tables of indices stay in memory


@dataclass(frozen=True)
class Geometry:
    """How a batch of images is cut into blocks; R block rows, N = batch * block columns."""

    batch: int
    height: int
    width: int
    spec: AttentionSpec

    @property
    def radius(self) -> int:
        return self.spec.radius

    @property
    def rows(self) -> int:
        return -(-self.height // BLOCK)

    @property
    def cols(self) -> int:
        return -(-self.width // BLOCK)

    @property
    def region(self) -> int:
        """Side of the square of keys that a block can see."""
        return BLOCK + 2 * self.radius

    def to_blocks(self, image: Tensor) -> Tensor:
        """[B, H, W, C] -> [R, N, BLOCK**2, C], zeros where blocks stick out of the image."""
        below, right = self.rows * BLOCK - self.height, self.cols * BLOCK - self.width
        image = F.pad(image, (0, 0, 0, right, 0, below))
        image = image.reshape(self.batch, self.rows, BLOCK, self.cols, BLOCK, -1)
        image = image.permute(1, 0, 3, 2, 4, 5)  # R B cols BLOCK BLOCK C
        return image.reshape(self.rows, self.batch * self.cols, BLOCK**2, -1)

    def from_blocks(self, blocks: Tensor) -> Tensor:
        """[R, N, BLOCK**2, C] -> [B, H, W, C]."""
        image = blocks.reshape(self.rows, self.batch, self.cols, BLOCK, BLOCK, -1)
        image = image.permute(1, 0, 3, 2, 4, 5)  # B R BLOCK cols BLOCK C
        image = image.reshape(self.batch, self.rows * BLOCK, self.cols * BLOCK, -1)
        return image[:, : self.height, : self.width]

    def with_surround(self, image: Tensor) -> Tensor:
        """[B, H, W, C] -> the same with the keys around it, so that every region is inside."""
        r = self.radius
        below, right = self.rows * BLOCK - self.height, self.cols * BLOCK - self.width
        if not self.spec.circular:
            return F.pad(image, (0, 0, r, right + r, r, below + r))
        y, x = self._wrapped(image.device)
        return image.index_select(1, y).index_select(2, x)

    def without_surround(self, padded: Tensor) -> Tensor:
        """The transpose of `with_surround`: gradients of keys outside go where they came from."""
        r = self.radius
        if not self.spec.circular:
            return padded[:, r : r + self.height, r : r + self.width]
        y, x = self._wrapped(padded.device)
        size = (self.batch, self.height, padded.shape[2], padded.shape[3])
        rows = padded.new_zeros(size).index_add_(1, y, padded)
        size = (self.batch, self.height, self.width, padded.shape[3])
        return padded.new_zeros(size).index_add_(2, x, rows)

    def _wrapped(self, device: torch.device) -> tuple[Tensor, Tensor]:
        r = self.radius
        y = torch.arange(-r, self.rows * BLOCK + r, device=device) % self.height
        x = torch.arange(-r, self.cols * BLOCK + r, device=device) % self.width
        return y, x

    def neighbors(self, device: torch.device) -> Tensor:
        """Which offsets lie inside the image [H, W, window**2], bool."""
        return neighbors(self.height, self.width, self.spec, device)

    def outside(self, row: int, images: int, first: int, last: int, device: torch.device) -> Tensor:
        """Which keys of these blocks lie outside the image [images * (last - first), region**2]."""
        count = images * (last - first)
        if self.spec.circular:
            return torch.zeros((count, self.region**2), dtype=torch.bool, device=device)
        step = torch.arange(self.region, device=device) - self.radius
        y = row * BLOCK + step  # region
        x = torch.arange(first, last, device=device)[:, None] * BLOCK + step  # n region
        out_y, out_x = (y < 0) | (y >= self.height), (x < 0) | (x >= self.width)
        outside = (out_y[None, :, None] | out_x[:, None, :]).reshape(last - first, -1)
        return outside.repeat(images, 1)


@kept(MOST_KEPT)
def key_of_offset(window: int, device: torch.device) -> Tensor:
    """Index of the key in the block's region [BLOCK**2, window**2] for each query and offset."""
    region = BLOCK + window - 1
    query, step = torch.arange(BLOCK, device=device), torch.arange(window, device=device)
    y = query[:, None, None, None] + step[None, None, :, None]
    x = query[None, :, None, None] + step[None, None, None, :]
    return (y * region + x).reshape(BLOCK**2, window**2)


@kept(MOST_KEPT)
def in_window(window: int, device: torch.device) -> Tensor:
    """Which keys of the region are in the window of each query [BLOCK**2, region**2], bool."""
    inside = torch.zeros(BLOCK**2, (BLOCK + window - 1) ** 2, dtype=torch.bool, device=device)
    return inside.scatter_(1, key_of_offset(window, device), True)


class BlockScores(Correlation):
    """Scores in block order [R, N, BLOCK**2, region**2].

    Outside the windows they are hugely negative if a softmax follows, anything otherwise.
    """

    def __init__(self, blocks: Tensor, geometry: Geometry) -> None:
        self._blocks: Tensor | None = blocks
        self.geometry = geometry

    @property
    def blocks(self) -> Tensor:
        if self._blocks is None:
            raise ValueError("this correlation was handed on with reuse_prior=True and is used up")
        return self._blocks

    def take(self) -> Tensor:
        """Gives the storage away; the correlation cannot be used again."""
        blocks, self._blocks = self.blocks, None
        return blocks

    def scores(self) -> Tensor:
        geometry, device = self.geometry, self.blocks.device
        key = key_of_offset(geometry.spec.window, device)
        key = key.expand(*self.blocks.shape[:2], *key.shape)
        scores = geometry.from_blocks(self.blocks.gather(-1, key))
        return torch.where(geometry.neighbors(device), scores, torch.zeros_like(scores))

    @classmethod
    def from_scores(cls, scores: Tensor, geometry: Geometry) -> BlockScores:
        """From the plain tensor [B, H, W, window**2]."""
        outside = masked_score(scores.dtype) if geometry.spec.kind.softmax else 0.0
        inside = geometry.neighbors(scores.device)
        scores = torch.where(inside, scores, torch.full_like(scores, outside))
        scores = geometry.to_blocks(scores)
        key = key_of_offset(geometry.spec.window, scores.device).expand(scores.shape)
        blocks = scores.new_full((*scores.shape[:3], geometry.region**2), outside)
        return cls(blocks.scatter(-1, key, scores), geometry)
