"""Inference for run.py: whole images, the parts of a state, and what it is compared with."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import flex
import torch
import torch.nn.functional as F
from measure import (
    Report,
    Setup,
    milliseconds,
    peak_gib,
    profile_of,
    setting,
    wall_milliseconds,
)
from torch import Tensor

from nlrn.inference import overlap as protocol
from nlrn.inference.engine import Engine
from nlrn.inference.settings import DTYPES, Settings
from nlrn.models import nlrn_inference
from nlrn.models.nlrn import random_network
from nlrn.models.nlrn_inference import NLRNInference
from nlrn.ops import attend

Size = tuple[int, int]


def infer(setup: Setup, report: Report, _: str | None) -> None:
    """Ours first, since the bars hang on it, then what it is compared with."""
    sizes = {"main": setup.main, "large": setup.large, "small": setup.small, "wide": setup.wide}
    network = random_network(setup.model).for_inference(setup.dtype, setup.device)
    for role, size in sizes.items():
        report.attempt(f"ours {size}", ours, setup, report, network, size, role)
    for role in ("small", "main"):
        report.attempt(f"overlap {role}", overlap, setup, report, sizes[role], role)
    if setup.on_gpu:
        for size in (setup.main, setup.small):
            report.attempt(f"cudnn.benchmark {size}", cudnn_benchmark, setup, report, network, size)
            report.attempt(f"own ReLU {size}", own_relu, setup, report, network, size)
            report.attempt(f"CUDA graph {size}", recorded, setup, report, network, size)
            report.attempt(f"launches {size}", launches, report, network, size)
    report.attempt("parts of a state", parts, setup, report, network)
    report.attempt("whole call", whole_call, setup, report)
    report.attempt("tiles", tiles, setup, report)
    if setup.on_gpu:
        report.attempt("first call", first_call, report, needs=20.0)
    for size in sizes.values():
        report.attempt(f"blocked backend {size}", with_blocks, setup, report, network, size)
    note = "cannot: the scores of all pairs of pixels take 137 GB a state; patches only, see train"
    report.row(section="inference", what="512x512", who="compiled PyTorch, dense", note=note)
    for size in sizes.values():
        report.attempt(f"FlexAttention {size}", with_flex, setup, report, size, needs=20.0)


def row(
    setup: Setup,
    report: Report,
    size: Size,
    who: str,
    ms: float,
    flop: float | None = None,
    **more: Any,
) -> None:
    useful = setup.flop(size[0] * size[1]) if flop is None else flop
    report.row(
        section="inference",
        what=f"{size[0]}x{size[1]}",
        who=who,
        ms=ms,
        tflops=useful / ms * 1e-9,
        **more,
    )


def image_of(network: NLRNInference, size: Size) -> Tensor:
    return torch.rand(1, network.config.in_channels, *size, device=network.device)


def ours(setup: Setup, report: Report, network: NLRNInference, size: Size, role: str) -> None:
    run = functools.partial(network, image_of(network, size))
    run()
    peak = peak_gib(run, setup)
    model = random_network(setup.model)
    planned = model.memory(*size, setup.dtype, setup.device) / 2**30
    ms = milliseconds(run, setup)
    row(setup, report, size, "ours", ms, peak_gib=peak, planned_gib=planned, role=role)


def overlap(setup: Setup, report: Report, size: Size, role: str) -> None:
    """The authors' protocol with the same kernels, on the device alone like `ours`."""
    model = random_network(setup.model).with_border("circular")
    network = model.for_inference(setup.dtype, setup.device)
    patch = (setup.patch, setup.patch)
    at_once = protocol._patches_at_once(model, patch, setup.dtype, setup.device)
    image = image_of(network, size)[0]
    corners = protocol._corners(torch.Size(size), patch, setup.stride, setup.device)
    groups = corners.split(at_once)

    def run(some: int) -> Any:
        return protocol._mean_of_patches(
            network, model.out_channels, image, groups[:some], patch, 1, lambda _: None
        )

    one = milliseconds(functools.partial(run, 1), setup, seconds=0.2, most=3)
    some = len(groups) if one * len(groups) < 10_000 else min(4, len(groups))
    peak = peak_gib(functools.partial(run, some), setup)
    ms = milliseconds(functools.partial(run, some), setup, seconds=1.0, most=3)
    scale = len(corners) / sum(len(group) for group in groups[:some])
    work = len(corners) * setup.patch**2 / (size[0] * size[1])
    note = f"{len(corners)} patches, {at_once} at a time: {work:.1f} times the pixels"
    if scale > 1:
        note += f"; timed on {some} of {len(groups)} batches and scaled up"
    row(setup, report, size, "overlap protocol", ms * scale, peak_gib=peak, work=work, role=role,
        note=note)  # fmt: skip


