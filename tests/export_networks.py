"""Small networks of every kind that can be exported."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from nlrn.models import Network
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.models.nlrn_residual import ResidualConfig, random_residual
from nlrn.models.nlrn_sr import SuperResolutionConfig, SuperResolutionNLRN, random_super_resolution

SMALL: dict[str, Any] = {"window": 5, "steps": 3, "channels": 8, "embed": 4}
GRID: dict[str, Any] = {**SMALL, "unshuffle": 2, "noise_map": True}
ALL_LEVELS = (0.0, 75.0)
NETWORKS: dict[str, NLRNConfig | ResidualConfig] = {
    "paper": NLRNConfig(**SMALL),
    "no-propagation": NLRNConfig(**SMALL, propagate=False),
    "every-2": NLRNConfig(**SMALL, non_local_every=2),
    "untied": NLRNConfig(**SMALL, tied=False),
    "shared-norm": NLRNConfig(**SMALL, norm_per_state=False),
    "plain": NLRNConfig(**SMALL, non_local_every=0),
    "circular": NLRNConfig(**SMALL, border="circular"),
    "symmetric": NLRNConfig(**SMALL, affinity="symmetric_embedded_gaussian"),
    "gaussian": NLRNConfig(**SMALL, affinity="gaussian"),
    "wide": NLRNConfig(**{**SMALL, "window": 33}),
    "grid": NLRNConfig(**GRID),
    "grid-4": NLRNConfig(**{**GRID, "unshuffle": 4}, in_channels=3, out_channels=3),
    "map": NLRNConfig(**{**GRID, "unshuffle": 1}),
    "residual": ResidualConfig(**SMALL),
    "residual-rgb": ResidualConfig(**SMALL, in_channels=3, embed_limit=2.0),
    "residual-cells": ResidualConfig(**{**SMALL, "steps": 4}, cells=2, non_local_every=2),
}


def network(kind: str = "residual-rgb", **card: Any) -> Network:
    """A network whose result depends visibly on all of its parts."""
    config = NETWORKS[kind]
    is_residual = isinstance(config, ResidualConfig)
    made: Any = random_residual(config) if is_residual else random_network(config)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(made.conv_out.weight, std=0.1, generator=generator)
    levels = {"sigma_range": ALL_LEVELS} if made.takes_noise_map else {"sigma": 25.0}
    made.card = dataclasses.replace(made.card, task="denoise", **(levels | card))
    return made


def upscaler(scale: int = 2, **shape: Any) -> SuperResolutionNLRN:
    """A network that enlarges, for one of its factors."""
    made = random_super_resolution(SuperResolutionConfig(**(SMALL | shape))).with_scale(scale)
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(made.tail.weight, std=0.1, generator=generator)
    return made
