"""Draws quality against time on a CPU, ours beside other methods: docs/images/quality-time.svg.

    python benchmarks/cpu_everyday.py --json docs/results/cpu-everyday.json   # on a quiet machine
    python examples/quality_plot.py

Quality: mean PSNR of the first ten images of CBSD68, by number, at sigma 25. Time: that of one
256 x 256 image in float32 on two cores, in units of FFDNet's in the same run; ours from the stored
run, the others from one with their authors' weights.
"""

from __future__ import annotations

import json
from pathlib import Path

from nlrn import atomic, datasets
from nlrn.bench import curves

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "quality-time.svg"
# seconds, dB: all in one run on two cores (float32 matrix product 196 GFLOP/s)
PEERS = {
    "FFDNet": (0.13, 31.63), "CDnCNN": (0.42, 31.72), "ADNet": (0.32, 31.71),
    "DCBDNet": (0.61, 31.80), "BM3D": (4.95, 31.15),
}  # fmt: skip
OURS = ("denoise-rgb-fast", "denoise-rgb")


def ours() -> dict[str, curves.Point]:
    """The networks of ours that have both figures: time over FFDNet's, PSNR."""
    names = (Path(file).stem for _, file in datasets.published("CBSD68"))
    first = sorted(names, key=int)[:10]
    rows = json.loads((ROOT / "docs" / "results" / "color.json").read_text())
    run = json.loads((ROOT / "docs" / "results" / "cpu-everyday.json").read_text())
    seconds = run["seconds"]["float32"]
    found = {}
    for name in OURS:
        psnr = {
            row["image"]: row["psnr"]
            for row in rows
            if (row["set"], row["level"], row["method"]) == ("CBSD68", 25, name)
        }
        if all(image in psnr for image in first):
            mean = sum(psnr[image] for image in first) / len(first)
            found[name] = (seconds[name] / seconds["FFDNet-sized rgb"], mean)
    return found


def main() -> None:
    """Writes the picture."""
    unit = PEERS["FFDNet"][0]
    points = {name: (seconds / unit, psnr) for name, (seconds, psnr) in PEERS.items()} | ours()
    picture = curves.scatter(
        "Color, sigma 25: quality against time on a CPU",
        points,
        x_label="time for an image, FFDNet = 1",
        x_ticks=(1, 2, 5, 10, 20, 50),
        ours=OURS,
    )
    atomic.write_text(OUT, picture)
    print(
        OUT.relative_to(ROOT), *(f"{n} {x:.2f} {y:.2f}" for n, (x, y) in points.items()), sep="\n"
    )


if __name__ == "__main__":
    main()