# --- Choices that only a measurement can make, each to be compared with `ours` --------------------


def cudnn_benchmark(setup: Setup, report: Report, network: NLRNInference, size: Size) -> None:
    with setting(torch.backends.cudnn, "benchmark", True):
        ms = milliseconds(functools.partial(network, image_of(network, size)), setup)
    row(setup, report, size, "variant: cudnn.benchmark", ms)


def own_relu(setup: Setup, report: Report, network: NLRNInference, size: Size) -> None:
    """Bias and ReLU after the first convolution by a kernel of our own instead of cuDNN."""
    run = functools.partial(network, image_of(network, size))
    wanted = run()
    with setting(network, "_cudnn_relu", False):
        ms = milliseconds(run, setup)
        difference = float((run() - wanted).abs().max())
    row(setup, report, size, "variant: ReLU in a pass of its own", ms, difference=difference)


def recorded(setup: Setup, report: Report, network: NLRNInference, size: Size) -> None:
    graph, image = torch.cuda.CUDAGraph(), image_of(network, size)
    network(image)
    with torch.cuda.graph(graph):
        network(image)
    row(setup, report, size, "variant: CUDA graph", milliseconds(graph.replay, setup))


def launches(report: Report, network: NLRNInference, size: Size) -> None:
    image = image_of(network, size)
    network(image)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    network(image)
    ms = (time.perf_counter() - begin) * 1e3
    torch.cuda.synchronize()
    report.row(section="inference", what=f"{size[0]}x{size[1]}", who="host time to launch", ms=ms)


@torch.inference_mode()
def parts(setup: Setup, report: Report, network: NLRNInference) -> None:
    """One middle state at the main size, piece by piece, with the least bytes and FLOP of each."""
    model, (height, width) = setup.model, setup.main
    pixels, m, last = height * width, model.channels, torch.channels_last
    x, first = (
        torch.randn(1, m, height, width, device=setup.device)
        .to(setup.dtype)
        .contiguous(memory_format=last)
        for _ in range(2)
    )
    state = network._states[0]
    module = state.module
    assert module is not None
    each = float(pixels * x.element_size())  # bytes of one channel
    conv = 18.0 * m * m * pixels
    scores = 2 * each * model.window**2
    project = 2.0 * m * (m + 2 * model.embed) * pixels
    correlation = None

    def attended() -> None:
        nonlocal correlation  # each call uses the last one's up
        _, correlation = attend(
            *network._embed(x, module), network.spec, prior_scores=correlation, reuse_prior=True,
            skip=(x, state.skip),
        )  # fmt: skip

    attended()

    gray = x[:, : model.in_channels].contiguous(memory_format=last)
    pieces: dict[str, tuple[Callable[[], Any], float, float]] = {
        "projection": (
            lambda: network._project(x, module),
            each * 2 * (m + model.embed),
            project,
        ),
        "projection, attention, skip": (
            attended,
            scores + each * (5 * m + 4 * model.embed),
            setup.attention_flop(pixels) / model.steps + project,
        ),
        "convolution alone": (
            lambda: F.conv2d(x, state.weight1, padding=1),
            each * 2 * m,
            conv,
        ),
        "convolution, ReLU": (
            lambda: network._convolve(x, state.weight1, state.bias1),
            each * 4 * m,
            conv,
        ),
        "convolution, identity path, ReLU": (
            lambda: network._convolve(x, state.weight2, state.bias2, first, state.first),
            each * 5 * m,
            conv,
        ),
        "first convolution of the network": (
            lambda: F.conv2d(gray, *network._in, padding=1),
            each * m,
            0.0,
        ),
        "last convolution of the network": (
            lambda: F.conv2d(x, *network._out, padding=1),
            each * m,
            0.0,
        ),
    }
    for name, (work, moved, flop) in pieces.items():
        ms = milliseconds(work, setup, seconds=0.3)
        report.row(section="parts", what=f"{height}x{width}", who=name, ms=ms,
                   tflops=flop / ms * 1e-9, gb_per_second=moved / ms * 1e-6)  # fmt: skip


