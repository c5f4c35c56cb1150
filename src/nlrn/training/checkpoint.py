"""The state of a run in one safetensors file: tensors, and JSON in the header; no pickles."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nlrn.datasets import TRAINING_SETS
from nlrn.models import ARCHITECTURES
from nlrn.training.config import Config, Data
from nlrn.training.parsing import TrainingError
from nlrn.training.schedule import Progress
from nlrn.training.state import NORMS_KEPT, TrainState

NAME = "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"
FORMAT = "nlrn-checkpoint-1"


class CheckpointError(TrainingError):
    """A checkpoint that is missing, torn or of another run; the message is one line."""


def save(folder: Path, state: TrainState, progress: Progress, config: Config) -> None:
    """Writes the checkpoint under a temporary name, keeps the last one, puts the new in place."""
    tensors = _tensors(state)
    metadata = {
        "format": FORMAT,
        "progress": json.dumps(asdict(progress)),
        "config": json.dumps(config.to_dict()),
        "sha256": _digest(tensors),
    }
    content = safetensors.torch.save(tensors, metadata)
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{NAME}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            if (folder / NAME).exists():
                (folder / NAME).replace(folder / PREVIOUS)
            Path(temporary).replace(folder / NAME)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{folder / NAME}: cannot be saved ({reason})") from error


def restore(folder: Path, state: TrainState, config: Config) -> Progress:
    """Puts the newest sound checkpoint of the folder into the state, says where it stands."""
    problems = []
    for name in (NAME, PREVIOUS):
        try:
            tensors, metadata = read(folder / name)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            print(f"warning: {problem}; using {name}", file=sys.stderr, flush=True)
        _check_config(folder / name, json.loads(metadata["config"]), config)
        _put(state, tensors, folder / name)
        return Progress(**json.loads(metadata["progress"]))
    raise CheckpointError("nothing to resume: " + "; ".join(problems))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a checkpoint, after a look whether it is whole."""
    try:
        content = path.read_bytes()
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: torn or no checkpoint ({error})") from error
    if metadata.get("format") != FORMAT:
        found = metadata.get("format")
        raise CheckpointError(f"{path}: not a checkpoint of this version (format {found!r})")
    if _digest(tensors) != metadata.get("sha256"):
        raise CheckpointError(f"{path}: damaged, its checksum differs")
    return _in_words_of_today(tensors, metadata)


def _in_words_of_today(
    tensors: dict[str, Tensor], metadata: dict[str, str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A checkpoint with the names, and the values of keys, that were not there when it was made."""
    renamed = {"average": "ema_model", "machine": "runtime", "balance": "loss_balance",
               "repeating": "self_similar_fraction", "seen": "training_sets"}  # fmt: skip

    def rename(table: dict[str, Any]) -> dict[str, Any]:
        return {renamed.get(key, key): value for key, value in table.items()}

    config = rename(json.loads(metadata["config"]))
    config["optimizer"] = {"method": "adam"} | rename(config.get("optimizer", {}))
    data = rename(config["data"])
    data["train"] = [data["train"]] if isinstance(data["train"], str) else data["train"]
    config["data"] = json.loads(json.dumps(asdict(Data()))) | data
    config["model"] = {"architecture": "nlrn"} | config["model"]
    config_class, _ = ARCHITECTURES[config["model"]["architecture"]]
    config["model"] = asdict(config_class()) | config["model"]
    progress = rename(json.loads(metadata["progress"]))
    named = {}
    for name, tensor in tensors.items():
        first, dot, rest = name.partition(".")
        named[renamed.get(first, first) + dot + rest] = tensor
    named.setdefault("grad_norms", torch.full((NORMS_KEPT,), torch.inf))
    texts = {"config": json.dumps(config), "progress": json.dumps(progress)}
    return named, metadata | texts


def _tensors(state: TrainState) -> dict[str, Tensor]:
    tensors = {f"model.{name}": t for name, t in state.model.state_dict().items()}
    tensors |= {f"ema_model.{name}": t for name, t in state.ema_model.state_dict().items()}
    for name, parameter in state.model.named_parameters():
        for optimizer in state.optimizers:  # nothing there where no gradient has come yet
            kind = type(optimizer).__name__.lower()
            kept = optimizer.state.get(parameter, {})
            tensors |= {f"{kind}.{key}.{name}": value for key, value in kept.items()}
    tensors["grad_norms"] = state.grad_norms
    tensors["random.cpu"] = torch.get_rng_state()  # patches and noise have no state: see batches
    return {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}


@torch.no_grad()
def _put(state: TrainState, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        state.model.load_state_dict(_part(tensors, "model."))
        state.ema_model.load_state_dict(_part(tensors, "ema_model."))
        state.grad_norms.copy_(tensors["grad_norms"])
        torch.set_rng_state(tensors["random.cpu"])
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path}: does not fit this model ({reason})") from error
    parameters = dict(state.model.named_parameters())
    for optimizer in state.optimizers:
        for key, tensor in _part(tensors, f"{type(optimizer).__name__.lower()}.").items():
            what, _, name = key.partition(".")
            parameter = parameters[name]
            if what == "step":  # Adam counts on the device only where it works there
                device = parameter.device if optimizer.defaults["fused"] else "cpu"
                optimizer.state[parameter][what] = tensor.clone().to(device)
            else:  # of the parameter's memory format too
                optimizer.state[parameter][what] = torch.empty_like(parameter).copy_(tensor)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_config(path: Path, stored: dict[str, Any], config: Config) -> None:
    """Stages and the machine may change between two runs; the rest may not."""
    given = json.loads(json.dumps(config.to_dict()))
    if config.data.is_own and not set(stored["data"]["train"]) & set(TRAINING_SETS):
        # wherever the folder is now
        stored["data"]["train"] = given["data"]["train"]
    data = ("train", "task", "channels", "sigma", "sigma_range", "factors", "full_range", "scales",
            "by_area", "self_similar_fraction", "held_out")  # fmt: skip
    parts = [("model", None), ("seed", None), ("optimizer", "method"), *(("data", p) for p in data)]
    for key, part in parts:
        was, now = stored.get(key), given[key]
        if part is not None:
            was, now = (was or {}).get(part), now[part]
        if was != now:
            what = f"[{key}]" if part is None else f"[{key}] {part}"
            raise CheckpointError(
                f"{path}: was made with another {what}; use another output folder"
            )
