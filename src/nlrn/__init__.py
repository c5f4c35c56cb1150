"""Image restoration with the Non-Local Recurrent Network (Liu et al., NeurIPS 2018)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nlrn.attention_maps import explain
    from nlrn.inference.engine import restore
    from nlrn.models.nlrn import NLRN, NLRNConfig, NonLocal2d, NonLocalBlock2d
    from nlrn.noise import estimate_sigma
    from nlrn.restoration.denoise import Settings, denoise
    from nlrn.restoration.upscale import upscale

__version__ = "0.1.0"
__all__ = [
    "NLRN",
    "NLRNConfig",
    "NonLocal2d",
    "NonLocalBlock2d",
    "Settings",
    "denoise",
    "estimate_sigma",
    "explain",
    "restore",
    "upscale",
]

# Looked up on first use, so that `import nlrn` and `nlrn --help` load no torch.
_HOME = {
    "NLRN": "models.nlrn",
    "NLRNConfig": "models.nlrn",
    "NonLocal2d": "models.nlrn",
    "NonLocalBlock2d": "models.nlrn",
    "Settings": "restoration.denoise",
    "denoise": "restoration.denoise",
    "upscale": "restoration.upscale",
    "estimate_sigma": "noise",
    "explain": "attention_maps",
    "restore": "inference.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nlrn' has no attribute {name!r}")
    return getattr(import_module(f"nlrn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
