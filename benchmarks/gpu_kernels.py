"""Checks the Triton kernels against float64 on this GPU, then times them over block sizes.

    python benchmarks/gpu_kernels.py [--quick] [--limit 170] [--only train45,infer512]

Checks and compilations run in worker processes; the timings run alone, afterwards. The tables come
last; $OUT/gpu_kernels.json holds all numbers.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import Tensor

from nlrn.ops.triton import backend as triton_impl
from nlrn.ops.triton import launch as triton_launch
from nlrn.ops.triton import layout as triton_layout
from nlrn.ops.triton.layout import Plan, Tuning

EMBED, CHANNELS, STATES = 64, 128, 12
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to try the checks


class Check(NamedTuple):
    """One comparison with float64: shape, border, dtype, and what stands before the first state."""

    batch: int
    embed: int
    channels: int
    height: int
    width: int
    window: int
    circular: bool
    dtype: str
    prior: bool
    affinity: str = "embedded_gaussian"


CHECKS = [
    Check(2, 64, 128, 45, 45, 45, True, "bfloat16", False),
    Check(2, 64, 128, 45, 45, 45, True, "bfloat16", True),
    Check(1, 64, 128, 45, 45, 45, True, "float32", True),
    Check(2, 64, 128, 48, 40, 45, False, "bfloat16", True),
    Check(2, 64, 128, 48, 40, 45, False, "float32", False),
    Check(1, 64, 128, 64, 64, 45, False, "bfloat16", False),
    Check(2, 64, 128, 13, 37, 7, False, "bfloat16", True),
    Check(2, 64, 128, 13, 37, 7, False, "float32", True),
    Check(2, 64, 128, 13, 37, 7, True, "bfloat16", False),
    Check(1, 64, 128, 70, 101, 45, False, "bfloat16", True),
    Check(1, 64, 128, 70, 101, 45, False, "float16", False),
    Check(1, 64, 128, 61, 150, 21, True, "bfloat16", False),
    Check(1, 128, 256, 20, 27, 11, False, "bfloat16", True),
    Check(1, 128, 256, 20, 27, 11, False, "float32", False),
    Check(2, 20, 33, 5, 6, 9, True, "bfloat16", True),
    Check(2, 33, 20, 5, 6, 63, False, "float32", True),
    Check(2, 64, 64, 17, 23, 9, False, "bfloat16", True, "euclidean"),
    Check(2, 64, 64, 17, 23, 9, False, "float32", True, "euclidean"),
]
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}


class Shape(NamedTuple):
    """A call to time."""

    batch: int
    height: int
    width: int
    window: int
    circular: bool
    training: bool


SHAPES = {
    "train45": Shape(16, 45, 45, 45, True, True),
    "train48": Shape(16, 48, 48, 45, False, True),
    "train64": Shape(16, 64, 64, 45, False, True),
    "infer512": Shape(1, 512, 512, 45, False, False),
    "infer256": Shape(1, 256, 256, 45, False, False),
    "infer1024": Shape(1, 1024, 1024, 45, False, False),
}


# --- Correctness --------------------------------------------------------------------------------


def dense_attention(
    check: Check, theta: Tensor, psi: Tensor, g: Tensor, prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The definition on explicit masks: out [B, C, H, W] and scores [B, H, W, window**2]."""
    batch, _, height, width = theta.shape
    radius = check.window // 2
    y, x = torch.meshgrid(
        *(torch.arange(size, device=theta.device) for size in (height, width)), indexing="ij"
    )
    offset = torch.arange(-radius, radius + 1, device=theta.device)
    key_y = (y[:, :, None, None] + offset[:, None]).expand(-1, -1, -1, check.window)
    key_x = (x[:, :, None, None] + offset).expand(-1, -1, check.window, -1)
    valid = (key_y >= 0) & (key_y < height) & (key_x >= 0) & (key_x < width) | check.circular
    pixels = height * width
    index = ((key_y % height) * width + key_x % width).reshape(1, pixels, -1).expand(batch, -1, -1)
    valid = valid.reshape(1, pixels, -1)
    queries, keys, values = (t.flatten(2).transpose(1, 2) for t in (theta, psi, g))
    if check.affinity == "euclidean":
        table = -(torch.cdist(queries, keys) ** 2) / 100.0
    else:
        table = queries @ keys.transpose(1, 2)
    score = table.gather(2, index)
    if prior is not None:
        score = score + prior.reshape(batch, pixels, -1)
    weight = torch.softmax(score.masked_fill(~valid, float("-inf")), 2)
    weights = torch.zeros_like(table).scatter_add(2, index, weight)
    out = (weights @ values).transpose(1, 2).reshape(batch, -1, height, width)
    return out, score.masked_fill(~valid, 0.0).reshape(batch, height, width, -1)


