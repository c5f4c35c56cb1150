"""Parity for run.py: random cases against float64 in worker processes; they fill the caches too."""

from __future__ import annotations

import multiprocessing
import os
import random
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any

import flex
import torch
import train
from kernel_checks import Check, run_check
from measure import Report, Setup, setting

from nlrn.models.nlrn import random_network
from nlrn.ops import AttentionSpec

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
WORKERS = 15
AFTERWARDS = 12.0  # seconds kept for the whole network


def random_check(number: int, on_gpu: bool) -> Check:
    """A case of any shape; a third with the network's channels, some whole patches, some wide."""
    pick = random.Random(number)
    dtype = ("float32", "bfloat16")[number % 2] if on_gpu else "float32"
    side, radius, embed, channels = (64, 31, 128, 256) if on_gpu else (9, 3, 8, 8)
    height, width = pick.randint(1, side), pick.randint(1, side)
    window, circular = 2 * pick.randint(0, radius) + 1, pick.random() < 0.5
    if number % 5 == 0:
        circular, window = True, min(window, 45)
        height = width = window
    elif on_gpu and number % 6 == 3:  # what a large image is cut into
        height, width, window = pick.randint(1, 40), pick.randint(90, 130), 45
    embeds = [e for e in (1, 5, 8, 16, 33, 64, 100, 128) if e <= embed]
    values = [c for c in (1, 3, 8, 48, 64, 128, 200, 256) if c <= channels]
    if on_gpu and number % 3 == 0:
        embeds, values = [64], [128]
    return Check(
        batch=pick.randint(1, 2),
        embed=pick.choice(embeds),
        channels=pick.choice(values),
        size=(height, width),
        spec=AttentionSpec(window, border="circular" if circular else "mask"),
        dtype=dtype,
        prior=pick.random() < 0.5,
    )


def check_in_worker(number: int, on_gpu: bool) -> tuple[Check, dict[str, float] | str]:
    check = random_check(number, on_gpu)
    try:
        if not on_gpu:
            let_the_interpreter_count()
        return check, run_check(check)
    except Exception:
        return check, traceback.format_exc()[-1500:]


def let_the_interpreter_count() -> None:
    """Triton's interpreter takes arrays as loop bounds, which NumPy 2.4 no longer makes an int."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def warm(setup: Setup, kind: str, number: int) -> None:
    """Compiles what a timed section will need, so that it finds it in the caches on disk."""
    if kind == "flex":
        if number < len(setup.training):
            flex.training(setup, setup.training[number])()
        else:
            flex.inference(setup, setup.main)
        return
    shape = setup.training[number]
    step, patches = train.make_step(setup, shape, kind, recorded=False)
    for k in range(2):
        step(patches.batch(k, shape.batch, shape.patch), 1e-6, 0.01)
    step.pop_metrics()


WARMED = [("fused", 0), ("fused", 1), ("dense", 0), ("flex", 2), ("flex", 0), ("dense", 1)]
WARMED += [("inlined", 0)]


def parity(setup: Setup, report: Report, _: str | None) -> None:
    """All cases, then the whole network."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there are enough processes
    results: list[dict[str, Any]] = []
    workers = min(WORKERS, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    # Few tasks for a process: after an illegal access, CUDA refuses everything in it.
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=2) as pool:
        checks: dict[Future[Any], int] = {
            pool.submit(check_in_worker, n, setup.on_gpu): n for n in range(setup.checks)
        }
        warmed: dict[Future[Any], tuple[str, int]] = {}
        if setup.on_gpu:
            warmed = {pool.submit(warm, setup, *kind): kind for kind in WARMED}
        try:
            for future in as_completed([*checks, *warmed], timeout=report.left - AFTERWARDS):
                if future in warmed:
                    print(f"compiled {warmed[future]} {future.exception() or ''}", flush=True)
                else:
                    results.append(judged(*future.result()))
                    report.put("checks", results)
        except Exception as error:  # out of time, or a worker died
            print(f"parity: {len(results)} of {setup.checks} cases ({error!r})", flush=True)
            for future in [*checks, *warmed]:
                future.cancel()
            for process in list((pool._processes or {}).values()):
                process.terminate()
    report.attempt("whole network", whole_network, setup, report)


def judged(check: Check, errors: dict[str, float] | str) -> dict[str, Any]:
    label = check.label
    if isinstance(errors, str):
        print(f"FAILED {label}: {errors.strip().splitlines()[-1]}", flush=True)
        return {"case": label, "dtype": check.dtype, "error": errors, "passed": False}
    worst = max(errors.values(), key=lambda e: (e != e, e))
    passed = worst < TOLERANCE[check.dtype]
    print(f"{'ok' if passed else 'BAD'} {label}: {worst:.1e}", flush=True)
    return {"case": label, "dtype": check.dtype, "errors": errors, "worst": worst, "passed": passed}


def whole_network(setup: Setup, report: Report) -> None:
    """The folded network against the plain one in float64; the error is relative to the change."""
    if not setup.on_gpu:
        let_the_interpreter_count()
    size = (101, 150) if setup.on_gpu else (11, 9)
    model = random_network(setup.model)
    torch.nn.init.normal_(model.conv_out.weight, std=0.1)
    image = torch.rand(1, 1, *size, device=setup.device)
    dtypes = [torch.float32, torch.bfloat16] if setup.on_gpu else [torch.float32]
    with setting(torch.backends.cudnn, "allow_tf32", False):
        got = {dtype: model.for_inference(dtype, setup.device)(image) for dtype in dtypes}
    with torch.no_grad():
        wanted = model.to(setup.device).double()(image.double())
    for dtype, result in got.items():
        error = float((result - wanted).norm() / (wanted - image).norm())
        report.row(section="parity", what=f"{size[0]}x{size[1]}", who=f"network, {dtype}",
                   ms="-", error=error)  # fmt: skip
