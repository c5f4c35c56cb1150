"""PSNR on fixed crops of the validation images, and a picture of the first ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nlrn import datasets, degrade, metrics
from nlrn.models import Network, TrainingMode
from nlrn.models.bicubic import enlarge
from nlrn.training import files as run_files
from nlrn.training.batches import low_resolution
from nlrn.training.config import Config
from nlrn.training.config_tables import Data
from nlrn.training.pairs import shrunk
from nlrn.training.parsing import TrainingError

_AT_ONCE = 8  # crops in a batch
_SHOWN = 4  # crops in the picture
_EXACT = 148.0  # dB that a crop without any error counts for
_NOISE_SEED = 0  # the same noise in every run, so that runs can be compared


class Validation:
    """Degraded center crops, and what a network makes of them.

    Attributes:
        best: PSNR of the best weights that the run's folder holds.
    """

    def __init__(self, config: Config, files: list[Path], device: torch.device) -> None:
        self.best = -math.inf
        data = config.data
        crops = _crops(data, files)
        # name of the level -> (its noise on the 0..255 scale, degraded crops)
        self._levels: dict[str, tuple[float, Tensor]] = {}
        if config.enlarges:
            self._clean = _stacked(list(crops.values()), device)
            for factor in data.factors:
                small = torch.stack([shrunk(crop, factor, device) for crop in crops.values()])
                self._levels[f"x{factor}"] = (0.0, small.float() / 255)
        elif data.task == "sr":
            pairs = [low_resolution(c, f, device) for c in crops.values() for f in data.factors]
            self._clean = _stacked([pair[0] for pair in pairs], device)
            self._levels["sr"] = (0.0, torch.stack([pair[1] for pair in pairs]).unsqueeze(1))
        else:
            noise = [degrade.standard_noise(_NOISE_SEED, n, c.shape) for n, c in crops.items()]
            self._clean = _stacked(list(crops.values()), device)
            for sigma in data.validation_sigmas or (data.sigma,):
                scaled = np.stack(noise).astype(np.float32) * np.float32(sigma / 255)
                degraded = self._clean / 255 + _stacked(list(scaled), device)
                self._levels[f"{sigma:g}"] = (sigma, degraded)
        self._degraded = self._restored = next(iter(self._levels.values()))[1]

    def psnr(self, network: Network, fabric: Any, *, non_local: bool = True) -> dict[str, float]:
        """Mean PSNR of the restored crops, clipped and rounded to 0..255, by level.

        Args:
            network: in evaluation mode.
            fabric: whose precision is used.
            non_local: whether the network's non-local modules take part.
        """
        found = {}
        for name, (sigma, degraded) in self._levels.items():
            scale = self._clean.shape[-1] // degraded.shape[-1]
            restore: Callable[[Tensor], Tensor] = network.with_scale(scale)
            if not non_local:
                mode = TrainingMode(non_local=False)
                restore = network.with_scale(scale).for_training(mode)
            with torch.no_grad(), fabric.autocast():
                inputs = (network.input_for(x, sigma / 255) for x in degraded.split(_AT_ONCE))
                restored = torch.cat([restore(x).float() for x in inputs])
            found[name] = self._mean_psnr(restored, scale)
            self._degraded, self._restored = enlarge(degraded, scale), restored
        return found

    def _mean_psnr(self, restored: Tensor, scale: int) -> float:
        """In dB; of what was enlarged, that of the luminance without a border, as in tables."""
        clean, border = self._clean, 0
        if scale > 1:
            border = scale
            restored, clean = (_luminance(x) for x in (_rounded(restored), clean.float()))
        each = metrics.psnr(restored, clean, border=border, quantize=True)
        return float(each.clamp(max=_EXACT).mean())

    def save_picture(self, path: Path) -> None:
        """Writes degraded, restored and clean crops side by side, an image per row."""
        import PIL.Image

        columns = (_rounded(self._degraded), _rounded(self._restored), self._clean)
        rows = torch.cat([column[:_SHOWN] for column in columns], dim=3)  # n C S 3S
        pixels = rows.permute(0, 2, 3, 1).flatten(0, 1).squeeze(2)  # nS 3S (C)
        picture: npt.NDArray[np.uint8] = pixels.to(torch.uint8).cpu().numpy()
        PIL.Image.fromarray(picture).save(path)


def _crops(wanted: Data, files: list[Path]) -> dict[str, datasets.Pixels]:
    """The centers of the first images that are large enough, by name."""
    size = wanted.crop
    if wanted.task == "sr":
        size -= size % math.lcm(*wanted.factors)  # what every factor divides
    read = run_files.reader(wanted)
    found: dict[str, datasets.Pixels] = {}
    for file in files:
        crop = datasets.center_crop(read(file), size) if size else None
        if crop is not None and len(found) < wanted.validation_images:
            found[file.stem] = crop
    if not found:
        raise TrainingError(f"no validation image has room for a crop of {size}")
    return found


def _stacked(images: list[np.ndarray], device: torch.device) -> Tensor:
    """Images [H, W] or [H, W, C] -> [N, C, H, W]."""
    stacked = torch.from_numpy(np.stack(images)).to(device)
    return stacked.unsqueeze(1) if stacked.ndim == 3 else stacked.permute(0, 3, 1, 2).contiguous()


def _luminance(image: Tensor) -> Tensor:
    """Luminance [B, 1, H, W] in [0, 1] of RGB in 0..255 by MATLAB's rgb2ycbcr; gray as it is."""
    if image.shape[1] == 1:
        return image / 255
    weights = torch.tensor(degrade.LUMINANCE, device=image.device).view(1, 3, 1, 1) / 255_000
    return (16 + (image * weights).sum(1, keepdim=True)).round() / 255


def _rounded(image: Tensor) -> Tensor:
    return (image * 255).round().clamp(0, 255)
