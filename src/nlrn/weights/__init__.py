"""Weights by name from the package, or by path: safetensors with the config in the metadata.

Knows no model: `load` gives the config as a dict, the tensors, and the notes left with them.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nlrn import atomic

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = files("nlrn.weights")
FORMAT = "nlrn-1"  # raised when the keys of the tensors change


class WeightsError(ValueError):
    """A weight that is missing, damaged or of another kind; the message is one line."""


@dataclass(frozen=True)
class Entry:
    """One line of the manifest: a weight in the package."""

    name: str
    file: str
    sha256: str
    task: str
    description: str
    data: tuple[str, ...]  # image sets that this weight or an ancestor has seen
    sigma: float | None = None
    licence: str = ""
    steps: int = 0
    gpu_minutes: float = 0
    psnr: tuple[tuple[str, float], ...] = ()  # (test set, dB)


class Weight(NamedTuple):
    """What a file holds."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    notes: dict[str, str]


@cache
def manifest() -> dict[str, Entry]:
    """The weights in the package by name."""
    table = tomllib.loads(FOLDER.joinpath("manifest.toml").read_text(encoding="utf-8"))
    return {name: _entry(name, values) for name, values in table.get("weights", {}).items()}


def _entry(name: str, values: dict[str, Any]) -> Entry:
    psnr = tuple(values.pop("psnr", {}).items())
    return Entry(name=name, data=tuple(values.pop("data")), psnr=psnr, **values)


def load(name_or_path: str | Path) -> Weight:
    """Config and tensors of a weight in the package, checked by sha256, or of a file."""
    name = str(name_or_path)
    if name in manifest():
        entry = manifest()[name]
        content = FOLDER.joinpath(entry.file).read_bytes()
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise WeightsError(f"{entry.file}: sha256 differs from the manifest; reinstall nlrn")
        return _decode(content, entry.file)
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(manifest())
        raise WeightsError(f"{name}: neither a file nor a model of the package ({known})")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror}") from error
    return _decode(content, str(path))


def _decode(content: bytes, name: str) -> Weight:
    import safetensors
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        config = json.loads(metadata["config"])
    except (safetensors.SafetensorError, ValueError) as error:
        raise WeightsError(f"{name}: not a safetensors file ({error})") from error
    except KeyError as error:
        raise WeightsError(f"{name}: has no nlrn config in its metadata") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{name}: its config is no table of names and values")
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{name}: format {metadata.get('format')!r}, expected {FORMAT!r}")
    notes = {key: value for key, value in metadata.items() if key not in ("config", "format")}
    return Weight(config, tensors, notes)


def save(
    path: str | Path, config: dict[str, Any], tensors: dict[str, Tensor], notes: dict[str, str]
) -> None:
    """Writes tensors and config into one file, whole or not at all."""
    import safetensors.torch

    metadata = notes | {"format": FORMAT, "config": json.dumps(config)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    atomic.write_bytes(Path(path), safetensors.torch.save(tensors, metadata))
