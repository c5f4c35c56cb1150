"""Image restoration with the Non-Local Recurrent Network (Liu et al., NeurIPS 2018)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nlrn.threads import wait_politely

if TYPE_CHECKING:
    from nlrn.attention_maps import explain as explain
    from nlrn.inference import Engine as Engine
    from nlrn.inference import Settings as Settings
    from nlrn.models.nlrn import NLRN as NLRN
    from nlrn.models.nlrn import NLRNConfig as NLRNConfig
    from nlrn.models.nlrn import NonLocal2d as NonLocal2d
    from nlrn.models.nlrn import NonLocalBlock2d as NonLocalBlock2d
    from nlrn.noise import estimate_noise as estimate_noise
    from nlrn.noise import estimate_sigma as estimate_sigma
    from nlrn.restoration import ClassicDenoiser as ClassicDenoiser
    from nlrn.restoration import Denoiser as Denoiser
    from nlrn.restoration import Upscaler as Upscaler
    from nlrn.restoration import denoise as denoise
    from nlrn.restoration import upscale as upscale
    from nlrn.weights import ModelCard as ModelCard
    from nlrn.weights import list_models as list_models

__version__ = "0.1.0"

# Looked up on first use, so that `import nlrn` and `nlrn --help` load no torch.
_HOME = {
    "ClassicDenoiser": "restoration",
    "Denoiser": "restoration",
    "Engine": "inference",
    "ModelCard": "weights",
    "NLRN": "models.nlrn",
    "NLRNConfig": "models.nlrn",
    "NonLocal2d": "models.nlrn",
    "NonLocalBlock2d": "models.nlrn",
    "Settings": "inference",
    "Upscaler": "restoration",
    "denoise": "restoration",
    "estimate_noise": "noise",
    "estimate_sigma": "noise",
    "explain": "attention_maps",
    "list_models": "weights",
    "upscale": "restoration",
}
__all__ = [*_HOME]

wait_politely()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nlrn' has no attribute {name!r}")
    return getattr(import_module(f"nlrn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
