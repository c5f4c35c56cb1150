"""Whole images against overlapping tiles, with a network for all noise levels.

    python benchmarks/tiles.py --data ROOT --model denoise-rgb [--sets CBSD68,Kodak24]
        [--levels 5,15,25,50,75] [--limit 10] [--tile 128] [--every 64] [--dtype bf16]
        [--device cuda]

For each set and sigma: mean PSNR in dB of both, the image on which the whole is farthest below the
mean of its tiles (128 x 128, every 64 pixels, four times the work), and the lowest gain over the
noisy image. A network that explodes on some image, or at some size, shows here.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

import nlrn
from nlrn import datasets, metrics, weights
from nlrn.degrade import add_noise
from nlrn.inference import Settings


def by_tiles(denoiser: nlrn.Denoiser, image: Tensor, sigma: float, tile: int, every: int) -> Tensor:
    """Image [1, C, H, W] -> mean of its restored tiles."""
    total, count = torch.zeros_like(image), torch.zeros_like(image)
    for top in starts(image.shape[2], tile, every):
        for left in starts(image.shape[3], tile, every):
            where = (..., slice(top, top + tile), slice(left, left + tile))
            total[where] += denoiser(image[where], sigma)
            count[where] += 1
    return total / count


def batch_of(pixels: np.ndarray) -> Tensor:
    """Pixels [H, W] or [H, W, C] as [1, C, H, W]."""
    return torch.from_numpy(np.atleast_3d(pixels)).float().permute(2, 0, 1)[None]


def starts(length: int, tile: int, every: int) -> list[int]:
    """Where tiles begin, the last one at the end."""
    last = max(0, length - tile)
    return sorted({*range(0, last, every), last})


def main() -> None:
    """Prints a line for each set and noise level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--model", default="denoise-rgb")
    parser.add_argument("--sets", default="CBSD68,Kodak24")
    parser.add_argument("--levels", default="5,15,25,50,75")
    parser.add_argument("--limit", type=int, help="the first images of each set only")
    parser.add_argument("--tile", type=int, default=128)
    parser.add_argument("--every", type=int, default=64)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    root = datasets.find_root(options.data)
    in_color = weights.load(options.model).card.channels == 3
    read = datasets.read_rgb if in_color else datasets.read_gray
    settings = Settings(dtype=options.dtype, device=options.device)
    denoiser = nlrn.Denoiser(options.model, settings=settings)
    for image_set in options.sets.split(","):
        files = datasets.image_files(image_set, root)[: options.limit]
        for level in map(int, options.levels.split(",")):
            rows = []
            for file in files:
                pixels = read(file)
                clean = batch_of(pixels / 255.0)
                degraded = batch_of(add_noise(pixels, level, 0, file.stem))
                whole = denoiser(degraded, level / 255)
                tiled = by_tiles(denoiser, degraded, level / 255, options.tile, options.every)
                rows.append([
                    float(metrics.psnr(x, clean, border=0, quantize=False))
                    for x in (whole, tiled, degraded)
                ])  # fmt: skip
            found = torch.tensor(rows)
            below = found[:, 0] - found[:, 1]
            worst = int(below.argmin())
            means = found.mean(0).tolist()
            gain = float((found[:, 0] - found[:, 2]).min())
            print(
                f"{image_set} sigma {level}, {len(files)} images: whole {means[0]:.3f}, tiles "
                f"{means[1]:.3f}; worst {files[worst].stem} {float(below[worst]):+.3f}; "
                f"lowest gain {gain:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
