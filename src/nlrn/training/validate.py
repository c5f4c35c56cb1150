"""PSNR on fixed crops of the validation images, and a picture of the first ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nlrn import data, degrade
from nlrn.model import NLRN
from nlrn.training.config import Config, TrainingError

_AT_ONCE = 8  # crops in a batch
_SHOWN = 4  # crops in the picture
_NOISE_SEED = 0  # the same noise in every run, so that runs can be compared


class Validation:
    """Noisy centre crops, and what a network makes of them."""

    def __init__(self, config: Config, root: Path, device: torch.device) -> None:
        size, wanted = config.data.crop, config.data.validation_images
        names: list[str] = []
        crops: list[data.Gray] = []
        for file in data.training_files(config.data.validation, root):
            crop = data.centre_crop(data.read_gray(file), size)
            if crop is not None and len(crops) < wanted:
                names.append(file.stem)
                crops.append(crop)
        if not crops:
            name = config.data.validation
            raise TrainingError(f"no image of {name!r} has room for a crop of {size}")
        self._clean = torch.from_numpy(np.stack(crops)).to(device).unsqueeze(1)  # N 1 S S, uint8
        noises = [degrade.standard_noise(_NOISE_SEED, name, (size, size)) for name in names]
        noise = np.stack(noises).astype(np.float32)
        sigma = config.data.sigma / 255
        self._noisy = self._clean / 255 + torch.from_numpy(noise).to(device).unsqueeze(1) * sigma
        self._restored = self._noisy

    def psnr(self, model: NLRN, fabric: Any) -> float:
        """Mean PSNR of the restored crops, clipped and rounded to 0..255."""
        with torch.no_grad(), fabric.autocast():
            parts = [model(part).float() for part in self._noisy.split(_AT_ONCE)]
        self._restored = torch.cat(parts)
        error = _rounded(self._restored).double() - self._clean.double()
        mse = error.square().mean((1, 2, 3)).clamp(min=1e-10)
        return float((10 * torch.log10(255**2 / mse)).mean())

    def save_picture(self, path: Path) -> None:
        """Writes noisy, restored and clean crops side by side, an image per row."""
        import PIL.Image

        columns = (_rounded(self._noisy), _rounded(self._restored), self._clean)
        rows = torch.cat([column[:_SHOWN] for column in columns], dim=3)  # n 1 S 3S
        picture: npt.NDArray[np.uint8] = rows.flatten(0, 2).to(torch.uint8).cpu().numpy()
        PIL.Image.fromarray(picture).save(path)


def _rounded(image: Tensor) -> Tensor:
    return (image * 255).round().clamp(0, 255)
