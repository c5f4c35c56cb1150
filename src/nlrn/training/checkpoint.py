"""The state of a run in one safetensors file: tensors, and JSON in the header; no pickles."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from nlrn import atomic
from nlrn.datasets import TRAINING_SETS
from nlrn.errors import one_line
from nlrn.training import older
from nlrn.training.config import Config
from nlrn.training.config_tables import Stage
from nlrn.training.parsing import TrainingError
from nlrn.training.schedule import Progress
from nlrn.training.state import TrainState

NAME = "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"
FORMAT = "nlrn-checkpoint-1"


class CheckpointError(TrainingError):
    """A checkpoint that is missing, torn or of another run; the message is one line."""


def save(folder: Path, state: TrainState, progress: Progress, config: Config) -> None:
    """Writes the checkpoint, whole or not at all, and keeps the last one."""
    tensors = _tensors(state)
    metadata = {
        "format": FORMAT,
        "progress": json.dumps(asdict(progress)),
        "config": json.dumps(config.to_dict()),
        "sha256": _digest(tensors),
    }
    content = safetensors.torch.save(tensors, metadata)
    try:
        atomic.write_bytes(folder / NAME, content, previous=folder / PREVIOUS)
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
        stored = older.translate_config(json.loads(metadata["config"]))
        _check_config(folder / name, stored, config)
        _put(state, older.translate_tensors(tensors), folder / name)
        progress = Progress(**older.translate_progress(json.loads(metadata["progress"])))
        _take_up_stages(progress, stored["stages"], config.stages)
        return progress
    raise CheckpointError("nothing to resume: " + "; ".join(problems))


def is_finished(folder: Path, config: Config) -> bool:
    """Whether the run in a folder has done all stages of its config."""
    _, metadata = read(folder / NAME)
    return int(json.loads(metadata["progress"])["stage"]) >= len(config.stages)


def _take_up_stages(
    progress: Progress, before: list[dict[str, Any]], stages: tuple[Stage, ...]
) -> None:
    """Goes on with the last stage of a finished run if it is longer now; says what is ignored."""
    for number, (old, stage) in enumerate(zip(before, stages, strict=False)):
        now = json.loads(json.dumps(asdict(stage)))  # as the file has it, lists for tuples
        changed = old != {name: value for name, value in now.items() if name in old}
        if not changed or number >= progress.stage:
            continue
        is_last = number + 1 == progress.stage == len(before)
        steps, minutes = old.get("steps", 0), old.get("minutes", 0.0)
        if is_last and (stage.steps > steps > 0 or stage.minutes > minutes > 0):
            progress.stage, progress.stage_step = number, steps or progress.step
            progress.stage_seconds = 60 * minutes
        else:
            ignored = f"stage {number + 1} is over, what changed in it has no effect"
            print(f"warning: {ignored}", file=sys.stderr, flush=True)


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
    return tensors, metadata


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
        reason = one_line(error)
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
