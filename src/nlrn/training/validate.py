"""PSNR on fixed crops of the validation images, and a picture of the first ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nlrn import datasets, degrade, metrics
from nlrn.models import Network, TrainingMode
from nlrn.training import files as run_files
from nlrn.training.batches import low_resolution
from nlrn.training.config import Config, Data
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
        if data.task == "sr":
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
        restore = network if non_local else network.for_training(TrainingMode(non_local=False))
        found = {}
        for name, (sigma, degraded) in self._levels.items():
            with torch.no_grad(), fabric.autocast():
                inputs = (network.input_for(x, sigma / 255) for x in degraded.split(_AT_ONCE))
                restored = torch.cat([restore(x).float() for x in inputs])
            each = metrics.psnr(restored, self._clean, border=0, quantize=True)
            found[name] = float(each.clamp(max=_EXACT).mean())
            self._degraded, self._restored = degraded, restored
        return found

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


def _rounded(image: Tensor) -> Tensor:
    return (image * 255).round().clamp(0, 255)
