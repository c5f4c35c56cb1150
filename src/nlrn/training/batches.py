"""Patches of degraded and clean images, made on the device for a whole batch."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nlrn.datasets import Gray, Pixels
from nlrn.degrade import enlarged_matrix, mod_crop
from nlrn.training.config_tables import Data
from nlrn.training.parsing import TrainingError

_CANDIDATES = 8  # of which the one that repeats itself most is taken


class Batch(NamedTuple):
    """Patches to learn from.

    Attributes:
        degraded: what the network is to restore [b, C, P, P], not clipped; smaller than the clean
            one where it is to enlarge.
        clean: what it is to become, in [0, 1].
        sigma: level of each patch's noise on the 0..255 scale [b]; 0 where there is none.
    """

    degraded: Tensor
    clean: Tensor
    sigma: Tensor


class PatchSampler:
    """Random patches of images that lie on the device, with noise or of low resolution.

    What sample number n of step k is depends on the seed, k and n alone: a run that is resumed
    goes on with the same patches, and two processes with half a batch each see what one with the
    whole batch sees.

    Args:
        images: the training images, [H, W] or [H, W, 3] as the data's channels say; every scale
            is an image of its own.
        device: where the images lie and the batches are made.
        data: what is done to them.
        seed: of the run.
    """

    def __init__(
        self, images: Sequence[Pixels], device: torch.device, data: Data, *, seed: int
    ) -> None:
        self._data, self._seed = data, seed
        self._degraded: Tensor | None = None
        images = self._prepare(images, device)
        sizes = np.array([image.shape[:2] for image in images], dtype=np.int64)  # N 2
        starts = np.concatenate([[0], sizes.prod(1).cumsum()[:-1]])
        self._sizes, self._device = sizes, device
        self._planes = [
            torch.from_numpy(
                np.concatenate([i.reshape(-1, data.channels)[:, c] for i in images])
            ).to(device)
            for c in range(data.channels)
        ]
        # start, height and width of each image in the planes
        self._images = torch.from_numpy(np.column_stack([starts, sizes])).to(device)
        self._generator = torch.Generator(device)
        self._fitting: dict[int, Tensor] = {}
        # Of its own, so that a batch is made while the step before still computes.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def _prepare(self, images: Sequence[Pixels], device: torch.device) -> Sequence[Pixels]:
        """The clean images; for "sr", of which there are degraded ones already, each factor's."""
        factors = self._data.factors
        if self._data.task != "sr":
            return images
        pairs = [low_resolution(i, f, device) for f in factors for i in images if min(i.shape) >= f]
        # Half precision is a twentieth of a gray level off, and one GB less for 291 images.
        self._degraded = torch.cat([low.half().flatten() for _, low in pairs])
        return [clean for clean, _ in pairs]

    def batch(self, step: int, size: int, patch: int, share: slice = slice(None)) -> Batch:
        """Degraded and clean patches [b, C, patch, patch] of a step, and the levels of the noise.

        Args:
            step: number of the step in the run.
            size: patches in the whole batch.
            patch: side of a patch.
            share: which patches of the batch are wanted.
        """
        if self._stream is None:
            return self._make(step, size, patch, share)
        with torch.cuda.stream(self._stream):
            made = self._make(step, size, patch, share)
        user = torch.cuda.current_stream(self._device)
        user.wait_stream(self._stream)
        for tensor in made:
            tensor.record_stream(user)  # its memory is free again only when the user is done
        return made

    def _make(self, step: int, size: int, patch: int, share: slice) -> Batch:
        data = self._data
        self._generator.manual_seed(seed_of(self._seed, step))
        draws = self._draw(size, share, lambda draws: self._at(self._place(draws, patch)))
        place = self._place(draws, patch)
        clean = self._at(place).float() / 255
        if self._degraded is not None:
            stretch = self._uniform(size, 1, 1, 1)[share] < data.full_range
            low = self._degraded[place].float().unsqueeze(1)
            low, clean = (torch.where(stretch, (x * 255 - 16) / 219, x) for x in (low, clean))
            return Batch(low, clean, torch.zeros(len(clean), device=self._device))
        shape = (size, data.channels, patch, patch)
        noise = torch.randn(shape, generator=self._generator, device=self._device)[share]
        if not data.sigma_range:
            sigma = torch.full((len(clean),), data.sigma, device=self._device)
            return Batch(clean + noise * (data.sigma / 255), clean, sigma)
        lowest, highest = data.sigma_range
        sigma = lowest + (highest - lowest) * self._uniform(size)[share]
        return Batch(clean + noise * (sigma / 255).view(-1, 1, 1, 1), clean, sigma)

    def _at(self, place: Tensor) -> Tensor:
        """The pixels at these places [b, P, P] -> uint8 [b, C, P, P]."""
        return torch.stack([plane[place] for plane in self._planes], 1)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)

    def _draw(self, size: int, share: slice, look: Callable[[Tensor], Tensor]) -> Tensor:
        """Six numbers in [0, 1) for each patch [6, b], of which `look` makes it [b, C, P, P].

        Those of the patches that are to be self-similar, the first ones, are the best of several.
        """
        draws = self._uniform(6, size)[:, share]
        chosen = round(self._data.self_similar_fraction * size)
        others = self._uniform(_CANDIDATES - 1, 6, chosen)[..., share]
        if not others.numel():
            return draws
        n = others.shape[-1]
        candidates = torch.cat([draws[None, :, :n], others])  # k 6 n
        patches = look(candidates.transpose(0, 1).flatten(1))
        scores = repetition(patches.float().mean(1) / 255).view(-1, n)
        best = candidates[scores.argmax(0), :, torch.arange(n, device=self._device)]  # n 6
        return torch.cat([best.T, draws[:, n:]], 1)

    def _place(self, draws: Tensor, patch: int) -> Tensor:
        """Where in the planes the patches lie that the numbers in [0, 1) choose [b, patch, patch].

        One column of the numbers makes one patch.
        """
        fitting = self._large_enough(patch)
        start, height, width = fitting[self._pick_image(draws[0], fitting)].unbind(1)  # b each
        top, left = pick(draws[1], height - patch + 1), pick(draws[2], width - patch + 1)
        y, x = turned(draws[3:], patch)
        y, x = y + top.view(-1, 1, 1), x + left.view(-1, 1, 1)
        return start.view(-1, 1, 1) + y * width.view(-1, 1, 1) + x

    def _pick_image(self, draw: Tensor, images: Tensor) -> Tensor:
        if not self._data.by_area:
            return pick(draw, len(images))
        up_to = (
            (images[:, 1] * images[:, 2]).cumsum(0).double()
        )  # pixels of an image and all before
        return torch.searchsorted(up_to, draw.double() * up_to[-1], right=True).clamp(
            max=len(images) - 1
        )

    def _large_enough(self, patch: int) -> Tensor:
        if patch not in self._fitting:
            chosen = np.flatnonzero((self._sizes >= patch).all(1))
            if not len(chosen):
                largest = int(self._sizes.min(1).max())
                raise TrainingError(f"no image has room for patches of {patch} (at most {largest})")
            self._fitting[patch] = self._images[torch.from_numpy(chosen).to(self._device)]
        return self._fitting[patch]


