"""Training for run.py: the loop's own step with several operators, and how they converge."""

from __future__ import annotations

import functools
import time
from typing import Any

import flex
import infer
import numpy as np
import torch
from measure import Report, Setup, Training, milliseconds, peak_gib, profile_of, setting

from nlrn import datasets
from nlrn.models.nlrn import random_network
from nlrn.training import state
from nlrn.training.batches import Batch, PatchSampler
from nlrn.training.config import Config
from nlrn.training.config_tables import Data, RuntimeConfig, Stage
from nlrn.training.step import WARM_STEPS, Step

WHO = {
    "fused": "ours",
    "dense": "compiled PyTorch, dense",
    "blocked": "blocked backend",
    "inlined": "variant: operator in the graph",
}
RATE, AVERAGE = 1e-6, 0.01  # of the timed steps


class OneProcess:
    """As much of Lightning's Fabric as a step needs."""

    world_size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16)


def make_step(
    setup: Setup,
    shape: Training,
    operator: str,
    *,
    images: list[datasets.Gray] | None = None,
    recorded: bool = True,
    sigma: float = 25,
    start_from: str = "",
) -> tuple[Step, PatchSampler]:
    """The step of the training loop.

    Args:
        setup: where and with which network.
        shape: of the batch.
        operator: "fused"; "inlined", the same within the graph of the compiled cell; "dense"; or
            "blocked", launched kernel by kernel.
        images: to take patches from; noise when None.
        recorded: whether the step becomes a CUDA graph.
        sigma: of the noise on the patches.
        start_from: a trained weight, instead of a random network.
    """
    torch.backends.cudnn.benchmark = True  # as the loop has it
    fast = operator != "blocked"
    stage = Stage(
        steps=1, batch=shape.batch, patch=shape.patch, border=shape.border, freeze_norm=True
    )
    attention = "dense" if operator == "dense" else "auto"
    runtime = RuntimeConfig(attention=attention, compile=fast, cuda_graph=fast and recorded)
    if operator == "blocked":  # which no run has to choose
        object.__setattr__(runtime, "attention", operator)
    config = Config("benchmark", (stage,), model=setup.model, runtime=runtime,
                    data=Data(sigma=sigma), start_from=start_from)  # fmt: skip
    learning = state.make(config, setup.device)
    if not start_from:  # the zeros of a new network would be faster than anything real
        learning.model.load_state_dict(random_network(setup.model).state_dict())
    state.enter_stage(learning, stage, is_new=False)
    hidden = (lambda attend: attend) if operator == "inlined" else torch.compiler.disable
    with setting(torch.compiler, "disable", hidden):
        step = Step(learning, config, stage, OneProcess(setup.device))
    if images is None:
        rng = np.random.default_rng(0)
        images = [rng.integers(0, 256, (100, 120), dtype=np.uint8) for _ in range(20)]
    return step, PatchSampler(images, setup.device, config.data, seed=0)


def warm_step(step: Step, patches: PatchSampler, shape: Training) -> list[Batch]:
    """Compiles and records the step; returns batches to go on with."""
    batches = [patches.batch(k, shape.batch, shape.patch) for k in range(4)]
    for k in range(WARM_STEPS + 2):
        step(batches[k % 4], RATE, AVERAGE)
    step.wait()
    return batches


def train(setup: Setup, report: Report, _: str | None) -> None:
    """The bars' step first, then the other shape, then what they are compared with."""
    for operator in ("fused", "dense", "blocked"):
        for number, shape in enumerate(setup.training):
            arguments = (setup, report, shape, operator, "main" if number == 0 else "other")
            report.attempt(f"{operator} {shape}", time_step, *arguments, needs=15.0)
    for shape in setup.training:
        report.attempt(f"FlexAttention {shape}", with_flex, setup, report, shape, needs=20.0)
    arguments = (setup, report, setup.training[0], "inlined", "variant")
    report.attempt("operator in the graph", time_step, *arguments, needs=25.0)


