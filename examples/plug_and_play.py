"""Sharpens a blurred photograph with a denoiser as prior, and draws docs/images/deblur.png.

Plug and play, by half-quadratic splitting: in turns, the image that explains the blurred one best
while it stays near the last estimate, which is a division in the frequency domain, and that image
without noise of a level that sinks from step to step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import skimage.data
import torch
from torch import Tensor

import nlrn
from nlrn import images, metrics

NOISE, BLUR = 2.55 / 255, 1.6  # standard deviations of the noise, and of the blur in pixels
STEPS, FIRST, WEIGHT = 8, 40 / 255, 0.23  # of the loop; the first level; of the prior


def gaussian(height: int, width: int) -> Tensor:
    """Transfer function [H, W/2 + 1] of the blur, which wraps around the image."""
    y, x = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
    return torch.exp(-2 * (np.pi * BLUR) ** 2 * (y**2 + x**2))


def deblur(blurred: Tensor, transfer: Tensor, denoiser: torch.nn.Module) -> Tensor:
    """The image behind a blurred one [B, C, H, W].

    Args:
        blurred: with noise of level NOISE.
        transfer: of the blur.
        denoiser: `denoiser(x, sigma)`, sigma in the units of x.
    """
    size, estimate = blurred.shape[-2:], blurred
    given = transfer.conj() * torch.fft.rfft2(blurred)
    for sigma in np.geomspace(FIRST, NOISE, STEPS):
        near = WEIGHT * (NOISE / sigma) ** 2
        spectrum = (given + near * torch.fft.rfft2(estimate)) / (transfer.abs() ** 2 + near)
        estimate = denoiser(torch.fft.irfft2(spectrum, size), float(sigma))
    return estimate


def psnr(image: Tensor, truth: Tensor) -> float:
    """PSNR in dB, over all channels."""
    return float(metrics.psnr(image, truth, border=0, quantize=True))


def main(path: Path, side: int = 176) -> tuple[float, float]:
    """Blurs a photograph, sharpens it, writes blurred, sharpened and original side by side."""
    photograph = images.to_float(skimage.data.astronaut()[:side, 140 : 140 + side])
    truth = torch.from_numpy(photograph).permute(2, 0, 1)[None]  # B C H W
    transfer = gaussian(*truth.shape[-2:])
    blurred = torch.fft.irfft2(transfer * torch.fft.rfft2(truth), truth.shape[-2:])
    blurred += NOISE * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    sharp = deblur(blurred, transfer, nlrn.Denoiser("denoise-rgb"))
    panels = torch.cat([blurred, sharp, truth], 3)[0].permute(1, 2, 0).numpy()
    images.write(path, images.Image(images.from_float(panels, np.uint8)), overwrite=True)
    before, after = psnr(blurred, truth), psnr(sharp, truth)
    print(f"PSNR: blurred {before:.2f} dB, sharpened {after:.2f} dB; written: {path}")
    return before, after


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images/deblur.png"))
