"""A figure of the maps of one pixel, drawn with Pillow."""

from __future__ import annotations

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from nlrn import images
from nlrn.attention_maps.trace import AttentionMaps

# From no weight to the largest: darker to lighter all the way, so that it also reads in gray.
COLORS = ("#0d0b1e", "#3f1460", "#8f2274", "#d8435f", "#f98f45", "#fbe07e", "#fffbe6")
PANEL, GAP, COLUMNS = 180, 18, 4  # side of a map, space and maps in a row


def color(values: np.ndarray) -> np.ndarray:
    """Values in [0, 1] as RGB, uint8, in one more dimension."""
    stops = np.array([[int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in COLORS])
    places = np.linspace(0, 1, len(stops))
    rgb = np.stack([np.interp(values, places, stops[:, c]) for c in range(3)], -1)
    return rgb.round().astype(np.uint8)


def figure(maps: AttentionMaps) -> np.ndarray:
    """A picture [H, W, 3], uint8, of the noisy and the restored patch and the map of each state.

    The strongest neighbours in the last state are outlined in both patches.
    """
    window, r = maps.weights.shape[-1], maps.cell
    edges = dict.fromkeys(maps.strongest(-1), "#ffb000") | {(window // 2, window // 2): "#ff3366"}
    patches = (("noisy", maps.noisy), ("restored", maps.restored))
    left = _stack([_panel(_rgb(patch), 1.5, name, edges, r) for name, patch in patches], 1)
    shown = []
    for state, weights in zip(maps.states, maps.weights, strict=True):
        largest = max(float(weights.max()), 1e-12)
        # The root, or one peak hides the rest. Without a softmax some are negative: as good as 0.
        pixels = color(np.sqrt(np.clip(weights / largest, 0, 1)))
        shown.append(_panel(pixels, 1, f"state {state}: 0 to {largest:.2g}", {}))
    right = _stack(shown, COLUMNS)
    size = (3 * GAP + left.width + right.width, 80 + max(left.height, right.height))
    sheet = Pillow.new("RGB", size, "white")
    pixel = f"row {maps.position[0]}, column {maps.position[1]}"
    cells = "" if r == 1 else f", cells of {r} x {r} pixels"
    neighbors = f"its {window} x {window} neighbours{cells}"
    title = f"Where the network looks for {pixel}: weights of {neighbors}"
    _write(sheet, GAP, 14, title, 17)
    sheet.paste(left, (GAP, 48))
    start, bottom = 2 * GAP + left.width, sheet.height - 26
    sheet.paste(right, (start, 48))
    ramp = color(np.tile(np.linspace(0, 1, 200), (12, 1)))
    sheet.paste(Pillow.fromarray(ramp), (start + 16, bottom))
    _write(sheet, start, bottom - 2, "0")
    _write(sheet, start + 224, bottom - 2, "the map's largest weight; a quarter in the middle")
    return np.asarray(sheet)


def _panel(
    pixels: np.ndarray, size: float, title: str, edges: dict[tuple[int, int], str], cell: int = 1
) -> Pillow.Image:
    """Pixels [q r, q r, 3] enlarged, some cells with edges of a color, below a title."""
    zoom = max(1, round(size * PANEL / len(pixels)))
    picture = Pillow.fromarray(np.kron(pixels, np.ones((zoom, zoom, 1), np.uint8)))
    for (row, column), edge in edges.items():
        side = cell * zoom
        box = [column * side - 1, row * side - 1, (column + 1) * side, (row + 1) * side]
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
