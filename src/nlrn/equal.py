"""Trains networks under one budget, and measures them.

A network's config says how; data, patches and minutes are the same for all of a task. Optimizer and
rate may be chosen by trials of half a minute, on validation images. What has its row is not trained
again, and a run that was stopped goes on.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from nlrn import models
from nlrn.ablate import train_each
from nlrn.bench import equal as tables_of_equals
from nlrn.bench import report
from nlrn.bench import run as runs
from nlrn.bench.equal import COMPARISONS, CPU_SIDE, GPU_SIDE, EqualRow, EqualRows, Trial
from nlrn.bench.methods import MethodOptions
from nlrn.bench.tables import TABLES
from nlrn.errors import warn
from nlrn.inference import Settings
from nlrn.models import Network
from nlrn.training import config as configuration
from nlrn.training.config import Config
from nlrn.weights import LAST

TRIAL_MINUTES = 0.5
RATES = {"adam": (1e-3, 3e-4), "muon": (3e-3, 1e-3)}
ABOUT = 0.05  # by which the pixels of a step may differ
MUON = {"momentum": 0.95, "weight_decay": 0.03}


def load(folder: Path, names: Sequence[str] = ()) -> list[Config]:
    """The configs of a folder, or those of these names, all under one budget for each task.

    A step has the same number of pixels in all of them, or nearly.
    """
    files = {file.stem: file for file in sorted(folder.glob("*.toml"))}
    if missing := [name for name in names if name not in files]:
        known = ", ".join(files) or "none"
        raise ValueError(f"unknown network {missing[0]!r}; in {folder}: {known}")
    configs = [configuration.load(files[name]) for name in names or files]
    for config in map(_timed, configs):
        first = next(other for other in configs if other.data.task == config.data.task)
        is_alike = math.isclose(_pixels(config), _pixels(first), rel_tol=ABOUT)
        if budget_key(config) != budget_key(first) or not is_alike:
            raise ValueError(
                f"{config.name} and {first.name} have other images, patches or minutes"
            )
    return configs


def budget_key(config: Config) -> str:
    """What tells budgets apart: the data and the minutes.

    Not the factors: a network that enlarges by itself may lack one.
    """
    data = {name: value for name, value in asdict(config.data).items() if name != "factors"}
    parts = [data, _minutes(config)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def in_words(config: Config) -> str:
    """The budget for people, in a line."""
    data = config.data
    what = f"at sigma {data.sigma:g}"
    if data.task == "sr":
        what = f"for x{', x'.join(map(str, data.factors))} in one model"
    drawn = "drawn by area" if data.by_area else "all drawn alike"
    images = " and ".join(data.train)
    return (
        f"Each trained for {_minutes(config):g} minutes, from nothing, on {images} {what}, "
        f"in sizes {', '.join(f'{scale:g}' for scale in data.scales)}, {drawn}, "
        f"about {round(_pixels(config), -3):,.0f} pixels in a step. Validation: "
        f"{data.validation_images} center crops of {data.crop} pixels of {data.validation}."
    )


def _minutes(config: Config) -> float:
    return round(sum(stage.minutes for stage in config.stages), 6)


def _pixels(config: Config) -> float:
    """Pixels of the results of a step, in the mean over the minutes."""
    with torch.device("meta"):
        factors = config.data.factors if config.network().factors else (1,)
    enlarged = sum(factor**2 for factor in factors) / len(factors)
    of_stages = (s.minutes * s.batch * s.patch**2 for s in config.stages)
    return enlarged * sum(of_stages) / _minutes(config)


class _Book:
    """Rows in a file: what is added is written at once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found = tables_of_equals.read([file]) if file.exists() else EqualRows()

    def add(self, more: EqualRows) -> None:
        self.found = self.found.joined(more)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        tables_of_equals.write(self.file, self.found)


def run(
    configs: Sequence[Config],
    file: Path,
    *,
    seed: int = 0,
    root: Path,
    out: Path,
    dtype: str = "bf16",
    trials: bool = False,
    time_budget_seconds: float | None = None,
) -> EqualRows:
    """Trains and measures networks until the time is over; returns all rows of the file.

    Args:
        configs: of the networks, in the order in which they are wanted.
        file: where rows are kept; what has a row is passed over.
        seed: of the weights' start and the patches.
        root: the data root.
        out: folder for a folder of each run.
        dtype: to measure in.
        trials: whether optimizer and rate are chosen by trials; those of the config otherwise.
        time_budget_seconds: no training beyond it; measuring comes on top.

    Raises:
        ValueError: if a config has steps for minutes; at the end, if a run could not go on.
    """
    begun, book, left = time.monotonic(), _Book(file), time_budget_seconds
    wanted = _without_row([_seeded(config, seed) for config in configs], book.found)
    if trials:
        _try_optimizers(wanted, book, root, out / "trials", left)
        wanted = [chosen(config, book.found) for config in wanted]
        if time_budget_seconds is not None:
            left = begun + time_budget_seconds - time.monotonic()

    def measure(config: Config, folder: Path) -> None:
        row = measured(config, root, folder, dtype)
        book.add(EqualRows({row.budget: in_words(config)}, (row,)))

    train_each(wanted, measure, root, out, left)
    return book.found


def _timed(config: Config) -> Config:
    """The run as it is; raises unless minutes say how long it takes."""
    if not all(stage.minutes for stage in config.stages):
        raise ValueError(f"{config.name}: the stages of a budget must have minutes, got steps")
    return config


