"""Checks the Triton kernels against float64 on this GPU, then times them over block sizes.

    python benchmarks/gpu/kernels.py [--quick] [--limit 170] [--only train45,infer512]

Checks and compilations run in worker processes; the timings run alone, afterwards. The tables come
last; $OUT/gpu_kernels.json holds all numbers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from kernel_checks import CHECKS, TOLERANCE, check_in_worker
from kernel_times import SHAPES, STATES, candidates, compile_only, time_chain, time_shape

from nlrn.ops.triton.layout import Tuning


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
                label = check.label
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
