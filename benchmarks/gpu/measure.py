"""What the sections of run.py share: sizes, clocks, the machine's own rates, rows of the report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

from nlrn.models.nlrn import CONFIGS, NLRNConfig


class Training(NamedTuple):
    """A training step to time."""

    batch: int
    patch: int
    border: str

    def __str__(self) -> str:
        return f"{self.batch} x {self.patch}x{self.patch} {self.border}"


@dataclass(frozen=True)
class Setup:
    """Where and on what to measure."""

    device: torch.device
    model: NLRNConfig
    training: tuple[Training, ...]
    small: tuple[int, int]
    main: tuple[int, int]
    large: tuple[int, int]
    wide: tuple[int, int]
    tiled: tuple[int, int]  # an image that goes in tiles
    patch: int
    stride: int
    checks: int  # random cases of the parity section
    steps: int  # of the convergence section
    gemm: int

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.on_gpu else torch.float32

    def flop(self, pixels: int) -> float:
        """Useful work of a forward pass as design and paper count it: q * q neighbours each."""
        return float(self.model.flop_per_pixel * pixels)

    def attention_flop(self, pixels: int) -> float:
        model = self.model
        return 2.0 * pixels * model.steps * model.window**2 * (model.embed + model.channels)


FULL = Setup(
    torch.device("cuda"),
    CONFIGS["nlrn"],
    (Training(16, 45, "circular"), Training(16, 64, "mask")),
    small=(256, 256), main=(512, 512), large=(1024, 1024), wide=(768, 512), tiled=(4000, 3000),
    patch=45, stride=7, checks=30, steps=500, gemm=8192,
)  # fmt: skip
# The same on a CPU within a minute, to try the code.
DRY = Setup(
    torch.device("cpu"),
    dataclasses.replace(CONFIGS["nlrn"], steps=2, channels=16, embed=8, window=5),
    (Training(2, 5, "circular"), Training(2, 16, "mask")),
    small=(16, 16), main=(32, 32), large=(64, 64), wide=(48, 32), tiled=(150, 170),
    patch=5, stride=3, checks=3, steps=60, gemm=256,
)  # fmt: skip


class Report:
    """Rows of measurements, printed as they come and kept in a file."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.end = path, time.monotonic() + seconds
        self.values: dict[str, Any] = {"rows": [], "failures": []}

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def row(self, **values: Any) -> None:
        self.values["rows"].append(values)
        shown = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                          for k, v in values.items())  # fmt: skip
        print(shown, flush=True)
        self.save()

    def put(self, key: str, value: Any) -> None:
        self.values[key] = value
        self.save()

    def save(self) -> None:
        self.path.write_text(json.dumps(self.values, indent=1))

    def attempt(
        self, name: str, work: Callable[..., Any], *arguments: Any, needs: float = 5.0
    ) -> None:
        """Runs a measurement; what fails in it, or finds no time, is noted and loses no other."""
        try:
            if self.left < needs:
                raise TimeoutError(f"{self.left:.0f} s left of the section's time")
            work(*arguments)
        except Exception as error:
            text = f"{type(error).__name__} " + " ".join(str(error).split())[:300]
            print(f"FAILED {name}: {text}", flush=True)
            trace = "" if isinstance(error, TimeoutError) else traceback.format_exc()[-3000:]
            self.values["failures"].append({"job": name, "error": text, "trace": trace})
            self.save()
        gc.collect()
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):
                torch.cuda.empty_cache()


def milliseconds(
    work: Callable[[], Any], setup: Setup, *, seconds: float = 1.5, most: int = 30
) -> float:
    """Median time of a run by the device's own clock, after two to warm up."""
    for _ in range(2):
        work()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < most and (len(times) < 3 or time.perf_counter() - begin < seconds):
        times.append(_time_once(work, setup.on_gpu))
    return statistics.median(times)


def _time_once(work: Callable[[], Any], on_gpu: bool) -> float:
    if not on_gpu:
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def wall_milliseconds(work: Callable[[], Any], runs: int = 3) -> float:
    """Median time of a call that ends on the host, after one to warm up."""
    work()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def peak_gib(work: Callable[[], Any], setup: Setup) -> float:
    """Device memory at the highest point of a run, weights and inputs included."""
    if not setup.on_gpu:
        work()
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def machine(setup: Setup) -> dict[str, Any]:
    """Name, versions, and the two ceilings: a large copy, a large matrix product in bfloat16."""
    size = 2**28 if setup.on_gpu else 2**18
    source, target = torch.randn(size, device=setup.device), torch.empty(size, device=setup.device)
    copy = milliseconds(functools.partial(target.copy_, source), setup, seconds=0.5)
    a, b = torch.randn(2, setup.gemm, setup.gemm, device=setup.device).to(setup.dtype)
    product = milliseconds(functools.partial(torch.matmul, a, b), setup, seconds=0.5)
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    return {
        "device": torch.cuda.get_device_name() if setup.on_gpu else "CPU (dry run)",
        "torch": torch.__version__,
        "triton": version,
        "copy_bytes_per_second": 2 * source.nbytes / copy * 1e3,
        "gemm_flop_per_second": 2 * setup.gemm**3 / product * 1e3,
    }


@contextlib.contextmanager
def setting(where: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, an attribute of a module has another value."""
    kept = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, kept)


def profile_of(setup: Setup, report: Report, name: str, work: Callable[[], Any]) -> None:
    """Prints the kernels of a run by their time, and how much of it they leave idle."""
    from torch.profiler import ProfilerActivity

    runs, ms = 3, milliseconds(work, setup, seconds=0.5)
    activity = ProfilerActivity.CUDA if setup.on_gpu else ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as trace:
        for _ in range(runs):
            work()
        if setup.on_gpu:
            torch.cuda.synchronize()
    kernels: list[dict[str, Any]] = []
    for entry in trace.key_averages():
        total = entry.self_device_time_total if setup.on_gpu else entry.self_cpu_time_total
        kernels.append({"us": total / runs, "count": entry.count / runs, "kernel": entry.key})
    kernels.sort(key=lambda kernel: -kernel["us"])
    report.put(f"kernels of {name}", kernels)
    busy = sum(kernel["us"] for kernel in kernels) / 1e3
    count = sum(kernel["count"] for kernel in kernels)
    report.row(section="profile", what=name, who="all kernels", ms=ms, busy_ms=busy, count=count)
    for kernel in kernels[:25]:
        share = kernel["us"] / busy / 10
        print(f"  {kernel['us']:9.1f} us {share:5.1f} % {kernel['count']:6.1f} x  "
              f"{kernel['kernel'][:110]}", flush=True)  # fmt: skip
