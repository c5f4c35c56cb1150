"""What learns: the network, the average of its weights, optimizers; and how a stage changes it."""

from __future__ import annotations

import copy
import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nlrn.models.nlrn import NLRN, NonLocal2d
from nlrn.ops import AFFINITIES, AttentionSpec, attend, unsupported
from nlrn.training.config import Config, Stage, TrainingError
from nlrn.training.muon import Muon


@dataclass
class Learner:
    """The tensors that training changes.

    Attributes:
        model: the network that is trained.
        average: moving average of its weights; what is validated and exported.
        optimizers: each for some of the model's parameters.
    """

    model: NLRN
    average: NLRN
    optimizers: tuple[torch.optim.Optimizer, ...]


def make(config: Config, device: torch.device, *, processes: int = 1) -> Learner:
    """A fresh learner, or one that starts from the weights the config names."""
    torch.manual_seed(config.seed)
    model = NLRN(config.model)
    if config.start_from:
        _start_from(model, config.start_from)
    average = copy.deepcopy(model).requires_grad_(False).eval().to(device)
    if processes > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device)
    if device.type == "cuda":
        # Half-precision convolutions want the channels of a pixel side by side.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        average = average.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Learner(model, average, _optimizers(model, config, device))


def _optimizers(
    model: NLRN, config: Config, device: torch.device
) -> tuple[torch.optim.Optimizer, ...]:
    cuda = device.type == "cuda"
    # On a GPU the rate is a tensor, so that a recorded step can be replayed with another one.
    rate = torch.zeros((), device=device) if cuda else 0.0
    parameters = [p for p in model.parameters() if p.requires_grad]
    if config.optimizer.method == "adam":
        return (torch.optim.Adam(parameters, lr=rate, fused=cuda, capturable=cuda),)
    # The convolutions from and to the image are filters, not matrices of channels.
    filters = (model.conv_in.weight, model.conv_out.weight)
    matrix = [p.ndim > 1 and not any(p is f for f in filters) for p in parameters]
    matrices, others = ([p for p, m in zip(parameters, matrix, strict=True) if m is kind]
                        for kind in (True, False))  # fmt: skip
    adam = torch.optim.Adam(others, lr=rate, fused=cuda, capturable=cuda)
    rate = rate.clone() if isinstance(rate, Tensor) else rate
    given = config.optimizer
    muon = Muon(matrices, lr=rate, momentum=given.momentum, weight_decay=given.weight_decay)
    return muon, adam


def _start_from(model: NLRN, name: str) -> None:
    """Takes over all weights; border and the like may differ, shapes may not."""
    other = NLRN.from_pretrained(name)
    try:
        model.load_state_dict(other.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise TrainingError(f"{name}: does not fit the model of this config ({reason})") from error


def enter_stage(learner: Learner, stage: Stage, config: Config, *, is_new: bool) -> str:
    """Sets the network up for a stage: modules on or off, border, operator, batch norm.

    Args:
        learner: whose network it is.
        stage: to enter.
        config: of the run.
        is_new: whether the stage begins here; otherwise a resumed run goes on in it.

    Returns:
        The operator of the non-local modules, in words.
    """
    model, average = learner.model, learner.average
    every = config.model.non_local_every if stage.non_local else 0
    # A view with the same parameters. Off is the same function as on with g = 0, only faster.
    model.config = dataclasses.replace(model.config, non_local_every=every)
    average.config = dataclasses.replace(average.config, non_local_every=every)
    name = _operator_name(model, config) if every else "none"
    for module in model.modules():
        if isinstance(module, NonLocal2d) and every:
            module.border = stage.border
            module.operator = _operator(name)
    if stage.freeze_norm and is_new:
        _take_statistics(model, average)
    set_mode(model, freeze_norm=stage.freeze_norm)
    return name


def _operator_name(model: NLRN, config: Config) -> str:
    """What computes the attention; "auto" is dense on a GPU for which there are no kernels."""
    shape = config.model
    compared = shape.embed if AFFINITIES[shape.affinity].embedded != "none" else shape.channels
    probe = next(model.parameters()).new_zeros(1, compared, 1, 1, dtype=torch.bfloat16)
    spec = AttentionSpec(shape.window, shape.affinity)
    fused = unsupported("triton", probe, spec, shape.channels) is None
    dense = config.machine.attention == "dense" or (
        config.machine.attention == "auto"
        and probe.is_cuda
        and not fused
        and config.model.affinity == "embedded_gaussian"
    )
    return "dense" if dense else "fused" if fused else "blocks"


def _operator(name: str) -> Any:
    if name == "dense":
        return functools.partial(attend, backend="dense")
    # Kernels or a loop over blocks: nothing that the compiler should look into.
    return torch.compiler.disable(attend)


@torch.no_grad()
def _take_statistics(model: NLRN, average: NLRN) -> None:
    """Batch-norm statistics of the average: over a thousand batches, where its own are over ten."""
    averaged = dict(average.named_buffers())
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(averaged[name])


def set_mode(model: nn.Module, *, freeze_norm: bool) -> None:
    """Training mode; frozen batch norms use their statistics and leave them alone."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train(not freeze_norm)


def export(learner: Learner, config: Config) -> NLRN:
    """The average as a network of the full config, whatever the stage has switched off."""
    model = copy.deepcopy(learner.average)
    model.config = config.model
    return model
