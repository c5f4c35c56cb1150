"""The training loop, to be read from top to bottom."""

from __future__ import annotations

import dataclasses
import importlib
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from nlrn import datasets, models
from nlrn.hardware import free_memory
from nlrn.training import checkpoint, state
from nlrn.training import config as configuration
from nlrn.training import files as run_files
from nlrn.training.batches import PatchSampler
from nlrn.training.clock import Clock, Interrupt
from nlrn.training.config import Config
from nlrn.training.config_tables import Data, Stage
from nlrn.training.files import RunFiles
from nlrn.training.pairs import PairSampler
from nlrn.training.parsing import TrainingError
from nlrn.training.report import Report
from nlrn.training.rollback import MOST, Rollback
from nlrn.training.schedule import Progress, ema_alpha, fraction_done, learning_rate
from nlrn.training.state import TrainState
from nlrn.training.step import Step
from nlrn.training.validate import Validation
from nlrn.weights import BEST, LAST, ModelCard

PICTURE = "validation.png"


def run(
    config: str | Path | Config,
    *,
    resume: bool = False,
    time_budget_seconds: float | None = None,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    devices: int = 1,
    nodes: int = 1,
    start_from: str | None = None,
) -> Path:
    """Trains what the config says and returns the folder with the results.

    The folder gets `checkpoint.safetensors` (and the one before it), `weights.safetensors` (the
    averaged weights, as `nlrn.models.load` reads them), `best.safetensors` (the same at the
    validation with the highest PSNR), `metrics.jsonl` and `validation.png`.

    Args:
        config: the TOML file, or what it would say.
        resume: goes on from the checkpoint in the folder.
        time_budget_seconds: stops after this time, counted from the call, with everything saved;
            saving and the last validation come on top, a few seconds.
        data_root: folder of the image sets; the variable NLRN_DATA when not given. A config that
            names only folders of its own needs none.
        out: the folder; `runs/<name of the config>` when not given.
        devices: GPUs, or CPU processes, of each node.
        nodes: number of machines.
        start_from: overrides the config's; a run that is resumed has begun already.

    Raises:
        TrainingError: if the run cannot start or go on; `datasets.DataError` for missing images.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when everything is saved.
    """
    begun = time.monotonic()
    if not isinstance(config, Config):
        config = configuration.load(config)
    if start_from is not None:
        config = dataclasses.replace(config, start_from=start_from)
    files = run_files.find(config.data, data_root)
    folder = Path(out) if out is not None else Path("runs") / config.name
    fabric = _launch(config, devices, nodes)
    _prepare_folder(folder, resume, fabric)

    if config.data.is_own:
        run_files.check_memory(files.train, config.data, free_memory(torch.device("cpu")))
    images = datasets.read_all(files.train, run_files.reader(config.data))
    validation = Validation(config, files.validation, fabric.device)
    if resume:
        fresh = dataclasses.replace(config, start_from="")  # the checkpoint holds all of it
        learning = state.make(fresh, fabric.device, processes=fabric.world_size)
        progress = checkpoint.restore(folder, learning, config)
        progress.training_sets = progress.training_sets or _ancestry(config, files)
        validation.best = _best_so_far(folder)
    else:
        learning = state.make(config, fabric.device, processes=fabric.world_size)
        progress = Progress(start_from=config.start_from, training_sets=_ancestry(config, files))
    interrupt = Interrupt()
    clock = Clock(begun, time_budget_seconds, progress, fabric, interrupt)

    try:
        tensorboard, is_main = config.runtime.tensorboard, fabric.is_global_zero
        with (
            interrupt,
            Report(folder, step=progress.step, tensorboard=tensorboard, is_main=is_main) as report,
        ):
            report.log(_headline(config, progress, fabric, len(images), time.monotonic() - begun))
            if small := _too_small(images, config):
                report.log(small)
            task = _Task(config, fabric, folder, images, validation, learning, report)
            while progress.stage < len(config.stages) and not clock.is_over:
                stage = config.stages[progress.stage]
                _train_stage(task, stage, progress, clock)
                if not clock.is_interrupted:
                    _validate(task, stage, progress)
                _save(task, progress)
            finished = progress.stage == len(config.stages)
            ending = "finished" if finished else "stopped at the end of its time, can be resumed"
            if clock.is_interrupted and not finished:
                ending = "interrupted, can be resumed"
            report.log(f"{config.name}: {ending}, {progress.step} steps, results in {folder}")
            if progress.psnr is not None and validation.best > progress.psnr + 0.01:
                report.log(f"validation was at {validation.best:.3f} dB before: {folder / BEST}")
    except OSError as error:  # a full disk, mostly
        name = error.filename or folder
        raise TrainingError(f"{name}: cannot be written ({error.strerror or error})") from error
    if clock.is_interrupted and not finished:
        raise KeyboardInterrupt
    return folder