def dense(check: Check) -> Callable[..., tuple[Tensor, Tensor]]:
    """`dense_attention` for the check, on (theta, psi, g, prior)."""
    return functools.partial(dense_attention, check)


def two_states(
    attend: Callable[..., tuple[Tensor, Any]], leaves: list[Tensor], prior: Tensor | None
) -> tuple[Tensor, Tensor, Any]:
    """Two states on leaves theta, psi, g, theta, psi, g, the second on top of the first."""
    first, correlation = attend(*leaves[:3], prior)
    second, correlation = attend(*leaves[3:6], correlation)
    return first, second, correlation


def run_check(check: Check, compiled: bool = False) -> dict[str, float]:
    """Relative errors of outputs, scores and gradients over two states."""
    torch.manual_seed(zlib.crc32(repr(check).encode()))
    # Uninitialised memory is filled with NaN, so that an element nobody wrote shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    dtype = getattr(torch, check.dtype)
    size = (check.batch, -1, check.height, check.width)
    channels = [check.embed, check.embed, check.channels] * 2
    scale = [2.0 / check.embed**0.25, 1.0 / check.embed**0.25, 1.0] * 2

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE).to(dtype)

    inputs = [
        (normal(size[0], c, *size[2:]) * s).contiguous(memory_format=torch.channels_last)
        for c, s in zip(channels, scale, strict=True)
    ]
    plain = (check.batch, check.height, check.width, check.window**2)
    if check.prior:
        inputs.append(normal(*plain))
    grads = [normal(size[0], check.channels, *size[2:]) for _ in range(2)] + [normal(*plain)]

    def ours(theta: Tensor, psi: Tensor, g: Tensor, prior: Any) -> tuple[Tensor, Any]:
        return triton_impl.attend(
            theta, psi, g, window=check.window, affinity=check.affinity,
            circular=check.circular, bandwidth=10.0, prior=prior, keep_correlation=True,
            reuse_prior=False,
        )  # fmt: skip

    def run(attend: Callable[..., tuple[Tensor, Any]], double: bool) -> list[Tensor]:
        cast = torch.Tensor.double if double else (lambda t: t)
        leaves = [cast(t).detach().requires_grad_() for t in inputs]
        prior = leaves[6] if check.prior else None

        def states(*leaves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            first, second, correlation = two_states(attend, list(leaves), prior)
            return first, second, correlation if double else correlation.scores()

        if compiled and not double:
            states = torch.compile(states, fullgraph=True)
        outputs = states(*leaves[:6])
        gradients = torch.autograd.grad(outputs, leaves, [cast(t) for t in grads])
        return [t.detach().double() for t in (*outputs, *gradients)]

    names = ["out1", "out2", "scores", "theta1", "psi1", "g1", "theta2", "psi2", "g2", "prior"]
    wanted = run(dense(check), True)
    errors = {}
    for name, a, b in zip(names, wanted, run(ours, False), strict=False):
        errors[name] = float((a - b).norm() / a.norm())
    if not check.prior:
        errors |= check_inference(check, inputs, ours)
    return errors


def check_inference(
    check: Check, inputs: list[Tensor], ours: Callable[..., tuple[Tensor, Any]]
) -> dict[str, float]:
    """The in-place update of the scores, which only inference takes."""
    with torch.no_grad():
        _, _, wanted = two_states(dense(check), [t.double() for t in inputs], None)
        _, correlation = ours(*inputs[:3], None)
        triton_impl.attend(
            *inputs[3:6], window=check.window, affinity=check.affinity, circular=check.circular,
            bandwidth=10.0, prior=correlation, keep_correlation=True, reuse_prior=True,
        )  # fmt: skip
        got = correlation.scores().double()
    return {"in_place": float((got - wanted).norm() / wanted.norm())}


# --- Timing -------------------------------------------------------------------------------------


def candidates(name: str, quick: bool) -> list[Tuning]:
    """Tunings to time; forward, keys and queries entries are independent given the tile."""
    base = triton_layout.plan_for(*SHAPES[name][1:5], EMBED, CHANNELS, torch.bfloat16).tuning
    if not SHAPES[name].training:
        found = [base]
        if name == "infer512":
            for tile, tile_width, forward, cap in [
                (64, 16, (64, 4, 2), None),
                (64, 16, (64, 4, 3), None),
                (128, 16, (64, 8, 2), None),
                (128, 16, (64, 8, 2), 128),
                (128, 16, (64, 8, 3), None),
                (128, 16, (64, 4, 2), None),
                (128, 16, (32, 8, 2), 128),
            ]:
                found.append(base._replace(
                    tile=tile, tile_width=tile_width, forward=forward, tma_scores=True,
                    tma_operands=True, max_registers=cap,
                ))  # fmt: skip
            for tile, tile_width, forward, tma in [
                (64, 8, (64, 4, 2), False),
                (64, 8, (64, 4, 2), True),
                (64, 8, (64, 4, 3), True),
                (128, 8, (64, 8, 2), False),
                (128, 8, (64, 8, 2), True),
                (64, 4, (64, 4, 2), True),
            ]:
                found.append(base._replace(
                    tile=tile, tile_width=tile_width, forward=forward, tma_scores=tma,
                    tma_operands=False, max_registers=None,
                ))  # fmt: skip
        return list(dict.fromkeys(found))
    forwards: dict[int, list[tuple[int, int, int]]] = {
        64: [(64, 4, 2), (64, 4, 3), (64, 4, 4), (128, 4, 2)],
        128: [(64, 8, 2), (64, 8, 3), (128, 8, 2), (64, 4, 2)],
    }
    keys = [
        (64, 16, 64, 4, 2),
        (64, 16, 64, 4, 3),
        (64, 16, 32, 4, 2),
        (64, 16, 32, 4, 3),
        (128, 16, 64, 8, 2),
        (128, 16, 32, 8, 2),
        (128, 16, 32, 8, 3),
    ]
    queries = [(64, 4, 3), (64, 4, 4), (128, 4, 2), (128, 4, 3), (128, 8, 3)]
    tunings = [base]
    for tile in (64, 128):
        for tma in (True, False):
            if not tma and (quick or name != "train45"):
                continue
            # Longest list first: row i times the i-th entry of each.
            tunings += [
                Tuning(
                    tile,
                    8,
                    forwards[tile][row % len(forwards[tile])],
                    keys[row],
                    queries[row % len(queries)],
                    tma,
                    tma,
                )
                for row in range(len(keys))
            ]
        tunings.append(Tuning(tile, 8, forwards[tile][0], keys[0], queries[0], True, True, 128))
    return list(dict.fromkeys(tunings))


def plan_of(shape: Shape, tuning: Tuning) -> Plan:
    """The layout for a tuning, linear where the package would choose that."""
    chosen = triton_layout.plan_for(*shape[1:5], EMBED, CHANNELS, torch.bfloat16)
    return triton_layout.make_plan(*shape[1:5], chosen.linear, tuning)


class Buffers:
    """Random tensors of a call; scores come from a forward pass, so masked slots are masked."""

    def __init__(self, shape: Shape, plan: Plan) -> None:
        def normal(height: int, width: int, channels: int, scale: float) -> Tensor:
            size = (shape.batch, height, width, channels)
            return (torch.randn(size, device=DEVICE) * scale).bfloat16()

        self.theta = normal(plan.height, plan.width, EMBED, 0.3)
        self.keys = normal(plan.key_height, plan.key_width, EMBED, 0.3)
        self.values = normal(plan.key_height, plan.key_width, CHANNELS, 1.0)
        self.prior = triton_launch.new_packed(plan, self.theta)
        operands = (self.theta, self.keys, self.values)
        self.out, self.lse = triton_launch.launch_forward(plan, *operands, None, self.prior)
        self.d_out = normal(plan.height, plan.width, CHANNELS, 1.0)
        self.delta = triton_launch.launch_delta(plan, self.out, self.d_out)


def parts(shape: Shape, plan: Plan, buffers: Buffers) -> dict[str, Callable[[], Any]]:
    """The launches to time, by name."""
    b = buffers
    operands = (b.theta, b.keys, b.values)
    if not shape.training:
        return {
            "update": lambda: triton_launch.launch_forward(
                plan, *operands, b.prior, b.prior, exact=False
            ),
            "first": lambda: triton_launch.launch_forward(plan, *operands, None, b.prior),
            "last": lambda: triton_launch.launch_forward(plan, *operands, b.prior, None),
        }
    scores, d_next = torch.empty_like(b.prior), torch.randn_like(b.prior)
    return {
        "forward": lambda: triton_launch.launch_forward(plan, *operands, b.prior, scores),
        "keys": lambda: triton_launch.launch_backward_keys(
            plan, b.theta, b.values, b.prior, b.lse, b.delta, b.d_out, d_next
        ),
        "queries": lambda: triton_launch.launch_backward_queries(plan, b.keys, d_next),
        "delta": lambda: triton_launch.launch_delta(plan, b.out, b.d_out),
    }


def compile_only(name: str, tuning: Tuning) -> str:
    """Launches everything once on one image, so that the disk cache holds the kernels."""
    shape = SHAPES[name]._replace(batch=1)
    plan = plan_of(shape, tuning)
    failures = []
    try:
        buffers = Buffers(shape, plan)
        for part, launch in parts(shape, plan, buffers).items():
            try:
                launch()
                torch.cuda.synchronize()
            except Exception as error:
                failures.append(f"{part}: {type(error).__name__} {str(error)[:100]}")
    except Exception as error:
        failures.append(f"{type(error).__name__} {str(error)[:100]}")
    return "; ".join(failures)


def valid_pairs(shape: Shape) -> int:
    """Pairs of a pixel and a neighbour that the definition asks for."""
    if shape.circular:
        return shape.batch * shape.height * shape.width * shape.window**2
    radius = shape.window // 2

    def along(size: int) -> int:
        return sum(min(i + radius, size - 1) - max(i - radius, 0) + 1 for i in range(size))

    return shape.batch * along(shape.height) * along(shape.width)


def time_part(launch: Callable[[], Any], milliseconds: int) -> float:
    from triton.testing import do_bench

    return float(do_bench(launch, warmup=10, rep=milliseconds, return_mode="median"))


def time_shape(name: str, quick: bool, deadline: float) -> list[dict[str, Any]]:
    """One row for each part and tuning, with times in ms."""
    shape = SHAPES[name]
    pairs = valid_pairs(shape)
    # Useful work: each product of the definition once; the copies of scores in and out.
    flop = 2 * pairs * (EMBED + CHANNELS)
    work = {"forward": flop, "update": flop, "first": flop, "last": flop}
    work |= {"keys": 2 * pairs * (2 * CHANNELS + EMBED), "queries": 2 * pairs * EMBED, "delta": 0}
    copies = {"forward": 2, "update": 2, "first": 1, "last": 1, "keys": 3, "queries": 1, "delta": 0}
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[Any, ...], float] = {}
    for tuning in candidates(name, quick):
        if time.monotonic() > deadline:
            rows.append({"shape": name, "part": "stopped: time limit", "ms": float("inf")})
            break
        try:
            plan = plan_of(shape, tuning)
            buffers = Buffers(shape, plan)
            launches = parts(shape, plan, buffers)
        except Exception as error:
            rows.append({"shape": name, "part": f"failed {error!s:.80}", "ms": float("inf"),
                         "tuning": str(tuple(tuning))})  # fmt: skip
            torch.cuda.empty_cache()
            continue
        score_bytes = triton_layout.pairs_visited(plan) * shape.batch * 2
        for part, launch in launches.items():
            knobs = knobs_of(part, plan)
            if (part, knobs) in seen:
                continue
            row: dict[str, Any] = {"shape": name, "part": part, "knobs": knobs, "tile": tuning.tile}
            try:
                ms = time_part(launch, 25 if quick else 50)
                row |= {"ms": ms, "tflops": work[part] / ms * 1e-9,
                        "gbs": copies[part] * score_bytes / ms * 1e-6}  # fmt: skip
            except Exception as error:
                row |= {"ms": float("inf"), "error": f"{type(error).__name__} {str(error)[:80]}"}
            seen[part, knobs] = row["ms"]
            rows.append(row)
        del buffers, launches
    torch.cuda.empty_cache()
    return rows


