"""The way back when a run diverges: states from before, kept on the device."""

from __future__ import annotations

import math
from statistics import median

import torch
from torch import Tensor

from nlrn.training.state import TrainState

LIMIT = 3.0  # times the usual loss, beyond which a run has diverged
CREEP = 1.2  # times the usual loss, beyond which the median must not rise
HEALTHY = 1.08  # times the usual loss, up to which the median says that a state is worth keeping
RECENT = 20  # readings whose median counts; the lowest one so far is the usual loss
EVERY = 20  # readings between two states that are kept
FEWEST = 5  # readings before anything is usual
MOST = 12  # times in a stage; a run that diverges more often cannot be helped


class Rollback:
    """Keeps two states of a stage that went well, and goes back to the older one.

    A recurrence that shares its weights can amplify a direction in every state. Mostly the steps
    after that teach the network not to; sometimes the loss creeps up for a thousand steps,
    gradients grow by eight orders of magnitude, and neither clipping nor leaving steps out brings
    the weights back.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._recent: list[float] = []
        self._usual = self._lowest = math.inf  # medians: of a few readings, and of RECENT alone
        self._readings = 0
        self._kept: list[list[Tensor]] = []  # the older one first

    def is_needed(self, loss: float) -> bool:
        """Whether a mean loss says that the run has diverged; otherwise the state is kept."""
        if not math.isfinite(loss) or loss > LIMIT * self._usual:
            return True
        self._recent = [*self._recent[1 - RECENT :], loss]
        now = median(self._recent) if len(self._recent) >= FEWEST else self._usual
        self._usual = min(self._usual, now)
        if len(self._recent) == RECENT:  # a few readings of a few steps are up and down
            self._lowest = min(self._lowest, now)
            if now > CREEP * self._lowest:
                return True
        if self._readings % EVERY == 0 and (now <= HEALTHY * self._usual or not self._kept):
            self._kept = [*self._kept[-1:], [t.clone() for t in self._tensors()]]
        self._readings += 1
        return False

    @torch.no_grad()
    def back(self) -> bool:
        """Puts the older state back, in place; False if none was kept."""
        if not self._kept:
            return False
        # What optimizers have learned since a state was kept that knew nothing of it stays.
        for tensor, before in zip(self._tensors(), self._kept[0], strict=False):
            tensor.copy_(before)
        self._kept, self._recent = self._kept[:1], []
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
