"""Facts about networks for people: what `nlrn info` and `nlrn models` print."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from nlrn import models, weights
from nlrn.models.nlrn import CONFIGS, NLRN


def network(name: str) -> dict[str, Any]:
    """Counts, settings and card of a named configuration, a weight of the package, or a file."""
    if name in CONFIGS:
        model: models.Network = NLRN(CONFIGS[name])
        origin = "configuration, without weights"
    elif name in models.ARCHITECTURES:
        model, origin = models.build(name, {}), "architecture, without weights"
    elif name in weights.manifest() or Path(name).exists():
        model, origin = models.load(name), "trained weights"
    else:
        known = ", ".join([*weights.manifest(), *CONFIGS, *models.ARCHITECTURES])
        raise ValueError(f"unknown network {name!r}; known: {known}, or a .safetensors file")
    work = model.flop_per_pixel
    return {
        "name": name,
        "origin": origin,
        "architecture": model.architecture,
        **model.counts(),
        "flop_per_pixel": int(work) if work == int(work) else work,
        "exact_halo": model.halo,
        **({"cell": f"{model.multiple} x {model.multiple} pixels"} if model.multiple > 1 else {}),
        **asdict(model.config),
        **{f"card_{key}": value for key, value in model.card.to_dict().items()},
    }


def everything() -> dict[str, list[dict[str, Any]]]:
    """All weights and all configurations."""
    configurations = [
        {"name": name, "parameters": NLRN(config).convolution_parameters}
        for name, config in CONFIGS.items()
    ]
    cards = [asdict(card) for card in weights.list_models()]
    return {"weights": cards, "configurations": configurations}


def architectures() -> list[dict[str, Any]]:
    """All networks in their full size, with the papers they come from."""
    found = []
    for name, network in models.ARCHITECTURES.items():
        with torch.device("meta"):
            model = models.build(name, {})
        found.append(
            {
                "name": name,
                "parameters": sum(p.numel() for p in model.parameters()),
                "flop_per_pixel": model.flop_per_pixel,
                "paper": network.paper,
            }
        )
    return found
