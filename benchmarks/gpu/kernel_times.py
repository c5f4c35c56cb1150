"""Times of the Triton kernels over block sizes, and of all states in a row."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from kernel_checks import DEVICE
from torch import Tensor

from nlrn.ops import AttentionSpec, attend
from nlrn.ops.triton import launch as triton_launch
from nlrn.ops.triton import layout as triton_layout
from nlrn.ops.triton.layout import Plan, Tuning

EMBED, CHANNELS, STATES = 64, 128, 12


class Shape(NamedTuple):
    """A call to time."""

    batch: int
    height: int
    width: int
    window: int
    circular: bool
    training: bool

    @property
    def spec(self) -> AttentionSpec:
        """What is computed."""
        return AttentionSpec(self.window, border="circular" if self.circular else "mask")


SHAPES = {
    "train45": Shape(16, 45, 45, 45, True, True),
    "train48": Shape(16, 48, 48, 45, False, True),
    "train64": Shape(16, 64, 64, 45, False, True),
    "infer512": Shape(1, 512, 512, 45, False, False),
    "infer256": Shape(1, 256, 256, 45, False, False),
    "infer1024": Shape(1, 1024, 1024, 45, False, False),
}


def candidates(name: str, quick: bool) -> list[Tuning]:
    """Tunings to time; forward, keys and queries entries are independent given the tile."""
    base = triton_layout.plan_for(*SHAPES[name][1:5], EMBED, CHANNELS, torch.bfloat16).tuning
    if SHAPES[name].training:
        found = [base, *training_candidates(tma_only=quick or name != "train45")]
    else:
        found = [base, *(inference_candidates(base) if name == "infer512" else [])]
    return list(dict.fromkeys(found))


def inference_candidates(base: Tuning) -> list[Tuning]:
    found = [
        base._replace(tile=tile, tile_width=16, forward=forward, tma_scores=True,
                      tma_operands=True, max_registers=cap)
        for tile, forward, cap in [
            (64, (64, 4, 2), None),
            (64, (64, 4, 3), None),
            (128, (64, 8, 2), None),
            (128, (64, 8, 2), 128),
            (128, (64, 8, 3), None),
            (128, (64, 4, 2), None),
            (128, (32, 8, 2), 128),
        ]
    ]  # fmt: skip
    found += [
        base._replace(tile=tile, tile_width=tile_width, forward=forward, tma_scores=tma,
                      tma_operands=False, max_registers=None)
        for tile, tile_width, forward, tma in [
            (64, 8, (64, 4, 2), False),
            (64, 8, (64, 4, 2), True),
            (64, 8, (64, 4, 3), True),
            (128, 8, (64, 8, 2), False),
            (128, 8, (64, 8, 2), True),
            (64, 4, (64, 4, 2), True),
        ]
    ]  # fmt: skip
    return found


def training_candidates(tma_only: bool) -> list[Tuning]:
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
    tunings = []
    for tile, forward in forwards.items():
        for tma in (True,) if tma_only else (True, False):
            # Longest list first: row i times the i-th entry of each.
            tunings += [
                Tuning(tile, 8, forward[row % len(forward)], key, queries[row % len(queries)],
                       tma, tma)
                for row, key in enumerate(keys)
            ]  # fmt: skip
        tunings.append(Tuning(tile, 8, forward[0], keys[0], queries[0], True, True, 128))
    return tunings


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

        self.query = normal(plan.height, plan.width, EMBED, 0.3)
        self.keys = normal(plan.key_height, plan.key_width, EMBED, 0.3)
        self.values = normal(plan.key_height, plan.key_width, CHANNELS, 1.0)
        self.prior = triton_launch.new_packed(plan, self.query)
        operands = (self.query, self.keys, self.values)
        self.out, self.lse = triton_launch.launch_forward(plan, *operands, None, self.prior)
        self.d_out = normal(plan.height, plan.width, CHANNELS, 1.0)
        self.delta = triton_launch.launch_delta(plan, self.out, self.d_out)


def parts(shape: Shape, plan: Plan, buffers: Buffers) -> dict[str, Callable[[], Any]]:
    """The launches to time, by name."""
    b = buffers
    operands = (b.query, b.keys, b.values)
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
            plan, b.query, b.values, b.prior, b.lse, b.delta, b.d_out, d_next
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
        for state, (query, key, value) in enumerate(states):
            out, correlation = attend(
                query, key, value, shape.spec, prior_scores=correlation,
                keep_correlation=state + 1 < STATES, reuse_prior=True, backend="triton",
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
