"""The way back when a run diverges: states from before, kept on the device."""

from __future__ import annotations

import math
from statistics import median

import torch
from torch import Tensor

from nlrn.training.state import TrainState

LIMIT = 3.0  # times the usual loss, beyond which a run has diverged
HEALTHY = 1.3  # times the usual loss, up to which a state is worth keeping
USUAL = 20  # readings whose median is the usual loss
EVERY = 20  # healthy readings between two states that are kept
FEWEST = 5  # readings before anything is usual
MOST = 12  # times in a stage; a run that diverges more often cannot be helped


class Rollback:
    """Keeps two states of a stage that went well, and goes back to the older one.

    Frozen batch norm lets the recurrence grow without bounds on single patches. Mostly the steps
    after that teach the network not to; sometimes every batch explodes within a few steps, and
    neither clipping nor leaving steps out brings the weights back.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._losses: list[float] = []
        self._kept: list[list[Tensor]] = []  # the older one first

    def is_needed(self, loss: float) -> bool:
        """Whether a mean loss says that the run has diverged; otherwise the state is kept."""
        usual = median(self._losses[-USUAL:]) if len(self._losses) >= FEWEST else math.inf
        if not math.isfinite(loss) or loss > LIMIT * usual:
            return True
        if loss <= HEALTHY * usual:  # a state on its way to divergence is no good
            if len(self._losses) % EVERY == 0:
                self._kept = [*self._kept[-1:], [t.clone() for t in self._tensors()]]
            self._losses.append(loss)
        return False

    @torch.no_grad()
    def back(self) -> bool:
        """Puts the older state back, in place; False if none was kept."""
        if not self._kept:
            return False
        # What optimizers have learned since a state was kept that knew nothing of it stays.
        for tensor, before in zip(self._tensors(), self._kept[0], strict=False):
            tensor.copy_(before)
        self._kept = self._kept[:1]
        return True

    def _tensors(self) -> list[Tensor]:
        """Everything that steps change; where steps are recorded, always the same memory."""
        state = self._state
        found = [*state.model.state_dict().values(), *state.ema_model.state_dict().values()]
        found.append(state.grad_norms)
        for optimizer in state.optimizers:
            for entry in optimizer.state.values():
                found += [value for value in entry.values() if isinstance(value, Tensor)]
        return found
