"""Runs a network on a part of an image, and keeps what its states compare.

The maps of any pixel in the middle of the part are then a few products away.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlrn.hardware import choose_device, mind_fork
from nlrn.models import AttentionLayout, Network
from nlrn.progress import Progress

HALO = 64  # pixels around the neighborhood; docs/web.md has the measured error of others
STRONGEST = 12  # neighbors that are outlined


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """What the neighbours of one pixel count for, state by state.

    Attributes:
        weights: [T, q, q], row by row around the pixel's cell in the middle, 0 outside the image.
            Each map sums to 1, unless the network's affinity has no softmax.
        states: number, from 1, of the state that each map belongs to.
        position: row and column of the pixel.
        noisy: the neighbourhood as the network gets it, [q r, q r] or [q r, q r, 3]; NaN outside.
        restored: the neighbourhood as the network gives it, likewise.
        halo: pixels around the neighbourhood that took part; None if that was the whole image.
        cell: r, side in pixels of what one weight stands for; 1 where pixels are compared.
    """

    weights: np.ndarray
    states: tuple[int, ...]
    position: tuple[int, int]
    noisy: np.ndarray
    restored: np.ndarray
    halo: int | None
    cell: int = 1

    @property
    def corner(self) -> tuple[int, int]:
        """Row and column in the image of the first weight; negative at the upper left edge."""
        radius, r = self.weights.shape[-1] // 2, self.cell
        return (self.position[0] // r - radius) * r, (self.position[1] // r - radius) * r

    def strongest(self, state: int, count: int = STRONGEST) -> list[tuple[int, int]]:
        """Row and column in the map of a state's largest weights, the pixel's own left out."""
        weights = self.weights[state].copy()
        weights[tuple(side // 2 for side in weights.shape)] = -np.inf
        order = np.argsort(weights, axis=None)[::-1][:count]
        rows, columns = np.unravel_index(order, weights.shape)
        return list(zip(rows.tolist(), columns.tolist(), strict=True))


class Embedding(NamedTuple):
    """What a state compares of each cell [D, h, w]: the values times the step."""

    values: Tensor
    step: float

    def part(self, rows: int | slice, columns: int | slice) -> Tensor:
        """Of one cell [D], or of some [D, h', w']; float64."""
        return self.values[:, rows, columns].double() * self.step


@dataclass(frozen=True, eq=False)
class Trace:
    """The embeddings that the states of a network compare, for a part of an image.

    Attributes:
        network: whose they are.
        layout: where it compares pixels.
        size: height and width of the image.
        part: rows and columns of the image that went through the network.
        queries: embedding as a query, for each state with a non-local module.
        keys: embedding as a key, likewise.
        noisy: the part as the network got it [C, h, w], at the image's own contrast.
        restored: the part as the network gave it, likewise.
    """

    network: Network
    layout: AttentionLayout
    size: tuple[int, int]
    part: tuple[slice, slice]
    queries: tuple[Embedding, ...]
    keys: tuple[Embedding, ...]
    noisy: Tensor
    restored: Tensor

    @property
    def cell(self) -> int:
        """Side in pixels of what the network compares."""
        return self.network.multiple

    def halo(self, position: tuple[int, int]) -> float:
        """Pixels around the pixel's neighbourhood that took part; where the image ends, any."""
        radius, r = self.layout.spec.radius, self.cell
        distances = []
        for place, piece, length in zip(position, self.part, self.size, strict=True):
            first, last = (place // r - radius) * r, (place // r + radius + 1) * r - 1
            distances.append(first - piece.start if piece.start > 0 else np.inf)
            distances.append(piece.stop - 1 - last if piece.stop < length else np.inf)
        return min(distances)

    def maps(self, position: tuple[int, int]) -> AttentionMaps:
        """The maps of one pixel, by row and column in the image."""
        check_position(position, self.size)
        halo, r = self.halo(position), self.cell
        if halo < 0:
            raise ValueError(f"the neighborhood of {position} is not in the part that was traced")
        row, column = ((p - piece.start) // r for p, piece in zip(position, self.part, strict=True))
        rows, columns, place = self._neighborhood(row, column)
        total: Tensor | float = 0.0
        found = []
        for query, key in zip(self.queries, self.keys, strict=True):
            scores = self._scores(query.part(row, column), key.part(rows, columns))
            total = total + scores if self.layout.propagate else scores
            found.append(_on_window(self._weigh(total)[None], place, self.layout.spec.window, 0.0))
        return AttentionMaps(
            np.stack(found),
            self.layout.states,
            position,
            self._pixels(self.noisy, rows, columns, place),
            self._pixels(self.restored, rows, columns, place),
            None if halo == np.inf else int(halo),
            r,
        )

    def _neighborhood(self, row: int, column: int) -> tuple[slice, slice, tuple[slice, slice]]:
        """Rows and columns of cells in the window and the part, and their place in the window."""
        window = self.layout.spec.window
        inside, place = [], []
        for middle, pixels in zip((row, column), self.noisy.shape[1:], strict=True):
            first = middle - window // 2
            start, stop = max(0, first), min(-(-pixels // self.cell), first + window)
            inside.append(slice(start, stop))
            place.append(slice(start - first, stop - first))
        return inside[0], inside[1], (place[0], place[1])

    def _pixels(
        self, image: Tensor, rows: slice, columns: slice, place: tuple[slice, slice]
    ) -> np.ndarray:
        """What the cells of an image [C, h, w] show, on the window."""
        r = self.cell
        shown = image[:, rows.start * r : rows.stop * r, columns.start * r : columns.stop * r]
        starts = [p.start * r for p in place]
        sides = zip(starts, shown.shape[1:], strict=True)
        placed = [slice(start, start + side) for start, side in sides]  # the last cell may be cut
        return _on_window(shown, (placed[0], placed[1]), self.layout.spec.window * r)

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """One state's scores [h, w] of a query [D] against keys [D, h, w]."""
        if self.layout.spec.kind.distance:
            distance = (query[:, None, None] - key).square().sum(0)
            return -distance / self.layout.spec.bandwidth**2
        return torch.einsum("d,dhw->hw", query, key)

    def _weigh(self, scores: Tensor) -> Tensor:
        if self.layout.spec.kind.softmax:
            return scores.flatten().softmax(0).view(scores.shape)
        return scores / scores.numel()


def _on_window(
    values: Tensor, place: tuple[slice, slice], side: int, outside: float = np.nan
) -> np.ndarray:
    """Values [C, h, w] of what is inside the image -> [side, side, C], or [side, side] if C = 1."""
    full = np.full((side, side, len(values)), outside)
    full[place] = values.permute(1, 2, 0).double().numpy()
    return full[..., 0] if len(values) == 1 else full


def trace(
    network: Network,
    image: Tensor,
    sigma: float,
    *,
    around: tuple[int, int] | None = None,
    halo: int = HALO,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> Trace:
    """Runs the network on an image, or on a part of it, and keeps what its states compare.

    Of a whole image that takes 2 (theta, psi) x D channels x 2 bytes for each pixel and state: 3
    KB for a pixel of the shipped networks.

    Args:
        network: it runs in eval mode and is not changed.
        image: [1, C, H, W] in [0, 1].
        sigma: standard deviation of the noise on the 0..255 scale.
        around: row and column of the pixel whose neighbourhood is traced; None for all pixels.
        halo: pixels around the neighbourhood that take part.
        dtype: precision of the network: float32 or bfloat16.
        device: "auto" takes a GPU where there is one.
        progress: called with (done, total) after every state.
    """
    layout = layout_of(network)
    if halo < 0:
        raise ValueError(f"halo must be 0 or more, got {halo}")
    height, width = image.shape[-2:]
    part = (slice(0, height), slice(0, width))
    if around is not None:
        reach = layout.spec.radius * network.multiple + halo
        part = (
            _whole_cells(around[0], reach, height, network.multiple),
            _whole_cells(around[1], reach, width, network.multiple),
        )
    read = image[..., part[0], part[1]].float()
    if not read.isfinite().all():
        raise ValueError("image has values that float32 cannot hold")
    queries: list[Embedding] = []
    keys: list[Embedding] = []

    def watch(query: Tensor, key: Tensor) -> None:
        queries.append(_kept(query, packed=around is None))
        keys.append(queries[-1] if key is query else _kept(key, packed=around is None))
        if progress is not None:
            progress(len(queries), len(layout.states))

    mind_fork()
    device, last = choose_device(device), torch.channels_last
    watched = copy.deepcopy(network).requires_grad_(False).eval()
    watched.to(device, dtype).to(memory_format=last)  # type: ignore[call-overload]
    # Some networks normalise in float32 whatever they are cast to: autocast takes them back.
    half = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    with torch.inference_mode(), half:
        # Noise of level 0 is as good as very weak noise, and has a ratio to what the model knows.
        given = network.condition(read, max(sigma, 1e-3))
        result = watched.watch(given.input.to(device, dtype, memory_format=last), watch)
        restored = read - given.removed(result.float().cpu())
    parts = (tuple(queries), tuple(keys), read[0], restored[0])
    return Trace(network, layout, (height, width), part, *parts)


def layout_of(network: Network) -> AttentionLayout:
    """Where the network compares pixels; raises if that cannot be drawn as maps."""
    layout = network.attention
    if layout is None or layout.spec.circular or not layout.states:
        raise ValueError("maps need a network that compares pixels within the image")
    return layout


def _whole_cells(middle: int, reach: int, length: int, r: int) -> slice:
    """The cells of r pixels that lie up to `reach` pixels around the one of pixel `middle`."""
    first = middle // r * r
    start, stop = (first - reach) // r * r, -(-(first + r + reach) // r) * r
    return slice(max(0, start), min(length, stop))


def _kept(embedding: Tensor, *, packed: bool) -> Embedding:
    """[1, D, h, w] on the CPU in float32; or packed, in half of the memory.

    Packed means whole multiples of a step: for values of about the same size that is an order of
    magnitude more precise than float16.
    """
    values = embedding[0].float().cpu()
    if not packed:
        return Embedding(values, 1.0)
    step = max(float(values.abs().max()), 1e-30) / torch.iinfo(torch.int16).max
    return Embedding((values / step).round_().to(torch.int16), step)


def check_position(position: tuple[int, int], size: tuple[int, int]) -> None:
    pair = isinstance(position, Sequence) and len(position) == 2
    whole = pair and all(isinstance(p, Integral) for p in position)
    if not (whole and all(0 <= p < n for p, n in zip(position, size, strict=True))):
        image = f"{size[0]} rows and {size[1]} columns"
        raise ValueError(f"position must be row and column within {image}, got {position}")
