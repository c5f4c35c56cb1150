"""Entry points for torch.hub: torch.hub.load(REPOSITORY, "denoiser")."""

import importlib.util
import sys
from pathlib import Path

dependencies = ["torch", "numpy", "PIL", "tifffile", "imagecodecs", "safetensors"]

if importlib.util.find_spec("nlrn") is None:  # what is installed comes first
    sys.path.insert(0, str(Path(__file__).parent / "src"))

import nlrn  # noqa: E402
from nlrn import models  # noqa: E402


def denoiser(name: str = "auto", quality: str = "balanced") -> "nlrn.Denoiser":
    """A denoiser: `denoiser(x, sigma)` for batches [B, C, H, W] in [0, 1], sigma in their units.

    Args:
        name: a model of the package, a file or a folder; "auto" chooses by the noise level.
        quality: of what "auto" chooses: "fast", "balanced" or "best".
    """
    return nlrn.Denoiser(name, quality=quality)


def upscaler(scale: float = 2.0) -> "nlrn.Upscaler":
    """An upscaler: `upscaler(x)` for batches [B, C, H, W] in [0, 1]."""
    return nlrn.Upscaler(scale)


def network(name: str) -> models.Network:
    """The network of a trained model; `nlrn.list_models` has the names."""
    return models.load(name)