def time_step(setup: Setup, report: Report, shape: Training, operator: str, role: str) -> None:
    """Median of a step on a batch that lies there, and of many with their patches made as well."""
    begin = time.perf_counter()
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    step, patches = make_step(setup, shape, operator)
    batches = warm_step(step, patches, shape)
    ready = time.perf_counter() - begin
    most, many = (3, 2) if operator == "blocked" else (60, 20)
    one = functools.partial(step, batches[0], RATE, AVERAGE)
    ms = milliseconds(one, setup, seconds=1.0, most=most)

    def as_in_the_loop() -> None:
        for k in range(many):
            step(patches.batch(k, shape.batch, shape.patch), RATE, AVERAGE)

    loop = milliseconds(as_in_the_loop, setup, seconds=1.0, most=5) / many
    peak = torch.cuda.max_memory_allocated() / 2**30 if setup.on_gpu else 0.0
    flop = 3 * setup.flop(shape.batch * shape.patch**2)
    report.row(section="train", what=str(shape), who=WHO[operator], ms=ms, tflops=flop / ms * 1e-9,
               peak_gib=peak, with_patches_ms=loop, recorded=bool(step._graphs),
               compiled=step._compiled, ready_s=ready, role=role,
               loss=step.pop_metrics().loss)  # fmt: skip


def with_flex(setup: Setup, report: Report, shape: Training) -> None:
    states = flex.training(setup, shape)
    peak, ms = peak_gib(states, setup), milliseconds(states, setup)
    flop = 3 * setup.attention_flop(shape.batch * shape.patch**2)
    note = "attention of all states alone, forward and backward, without propagation"
    report.row(section="train", what=str(shape), who="FlexAttention", ms=ms,
               tflops=flop / ms * 1e-9, peak_gib=peak, note=note)  # fmt: skip


def converge(setup: Setup, report: Report, root: str | None) -> None:
    """The first steps on real patches with both operators: how the weight of sigma 50 begins.

    It starts from that of sigma 25, as in configs/. A network that starts from nothing with the
    module on jumps now and then, whatever computes the module, and two curves part where one does.
    """
    if setup.on_gpu:
        images = datasets.read_all(datasets.image_files("bsds500/train", datasets.find_root(root)))
    else:
        rng = np.random.default_rng(0)
        images = [rng.integers(0, 256, (40, 50), dtype=np.uint8) for _ in range(4)]
    torch.set_float32_matmul_precision("high")  # exact for what comes in as bfloat16
    curves: dict[str, list[float]] = {}

    def run(operator: str) -> None:
        curves[operator] = losses(setup, operator, images)
        report.put("curves", curves)

    for operator in ("fused", "dense"):
        report.attempt(f"convergence {operator}", run, operator, needs=15.0)
    if len(curves) == 2:
        report.row(section="convergence", what=f"{setup.steps} steps", who="fused and dense",
                   **compare(curves["fused"], curves["dense"]))  # fmt: skip


def losses(setup: Setup, operator: str, images: list[datasets.Gray]) -> list[float]:
    shape = setup.training[0]
    start_from = "denoise-gray-s25" if setup.on_gpu else ""  # elsewhere the network is tiny
    step, patches = make_step(setup, shape, operator, images=images, sigma=50,
                              start_from=start_from)  # fmt: skip
    found = []
    for k in range(setup.steps):
        rate = 3e-4 * min(1.0, (k + 1) / 100)
        step(patches.batch(k, shape.batch, shape.patch), rate, AVERAGE)
        found.append(step.pop_metrics().loss)
    return found


def compare(ours: list[float], theirs: list[float], over: int = 50) -> dict[str, float]:
    """How far the running means of two loss curves lie apart, relative to the second."""
    means = [np.convolve(curve, np.ones(over) / over, mode="valid") for curve in (ours, theirs)]
    apart = np.abs(means[0] - means[1]) / means[1]
    return {
        "largest_difference": float(apart.max()),
        "mean_difference": float(apart.mean()),
        "first_loss": ours[0],
        "ours_at_the_end": float(means[0][-1]),
        "theirs_at_the_end": float(means[1][-1]),
    }


def profile(setup: Setup, report: Report, _: str | None) -> None:
    """Kernels by time, of one image of the main size and of one training step."""

    def step_profile() -> None:
        shape = setup.training[0]
        step, patches = make_step(setup, shape, "fused")
        batches = warm_step(step, patches, shape)
        one = functools.partial(step, batches[0], RATE, AVERAGE)
        profile_of(setup, report, "training step", one)

    report.attempt("profile inference", infer.profile, setup, report)
    report.attempt("profile training", step_profile, needs=15.0)
