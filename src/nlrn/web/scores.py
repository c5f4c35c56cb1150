"""How close a noisy and a restored image are to the original."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from nlrn import images, metrics
from nlrn.images import Image

Comparison = dict[str, dict[str, float | None]]
MAX_SSIM_SAMPLES = 2**23  # beyond, its dozen maps in float64 take gigabytes


def compare(result: Image, noisy: Image, clean: Image) -> Comparison:
    """PSNR in dB and SSIM of both images against the clean one, on values rounded to 0..255."""
    truth = _tensor(clean)
    found = {}
    for name, image in (("noisy", noisy), ("restored", result)):
        tensor = _tensor(image)
        psnr = float(metrics.psnr(tensor, truth, border=0, quantize=True))
        fits = min(tensor.shape[2:]) >= metrics.WINDOW and tensor.numel() <= MAX_SSIM_SAMPLES
        ssim = float(metrics.ssim(tensor, truth, border=0, quantize=True)) if fits else None
        found[name] = {"psnr": psnr if math.isfinite(psnr) else None, "ssim": ssim}
    return found


def _tensor(image: Image) -> Tensor:
    """[1, C, H, W], float in [0, 1]."""
    return torch.from_numpy(np.atleast_3d(images.to_float(image.pixels))).permute(2, 0, 1)[None]
