"""What all classic methods are made of: patches, block matching, weighted aggregation.

A patch is named by the position of its upper left pixel. The patches of an image [H, W] with side
p stand at H' x W' positions, H' = H - p + 1; their number in a flattened list is y W' + x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.classic import parallel

# Reference patches of one row that are compared at once: many make the matrix product with their
# common candidates faster, few waste less of it on pairs that lie farther apart than the window.
STRIP, STRIP_ON_GPU = 24, 256

_Piece = TypeVar("_Piece")


def extract(image: Tensor, patch: int) -> Tensor:
    """All overlapping patches of an image [H, W], pixels row by row: [H', W', patch**2]."""
    windows = image.unfold(0, patch, 1).unfold(1, patch, 1)  # H' W' p p
    return windows.reshape(*windows.shape[:2], patch * patch)


def overlap_add(patches: Tensor, patch: int) -> Tensor:
    """Sum of overlapping patches [patch**2, H', W']: an image [H, W].

    The adjoint of `extract`, but with the pixel of the patch as the first index, so that each of
    the patch**2 additions runs over memory in order.
    """
    _, rows, columns = patches.shape
    image = patches.new_zeros(rows + patch - 1, columns + patch - 1)
    for pixel, plane in enumerate(patches):
        y, x = divmod(pixel, patch)
        image[y : y + rows, x : x + columns] += plane
    return image


def grid(positions: int, step: int) -> Tensor:
    """Every step-th of 0 .. positions - 1, and the last, so that patches there cover the image."""
    regular = torch.arange(0, positions, step)
    last = torch.tensor([positions - 1])
    return regular if regular[-1] == last else torch.cat([regular, last])


@dataclass(frozen=True)
class Matches:
    """The K patches most similar to each of R reference patches, the nearest first.

    Attributes:
        index: numbers of the patches [R, K]; the first is the reference itself.
        distance: squared Euclidean distance to the reference [R, K], inf where the window held
            fewer than K patches.
    """

    index: Tensor
    distance: Tensor

    @property
    def filled(self) -> Tensor:
        """The numbers [R, K], the reference's own where the window held fewer patches."""
        return self.index.where(self.distance.isfinite(), self.index[:, :1])


def match(patches: Tensor, step: int, window: int, count: int) -> Matches:
    """Finds the patches most similar to each reference patch in the window centred on it.

    The references stand on a grid of `step` pixels. |a - b|^2 = |a|^2 + |b|^2 - 2 a.b turns the
    search into products of matrices: O(R q^2 p^2) multiplications for R references, a q x q
    window and p x p patches. Besides the patches, memory holds only a strip of a row at a time.

    Args:
        patches: [H', W', p*p], of `extract`.
        step: distance of the references.
        window: q, odd side of the search window, which is cut off at the border.
        count: K; fewer where the window holds fewer patches.
    """
    height, width, _ = patches.shape
    count = min(count, min(window, height) * min(window, width))
    # The mean cancels in the distance; without it the squares are small and so are their errors.
    centered = patches - patches.mean()
    radius = window // 2
    rows, columns = grid(height, step), grid(width, step)
    padded = F.pad(centered, (0, 0, radius, radius, radius, radius))
    norms = F.pad(centered.square().sum(2), (radius,) * 4, value=torch.inf)
    size = STRIP if patches.device.type == "cpu" else STRIP_ON_GPU

    def matched(strip: tuple[int, Tensor]) -> tuple[Tensor, Tensor]:
        return _match_strip(padded, norms, *strip, window, count, width)

    parts = parallel.each(matched, product(rows.tolist(), columns.split(size)), patches.device)
    index, distance = (torch.cat(part) for part in zip(*parts, strict=True))
    return Matches(index, distance)


def _match_strip(
    padded: Tensor, norms: Tensor, y: int, xs: Tensor, window: int, count: int, width: int
) -> tuple[Tensor, Tensor]:
    """Index and distance [B, K] of the matches of the references at (y, xs [B])."""
    radius, first, end = window // 2, int(xs[0]), int(xs[-1]) + window
    xs = xs.to(padded.device)
    strip = padded[y : y + window, first:end]  # q S p*p
    own = padded[y + radius, radius + xs]  # B p*p
    level = norms[y : y + window, None, first:end]  # q 1 S
    scores = torch.baddbmm(level, own.expand(window, -1, -1), strip.transpose(1, 2), alpha=-2)
    # Of every reference's row only the part inside its own window: q B S -> B q q
    within = (xs - first)[:, None] + torch.arange(window, device=xs.device)  # B q
    scores = scores.gather(2, within.expand(window, -1, -1)).transpose(0, 1).flatten(1)
    scores[:, radius * window + radius] = -torch.inf  # the reference comes first, whatever rounding
    near, place = scores.topk(count, largest=False)
    near[:, 0] = -norms[y + radius, radius + xs]
    distance = (near + norms[y + radius, radius + xs, None]).clamp_(min=0)
    down, across = place // window - radius, place % window - radius
    return (y + down) * width + xs[:, None] + across, distance


def average_of_groups(
    like: Tensor, pieces: Iterable[_Piece], restored: Callable[[_Piece], tuple[Tensor, Tensor]]
) -> Tensor:
    """The plane [H, W] from restored groups of patches [H', W', p*p].

    Args:
        like: patches of that shape.
        pieces: groups that are restored at a time.
        restored: piece -> numbers [G, K] of the patches and the restored patches [G, K, p*p].
    """
    shape, side = like.shape[:2], math.isqrt(like.shape[2])
    total, counts = torch.zeros_like(like).flatten(0, 1), like.new_zeros(shape.numel())
    for numbers, clean in parallel.each(restored, pieces, like.device):
        total.index_add_(0, numbers.flatten(), clean.flatten(0, 1))
        counts.index_add_(0, numbers.flatten(), counts.new_ones(numbers.numel()))
    value = overlap_add(total.T.reshape(-1, *shape), side)
    return value / overlap_add(counts.view(1, *shape).expand(side * side, -1, -1), side)