def knobs_of(part: str, plan: Plan) -> str:
    """The part of a tuning that this launch depends on."""
    t = plan.tuning
    kind = "full" if plan.full else "linear" if plan.linear else "boxed" if plan.boxed else "tiled"
    tile = f"{kind} {t.tile}" + ("" if plan.linear else f"={t.tile // t.tile_width}x{t.tile_width}")
    if part in ("forward", "update", "first", "last"):
        cap = f" r{t.max_registers}" if t.max_registers else ""
        tma = f" tma{int(t.tma_scores)}{int(t.tma_operands)}"
        return f"{tile} block{t.forward[0]} w{t.forward[1]} s{t.forward[2]}{tma}{cap}"
    if part == "keys":
        keys, _, queries, warps, stages = t.keys
        return f"{tile} keys{keys} q{queries} w{warps} s{stages} tma{int(t.tma_operands)}"
    if part == "queries":
        return f"{tile} block{t.queries[0]} w{t.queries[1]} s{t.queries[2]} tma{int(t.tma_scores)}"
    return tile


def time_chain(name: str) -> dict[str, float]:
    """All states through `attend` with the package's own choices, replayed as a CUDA graph."""
    shape = SHAPES[name]
    size = (shape.batch, -1, shape.height, shape.width)

    def normal(channels: int, scale: float) -> Tensor:
        t = torch.randn(size[0], channels, *size[2:], device=DEVICE).bfloat16() * scale
        t = t.contiguous(memory_format=torch.channels_last)
        return t.requires_grad_(shape.training)

    states = [(normal(EMBED, 0.1), normal(EMBED, 0.1), normal(CHANNELS, 1)) for _ in range(STATES)]

    def step() -> None:
        correlation, total = None, None
        for state, (theta, psi, g) in enumerate(states):
            out, correlation = triton_impl.attend(
                theta, psi, g, window=shape.window, affinity="embedded_gaussian",
                circular=shape.circular, bandwidth=1.0, prior=correlation,
                keep_correlation=state + 1 < STATES, reuse_prior=True,
            )  # fmt: skip
            total = out if total is None else total + out
        if shape.training and total is not None:
            leaves = [t for state in states for t in state]
            torch.autograd.grad(total, leaves, torch.ones_like(total))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.set_grad_enabled(shape.training):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.set_grad_enabled(shape.training), torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() / 2**30
    return {"ms": statistics.median(times[2:]), "peak_gib": peak}