def _seeded(config: Config, seed: int) -> Config:
    return replace(_timed(config), name=f"{config.name}-seed{seed}", seed=seed)


def _without_row(configs: Sequence[Config], found: EqualRows) -> list[Config]:
    done = {row.key for row in found.rows}
    return [c for c in configs
            if (budget_key(c), c.data.task, c.architecture, c.seed) not in done]  # fmt: skip


def _try_optimizers(
    configs: Sequence[Config], book: _Book, root: Path, out: Path, seconds: float | None
) -> None:
    """Runs the trials that are missing; one that diverges is no choice."""
    known = {trial.key for trial in book.found.trials}
    of_run = {t: c for c in configs for t in trials_of(c) if _trial(c, t, 0.0).key not in known}

    def note(tried: Config, folder: Path) -> None:
        psnr = models.load(folder / LAST).card.validation_psnr
        if psnr is not None:
            book.add(EqualRows(trials=(_trial(of_run[tried], tried, psnr),)))

    try:
        train_each(of_run, note, root, out, seconds)
    except ValueError as error:
        warn(str(error))


def _trial(config: Config, tried: Config, psnr: float) -> Trial:
    method, rate = _choice(tried)
    return Trial(config.name, budget_key(config), method, rate, psnr)


def trials_of(config: Config) -> list[Config]:
    """The same run in half a minute, with each optimizer that can train it and each rate."""
    with torch.device("meta"):
        methods = RATES if config.network().matrices() else ("adam",)
    share = TRIAL_MINUTES / _minutes(config)
    found = []
    for method, rate in ((m, r) for m in methods for r in RATES[m]):
        tried = with_optimizer(config, method, rate)
        stages = tuple(replace(s, minutes=s.minutes * share) for s in tried.stages)
        found.append(replace(tried, name=f"{config.name}-{method}-{rate:g}", stages=stages))
    return found


def with_optimizer(config: Config, method: str, rate: float) -> Config:
    """The run with another optimizer and rate; later stages keep their share of the first's."""
    more = MUON if method == "muon" else {"weight_decay": 0.0}
    first = config.stages[0].lr
    stages = tuple(replace(s, lr=s.lr / first * rate) for s in config.stages)
    optimizer = replace(config.optimizer, method=method, **more)
    return replace(config, optimizer=optimizer, stages=stages)


def chosen(config: Config, found: EqualRows) -> Config:
    """The run with the optimizer and the rate of its best trial; as it is without any."""
    key = budget_key(config), config.name
    own = [trial for trial in found.trials if (trial.budget, trial.run) == key]
    if not own:
        return config
    best = max(own, key=lambda trial: trial.psnr)
    return with_optimizer(config, best.method, best.lr)


def _choice(config: Config) -> tuple[str, float]:
    return config.optimizer.method, config.stages[0].lr


def measured(config: Config, root: Path, folder: Path, dtype: str) -> EqualRow:
    """The row of a network whose weights lie in the folder."""
    network = models.load(folder / LAST)
    settings = Settings(dtype=dtype, device=config.runtime.accelerator)
    options = MethodOptions(weight=str(folder / LAST), settings=settings)
    (comparison,) = (c for c in COMPARISONS.values() if c.task == config.data.task)
    gc.collect()  # of what training recorded on a GPU
    psnr, mean = {}, None
    for place in comparison.places:
        table = TABLES[place.tables[0]]
        method = next(name for name in table.weights if not name.endswith("-MV"))
        cells, _ = runs.plan(
            table, root, options, sets=[place.set], levels=[place.level], wanted=[method]
        )
        (mean,) = report.means(runs.run(cells, folder / "rows"))
        psnr[place.name] = mean.psnr
    assert mean is not None
    method, rate = _choice(config)
    return EqualRow(
        task=config.data.task,
        network=config.architecture,
        seed=config.seed,
        budget=budget_key(config),
        optimizer=f"{method}, lr {rate:g}",
        steps=network.card.steps,
        minutes=network.card.gpu_minutes,
        device=mean.device,
        precision=mean.precision,
        validation_psnr=network.card.validation_psnr or math.nan,
        psnr=psnr,
        parameters=sum(p.numel() for p in network.parameters()),
        flop_per_pixel=network.flop_per_pixel / network.scale**2,
        cpu_seconds=round(_cpu_seconds(network), 4),
        gpu_milliseconds=_gpu_milliseconds(network) if torch.cuda.is_available() else None,
    )


def _cpu_seconds(network: Network) -> float:
    """The best of three passes to one image, float32."""
    prepared = network.for_inference(torch.float32, "cpu")
    side, times = CPU_SIDE // network.scale, []
    image = torch.rand(1, network.in_channels, side, side)
    for _ in range(3):
        begun = time.perf_counter()
        prepared(image)
        times.append(time.perf_counter() - begun)
    return min(times)


def _gpu_milliseconds(network: Network) -> float:
    """The mean of ten passes to one image after three others, bfloat16."""
    prepared = network.for_inference(torch.bfloat16, "cuda")
    side = GPU_SIDE // network.scale
    image = torch.rand(1, network.in_channels, side, side, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(13):
        if number == 3:
            start.record()
        prepared(image)
    end.record()
    torch.cuda.synchronize()
    return round(start.elapsed_time(end) / 10, 3)
