"""Draws the paper's Figure 4 with photographs of scikit-image: the maps of a pixel, state by state.

    nlrn train configs/maps-t6-s25.toml --data DATA
    python examples/attention_figure.py runs/maps-t6-s25/weights.safetensors

A row is a pixel: its neighbourhood noisy and as it was, then the map of each state. A model of the
package will do as well, such as denoise-gray-s25 with its twelve states.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image, ImageDraw, ImageFont

import nlrn
from nlrn import images
from nlrn.attention_maps import AttentionMaps
from nlrn.attention_maps.figure import color

SIGMA, PANEL, GAP, BAR = 25, 135, 6, 20  # noise, side of a panel, space, height of the text
# photograph, row and column of the pixel: a joint of bricks, a leg of the tripod, grass
PIXELS = (("brick", 120, 160), ("camera", 384, 340), ("grass", 200, 300))


def panel(pixels: np.ndarray, *, marked: bool) -> Image.Image:
    """Pixels [q, q] or [q, q, 3], uint8, enlarged without smoothing; the one in the middle red."""
    zoom = max(1, PANEL // len(pixels))
    rgb = np.array(Image.fromarray(pixels).convert("RGB"))
    if marked:
        rgb[len(rgb) // 2, rgb.shape[1] // 2] = (255, 0, 0)
    return Image.fromarray(np.kron(rgb, np.ones((zoom, zoom, 1), np.uint8)))


def row(maps: AttentionMaps, truth: np.ndarray) -> list[Image.Image]:
    """Noisy and original neighbourhood, then a map for each state, each up to its own maximum."""
    top, left = maps.corner
    height, width = maps.noisy.shape[:2]
    original = truth[top : top + height, left : left + width]
    patches = (images.from_float(maps.noisy, np.uint8), original)
    roots = (np.sqrt(weights / weights.max()) for weights in maps.weights)  # a peak hides the rest
    return [
        *(panel(patch, marked=True) for patch in patches),
        *(panel(color(root), marked=False) for root in roots),
    ]


def main(model: str, path: Path) -> None:
    """Traces the pixels and writes the picture."""
    rows, states = [], 0
    for name, *place in PIXELS:
        truth = getattr(skimage.data, name)()
        noise = np.random.default_rng(0).normal(0, SIGMA / 255, truth.shape)
        noisy = (images.to_float(truth) + noise).astype(np.float32)
        maps = nlrn.explain(noisy, (place[0], place[1]), SIGMA, model)
        rows.append(row(maps, truth))
        states = len(maps.weights)
    width, height = (side + GAP for side in rows[0][0].size)
    sheet = Image.new("RGB", (width * (2 + states) - GAP, BAR + len(rows) * height), "white")
    font = ImageFont.load_default(13)
    titles = ["noisy", "ground truth", *(f"({t})" for t in range(1, states + 1))]
    for column, title in enumerate(titles):
        ImageDraw.Draw(sheet).text((column * width, 2), title, fill="black", font=font)
        for number, panels in enumerate(rows):
            sheet.paste(panels[column], (column * width, BAR + number * height))
    sheet.save(path)
    print(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a weight's file, or a name of the package")
    parser.add_argument("--out", type=Path, default=Path("docs/images/attention-states.png"))
    options = parser.parse_args()
    main(options.model, options.out)