@dataclasses.dataclass(frozen=True)
class _Task:
    """What the parts of the loop share."""

    config: Config
    fabric: Any
    folder: Path
    images: list[datasets.Pixels]
    validation: Validation
    state: TrainState
    report: Report
    samplers: dict[Data, PatchSampler] = dataclasses.field(default_factory=dict)

    def sampler(self, stage: Stage) -> PatchSampler:
        """The patches of a stage; that of the stage before, if its images are the same."""
        data = self.config.data_of(stage)
        if data not in self.samplers:
            self.samplers.clear()  # before another set of images takes as much memory
            kind = PairSampler if self.config.enlarges else PatchSampler
            scaled = datasets.rescaled(self.images, data.scales)
            self.samplers[data] = kind(scaled, self.fabric.device, data, seed=self.config.seed)
        return self.samplers[data]


def _train_stage(task: _Task, stage: Stage, progress: Progress, clock: Clock) -> None:
    """Trains to the end of the stage or of the time, whatever comes first."""
    config, runtime = task.config, task.config.runtime
    state.enter_stage(task.state, stage, is_new=progress.stage_step == 0)
    task.report.log(_stage_line(progress, stage))
    step, rollback = Step(task.state, config, stage, task.fabric), Rollback(task.state)
    share, sampler = _share(stage.batch, task.fabric), task.sampler(stage)
    clock.start_stage()
    since_tick = 0
    while True:
        batch = sampler.batch(progress.step, stage.batch, stage.patch, share)
        rate = learning_rate(stage, progress)
        step(batch, rate, ema_alpha(config.optimizer.ema_decay, progress.step))
        progress.step += 1
        progress.stage_step += 1
        since_tick += 1
        if step.done == step.warm_steps:  # compiling was not training
            step.wait()
            clock.restart()
            since_tick = 0
        ended = bool(stage.steps) and progress.stage_step >= stage.steps
        ticks = progress.stage_step % runtime.log_every == 0
        ticks |= clock.ends_now or (step.done > step.warm_steps and clock.is_late)
        if not (ended or ticks):
            continue

        # Only here the host waits for the device.
        metrics = step.pop_metrics()
        if rollback.is_needed(metrics.loss):
            if progress.rollbacks == MOST or not rollback.back():
                raise TrainingError(_diverged(progress.step, metrics.loss, task.folder))
            progress.rollbacks += 1
            task.report.log(f"step {progress.step}: loss {metrics.loss:.3g}, back to a good state")
        seconds = clock.tick(progress)
        values = {
            "step": progress.step,
            "stage": progress.stage,
            "loss": metrics.loss,
            "grad_norm": metrics.grad_norm,
            "skipped": metrics.skipped,
            "lr": rate,
            "psnr": progress.psnr,
            "steps_per_second": since_tick / max(seconds, 1e-9),
            "seconds": progress.seconds,
        }
        since_tick = 0
        done = fraction_done(stage, progress)
        left = clock.left(progress, stage)
        task.report.metrics(values, done=done, left_seconds=left)
        if ended or done >= 1:
            progress.next_stage()
            return
        if clock.is_over:
            return
        if clock.is_due("validation", runtime.validate_minutes):
            _validate(task, stage, progress)
        if clock.is_due("checkpoint", runtime.save_minutes):
            _save(task, progress)
        clock.restart()


def _validate(task: _Task, stage: Stage, progress: Progress) -> None:
    """PSNR of the averaged weights; only the main process works, the others wait at the clock."""
    if not task.fabric.is_global_zero:
        return
    begun = time.monotonic()
    model = task.state.ema_model
    found = task.validation.psnr(model, task.fabric, non_local=stage.non_local)
    progress.psnr = sum(found.values()) / len(found)
    if progress.psnr > task.validation.best:
        task.validation.best = progress.psnr
        _export(task, progress, BEST)
    task.validation.save_picture(task.folder / PICTURE)
    task.report.validation(progress.step, found, time.monotonic() - begun)


def _save(task: _Task, progress: Progress) -> None:
    """Checkpoint and averaged weights, unless the last steps have spoilt them."""
    if not task.fabric.is_global_zero:
        return
    tensors = task.state.model.state_dict().values()
    if not all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point()):
        raise TrainingError(_diverged(progress.step, math.nan, task.folder))
    checkpoint.save(task.folder, task.state, progress, task.config)
    _export(task, progress, LAST)


def _export(task: _Task, progress: Progress, name: str) -> None:
    """Writes the averaged weights, with a card that says where they come from."""
    model, data = task.state.ema_model, task.config.data
    is_sr = data.task == "sr"
    lowest_and_highest = (data.sigma_range[0], data.sigma_range[1]) if data.sigma_range else None
    card = ModelCard(
        name=task.config.name,
        architecture=task.config.architecture,
        task=data.task,
        channels=data.channels,
        sigma=None if is_sr or data.sigma_range else data.sigma,
        sigma_range=lowest_and_highest,
        factors=data.factors if is_sr else (),
        training_sets=tuple(progress.training_sets),
        start_from=progress.start_from,
        steps=progress.step,
        gpu_minutes=round(progress.seconds / 60, 1),
        validation_psnr=None if progress.psnr is None else round(progress.psnr, 3),
    )
    model.save_pretrained(task.folder / name, card)


