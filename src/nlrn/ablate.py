"""Trains the variants of the paper's ablations under one schedule, and measures them.

The schedule is a config of `nlrn.training` for the base; of a variant nothing differs but what
`nlrn.bench.ablations.VARIANTS` says. What has its row is not trained again, and a run that was
stopped goes on.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nlrn import models, training
from nlrn.bench import ablations, report
from nlrn.bench import run as runs
from nlrn.bench.ablations import SET, SIGMA, VARIANTS, AblationRow, AblationRows
from nlrn.bench.methods import MethodOptions
from nlrn.bench.tables import TABLES
from nlrn.inference import Settings
from nlrn.training import TrainingError, checkpoint
from nlrn.training.config import Config
from nlrn.training.config_tables import Stage
from nlrn.weights import LAST

# Without a softmax there is no kernel; and without embeddings scores grow to where those of the
# kernels, in bfloat16, have too few digits. The patches are small enough for all pairs of pixels.
DENSE = ("dot", "embedded-dot", "gaussian")


def config_for(schedule: Config, variant: str, seed: int) -> Config:
    """The run of a variant: the schedule with the variant's changes."""
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; variants: {', '.join(VARIANTS)}")
    runtime = schedule.runtime
    return replace(
        schedule,
        name=f"{variant}-seed{seed}",
        seed=seed,
        model=replace(schedule.model, **VARIANTS[variant]),
        runtime=replace(runtime, attention="dense") if variant in DENSE else runtime,
    )


def schedule_key(schedule: Config) -> str:
    """What tells schedules apart: all of the config but its name, the seed and the machine."""
    own = {k: v for k, v in schedule.to_dict().items() if k not in ("name", "seed", "runtime")}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]


def in_words(schedule: Config) -> str:
    """The schedule for people, in a line."""
    data, model = schedule.data, schedule.model
    stages = "; then ".join(map(_stage_in_words, schedule.stages))
    return (
        f"All trained alike on {' and '.join(data.train)} at sigma {data.sigma:g}, in sizes "
        f"{', '.join(f'{scale:g}' for scale in data.scales)}, with {schedule.optimizer.method}, "
        f"from nothing: {stages}. Base: T = {model.steps}, m = {model.channels}, "
        f"l = {model.embed}, q = {model.window}. Validation: {data.validation_images} center crops "
        f"of {data.crop} pixels of {data.validation}."
    )


def _stage_in_words(stage: Stage) -> str:
    module = f"with the module ({stage.border} border)" if stage.non_local else "without the module"
    norm = "frozen" if stage.freeze_norm else "learned"
    rate = f"lr {stage.lr:g}" + (f" to {stage.lr_end:g}" if stage.schedule == "cosine" else "")
    return (
        f"{stage.steps:,} steps {module}, batch-norm statistics {norm}, {stage.batch} patches of "
        f"{stage.patch} x {stage.patch}, {rate} ({stage.schedule})"
    )


def ablate(
    schedule: Config,
    variants: Sequence[str],
    file: Path,
    *,
    seed: int = 0,
    root: Path,
    out: Path,
    dtype: str = "fp32",
    time_budget_seconds: float | None = None,
) -> AblationRows:
    """Trains and measures variants until the time is over; returns all rows of the file.

    Args:
        schedule: of the base.
        variants: names of `VARIANTS`, in the order in which they are wanted.
        file: where rows are kept; what has a row is passed over.
        seed: of the weights' start and the patches.
        root: the data root.
        out: folder for a folder of each run.
        dtype: to measure in; what is trained with scores in float32 is measured with such.
        time_budget_seconds: no training beyond it; measuring comes on top.

    Raises:
        ValueError: if a variant is unknown or the schedule has no number of steps; at the end, if
            a run could not go on.
    """
    if not all(stage.steps for stage in schedule.stages):
        raise ValueError("the stages of a schedule must have steps, got minutes")
    key = schedule_key(schedule)
    found = ablations.read([file]) if file.exists() else AblationRows()
    known = {row.key for row in found.rows}
    configs = {config_for(schedule, variant, seed): variant for variant in variants}

    def measure(config: Config, folder: Path) -> None:
        nonlocal found
        variant = configs[config]
        row = _measure(config, variant, key, root, folder, "fp32" if variant in DENSE else dtype)
        found = found.joined(AblationRows({key: in_words(schedule)}, (row,)))
        ablations.write(file, found)

    wanted = [config for config, variant in configs.items() if (key, variant, seed) not in known]
    train_each(wanted, measure, root, out, time_budget_seconds)
    return found


def train_each(
    configs: Iterable[Config],
    measure: Callable[[Config, Path], None],
    root: Path,
    out: Path,
    time_budget_seconds: float | None,
) -> None:
    """Trains one run after the other until the time is over, and measures those that are done.

    Args:
        configs: of the runs; one that was stopped goes on.
        measure: called with a run's config and folder when it is trained.
        root: the data root.
        out: folder for a folder of each run, by name.
        time_budget_seconds: no training beyond it; measuring comes on top.

    Raises:
        ValueError: at the end, if a run could not go on.
    """
    begun, problems = time.monotonic(), []
    for config in configs:
        left = None
        if time_budget_seconds is not None:
            left = begun + time_budget_seconds - time.monotonic()
            if left <= 0:
                continue
        folder = out / config.name
        try:
            if is_trained(config, root, folder, left):
                measure(config, folder)
        except TrainingError as error:  # the others may do better
            problems.append(f"{config.name}: {error}")
    if problems:
        raise ValueError("; ".join(problems))


def is_trained(config: Config, root: Path, folder: Path, seconds: float | None) -> bool:
    """Trains a run, or goes on with it; whether all of its stages are done."""
    training.run(
        config,
        resume=(folder / checkpoint.NAME).exists(),
        time_budget_seconds=seconds,
        data_root=root,
        out=folder,
    )
    return (folder / LAST).exists() and checkpoint.is_finished(folder, config)


def _measure(
    config: Config, variant: str, key: str, root: Path, folder: Path, dtype: str
) -> AblationRow:
    """The row of a variant whose weights lie in the folder."""
    card = models.load(folder / LAST).card
    settings = Settings(dtype=dtype, device=config.runtime.accelerator)
    options = MethodOptions(weight=str(folder / LAST), settings=settings)
    cells, _ = runs.plan(
        TABLES["denoise-bsd400"], root, options, sets=[SET], levels=[SIGMA], wanted=["NLRN"]
    )
    gc.collect()  # of what training recorded on a GPU
    (mean,) = report.means(runs.run(cells, folder / "rows"))
    return AblationRow(
        variant=variant,
        seed=config.seed,
        schedule=key,
        steps=card.steps,
        minutes=card.gpu_minutes,
        device=mean.device,
        precision=mean.precision,
        validation_psnr=card.validation_psnr or math.nan,
        test_psnr=mean.psnr,
    )
