"""Noise between and beyond the levels that models were trained at, as `nlrn.denoise` treats it.

    python benchmarks/levels.py --data ROOT [--sigmas 5,10,12,20,35,60,75] [--dtype bf16]

Mean PSNR in dB on 128 x 128 centre crops of T91, which no denoising model has seen: noisy, BM3D,
denoise-gray, eight views of it, and the paper's network that was trained nearest, with the contrast
changed to its level.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import replace

import numpy as np
import torch

import nlrn
from nlrn import datasets, metrics, weights
from nlrn.classic import denoise_bm3d
from nlrn.degrade import add_noise

CROP, EVERY = 128, 3  # pixels; every third image
# At sigma 22 the models of 15 (contrast x 0.68) and 25 (x 1.14) are equally good, hence three.
GROWTH_COUNTS = 3


def nearest(sigma: float) -> str:
    """The model for one level that was trained nearest to sigma, rather below than above."""
    cards = [card for card in weights.list_models() if card.task == "denoise"]
    trained = {card.name: card.sigma for card in cards if card.sigma is not None}

    def distance(name: str) -> float:
        shrinks = math.log(sigma / trained[name])
        return shrinks if shrinks >= 0 else -GROWTH_COUNTS * shrinks

    return min(trained, key=distance)


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
        for label, model, views in (
            ("denoise-gray", "denoise-gray", 1),
            ("eight views", "denoise-gray", 8),
            (nearest(sigma), nearest(sigma), 1),
        ):
            own = replace(settings, views=views)
            ours = [nlrn.denoise(image, sigma, model=model, settings=own) for image in noisy]
            found.append(f"{label} {psnr(ours, truth):.2f}")
        print(f"sigma {sigma:g}: " + ", ".join(found), flush=True)


if __name__ == "__main__":
    main()
