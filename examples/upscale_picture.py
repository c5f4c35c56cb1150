"""Draws docs/images/upscale.png: photographs made small, and enlarged in two ways.

PSNR and SSIM are of the luminance without a border of `scale` pixels, as in the paper's tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image, ImageDraw

import nlrn
from nlrn import images
from nlrn.bench.run import score
from nlrn.degrade import imresize, luminance

HEIGHT, WIDTH, LABEL, GAP = 192, 264, 20, 6  # pixels; the first two divide by 2, 3 and 4
PHOTOGRAPHS = {  # name: (photograph, first row, first column, scale)
    "coffee": (skimage.data.coffee, 60, 190, 2),
    "astronaut": (skimage.data.astronaut, 20, 110, 3),
    "cat": (skimage.data.chelsea, 40, 90, 4),
}


def panel(picture: np.ndarray, text: str) -> Image.Image:
    """An 8-bit picture above a line of text."""
    figure = Image.new("RGB", (WIDTH, HEIGHT + LABEL), "white")
    figure.paste(Image.fromarray(picture))
    ImageDraw.Draw(figure).text((2, HEIGHT + 4), text, fill="black")
    return figure


def row(name: str) -> list[Image.Image]:
    """The photograph by bicubic interpolation, by the network, and as it was."""
    photograph, top, left, scale = PHOTOGRAPHS[name]
    truth = photograph()[top : top + HEIGHT, left : left + WIDTH]
    small = images.from_float(imresize(images.to_float(truth), 1 / scale), np.uint8)
    bicubic = images.from_float(imresize(images.to_float(small), scale), np.uint8)
    panels = []
    for method, result in (("bicubic", bicubic), ("nlrn", nlrn.upscale(small, scale))):
        psnr, ssim = score(luminance(result), luminance(truth), border=scale)
        panels.append(panel(result, f"{name} x{scale}, {method}: {psnr:.2f} dB, {ssim:.4f}"))
    return [*panels, panel(truth, "original")]


def main(path: Path) -> None:
    """Puts the panels of all photographs on one sheet."""
    step_x, step_y = WIDTH + GAP, HEIGHT + LABEL
    sheet = Image.new("RGB", (3 * step_x - GAP, len(PHOTOGRAPHS) * step_y), "white")
    for y, name in enumerate(PHOTOGRAPHS):
        for x, figure in enumerate(row(name)):
            sheet.paste(figure, (x * step_x, y * step_y))
    sheet.save(path)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images/upscale.png"))
