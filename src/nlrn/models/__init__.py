"""The networks, by the name of their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nlrn import weights
from nlrn.models.base import Network
from nlrn.models.nlrn import NLRN, NLRNConfig
from nlrn.weights.card import ModelCard

# name -> (class of the config, class of the network)
ARCHITECTURES: dict[str, tuple[Any, Any]] = {"nlrn": (NLRNConfig, NLRN)}


def _classes(architecture: str) -> tuple[Any, Any]:
    """The classes of config and network of this name; an unknown name is an error naming it."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture must be one of {known}, got {architecture!r}")
    return ARCHITECTURES[architecture]


def build(architecture: str, config: Mapping[str, Any]) -> Network:
    """A fresh network of this architecture with these values of its config."""
    config_class, network_class = _classes(architecture)
    network: Network = network_class(config_class.from_dict(dict(config)))
    return network


def load(name_or_path: str | Path) -> Network:
    """The network of a weight in the package, or of a file that `save_pretrained` wrote."""
    card = ModelCard.from_metadata(weights.load(name_or_path).notes)
    _, network_class = _classes(card.architecture)
    network: Network = network_class.from_pretrained(name_or_path)
    return network
