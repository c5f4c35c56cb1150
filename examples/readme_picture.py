"""Draws docs/images/denoise.png, the picture of the README: noisy, restored, original."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image, ImageDraw

import nlrn
from nlrn import images, metrics

SIGMA, GAP, BAR = 25, 6, 22


def labelled(panel: np.ndarray, text: str) -> Image.Image:
    """An 8-bit panel above a white bar with a caption."""
    height, width = panel.shape[:2]
    picture = Image.new("RGB", (width, height + BAR), "white")
    picture.paste(Image.fromarray(panel).convert("RGB"), (0, 0))
    ImageDraw.Draw(picture).text((2, height + 5), text, fill="black")
    return picture


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """PSNR in dB of 8-bit images [H, W] or [H, W, 3]."""
    tensors = (torch.from_numpy(np.atleast_3d(x).copy())[None] for x in (image, truth))
    return float(metrics.psnr(*tensors, border=0, quantize=True))


def rows() -> list[list[Image.Image]]:
    """Two photographs from scikit-image, each noisy, restored and as it was."""
    found = []
    photographs = {
        "camera": skimage.data.camera()[30:250, 130:390],
        "astronaut": skimage.data.astronaut()[20:240, 110:370],
    }
    for name, truth in photographs.items():
        noise = np.random.default_rng(0).normal(0, SIGMA / 255, truth.shape)
        noisy = (images.to_float(truth) + noise).astype(np.float32)
        restored = images.from_float(nlrn.denoise(noisy, SIGMA), np.uint8)
        shown = images.from_float(noisy, np.uint8)
        found.append([
            labelled(shown, f"{name}, sigma {SIGMA}: {psnr(shown, truth):.2f} dB"),
            labelled(restored, f"nlrn: {psnr(restored, truth):.2f} dB"),
            labelled(truth, "original"),
        ])  # fmt: skip
    return found


def main(path: Path) -> None:
    """Puts the panels side by side and writes the picture."""
    panels = rows()
    width, height = panels[0][0].size
    sheet = Image.new("RGB", (3 * width + 2 * GAP, len(panels) * height), "white")
    for y, row in enumerate(panels):
        for x, panel in enumerate(row):
            sheet.paste(panel, (x * (width + GAP), y * height))
    sheet.save(path)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images/denoise.png"))
