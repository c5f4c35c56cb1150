"""What `make demo` runs: a photograph with noise, and what the network makes of it.

Writes demo/demo.png (noisy, restored, original side by side) and says where.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage.data
import torch

import nlrn
from nlrn import images, metrics

SIGMA = 25


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """PSNR in dB of values [H, W] in [0, 1], after clipping and rounding to 8 bits."""
    tensors = (torch.from_numpy(x)[None, None] for x in (image, truth))
    return float(metrics.psnr(*tensors, border=0, quantize=True))


def main(folder: Path) -> None:
    """Adds noise to a photograph from scikit-image, restores it, writes the pictures."""
    truth = images.to_float(skimage.data.camera()[40:200, 150:310])
    noisy = truth + np.random.default_rng(0).normal(0, SIGMA / 255, truth.shape)
    noisy = noisy.astype(np.float32)
    restored = nlrn.denoise(noisy, SIGMA)
    folder.mkdir(exist_ok=True)
    path = folder / "demo.png"
    panels = np.concatenate([noisy, restored, truth], axis=1)
    images.write(path, images.Image(images.from_float(panels, np.uint8)), overwrite=True)
    print(f"PSNR: noisy {psnr(noisy, truth):.2f} dB, restored {psnr(restored, truth):.2f} dB")
    print(f"written: {path} (noisy, restored, original)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo"))