# --- Output -------------------------------------------------------------------------------------


def check_in_worker(number: int) -> tuple[Check, dict[str, float] | str]:
    check = CHECKS[number % len(CHECKS)]
    try:
        return check, run_check(check, compiled=number >= len(CHECKS))
    except Exception:
        return check, traceback.format_exc()[-1500:]


def run_checks_and_compile(
    names: list[str], quick: bool, limit: float
) -> tuple[list[dict[str, Any]], bool]:
    """Fans checks and compilations out over the cores; returns the checks' rows."""
    context = multiprocessing.get_context("spawn")
    rows, good = [], True
    cores = min(14, os.cpu_count() or 1)
    with (
        ProcessPoolExecutor(cores, mp_context=context) as pool,
        # A process for each check: after an illegal access, CUDA refuses everything in it.
        ProcessPoolExecutor(cores, mp_context=context, max_tasks_per_child=1) as check_pool,
    ):
        # The last number is the first check again, through torch.compile.
        checks: dict[Future[Any], int] = {
            check_pool.submit(check_in_worker, n): n for n in range(len(CHECKS) + 1)
        }
        compiles: dict[Future[Any], tuple[str, Tuning]] = {
            pool.submit(compile_only, name, tuning): (name, tuning)
            for name in names
            for tuning in candidates(name, quick)
        }
        try:
            for future in as_completed([*checks, *compiles], timeout=limit):
                if future in compiles:
                    if message := future.result():
                        name, tuning = compiles[future]
                        print(f"  {name} {tuple(tuning)}: {message}", flush=True)
                    continue
                check, errors = future.result()
                label = " ".join(map(str, check))
                if checks[future] >= len(CHECKS):
                    label += " torch.compile"
                if isinstance(errors, str):
                    print(f"CHECK FAILED {label}: {errors.strip().splitlines()[-1]}", flush=True)
                    rows.append({"check": label, "error": errors})
                    good = False
                    continue
                worst = max(errors.values(), key=lambda e: (e != e, e))
                passed = worst < TOLERANCE[check.dtype]
                good &= passed
                rows.append({"check": label, "errors": errors, "passed": passed})
                print(f"{'ok' if passed else 'BAD'} {label}: {worst:.1e}", flush=True)
        except TimeoutError:
            print("checks and compilations ran out of time", flush=True)
            good = False
            for future in [*checks, *compiles]:
                future.cancel()
            for process in [*(pool._processes or {}).values(),
                            *(check_pool._processes or {}).values()]:  # fmt: skip
                process.terminate()
    return rows, good