def _best_so_far(folder: Path) -> float:
    """PSNR of the file itself, which may be newer than the checkpoint, or gone."""
    try:
        psnr = models.load(folder / BEST).card.validation_psnr
    except ValueError:
        return -math.inf
    return -math.inf if psnr is None else psnr


def _ancestry(config: Config, files: RunFiles) -> list[str]:
    """The image sets that the network or one it started from was trained on."""
    before = models.load(config.start_from).card.training_sets if config.start_from else ()
    return sorted({*files.training_sets, *before})


def _launch(config: Config, devices: int, nodes: int) -> Any:
    """Starts the processes; this function returns in each of them."""
    fabric_class = _fabric_class()
    runtime = config.runtime
    on_gpu = torch.cuda.is_available() and runtime.accelerator != "cpu"
    if runtime.accelerator == "cuda" and not on_gpu:
        raise TrainingError("the config asks for a GPU (accelerator = 'cuda'), there is none here")
    available = torch.cuda.device_count() if on_gpu else devices
    if devices < 1 or nodes < 1 or devices > available:
        raise TrainingError(f"cannot use {devices} devices on {nodes} nodes, found {available}")
    precision = runtime.precision
    if precision == "auto":
        precision = "bf16-mixed" if on_gpu else "32-true"
    for number, stage in enumerate(config.stages, 1):
        if stage.batch % (devices * nodes):
            got = f"batch {stage.batch} on {devices * nodes} processes"
            raise TrainingError(f"stages {number}: the batch must divide evenly, got {got}")
    accelerator = "cuda" if on_gpu else "cpu"
    strategy = "ddp" if devices * nodes > 1 else "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about other hardware
        fabric = fabric_class(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision=precision,
        )
        fabric.launch()
    if on_gpu:
        torch.backends.cudnn.benchmark = True  # shapes never change within a stage
        if "bf16" in precision:  # what is then left in float32 began as bfloat16: TF32 holds that
            torch.set_float32_matmul_precision("high")
    return fabric


def _fabric_class() -> Any:
    """Fabric, from its own package or from Lightning's."""
    reasons = []
    for package in ("lightning_fabric", "lightning.fabric"):
        try:
            return importlib.import_module(package).Fabric
        except ImportError as error:
            reasons.append(str(error))
    raise TrainingError(f"training needs lightning-fabric ({'; '.join(reasons)})")


def _prepare_folder(folder: Path, resume: bool, fabric: Any) -> None:
    if fabric.is_global_zero:
        if not resume and (folder / checkpoint.NAME).exists():
            raise TrainingError(
                f"{folder}: holds a run already; resume it, or use another output folder"
            )
        if resume and not folder.is_dir():
            raise TrainingError(f"{folder}: no such folder, nothing to resume")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"{folder}: {error.strerror}") from error
    fabric.barrier()


def _share(batch: int, fabric: Any) -> slice:
    """Which patches of a batch are this process's."""
    size = batch // fabric.world_size
    return slice(fabric.global_rank * size, (fabric.global_rank + 1) * size)


def _headline(config: Config, progress: Progress, fabric: Any, images: int, seconds: float) -> str:
    where = f"resumed at step {progress.step}" if progress.step else "new run"
    if config.start_from and not progress.step:
        where = f"starts from {config.start_from}"
    device = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else "CPU"
    count = f"{fabric.world_size} x " if fabric.world_size > 1 else ""
    sizes = f"{images} images in {len(config.data.scales)} sizes"
    return f"{config.name}: {where}, {sizes}, {count}{device}, ready in {seconds:.1f} s"


def _too_small(images: list[datasets.Pixels], config: Config) -> str:
    """A line about images that have no room for a patch, if there are any."""
    patch = max(stage.patch for stage in config.stages)
    patch *= max(config.data.factors) if config.enlarges else 1
    count = sum(min(image.shape[:2]) < patch for image in images)
    share = f"{count} of {len(images)} images are smaller than the patches of {patch}"
    return f"{share} pixels and are left out" if count else ""


def _stage_line(progress: Progress, stage: Stage) -> str:
    length = f"{stage.steps} steps" if stage.steps else f"{stage.minutes:g} minutes"
    modules = "on" if stage.non_local else "off"
    return (
        f"stage {progress.stage + 1}: {length}, {stage.batch} patches of {stage.patch}, "
        f"non-local modules {modules}"
        + (", batch-norm statistics frozen" if stage.freeze_norm else "")
    )


def _diverged(step: int, loss: float, folder: Path) -> str:
    kept = folder / checkpoint.NAME
    last = f"the last good checkpoint is kept in {kept}" if kept.exists() else "nothing was saved"
    return f"the loss is {loss} at step {step}, training stops; {last}"
