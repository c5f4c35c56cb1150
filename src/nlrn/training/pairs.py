"""Patches for networks that enlarge: small ones as they get them, and what these are to become."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nlrn.datasets import Pixels
from nlrn.degrade import shrunk_matrix
from nlrn.training.batches import Batch, PatchSampler, pick, seed_of, turned
from nlrn.training.parsing import TrainingError


class PairSampler(PatchSampler):
    """Random patches of small images and of the large ones that they were made from.

    One factor for each step, in turn, so that all patches of a batch have the same size; `patch` is
    the side of the small ones. Otherwise as `PatchSampler`.
    """

    def _prepare(self, images: Sequence[Pixels], device: torch.device) -> Sequence[Pixels]:
        images = [i for i in images if min(i.shape[:2]) >= max(self._data.factors)]
        if not images:
            raise TrainingError(f"no image is as large as the factors {list(self._data.factors)}")
        self._fits: dict[tuple[int, int], Tensor] = {}
        # factor -> planes of all small images, and start, height and width of each in them
        self._small: dict[int, tuple[list[Tensor], Tensor]] = {}
        for factor in set(self._data.factors):
            low = [shrunk(image, factor, device) for image in images]  # C h w each
            sizes = torch.tensor([plane.shape[1:] for plane in low])  # N 2
            ends = sizes.prod(1).cumsum(0)
            table = torch.column_stack([ends - sizes.prod(1), sizes]).to(device)
            planes = [torch.cat([image[c].flatten() for image in low]) for c in range(len(low[0]))]
            self._small[factor] = planes, table
        return images

    def _make(self, step: int, size: int, patch: int, share: slice) -> Batch:
        factors = self._data.factors
        factor = factors[step % len(factors)]
        planes, table = self._small[factor]
        self._generator.manual_seed(seed_of(self._seed, step))
        fitting = self._fit(factor, patch)

        def corner(draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Numbers of the images, top and left of the patches in the small ones [b]."""
            chosen = fitting[self._pick_image(draws[0], table[fitting])]
            height, width = table[chosen, 1], table[chosen, 2]
            return chosen, pick(draws[1], height - patch + 1), pick(draws[2], width - patch + 1)

        def small(draws: Tensor, chosen: Tensor, top: Tensor, left: Tensor) -> Tensor:
            place = _places(table[chosen], top, left, draws[3:], patch)
            return torch.stack([plane[place] for plane in planes], 1)

        draws = self._draw(size, share, lambda draws: small(draws, *corner(draws)))
        chosen, top, left = corner(draws)
        low = small(draws, chosen, top, left).float() / 255
        large = self._images[chosen]
        place = _places(large, top * factor, left * factor, draws[3:], patch * factor)
        return Batch(low, self._at(place).float() / 255, torch.zeros(len(low), device=self._device))

    def _fit(self, factor: int, patch: int) -> Tensor:
        """Numbers of the images whose small version has room for the patch."""
        if (factor, patch) not in self._fits:
            sides = self._small[factor][1][:, 1:].amin(1)
            if sides.max() < patch:
                largest = int(sides.max())
                where = f"no image shrunk by {factor} has room for patches of {patch}"
                raise TrainingError(f"{where} (at most {largest})")
            self._fits[factor, patch] = (sides >= patch).nonzero().flatten()
        return self._fits[factor, patch]


def _places(images: Tensor, top: Tensor, left: Tensor, draws: Tensor, patch: int) -> Tensor:
    """Where in the planes the patches [b, patch, patch] of images (start, height, width) lie."""
    start, _, width = (column.view(-1, 1, 1) for column in images.unbind(1))
    y, x = turned(draws, patch)
    return start + (y + top.view(-1, 1, 1)) * width + x + left.view(-1, 1, 1)


def shrunk(image: Pixels, factor: int, device: torch.device) -> Tensor:
    """The image [H, W] or [H, W, C] shrunk as a user would have it: uint8 [C, h, w].

    `imresize` of what is left when it is cut to a multiple of the factor, computed on the device.
    """
    height, width = (side - side % factor for side in image.shape[:2])
    pixels = np.atleast_3d(image)[:height, :width].transpose(2, 0, 1)
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).to(device).double()
    rows, columns = (_shrink(side, factor, device) for side in (height, width))
    # MATLAB rounds after each of its passes, of which the vertical one is the first.
    return _rounded(_rounded(rows @ planes).double() @ columns.T)


def _rounded(values: Tensor) -> Tensor:
    return (values + 0.5).floor().clamp(0, 255).to(torch.uint8)


@functools.lru_cache(maxsize=1024)
def _shrink(length: int, factor: int, device: torch.device) -> Tensor:
    return torch.from_numpy(shrunk_matrix(length, factor)).to(device)