def main() -> None:
    """Runs everything within the time limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer block sizes")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds for everything")
    parser.add_argument("--only", default=",".join(SHAPES), help="shapes, comma-separated")
    parser.add_argument("--no-check", action="store_true", help="timings only")
    parser.add_argument("--top", type=int, default=4, help="rows of the table for each part")
    options = parser.parse_args()
    begin = time.monotonic()
    names = options.only.split(",")
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    checks: list[dict[str, Any]] = []
    good = True
    if not options.no_check:
        checks, good = run_checks_and_compile(names, options.quick, options.limit * 0.6)
    print(f"checked and compiled after {time.monotonic() - begin:.0f} s", flush=True)
    rows = []
    for name in names:
        rows += time_shape(name, options.quick, begin + options.limit * 0.9)
        print(f"timed {name} after {time.monotonic() - begin:.0f} s", flush=True)
    chains = {}
    for name in names:
        if time.monotonic() > begin + options.limit:
            break
        try:
            chains[name] = time_chain(name)
        except Exception as error:
            print(f"chain {name}: {type(error).__name__} {str(error)[:300]}", flush=True)
        torch.cuda.empty_cache()
    if out := os.environ.get("OUT"):
        path = Path(out) / "gpu_kernels.json"
        path.write_text(json.dumps({"checks": checks, "rows": rows, "chains": chains}, indent=1))
    report(checks, rows, chains, options.top)
    print(f"{'all checks passed' if good else 'SOME CHECKS FAILED'}, "
          f"{time.monotonic() - begin:.0f} s")  # fmt: skip
    sys.exit(0 if good else 1)


def report(
    checks: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    chains: dict[str, dict[str, float]],
    top: int,
) -> None:
    """Prints the tables."""
    for row in checks:
        if "errors" in row:
            listed = " ".join(f"{name}={error:.1e}" for name, error in row["errors"].items())
            print(f"{'ok  ' if row['passed'] else 'BAD '} {row['check']}: {listed}")
        else:
            print(f"FAIL {row['check']}: {row['error'].strip().splitlines()[-1][:150]}")
    print(f"{'shape':10}{'part':9}{'ms':>8}{'TFLOP/s':>9}{'GB/s':>7}  block sizes")
    for key in dict.fromkeys((row["shape"], row["part"]) for row in rows):
        some = sorted((r for r in rows if (r["shape"], r["part"]) == key), key=lambda r: r["ms"])
        shown = some[:top]
        # The other tile's best, since forward and backward must share one tile.
        tiles = {row.get("tile") for row in shown}
        shown += [r for r in some[top:] if r.get("tile") not in tiles][:1]
        for row in shown:
            print(f"{row['shape']:10}{row['part']:9}{row['ms']:8.4f}{row.get('tflops', 0):9.1f}"
                  f"{row.get('gbs', 0):7.0f}  {row.get('knobs', '')}"
                  f"{row.get('error', '')}")  # fmt: skip
    for name, chain in chains.items():
        what = "forward + backward" if SHAPES[name].training else "forward"
        print(f"{STATES} states {name} {what}: {chain['ms']:.3f} ms, {chain['peak_gib']:.2f} GiB")


if __name__ == "__main__":
    main()
