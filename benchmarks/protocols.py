"""Whole images against the authors' overlapping patches, with the same weights and noise.

    python benchmarks/protocols.py --data ROOT [--sets Set12,BSD68,Urban100] [--levels 15,25,50]
        [--part 1/2] [--dtype bf16] [--device cuda]

For each set and sigma: mean PSNR in dB of both, and the image on which the whole image is farthest
below the patches. A network whose batch norm explodes on some image shows here. Of Urban100 the
centre 256 x 256. The patches are 36 times the work: on a CPU take --limit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from nlrn import datasets
from nlrn.bench import methods, tables
from nlrn.bench.run import figures_of, part_of
from nlrn.degrade import add_noise

CENTRE = 256  # pixels: side of what is taken of Urban100


def image_of(file: Path, image_set: str) -> np.ndarray:
    """The clean gray image [H, W], uint8."""
    gray = datasets.read_gray(file)
    if image_set != "Urban100":
        return gray
    centre = datasets.center_crop(gray, CENTRE)
    assert centre is not None, f"{file} is smaller than {CENTRE}"
    return centre


def main() -> None:
    """Prints a line for each set and noise level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--sets", default="Set12,BSD68,Urban100")
    parser.add_argument("--levels", default="15,25,50")
    parser.add_argument("--part", default="1/1", help="as nlrn bench has it")
    parser.add_argument("--limit", type=int, help="the first images of each set only")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    root, table = datasets.find_root(options.data), tables.find("denoise-bsd400")
    for image_set in options.sets.split(","):
        files = datasets.image_files(image_set, root, part=part_of(options.part))[: options.limit]
        for level in map(int, options.levels.split(",")):
            restorers = [
                methods.bind(
                    table, image_set, level, "NLRN",
                    methods.Setting(protocol, options.dtype, options.device),
                ).restore
                for protocol in ("whole", "overlap")
            ]  # fmt: skip
            found = []
            for file in files:
                clean = image_of(file, image_set)
                noisy = add_noise(clean, level, 0, file.stem)
                found.append([figures_of(f(noisy, level), clean, border=0)[0] for f in restorers])
            both = torch.tensor(found)
            difference = both[:, 0] - both[:, 1]
            worst = int(difference.argmin())
            whole, patches = both.mean(0).tolist()
            print(
                f"{image_set} sigma {level}, {len(files)} images: whole {whole:.3f}, "
                f"patches {patches:.3f}; worst {files[worst].stem} {difference[worst]:+.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
