"""What one GPU does with the network: parity, training step, inference, convergence; and the bars.

    python benchmarks/gpu/run.py --data ROOT [--limit 420] [--json FILE]
        [--sections calls,everyday,parity,inference,train,convergence,profile]

Every section runs in a process of its own within its share of the time, so that nothing that fails
takes the rest along. One table comes last; all numbers are in the JSON file, `$OUT/gpu.json` where
the variable OUT is set. `--dry-run` tries all of it on a CPU with tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Seconds that a section may take, in the order in which they run.
SECONDS = {
    "calls": 40,
    "everyday": 60,
    "parity": 130,
    "inference": 110,
    "train": 130,
    "convergence": 110,
    "profile": 45,
}
DEFAULT = "parity,inference,train,convergence"


def main() -> None:
    """Runs the sections one after the other, then prints the table and the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default=DEFAULT, help=f"of {', '.join(SECONDS)}")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds for everything")
    parser.add_argument("--data", help="folder with bsds500/train, for convergence")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--child", choices=list(SECONDS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_section(options)
        return
    begin = time.monotonic()
    path = options.json or Path(os.environ.get("OUT", ".")) / "gpu.json"
    sections = options.sections.split(",")
    if unknown := set(sections) - set(SECONDS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; known: {', '.join(SECONDS)}")
    if "convergence" in sections and not options.dry_run and not options.data:
        print("convergence needs --data ROOT: left out", flush=True)
        sections.remove("convergence")
    results: dict[str, Any] = {"sections": {}, "command": sys.argv}
    for section in sections:
        seconds = min(SECONDS[section], begin + options.limit - time.monotonic() - 5)
        if seconds < 15:
            print(f"=== {section}: no time left", flush=True)
            results["sections"][section] = {"rows": [], "failures": [{"job": "no time left"}]}
            continue
        print(f"=== {section}, at most {seconds:.0f} s", flush=True)
        results["sections"][section] = in_a_process(section, seconds, options)
        results["bars"] = bars(results["sections"])
        path.write_text(json.dumps(results, indent=1))
        print(f"=== {section} done after {time.monotonic() - begin:.0f} s", flush=True)
    print_table(results["sections"])
    for bar in results.get("bars", []):
        print(bar["text"])
    print(f"{time.monotonic() - begin:.0f} s in all, numbers in {path}")


def in_a_process(section: str, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """What the section has measured, however it ended."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.json"
        command = [sys.executable, __file__, "--child", section, "--json", str(part),
                   "--seconds", str(seconds)]  # fmt: skip
        command += ["--data", options.data] if options.data else []
        command += ["--dry-run"] if options.dry_run else []
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        if options.dry_run:
            environment["OMP_NUM_THREADS"] = "1"
            environment["TRITON_INTERPRET"] = str(int(section == "parity"))
        # A group of its own, so that a section that hangs can be ended with its workers.
        child = subprocess.Popen(command, env=environment, process_group=0)
        ending = ""
        try:
            code = child.wait(seconds + 25)
            ending = f"exit code {code}" if code else ""
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            ending = f"ended after {seconds + 25:.0f} s ({type(stop).__name__})"
        found: dict[str, Any] = {"rows": [], "failures": []}
        if part.exists():
            found |= json.loads(part.read_text())
    rate = found.get("machine", {}).get("gemm_flop_per_second")
    for row in found["rows"]:
        if rate and row.get("tflops"):
            row["share_of_gemm"] = row["tflops"] * 1e12 / rate
    if ending:
        print(f"FAILED section {section}: {ending}", flush=True)
        found["failures"].append({"job": section, "error": ending})
    return found


def run_section(options: argparse.Namespace) -> None:
    """In the child process: the machine's rates of this moment, then the section."""
    import everyday
    import infer
    import measure
    import parity
    import train

    section = {
        "calls": infer.calls,
        "everyday": everyday.everyday,
        "parity": parity.parity,
        "inference": infer.infer,
        "train": train.train,
        "convergence": train.converge,
        "profile": train.profile,
    }[options.child]
    begin = time.monotonic()
    setup = measure.DRY if options.dry_run else measure.FULL
    report = measure.Report(options.json, options.seconds)
    if not options.dry_run and not measure.torch.cuda.is_available():
        sys.exit("no CUDA device; --dry-run tries the code on a CPU")
    report.attempt("machine", lambda: report.put("machine", measure.machine(setup)))
    print(report.values.get("machine"), flush=True)
    report.attempt(options.child, section, setup, report, options.data)
    report.put("seconds", time.monotonic() - begin)


# --- The table and the bars ---------------------------------------------------------------------


def print_table(sections: dict[str, Any]) -> None:
    """One line for each measurement, with its share of the GEMM rate of the same process."""
    for section, found in sections.items():
        about = {"device": "?", "torch": "?", "triton": "?"} | found.get("machine", {})
        copy, gemm = about.get("copy_bytes_per_second", 0), about.get("gemm_flop_per_second", 0)
        print(f"\n{section}: {about['device']}, torch {about['torch']}, triton {about['triton']}, "
              f"copy {copy / 1e12:.2f} TB/s, bf16 GEMM {gemm / 1e12:.0f} TFLOP/s, "
              f"{found.get('seconds', 0):.0f} s")  # fmt: skip
        if found["rows"]:
            print(f"{'what':>20} {'who':36}{'ms':>10}{'TFLOP/s':>9}{'share':>7}{'GiB':>8}")
        for row in found["rows"]:
            numbers = (_cell(row.get("ms"), "10.3f"), _cell(row.get("tflops"), "9.1f"),
                       _cell(row.get("share_of_gemm"), "7.2f"),
                       _cell(row.get("peak_gib"), "8.2f"))  # fmt: skip
            print(f"{row['what']:>20} {row['who']:36}{''.join(numbers)}  {_rest(row)}")
        if checks := found.get("checks"):
            good = sum(check["passed"] for check in checks)
            print(f"{good} of {len(checks)} random cases agree with float64")
        for failure in found["failures"]:
            print(f"FAILED {failure['job']}: {failure.get('error', '')[:200]}")
    print()


def _cell(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, float) else f"{'-':>{form.split('.')[0]}}"


def _rest(row: dict[str, Any]) -> str:
    known = {"section", "what", "who", "ms", "tflops", "peak_gib", "share_of_gemm"}
    return ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else str(v) if k == "note" else f"{k} {v}"
        for k, v in row.items()
        if k not in known
    )


def bars(sections: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars, whether they are met, and by how much."""
    rows = [row for found in sections.values() for row in found["rows"]]

    def find(section: str, who: str, role: str, value: str = "ms") -> float | None:
        wanted = {"section": section, "who": who, "role": role}
        found = [row for row in rows if wanted.items() <= row.items()]
        return found[0][value] if found else None

    result: list[dict[str, Any]] = []

    def bar(name: str, value: float | None, limit: float, unit: str, at_most: bool = True) -> None:
        text, met = f"NOT MEASURED  {name}", None
        if value is not None:
            met = value <= limit if at_most else value >= limit
            asked = f"at {'most' if at_most else 'least'} {limit:.4g}"
            by = f"{abs(value / limit - 1) * 100:.1f} % {'of room' if met else 'off'}"
            text = f"{'met   ' if met else 'MISSED'}  {name}: {value:.4g} {unit}, {asked}, {by}"
        result.append({"name": name, "value": value, "limit": limit, "met": met, "text": text})

    checks = sections.get("parity", {}).get("checks", [])
    for dtype, limit in (("float32", 1e-4), ("bfloat16", 2e-2)):
        errors = [c["worst"] for c in checks if c["dtype"] == dtype and "worst" in c]
        worst = max(errors, key=lambda e: (e != e, e)) if errors else None
        bar(f"parity in {dtype}", worst, limit, "relative error at worst")
    passed = float(sum(check["passed"] for check in checks)) if checks else None
    bar("parity", passed, 30, "random cases agree", at_most=False)

    bar("training step, 16 x 45x45", find("train", "ours", "main"), 9.0, "ms")
    loop = find("train", "ours", "main", "with_patches_ms")
    bar("the same, patches made as well", loop, 9.0, "ms")
    curves = [row["largest_difference"] for row in rows if row["section"] == "convergence"]
    bar("loss curves, means over 50 steps", curves[0] if curves else None, 0.02,
        "relative difference at most")  # fmt: skip

    for door in ("engine", "denoiser"):
        who = f"ours, {door.capitalize()} host to host"
        bar(f"{door}, 512x512 host to host", find("inference", who, door), 24.0, "ms")
    main = find("inference", "ours", "main")
    bar("inference 512x512", main, 20.0, "ms")
    rate = find("inference", "ours", "main", "tflops")
    bar("inference 512x512", rate, 225.0, "useful TFLOP/s", at_most=False)
    protocol, work = (find("inference", "overlap protocol", "main", v) for v in ("ms", "work"))
    name = f"overlap protocol against it ({work or 36:.1f} by arithmetic)"
    bar(name, protocol / main if protocol and main else None, 20.0, "times as long", at_most=False)
    large = find("inference", "ours", "large")
    growth = large / 4 / main if large and main else None
    bar("time per pixel, 1024x1024 against 512x512", growth, 1.15, "times")
    bar("memory at 1024x1024", find("inference", "ours", "large", "peak_gib"), 12.0, "GiB")

    recorded = find("everyday", "recorded", "denoise-rgb")
    bar("denoise-rgb 512x512, recorded", recorded, 4.0, "ms")
    whole = find("everyday", "Denoiser host to host", "photo")
    bar("denoise-rgb 4000x3000 host to host", whole, 1000.0, "ms")
    ours, papers = (find("everyday", "Upscaler host to host", n) for n in ("sr-rgb", "sr-y"))
    bar("sr-y against sr-rgb at x4", papers / ours if ours and papers else None, 10.0,
        "times as long", at_most=False)  # fmt: skip
    return result


if __name__ == "__main__":
    main()