# --- Whole calls ----------------------------------------------------------------------------------


def whole_call(setup: Setup, report: Report) -> None:
    model, image = random_network(setup.model), torch.rand(1, 1, *setup.main)

    def call() -> Any:
        return Engine(model, settings(setup, tile=0))(image)

    row(setup, report, setup.main, "ours, Engine host to host", wall_milliseconds(call))


def settings(setup: Setup, tile: int | None = None, memory: int | None = None) -> Settings:
    name = next(name for name, dtype in DTYPES.items() if dtype == setup.dtype)
    return Settings(tile=tile, dtype=name, device=str(setup.device), memory=memory)


def tiles(setup: Setup, report: Report) -> None:
    """An image too large to go at once."""
    model, image, seen = random_network(setup.model), torch.rand(1, 1, *setup.tiled), [0]
    budget = None if setup.on_gpu else 2**21

    def run() -> Any:
        engine = Engine(model, settings(setup, memory=budget))
        return engine(image, lambda _, total: seen.append(total))

    begin = time.perf_counter()
    peak = peak_gib(run, setup)
    ms = (time.perf_counter() - begin) * 1e3
    note = f"{seen[-1] // setup.model.steps} tiles"
    row(setup, report, setup.tiled, "ours, Engine in tiles", ms, peak_gib=peak, note=note)


FIRST_CALL = """
import time, torch
from nlrn.inference.engine import Engine
from nlrn.inference.settings import Settings
from nlrn.models.nlrn import NLRNConfig, random_network
image, model = torch.rand(1, 1, 256, 256), random_network(NLRNConfig())
torch.zeros(1, device="cuda")
for _ in range(2):
    begin = time.perf_counter()
    Engine(model, Settings(dtype="bf16", device="cuda"))(image)
    print(time.perf_counter() - begin)
"""


def first_call(report: Report) -> None:
    """What somebody with one picture waits for: a new process, nothing compiled yet."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CALL],
            env=os.environ | {"TRITON_CACHE_DIR": folder, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    cold, again = (float(line) * 1e3 for line in done.stdout.split())
    report.row(section="inference", what="256x256", who="Engine, first call of a machine",
               ms=cold, note=f"second call {again:.0f} ms")  # fmt: skip


# --- Others ---------------------------------------------------------------------------------------


def with_blocks(setup: Setup, report: Report, network: NLRNInference, size: Size) -> None:
    with setting(nlrn_inference, "attend", functools.partial(attend, backend="blocked")):
        run = functools.partial(network, image_of(network, size))
        begin = time.perf_counter()
        peak = peak_gib(run, setup)
        if time.perf_counter() - begin > 8:
            raise TimeoutError("a run takes more than 8 s")
        ms = milliseconds(run, setup, seconds=0.5, most=3)
    row(setup, report, size, "blocked backend", ms, peak_gib=peak)


def with_flex(setup: Setup, report: Report, size: Size) -> None:
    states, error = flex.inference(setup, size)
    peak, ms = peak_gib(states, setup), milliseconds(states, setup)
    flop = setup.attention_flop(size[0] * size[1])
    note = f"attention of all states alone, without propagation; error {error:.1e}"
    row(setup, report, size, "FlexAttention", ms, flop=flop, peak_gib=peak, note=note)


def profile(setup: Setup, report: Report) -> None:
    network = random_network(setup.model).for_inference(setup.dtype, setup.device)
    image = image_of(network, setup.main)
    profile_of(setup, report, "inference", lambda: network(image))
