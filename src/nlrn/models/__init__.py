"""Networks behind one contract: `base.Network` says what they promise, one file has each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nlrn import weights
from nlrn.models.base import AttentionLayout, Network, TrainingMode
from nlrn.models.conditioning import Conditioned
from nlrn.models.dncnn import DnCNN
from nlrn.models.drcn import DRCN
from nlrn.models.drrn import DRRN
from nlrn.models.lapsrn import LapSRN
from nlrn.models.memnet import MemNet
from nlrn.models.nlnet import NLNet
from nlrn.models.nlrn import NLRN
from nlrn.models.nlrn_residual import ResidualNLRN
from nlrn.models.nlrn_sr import SuperResolutionNLRN
from nlrn.models.red import RED
from nlrn.models.srcnn import SRCNN
from nlrn.models.tnrd import TNRD
from nlrn.models.vdsr import VDSR
from nlrn.weights import ModelCard, WeightsError

__all__ = [
    "ARCHITECTURES",
    "AttentionLayout",
    "Conditioned",
    "ModelCard",
    "Network",
    "TrainingMode",
    "build",
    "load",
]

# By the name that a weight's card has for it.
ARCHITECTURES: dict[str, type[Network]] = {
    network.architecture: network for network in (NLRN, ResidualNLRN, SuperResolutionNLRN)
}
# Those of others, that the paper compares with: for denoising, and for super-resolution.
RIVALS = (DnCNN, RED, MemNet, TNRD, NLNet, SRCNN, VDSR, DRCN, LapSRN, DRRN)
ARCHITECTURES |= {network.architecture: network for network in RIVALS}


def build(architecture: str, config: dict[str, Any]) -> Network:
    """An untrained network of this architecture with these fields of its config."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture must be one of {known}, got {architecture!r}")
    network = ARCHITECTURES[architecture]
    return network(network.config_class.from_dict(config))


def load(name_or_path: str | Path) -> Network:
    """The network of a weight in the package, or of a file, whatever its architecture."""
    weight = weights.load(name_or_path)
    architecture = weight.card.architecture
    if architecture not in ARCHITECTURES:
        raise WeightsError(f"{name_or_path}: unknown architecture {architecture!r}")
    return ARCHITECTURES[architecture].from_weight(weight, str(name_or_path))
