"""How far a run is, and the learning rate that belongs there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nlrn.training.config_tables import Stage

RATE_FACTOR = 0.7  # on the learning rate each time a run has diverged
HALVED_AT = (0.2, 0.4, 0.6, 0.8, 0.9)  # of the stage, as in the authors' 500,000 steps


@dataclass
class Progress:
    """Where a run stands; everything in it is stored in the checkpoint.

    Attributes:
        step: steps done in the whole run, which is also the position in the data.
        stage: index of the present stage.
        stage_step: steps done in it.
        stage_seconds: time its steps have taken, over all interruptions.
        seconds: time of the run in all, with everything, over all interruptions.
        psnr: of the last validation.
        start_from: the weight it began with, empty for none.
        training_sets: image sets that the network or one it began with was trained on.
        rollbacks: how often the stage has gone back to an earlier state.
    """

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    stage_seconds: float = 0.0
    seconds: float = 0.0
    psnr: float | None = None
    start_from: str = ""
    training_sets: list[str] = field(default_factory=list)
    rollbacks: int = 0

    def next_stage(self) -> None:
        self.stage, self.stage_step, self.stage_seconds = self.stage + 1, 0, 0.0
        self.rollbacks = 0


def fraction_done(stage: Stage, progress: Progress) -> float:
    """How much of the stage is over, 0 to 1."""
    if stage.steps:
        return min(1.0, progress.stage_step / stage.steps)
    return min(1.0, progress.stage_seconds / (60 * stage.minutes))


def learning_rate(stage: Stage, progress: Progress) -> float:
    """The rate of the stage's next step."""
    done = fraction_done(stage, progress)
    if stage.schedule == "cosine":
        fallen = max(0.0, (done - stage.hold) / (1 - stage.hold))
        rate = stage.lr_end + (stage.lr - stage.lr_end) * 0.5 * (1 + math.cos(math.pi * fallen))
    elif stage.schedule == "halved":
        rate = stage.lr * 0.5 ** sum(done >= at for at in HALVED_AT)
    else:
        rate = stage.lr
    rate *= RATE_FACTOR**progress.rollbacks
    return rate * min(1.0, (progress.stage_step + 1) / (stage.warmup + 1))


def ema_alpha(decay: float, step: int) -> float:
    """Weight of the new value in the moving average; young averages follow faster."""
    return 1 - min(decay, (1 + step) / (10 + step))
