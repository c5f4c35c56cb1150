"""PSNR on fixed crops of the validation images, and a picture of the first ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nlrn import datasets, degrade
from nlrn.models.nlrn import NLRN
from nlrn.training.batches import low_resolution
from nlrn.training.config import Config, Data, TrainingError

_AT_ONCE = 8  # crops in a batch
_SHOWN = 4  # crops in the picture
_NOISE_SEED = 0  # the same noise in every run, so that runs can be compared


class Validation:
    """Degraded centre crops, and what a network makes of them.

    Attributes:
        best: PSNR of the best weights that the run's folder holds.
    """

    def __init__(self, config: Config, root: Path, device: torch.device) -> None:
        self.best = -math.inf
        crops = _crops(config.data, root)
        if config.data.task == "sr":
            factors = [int(factor) for factor in config.data.factors]
            pairs = [low_resolution(crop, f, device) for crop in crops.values() for f in factors]
            clean, low = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            self._clean = torch.from_numpy(np.stack(clean)).to(device).unsqueeze(1)
            self._degraded = torch.stack(low).unsqueeze(1)
        else:
            clean = list(crops.values())
            noise = [degrade.standard_noise(_NOISE_SEED, n, c.shape) for n, c in crops.items()]
            scaled = np.stack(noise).astype(np.float32) * np.float32(config.data.sigma / 255)
            self._clean = torch.from_numpy(np.stack(clean)).to(device).unsqueeze(1)
            self._degraded = self._clean / 255 + torch.from_numpy(scaled).to(device).unsqueeze(1)
        self._restored = self._degraded

    def psnr(self, model: NLRN, fabric: Any) -> float:
        """Mean PSNR of the restored crops, clipped and rounded to 0..255."""
        with torch.no_grad(), fabric.autocast():
            parts = [model(part).float() for part in self._degraded.split(_AT_ONCE)]
        self._restored = torch.cat(parts)
        error = _rounded(self._restored).double() - self._clean.double()
        mse = error.square().mean((1, 2, 3)).clamp(min=1e-10)
        return float((10 * torch.log10(255**2 / mse)).mean())

    def save_picture(self, path: Path) -> None:
        """Writes degraded, restored and clean crops side by side, an image per row."""
        import PIL.Image

        columns = (_rounded(self._degraded), _rounded(self._restored), self._clean)
        rows = torch.cat([column[:_SHOWN] for column in columns], dim=3)  # n 1 S 3S
        picture: npt.NDArray[np.uint8] = rows.flatten(0, 2).to(torch.uint8).cpu().numpy()
        PIL.Image.fromarray(picture).save(path)


def _crops(wanted: Data, root: Path) -> dict[str, datasets.Gray]:
    """The centres of the first images that are large enough, by name."""
    size = wanted.crop
    read = datasets.read_gray
    if wanted.task == "sr":
        read = datasets.read_luminance
        size -= size % math.lcm(*map(int, wanted.factors))  # what every factor divides
    found: dict[str, datasets.Gray] = {}
    for file in datasets.training_files(wanted.validation, root):
        crop = datasets.centre_crop(read(file), size) if size else None
        if crop is not None and len(found) < wanted.validation_images:
            found[file.stem] = crop
    if not found:
        raise TrainingError(f"no image of {wanted.validation!r} has room for a crop of {size}")
    return found


def _rounded(image: Tensor) -> Tensor:
    return (image * 255).round().clamp(0, 255)
