"""What training changes: the network, the average of its weights, optimizers; and its stages."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nlrn import models
from nlrn.errors import one_line
from nlrn.models import Network
from nlrn.models.nlrn_residual import ResidualNLRN, gray_weights
from nlrn.models.recurrent import RecurrentNetwork, spread_cells
from nlrn.training.config import Config
from nlrn.training.config_tables import Stage
from nlrn.training.muon import Muon
from nlrn.training.parsing import TrainingError

NORMS_KEPT = 100  # gradient norms whose median says what is usual


@dataclass
class TrainState:
    """The tensors that training changes.

    Attributes:
        model: the network that is trained.
        ema_model: moving average of its weights; what is validated and exported.
        optimizers: each for some of the model's parameters.
        grad_norms: norms of the last gradients of the stage, the newest at the end [100];
            infinite where there were none yet.
    """

    model: Network
    ema_model: Network
    optimizers: tuple[torch.optim.Optimizer, ...]
    grad_norms: Tensor


def make(config: Config, device: torch.device, *, processes: int = 1) -> TrainState:
    """A fresh state, or one that starts from the weights the config names."""
    torch.manual_seed(config.seed)
    model = config.network()
    if config.start_from:
        _start_from(model, config.start_from)
    ema_model = copy.deepcopy(model).requires_grad_(False).eval().to(device)
    if processes > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device)
    if device.type == "cuda":
        # Half-precision convolutions want the channels of a pixel side by side.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        ema_model = ema_model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    norms = torch.full((NORMS_KEPT,), torch.inf, device=device)
    return TrainState(model, ema_model, _optimizers(model, config, device), norms)


def _optimizers(
    model: Network, config: Config, device: torch.device
) -> tuple[torch.optim.Optimizer, ...]:
    cuda = device.type == "cuda"
    # On a GPU the rate is a tensor, so that a recorded step can be replayed with another one.
    rate = torch.zeros((), device=device) if cuda else 0.0
    parameters = [p for p in model.parameters() if p.requires_grad]
    if config.optimizer.method == "adam":
        return (torch.optim.Adam(parameters, lr=rate, fused=cuda, capturable=cuda),)
    matrices = model.matrices()
    if not matrices:
        raise TrainingError(f"method muon is for matrices, {config.architecture!r} names none")
    known = {id(matrix) for matrix in matrices}
    others = [p for p in parameters if id(p) not in known]
    adam = torch.optim.Adam(others, lr=rate, fused=cuda, capturable=cuda)
    rate = rate.clone() if isinstance(rate, Tensor) else rate
    given = config.optimizer
    muon = Muon(matrices, lr=rate, momentum=given.momentum, weight_decay=given.weight_decay)
    return muon, adam


def _start_from(model: Network, name: str) -> None:
    """Takes over all weights; border and the like may differ, shapes may not.

    Except for color, out of which a gray network can begin, and for more sets of weights.
    """
    other = models.load(name)
    weights = other.state_dict()
    if isinstance(other, ResidualNLRN) and model.in_channels < other.in_channels:
        weights = gray_weights(other)
    elif isinstance(other, RecurrentNetwork) and isinstance(model, RecurrentNetwork):
        before, after = other.config, model.config
        if after.steps == before.steps and after.cells % before.cells == 0:
            weights = spread_cells(other, after.cells)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = one_line(error)
        raise TrainingError(f"{name}: does not fit the model of this config ({reason})") from error


def enter_stage(state: TrainState, stage: Stage, *, is_new: bool) -> None:
    """Sets batch norm up for a stage, and forgets what gradients were like before it.

    Args:
        state: of the run.
        stage: to enter.
        is_new: whether the stage begins here; otherwise a resumed run goes on in it.
    """
    if is_new:
        state.grad_norms.fill_(torch.inf)
    if stage.freeze_norm and is_new:
        _take_statistics(state.model, state.ema_model)
    set_mode(state.model, freeze_norm=stage.freeze_norm)


@torch.no_grad()
def _take_statistics(model: Network, ema_model: Network) -> None:
    """Batch-norm statistics of the average: over a thousand batches, where its own are over ten."""
    averaged = dict(ema_model.named_buffers())
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(averaged[name])


def set_mode(model: nn.Module, *, freeze_norm: bool) -> None:
    """Training mode; frozen batch norms use their statistics and leave them alone."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train(not freeze_norm)
