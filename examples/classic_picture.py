"""Writes docs/images/classic.png: what the classic methods make of a photograph with noise."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image, ImageDraw

from nlrn import classic, images, metrics
from nlrn.degrade import add_noise, rgb2gray

SIGMA = 25
SIDE, LABEL = 176, 16  # pixels: of a panel, and of the line of text below it
METHODS = {
    "NLM": classic.denoise_nlm,
    "BM3D": classic.denoise_bm3d,
    "WNNM": classic.denoise_wnnm,
    "LSSC": classic.denoise_lssc,
}


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """PSNR in dB of values [H, W] in [0, 1], after clipping and rounding to 8 bits."""
    tensors = (torch.from_numpy(x)[None, None] for x in (image, truth))
    return float(metrics.psnr(*tensors, border=0, quantize=True))


def panel(name: str, image: np.ndarray, truth: np.ndarray) -> Image.Image:
    """A picture with its name and PSNR below."""
    figure = Image.new("L", (SIDE, SIDE + LABEL), 255)
    figure.paste(Image.fromarray(images.from_float(image, np.uint8)))
    text = name if image is truth else f"{name} {psnr(image, truth):.2f} dB"
    ImageDraw.Draw(figure).text((SIDE // 2, SIDE + LABEL // 2), text, fill=0, anchor="mm")
    return figure


def main(path: Path) -> None:
    """Adds noise to a photograph of scikit-image and writes the panels in two rows."""
    truth = rgb2gray(skimage.data.astronaut())[20 : 20 + SIDE, 140 : 140 + SIDE] / 255
    noisy = add_noise(truth, SIGMA, 0, "astronaut")
    pictures = {"noisy": noisy}
    pictures |= {name: method(noisy, SIGMA) for name, method in METHODS.items()}
    pictures["original"] = truth
    figure = Image.new("L", (3 * SIDE, 2 * (SIDE + LABEL)), 255)
    for number, (name, image) in enumerate(pictures.items()):
        row, column = divmod(number, 3)
        figure.paste(panel(name, image, truth), (column * SIDE, row * (SIDE + LABEL)))
    figure.save(path)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images/classic.png"))
