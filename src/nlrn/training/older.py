"""Checkpoints of earlier versions in the words of today; nothing else knows the old ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nlrn.models import ARCHITECTURES
from nlrn.training.config_tables import Data, Optimizer
from nlrn.training.state import NORMS_KEPT

_RENAMED = {
    "average": "ema_model",
    "machine": "runtime",
    "balance": "loss_balance",
    "repeating": "self_similar_fraction",
    "seen": "training_sets",
}


def translate_config(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored config with today's keys, and what the missing ones were before they were there."""
    config = _rename(stored)
    model = {"architecture": "nlrn"} | config["model"]
    default = ARCHITECTURES[model["architecture"]].config_class()
    data = _rename(config["data"])
    if isinstance(data["train"], str):
        data["train"] = [data["train"]]
    return config | {
        "model": asdict(default) | model,
        "data": _as_json(Data()) | data,
        "optimizer": _as_json(Optimizer()) | _rename(config.get("optimizer", {})),
    }


def translate_progress(stored: dict[str, Any]) -> dict[str, Any]:
    """Where a stored run stands, with today's keys."""
    return _rename(stored)


def translate_tensors(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors under today's names."""
    tensors = {"grad_norms": torch.full((NORMS_KEPT,), torch.inf)}
    for name, tensor in stored.items():
        first, dot, rest = name.partition(".")
        tensors[_RENAMED.get(first, first) + dot + rest] = tensor
    return tensors


def _rename(table: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(key, key): value for key, value in table.items()}


def _as_json(table: Any) -> dict[str, Any]:
    """The fields as they come back from a file: lists, where they were tuples."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(table)))
    return values
