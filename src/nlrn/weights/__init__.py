"""Weights by name from the package, or by path: safetensors with config and card in the metadata.

Knows no network: `load` gives the card, the config as a dict, and the tensors.
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
from nlrn.weights.card import ModelCard

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FORMAT", "ModelCard", "Published", "Weight", "WeightsError", "fingerprint",
           "list_models", "load", "manifest", "save"]  # fmt: skip
FOLDER = files("nlrn.weights")
BEST, LAST = "best.safetensors", "weights.safetensors"  # in the folder of a training run
SHARED, CONFIG = "model.safetensors", "config.json"  # in a folder as Hugging Face has them
FORMAT = "nlrn-1"  # raised when the keys of the tensors change


class WeightsError(ValueError):
    """A weight that is missing, damaged or of another kind; the message is one line."""


@dataclass(frozen=True)
class Published:
    """A weight in the package: its card, its file and the file's sha256."""

    card: ModelCard
    file: str
    sha256: str


class Weight(NamedTuple):
    """What a file holds."""

    card: ModelCard
    config: dict[str, Any]
    tensors: dict[str, Tensor]


@cache
def manifest() -> dict[str, Published]:
    """The weights in the package by name."""
    table = tomllib.loads(FOLDER.joinpath("manifest.toml").read_text(encoding="utf-8"))
    return {name: _published(name, values) for name, values in table.get("models", {}).items()}


def _published(name: str, values: dict[str, Any]) -> Published:
    file, sha256 = values.pop("file"), values.pop("sha256")
    return Published(ModelCard.from_dict({"name": name, **values}), file, sha256)


def list_models() -> list[ModelCard]:
    """The cards of all models in the package."""
    return [published.card for published in manifest().values()]


def load(name_or_path: str | Path) -> Weight:
    """Card, config and tensors of a weight in the package, checked by sha256, or of a file.

    For the folder of a training run it is the best weights of the run; one that `save` wrote, or
    that was downloaded from Hugging Face, holds one.
    """
    name = str(name_or_path)
    return _decode(_read(name), manifest()[name].file if name in manifest() else name)


def fingerprint(name_or_path: str | Path) -> str:
    """First 12 digits of the sha256 of a weight's tensors, whatever its card says of them."""
    content = _read(str(name_or_path))
    header = 8 + int.from_bytes(content[:8], "little")
    return hashlib.sha256(content[header:]).hexdigest()[:12]


def _read(name: str) -> bytes:
    """The file of a weight in the package, or the one at a path."""
    if name in manifest():
        entry = manifest()[name]
        content = FOLDER.joinpath(entry.file).read_bytes()
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise WeightsError(f"{entry.file}: sha256 differs from the manifest; reinstall nlrn")
        return content
    path = Path(name)
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        known = ", ".join(manifest())
        raise WeightsError(f"{name}: neither a file nor a model of the package ({known})")
    try:
        return path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror}") from error


def _in_folder(folder: Path) -> Path:
    """The weights in the folder of a training run, or in one for Hugging Face."""
    for name in (BEST, LAST, SHARED):
        if (folder / name).is_file():
            return folder / name
    here = f"{BEST} or {LAST}, which training leaves there, and without {SHARED}"
    raise WeightsError(f"{folder}: a folder without {here}")


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
    try:
        card = ModelCard.from_metadata(metadata)
    except (ValueError, TypeError) as error:
        raise WeightsError(f"{name}: {error}") from error
    return Weight(card, config, tensors)


def save(
    path: str | Path, card: ModelCard, config: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Writes tensors, config and card into one file, under a temporary name until it is whole.

    A path that has no ending, or is a folder, becomes one for Hugging Face: the file is
    model.safetensors there, beside config.json and README.md, which say the same for others.
    """
    import safetensors.torch

    path = Path(path)
    if path.is_dir() or not path.suffix:
        path.mkdir(exist_ok=True)
        described = {"model_type": card.architecture, "config": config, "card": card.to_dict()}
        atomic.write_bytes(path / CONFIG, (json.dumps(described, indent=2) + "\n").encode())
        atomic.write_bytes(path / "README.md", card.readme().encode())
        path /= SHARED
    metadata = {
        "format": FORMAT,
        "config": json.dumps(config),
        "card": json.dumps(card.to_dict()),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    atomic.write_bytes(path, safetensors.torch.save(tensors, metadata))