def turned(draws: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Rows and columns [b, patch, patch] at which patches are read, one of 8 ways round each.

    The flips and rotations of the square, as a change of the coordinates; three numbers in [0, 1)
    [3, b] choose them.
    """
    line = torch.arange(patch, device=draws.device)
    y, x = line.view(1, -1, 1), line.view(1, 1, -1)
    turn, down, right = (draw.view(-1, 1, 1) < 0.5 for draw in draws)
    y, x = torch.where(turn, x, y), torch.where(turn, y, x)
    return torch.where(down, patch - 1 - y, y), torch.where(right, patch - 1 - x, x)


def low_resolution(image: Gray, factor: int, device: torch.device) -> tuple[Gray, Tensor]:
    """The image cut to a multiple of the factor, and what is left of it when it is shrunk.

    The second [H, W] has been enlarged again, float32 on the [0, 1] scale, on the device.
    """
    clean = np.array(mod_crop(image, factor))
    rows, columns = (_enlarged(side, factor, device) for side in clean.shape)
    return clean, rows @ (torch.from_numpy(clean).to(device).float() / 255) @ columns.T


def repetition(patches: Tensor) -> Tensor:
    """How much of each patch [n, P, P] in [0, 1] looks like other parts of it [n].

    The mean of the squared correlation, where it is positive, of the patch's detail with itself
    over all shifts between 8 pixels (closer by, every image resembles itself) and half the patch:
    0 for noise, 1 where everything is alike. Detail is what differs from the mean of 9 x 9 pixels;
    what is weaker than 0.02 hardly counts.
    """
    side = patches.shape[-1]
    near = min(8, side // 4)
    images = patches.unsqueeze(1)
    detail = images - F.avg_pool2d(images, 9, stride=1, padding=4, count_include_pad=False)
    size = (2 * side, 2 * side)  # with room for all shifts, so that nothing wraps around
    spectrum, ones = (torch.fft.rfft2(x, size) for x in (detail, torch.ones_like(detail[:1])))
    product = torch.fft.irfft2(spectrum * spectrum.conj(), size)
    energy = torch.fft.irfft2(torch.fft.rfft2(detail.square() + 0.02**2, size) * ones.conj(), size)
    shift = torch.fft.fftfreq(2 * side, 1 / (2 * side), device=patches.device)
    reach = torch.maximum(shift.abs().view(-1, 1), shift.abs())
    counted = (reach >= near) & (reach <= side // 2)
    # A shift and its opposite compare the same pixels, one energy is of either end.
    other = energy.flip(2, 3).roll((1, 1), (2, 3))
    alike = (product / (0.5 * (energy + other)).clamp(min=1e-6)).clamp(min=0)
    return (alike.square() * counted).sum((1, 2, 3)) / counted.sum()


@functools.lru_cache(maxsize=1024)
def _enlarged(length: int, factor: int, device: torch.device) -> Tensor:
    return torch.from_numpy(enlarged_matrix(length, factor)).float().to(device)


def pick(draw: Tensor, count: Tensor | int) -> Tensor:
    """Whole numbers below `count`; rounding must not reach it."""
    most = count - 1
    number = (draw * count).long()
    return torch.minimum(number, most) if isinstance(most, Tensor) else number.clamp(max=most)


def seed_of(seed: int, step: int) -> int:
    digest = hashlib.sha256(f"{seed}:{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
