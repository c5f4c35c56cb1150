"""Facts about networks for people: what `nlrn info` and `nlrn models` print."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nlrn import weights
from nlrn.inference.tiles import exact_halo
from nlrn.models.nlrn import CONFIGS, NLRN


def network(name: str) -> dict[str, Any]:
    """Counts and settings of a named configuration, a weight of the package, or a file."""
    if name in CONFIGS:
        model, origin = NLRN(CONFIGS[name]), "configuration, without weights"
    elif name in weights.manifest() or Path(name).is_file():
        model, origin = NLRN.from_pretrained(name), "trained weights"
    else:
        known = ", ".join([*weights.manifest(), *CONFIGS])
        raise ValueError(f"unknown network {name!r}; known: {known}, or a .safetensors file")
    config = model.config
    return {
        "name": name,
        "origin": origin,
        "convolution_parameters": model.convolution_parameters,
        "batch_norm_parameters": model.norm_parameters,
        "effective_depth": config.effective_depth,
        "flop_per_pixel": config.flop_per_pixel,
        "exact_halo": exact_halo(config),
        **asdict(config),
        **{f"note_{key}": value for key, value in model.notes.items()},
    }


def everything() -> dict[str, list[dict[str, Any]]]:
    """All weights and all configurations."""
    configurations = [
        {"name": name, "parameters": NLRN(config).convolution_parameters}
        for name, config in CONFIGS.items()
    ]
    return {
        "weights": [asdict(entry) for entry in weights.manifest().values()],
        "configurations": configurations,
    }
