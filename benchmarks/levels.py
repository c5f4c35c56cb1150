"""Noise between and beyond the levels that models were trained at, as `nlrn.denoise` treats it.

    python benchmarks/levels.py --data ROOT [--sigmas 5,10,12,20,35,60,75] [--dtype bf16]

Mean PSNR in dB on 128 x 128 centre crops of T91, which no denoising model has seen: noisy, BM3D,
our choice of model and contrast, and the next model below and above as it is.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch

import nlrn
from nlrn import datasets, metrics, weights
from nlrn.classic import denoise_bm3d
from nlrn.degrade import add_noise
from nlrn.restoration.choice import choose_denoiser

CROP, EVERY = 128, 3  # pixels; every third image


def neighbors(sigma: float) -> list[tuple[str, float]]:
    """The models of the package next below and next above a noise level, with their own levels."""
    trained = sorted((c.sigma, c.name) for c in weights.list_models() if c.sigma is not None)
    below = [(name, level) for level, name in trained if level < sigma]
    above = [(name, level) for level, name in trained if level > sigma]
    return below[-1:] + above[:1]


def psnr(results: list[np.ndarray], truth: list[np.ndarray]) -> float:
    """Mean in dB of images [H, W] of one size, clipped and not rounded."""
    batches = (torch.from_numpy(np.stack(x).clip(0, 1))[:, None] for x in (results, truth))
    return float(metrics.psnr(*batches, border=0, quantize=False).mean())


def main() -> None:
    """Prints a line for each noise level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--sigmas", default="5,10,12,20,35,60,75")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    settings = nlrn.Settings(dtype=options.dtype, device=options.device)
    files = datasets.training_files("bsd300-validation", datasets.find_root(options.data))[::EVERY]
    crops = {file.stem: datasets.center_crop(datasets.read_gray(file), CROP) for file in files}
    clean = {name: crop / 255 for name, crop in crops.items() if crop is not None}
    warnings.simplefilter("ignore")  # that noise is weak: the figures say it
    print(f"{len(clean)} crops of {CROP} x {CROP}")
    for sigma in map(float, options.sigmas.split(",")):
        noisy = [add_noise(image, sigma, 0, name) for name, image in clean.items()]
        truth = list(clean.values())
        found = [f"noisy {psnr(noisy, truth):.2f}"]
        bm3d = [denoise_bm3d(image, sigma) for image in noisy]
        found.append(f"BM3D {psnr(bm3d, truth):.2f}")
        ours = [nlrn.denoise(image, sigma, quality="best", settings=settings) for image in noisy]
        model = choose_denoiser(sigma, quality="best").model
        found.append(f"nlrn {psnr(ours, truth):.2f} ({model})")
        for name, level in neighbors(sigma):
            as_it_is = [nlrn.denoise(x, level, model=name, settings=settings) for x in noisy]
            found.append(f"{name} as it is {psnr(as_it_is, truth):.2f}")
        print(f"sigma {sigma:g}: " + ", ".join(found), flush=True)


if __name__ == "__main__":
    main()
