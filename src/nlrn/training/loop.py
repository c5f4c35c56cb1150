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

from nlrn import datasets, weights
from nlrn.training import checkpoint, learner
from nlrn.training import config as configuration
from nlrn.training.batches import Patches
from nlrn.training.clock import Clock, Interrupt
from nlrn.training.config import Config, Stage, TrainingError
from nlrn.training.learner import Learner
from nlrn.training.report import Report
from nlrn.training.schedule import Progress, average_weight, fraction_done, learning_rate
from nlrn.training.step import WARM_STEPS, Step
from nlrn.training.validate import Validation

WEIGHTS = "weights.safetensors"
BEST = "best.safetensors"
PICTURE = "validation.png"


def run(
    config_path: str | Path,
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
    averaged weights, as `NLRN.from_pretrained` reads them), `best.safetensors` (the same at the
    validation with the highest PSNR), `metrics.jsonl` and `validation.png`.

    Args:
        config_path: the TOML file.
        resume: goes on from the checkpoint in the folder.
        time_budget_seconds: stops after this time, counted from the call, with everything saved;
            saving and the last validation come on top, a few seconds.
        data_root: folder of the image sets; the variable NLRN_DATA when not given.
        out: the folder; `runs/<name of the config>` when not given.
        devices: GPUs, or CPU processes, of each node.
        nodes: machines.
        start_from: overrides the config's; a run that is resumed has begun already.

    Raises:
        TrainingError: if the run cannot start or go on; `datasets.DataError` for missing images.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when everything is saved.
    """
    begun = time.monotonic()
    config = configuration.load(config_path)
    if start_from is not None:
        config = dataclasses.replace(config, start_from=start_from)
    root = datasets.find_root(data_root)
    folder = Path(out) if out is not None else Path("runs") / config.name
    fabric = _launch(config, devices, nodes)
    _prepare_folder(folder, resume, fabric)

    read = datasets.read_luminance if config.data.task == "sr" else datasets.read_gray
    files = datasets.training_files(config.data.train, root)
    images = datasets.rescaled(datasets.read_all(files, read), config.data.scales)
    patches = Patches(images, fabric.device, config.data, seed=config.seed)
    validation = Validation(config, root, fabric.device)
    if resume:
        fresh = dataclasses.replace(config, start_from="")  # the checkpoint holds all of it
        learning = learner.make(fresh, fabric.device, processes=fabric.world_size)
        progress = checkpoint.restore(folder, learning, config)
        progress.seen = progress.seen or _ancestry(config)  # not in older checkpoints
        validation.best = _best_so_far(folder)
    else:
        learning = learner.make(config, fabric.device, processes=fabric.world_size)
        progress = Progress(start_from=config.start_from, seen=_ancestry(config))
    interrupt = Interrupt()
    clock = Clock(begun, time_budget_seconds, progress, fabric, interrupt)

    try:
        tensorboard, is_main = config.machine.tensorboard, fabric.is_global_zero
        with (
            interrupt,
            Report(folder, step=progress.step, tensorboard=tensorboard, is_main=is_main) as report,
        ):
            report.say(_headline(config, progress, fabric, len(files), time.monotonic() - begun))
            task = _Task(config, fabric, folder, patches, validation, learning, report)
            while progress.stage < len(config.stages) and not clock.is_over:
                _train_stage(task, config.stages[progress.stage], progress, clock)
                if not clock.is_interrupted:
                    _validate(task, progress)
                _save(task, progress)
            finished = progress.stage == len(config.stages)
            ending = "finished" if finished else "stopped at the end of its time, --resume goes on"
            if clock.is_interrupted and not finished:
                ending = "interrupted, --resume goes on"
            report.say(f"{config.name}: {ending}, {progress.step} steps, results in {folder}")
            if progress.psnr is not None and validation.best > progress.psnr + 0.01:
                report.say(f"validation was at {validation.best:.3f} dB before: {folder / BEST}")
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
    patches: Patches
    validation: Validation
    learning: Learner
    report: Report


def _train_stage(task: _Task, stage: Stage, progress: Progress, clock: Clock) -> None:
    """Trains to the end of the stage or of the time, whatever comes first."""
    config, machine = task.config, task.config.machine
    is_new = progress.stage_step == 0
    attention = learner.enter_stage(task.learning, stage, config, is_new=is_new)
    task.report.say(_stage_line(progress, stage, attention))
    step = Step(task.learning, config, task.fabric)
    share = _share(stage.batch, task.fabric)
    clock.start_stage()
    since_tick = 0
    while True:
        noisy, clean = task.patches.batch(progress.step, stage.batch, stage.patch, share)
        rate = learning_rate(stage, progress)
        step(noisy, clean, rate, average_weight(config.optimizer.ema_decay, progress.step))
        progress.step += 1
        progress.stage_step += 1
        since_tick += 1
        if step.done == WARM_STEPS:  # compiling was not training
            step.wait()
            clock.restart()
            since_tick = 0
        ended = bool(stage.steps) and progress.stage_step >= stage.steps
        if not (ended or progress.stage_step % machine.log_every == 0 or clock.ends_now):
            continue

        # Only here the host waits for the device.
        loss, grad_norm = step.take()
        if not math.isfinite(loss):
            raise TrainingError(_diverged(progress.step, loss, task.folder))
        seconds = clock.tick(progress)
        values = {
            "step": progress.step,
            "stage": progress.stage,
            "loss": loss,
            "grad_norm": grad_norm,
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
        if clock.is_due("validation", machine.validate_minutes):
            _validate(task, progress)
        if clock.is_due("checkpoint", machine.save_minutes):
            _save(task, progress)
        clock.restart()


def _validate(task: _Task, progress: Progress) -> None:
    """PSNR of the averaged weights; only the main process works, the others wait at the clock."""
    if not task.fabric.is_global_zero:
        return
    begun = time.monotonic()
    progress.psnr = task.validation.psnr(task.learning.average, task.fabric)
    if progress.psnr > task.validation.best:
        task.validation.best = progress.psnr
        _export(task, progress, BEST)
    task.validation.save_picture(task.folder / PICTURE)
    task.report.validation(progress.step, progress.psnr, time.monotonic() - begun)


def _save(task: _Task, progress: Progress) -> None:
    """Checkpoint and averaged weights, unless the last steps have spoilt them."""
    if not task.fabric.is_global_zero:
        return
    state = task.learning.model.state_dict()
    if not all(bool(t.isfinite().all()) for t in state.values() if t.is_floating_point()):
        raise TrainingError(_diverged(progress.step, math.nan, task.folder))
    checkpoint.save(task.folder, task.learning, progress, task.config)
    _export(task, progress, WEIGHTS)


def _export(task: _Task, progress: Progress, name: str) -> None:
    """The averaged weights in a file of the folder, with notes that say where they come from."""
    notes = {
        "name": task.config.name,
        "task": task.config.data.task,
        "data": ",".join(progress.seen),
        "start_from": progress.start_from,
        "steps": str(progress.step),
        "training_minutes": f"{progress.seconds / 60:.1f}",
        "validation_psnr": f"{progress.psnr:.3f}" if progress.psnr is not None else "",
    }
    if task.config.data.task == "sr":
        notes["factors"] = ",".join(f"{factor:g}" for factor in task.config.data.factors)
    else:
        notes["sigma"] = f"{task.config.data.sigma:g}"
    learner.export(task.learning, task.config).save_pretrained(task.folder / name, notes)


def _best_so_far(folder: Path) -> float:
    """Of the file itself, which may be newer than the checkpoint, or gone."""
    try:
        return float(weights.load(folder / BEST).notes["validation_psnr"])
    except (KeyError, ValueError):
        return -math.inf


def _ancestry(config: Config) -> list[str]:
    """The image sets that the network or one it started from has seen."""
    before = weights.load(config.start_from).notes.get("data", "") if config.start_from else ""
    return sorted({config.data.train, *filter(None, before.split(","))})


def _launch(config: Config, devices: int, nodes: int) -> Any:
    """Starts the processes; this function returns in each of them."""
    fabric_class = _fabric_class()
    machine = config.machine
    on_gpu = torch.cuda.is_available() and machine.accelerator != "cpu"
    if machine.accelerator == "cuda" and not on_gpu:
        raise TrainingError("the config asks for a GPU (accelerator = 'cuda'), there is none here")
    available = torch.cuda.device_count() if on_gpu else devices
    if devices < 1 or nodes < 1 or devices > available:
        raise TrainingError(f"cannot use {devices} devices on {nodes} nodes, found {available}")
    precision = machine.precision
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
            raise TrainingError(f"{folder}: holds a run already; --resume goes on with it")
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


def _stage_line(progress: Progress, stage: Stage, attention: str) -> str:
    length = f"{stage.steps} steps" if stage.steps else f"{stage.minutes:g} minutes"
    norm = "frozen" if stage.freeze_norm else "learned"
    return (
        f"stage {progress.stage + 1}: {length}, {stage.batch} patches of {stage.patch}, "
        f"attention {attention}, batch-norm statistics {norm}"
    )


def _diverged(step: int, loss: float, folder: Path) -> str:
    kept = folder / checkpoint.NAME
    last = f"the last good checkpoint is kept in {kept}" if kept.exists() else "nothing was saved"
    return f"the loss is {loss} at step {step}, training stops; {last}"
