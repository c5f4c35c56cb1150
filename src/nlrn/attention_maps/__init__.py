"""Where the network looks: the weights that every state gives to the neighbours of a pixel.

The neighbourhood of a pixel is cut out of the picture with a halo, the network runs on that part,
and the embeddings that its states compare are kept. The maps of any pixel in the middle of the part
are then a few products away.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont
from torch import Tensor

from nlrn import images
from nlrn.hardware import choose_device
from nlrn.images import Image
from nlrn.models.nlrn import NLRN, NonLocal2d
from nlrn.ops import AFFINITIES, AttentionSpec, Correlation, attend
from nlrn.restoration import denoise as tasks

HALO = 64  # pixels around the neighbourhood; docs/web.md has the measured error of others
STRONGEST = 12  # neighbours that are outlined
# From no weight to the largest: darker to lighter all the way, so that it also reads in gray.
COLOURS = ("#0d0b1e", "#3f1460", "#8f2274", "#d8435f", "#f98f45", "#fbe07e", "#fffbe6")

PANEL, GAP, COLUMNS = 180, 18, 4  # of the figure: side of a map, space and maps in a row


@dataclass(frozen=True, eq=False)
class Maps:
    """What the neighbours of one pixel count for, state by state.

    Attributes:
        weights: [T, q, q], row by row around the pixel in the middle, 0 outside the picture. Each
            map sums to 1, unless the network's affinity has no softmax.
        states: number, from 1, of the state that each map belongs to.
        position: row and column of the pixel.
        noisy: the neighbourhood as the network gets it, [q, q] or [q, q, 3]; NaN outside.
        restored: the neighbourhood as the network gives it, likewise.
        halo: pixels around the neighbourhood that took part; None if that was the whole picture.
    """

    weights: np.ndarray
    states: tuple[int, ...]
    position: tuple[int, int]
    noisy: np.ndarray
    restored: np.ndarray
    halo: int | None

    @property
    def corner(self) -> tuple[int, int]:
        """Row and column in the picture of the first weight; negative at the upper left edge."""
        radius = self.weights.shape[-1] // 2
        return self.position[0] - radius, self.position[1] - radius

    def strongest(self, state: int, count: int = STRONGEST) -> list[tuple[int, int]]:
        """Row and column in the map of a state's largest weights, the pixel itself left out."""
        weights = self.weights[state].copy()
        weights[tuple(side // 2 for side in weights.shape)] = -np.inf
        order = np.argsort(weights, axis=None)[::-1][:count]
        rows, columns = np.unravel_index(order, weights.shape)
        return list(zip(rows.tolist(), columns.tolist(), strict=True))


class Embedding(NamedTuple):
    """What a state compares of each pixel [D, h, w]: the values times the step."""

    values: Tensor
    step: float

    def part(self, rows: int | slice, columns: int | slice) -> Tensor:
        """Of one pixel [D], or of some [D, h', w']; float64."""
        return self.values[:, rows, columns].double() * self.step


@dataclass(frozen=True, eq=False)
class Trace:
    """The embeddings that the states of a network compare, for a part of a picture.

    Attributes:
        network: whose they are.
        size: height and width of the picture.
        part: rows and columns of the picture that went through the network.
        theta: embedding as a query, for each state with a non-local module.
        psi: embedding as a key, likewise.
        noisy: the part as the network got it [C, h, w], at the picture's own contrast.
        restored: the part as the network gave it, likewise.
    """

    network: NLRN
    size: tuple[int, int]
    part: tuple[slice, slice]
    theta: tuple[Embedding, ...]
    psi: tuple[Embedding, ...]
    noisy: Tensor
    restored: Tensor

    def halo(self, position: tuple[int, int]) -> float:
        """Pixels around the pixel's neighbourhood that took part; where the picture ends, any."""
        radius = self.network.config.window // 2
        distances = []
        for place, piece, length in zip(position, self.part, self.size, strict=True):
            distances.append(place - piece.start - radius if piece.start > 0 else np.inf)
            distances.append(piece.stop - 1 - place - radius if piece.stop < length else np.inf)
        return min(distances)

    def maps(self, position: tuple[int, int]) -> Maps:
        """The maps of one pixel, by row and column in the picture."""
        _check_position(position, self.size)
        halo = self.halo(position)
        if halo < 0:
            raise ValueError(f"the neighbourhood of {position} is not in the part that was traced")
        row, column = (p - piece.start for p, piece in zip(position, self.part, strict=True))
        rows, columns, place = self._neighbourhood(row, column)
        total: Tensor | float = 0.0
        found = []
        for theta, psi in zip(self.theta, self.psi, strict=True):
            scores = self._scores(theta.part(row, column), psi.part(rows, columns))
            total = total + scores if self.network.config.propagate else scores
            found.append(self._on_window(self._weigh(total)[None], place, 0.0))
        config = self.network.config
        return Maps(
            np.stack(found),
            tuple(t + 1 for t in range(config.steps) if config.is_non_local(t)),
            position,
            self._on_window(self.noisy[:, rows, columns], place),
            self._on_window(self.restored[:, rows, columns], place),
            None if halo == np.inf else int(halo),
        )

    def _neighbourhood(self, row: int, column: int) -> tuple[slice, slice, tuple[slice, slice]]:
        """Rows and columns of the window inside the part, and their place in the window."""
        window = self.network.config.window
        inside, place = [], []
        for middle, length in zip((row, column), self.noisy.shape[1:], strict=True):
            first = middle - window // 2
            start, stop = max(0, first), min(length, first + window)
            inside.append(slice(start, stop))
            place.append(slice(start - first, stop - first))
        return inside[0], inside[1], (place[0], place[1])

    def _scores(self, theta: Tensor, psi: Tensor) -> Tensor:
        """One state's scores [h, w] of a query [D] against keys [D, h, w]."""
        if AFFINITIES[self.network.config.affinity].distance:
            distance = (theta[:, None, None] - psi).square().sum(0)
            return -distance / self.network.config.bandwidth**2
        return torch.einsum("d,dhw->hw", theta, psi)

    def _weigh(self, scores: Tensor) -> Tensor:
        if AFFINITIES[self.network.config.affinity].softmax:
            return scores.flatten().softmax(0).view(scores.shape)
        return scores / scores.numel()

    def _on_window(
        self, values: Tensor, place: tuple[slice, slice], outside: float = np.nan
    ) -> np.ndarray:
        """Values [C, h, w] of neighbours inside the picture -> [q, q, C], or [q, q] if C = 1."""
        window = self.network.config.window
        full = np.full((window, window, len(values)), outside)
        full[place] = values.permute(1, 2, 0).double().numpy()
        return full[..., 0] if len(values) == 1 else full


def explain(
    image: np.ndarray | str | Path,
    position: tuple[int, int],
    sigma: float | None = None,
    model: NLRN | str | Path | None = None,
    *,
    channel: int = 1,
    halo: int = HALO,
    device: str = "auto",
) -> Maps:
    """Returns the weights that every state of the network gives to the neighbours of a pixel.

    Args:
        image: array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], uint8, uint16 or float in [0, 1]; or
            the path of an image file.
        position: row and column of the pixel.
        sigma: standard deviation of the noise on the 0..255 scale; None estimates it.
        model: a network, the name of a weight in the package, or a file; None chooses by sigma.
        channel: which one of a colour picture goes through a gray network, red being 0.
        halo: pixels around the neighbourhood that take part. With all of `tiles.exact_halo` the
            maps are those of the whole picture; with the default they were within 1e-4 of them.
        device: "auto" takes a GPU where there is one.
    """
    picture = images.as_image(image)
    level = tasks.check_sigma(sigma, picture)
    network = tasks.load_model(model, level)
    _check_position(position, (picture.height, picture.width))
    planes = planes_for(picture, network, channel)
    return trace(network, planes, level, around=position, halo=halo, device=device).maps(position)


def planes_for(picture: Image, network: NLRN, channel: int = 1) -> Tensor:
    """What the network gets of a picture [1, C, H, W]: all colours, or one channel."""
    if not 0 <= channel <= 2:
        raise ValueError(f"channel must be 0, 1 or 2, got {channel}")
    planes = tasks.to_planes(images.to_float(picture.pixels), network.config.in_channels)
    return planes[channel : channel + 1] if len(planes) > 1 else planes


def trace(
    network: NLRN,
    image: Tensor,
    sigma: float,
    *,
    around: tuple[int, int] | None = None,
    halo: int = HALO,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Runs the network on a picture, or on a part of it, and keeps what its states compare.

    Of a whole picture that takes 2 (theta, psi) x D channels x 2 bytes for each pixel and state: 3
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
    config = network.config
    if config.border != "mask" or not config.non_local_every:
        kind = f"border {config.border!r} and a module in every {config.non_local_every}th state"
        raise ValueError(f"maps need a network of neighbourhoods within the image, got {kind}")
    if halo < 0:
        raise ValueError(f"halo must be 0 or more, got {halo}")
    height, width = image.shape[-2:]
    part = (slice(0, height), slice(0, width))
    if around is not None:
        (row, column), reach = around, config.window // 2 + halo
        part = (
            slice(max(0, row - reach), min(height, row + reach + 1)),
            slice(max(0, column - reach), min(width, column + reach + 1)),
        )
    seen = image[..., part[0], part[1]].float()
    if not seen.isfinite().all():
        raise ValueError("image has values that float32 cannot hold")
    # Noise of level 0 is as good as very weak noise, and has a ratio to what the model knows.
    scale = tasks.scale_to_model(network, max(sigma, 1e-3))
    watched, theta, psi = _watched(network, around is None, progress)
    where, layout = choose_device(device), torch.channels_last
    watched.to(where, dtype).to(memory_format=layout)  # type: ignore[call-overload]
    with torch.inference_mode():
        scaled = 0.5 + (seen - 0.5) * scale
        result = watched(scaled.to(where, dtype, memory_format=layout))
    restored = 0.5 + (result.float().cpu() - 0.5) / scale
    return Trace(network, (height, width), part, tuple(theta), tuple(psi), seen[0], restored[0])


def _watched(
    network: NLRN, packed: bool, progress: Callable[[int, int], None] | None
) -> tuple[NLRN, list[Embedding], list[Embedding]]:
    """A copy of the network that puts the embeddings it compares into two lists."""
    network = copy.deepcopy(network).requires_grad_(False).eval()
    config = network.config
    total = sum(map(config.is_non_local, range(config.steps)))
    thetas: list[Embedding] = []
    psis: list[Embedding] = []

    def watched(
        theta: Tensor, psi: Tensor, g: Tensor, spec: AttentionSpec, **options: Any
    ) -> tuple[Tensor, Correlation | None]:
        thetas.append(_kept(theta, packed))
        psis.append(thetas[-1] if psi is theta else _kept(psi, packed))
        if progress is not None:
            progress(len(thetas), total)
        return attend(theta, psi, g, spec, reuse_prior=True, **options)

    for module in network.modules():
        if isinstance(module, NonLocal2d):
            module.operator = watched
    return network, thetas, psis


def _kept(embedding: Tensor, packed: bool) -> Embedding:
    """[1, D, h, w] on the CPU in float32; or packed, in half of the memory.

    Packed means whole multiples of a step: for values of about the same size that is an order of
    magnitude more precise than float16.
    """
    values = embedding[0].float().cpu()
    if not packed:
        return Embedding(values, 1.0)
    step = max(float(values.abs().max()), 1e-30) / torch.iinfo(torch.int16).max
    return Embedding((values / step).round_().to(torch.int16), step)


def _check_position(position: tuple[int, int], size: tuple[int, int]) -> None:
    pair = isinstance(position, Sequence) and len(position) == 2
    whole = pair and all(isinstance(p, Integral) for p in position)
    if not (whole and all(0 <= p < n for p, n in zip(position, size, strict=True))):
        picture = f"{size[0]} rows and {size[1]} columns"
        raise ValueError(f"position must be row and column within {picture}, got {position}")


def colour(values: np.ndarray) -> np.ndarray:
    """Values in [0, 1] as RGB, uint8, in one more dimension."""
    stops = np.array([[int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in COLOURS])
    places = np.linspace(0, 1, len(stops))
    rgb = np.stack([np.interp(values, places, stops[:, c]) for c in range(3)], -1)
    return rgb.round().astype(np.uint8)


def figure(maps: Maps) -> np.ndarray:
    """A picture [H, W, 3], uint8, of the noisy and the restored patch and the map of each state.

    The strongest neighbours in the last state are outlined in both patches.
    """
    window = maps.weights.shape[-1]
    edges = dict.fromkeys(maps.strongest(-1), "#ffb000") | {(window // 2, window // 2): "#ff3366"}
    patches = (("noisy", maps.noisy), ("restored", maps.restored))
    left = _stack([_panel(_rgb(patch), 1.5, name, edges) for name, patch in patches], 1)
    shown = []
    for state, weights in zip(maps.states, maps.weights, strict=True):
        largest = max(float(weights.max()), 1e-12)
        # The root, or one peak hides the rest. Without a softmax some are negative: as good as 0.
        pixels = colour(np.sqrt(np.clip(weights / largest, 0, 1)))
        shown.append(_panel(pixels, 1, f"state {state}: 0 to {largest:.2g}", {}))
    right = _stack(shown, COLUMNS)
    size = (3 * GAP + left.width + right.width, 80 + max(left.height, right.height))
    sheet = Pillow.new("RGB", size, "white")
    pixel = f"row {maps.position[0]}, column {maps.position[1]}"
    title = f"Where the network looks for {pixel}: weights of its {window} x {window} neighbours"
    _write(sheet, GAP, 14, title, 17)
    sheet.paste(left, (GAP, 48))
    start, bottom = 2 * GAP + left.width, sheet.height - 26
    sheet.paste(right, (start, 48))
    ramp = colour(np.tile(np.linspace(0, 1, 200), (12, 1)))
    sheet.paste(Pillow.fromarray(ramp), (start + 16, bottom))
    _write(sheet, start, bottom - 2, "0")
    _write(sheet, start + 224, bottom - 2, "the map's largest weight; a quarter in the middle")
    return np.asarray(sheet)


def _panel(
    pixels: np.ndarray, size: float, title: str, edges: dict[tuple[int, int], str]
) -> Pillow.Image:
    """Pixels [q, q, 3] enlarged, some of them with edges of a colour, below a title."""
    zoom = max(1, round(size * PANEL / len(pixels)))
    picture = Pillow.fromarray(np.kron(pixels, np.ones((zoom, zoom, 1), np.uint8)))
    for (row, column), edge in edges.items():
        box = [column * zoom - 1, row * zoom - 1, (column + 1) * zoom, (row + 1) * zoom]
        ImageDraw.Draw(picture).rectangle(box, outline=edge, width=2)
    framed = Pillow.new("RGB", (picture.width, picture.height + 22), "white")
    _write(framed, 0, 2, title)
    framed.paste(picture, (0, 22))
    return framed


def _stack(panels: list[Pillow.Image], columns: int) -> Pillow.Image:
    """Panels of one size in rows of that many."""
    width, height = panels[0].width + GAP, panels[0].height + 8
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    sheet = Pillow.new("RGB", (columns * width - GAP, rows * height), "white")
    for i, panel in enumerate(panels):
        sheet.paste(panel, (i % columns * width, i // columns * height))
    return sheet


def _write(sheet: Pillow.Image, left: int, top: int, text: str, size: int = 13) -> None:
    font = ImageFont.load_default(size)
    ImageDraw.Draw(sheet).text((left, top), text, fill="black", font=font)


def _rgb(patch: np.ndarray) -> np.ndarray:
    """A patch [q, q] or [q, q, 3] in [0, 1] as RGB, uint8; NaN is gray."""
    rgb = patch if patch.ndim == 3 else np.repeat(patch[..., None], 3, -1)
    return images.from_float(np.where(np.isnan(rgb), 0.5, rgb), np.uint8)


class _CallableModule(ModuleType):
    """This module, which can be called like its function.

    As soon as anything imports the module, `nlrn.explain` is the module, not the function.
    """

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _CallableModule
