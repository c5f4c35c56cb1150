"""Draws the paper's last two figures, restored by this package, into figures/.

    python examples/paper_figures.py                 # both, from the data root of NLRN_DATA
    python examples/paper_figures.py --figure sr --device cuda --dtype bf16

PSNR and SSIM are those of the whole image, by the protocol of `nlrn bench`; the crops are our own
choice. The images may not be passed on with this package, hence the ignored folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nlrn import datasets, images
from nlrn.bench import methods
from nlrn.bench.run import degraded_pair, score
from nlrn.bench.tables import TABLES, Table
from nlrn.inference import Settings

CROP, SHOWN, GAP, CAPTION = 96, 288, 8, 40  # pixels: cut out, drawn, between, for the text


@dataclass(frozen=True)
class Figure:
    """Images of one figure: set, name of the file without suffix, row and column of the crop."""

    table: Table
    level: int
    methods: Sequence[str]
    pictures: Sequence[tuple[str, str, int, int]]


# S14's 04 is barbara.
FIGURES = {
    "denoise": Figure(
        TABLES["denoise-bsd300"], 30, ("noisy", "BM3D", "WNNM", "NLRN"),
        (("S14", "04", 60, 100), ("Urban100", "img_004", 330, 720),
         ("Urban100", "img_019", 300, 380), ("Urban100", "img_033", 330, 600),
         ("Urban100", "img_046", 330, 330)),
    ),
    "sr": Figure(
        TABLES["sr"], 4, ("bicubic", "NLRN"),
        (("Urban100", "img_005", 330, 560), ("Urban100", "img_019", 240, 480),
         ("Urban100", "img_044", 300, 640), ("Urban100", "img_062", 240, 520),
         ("Urban100", "img_099", 250, 620)),
    ),
}  # fmt: skip


def panel(image: np.ndarray, crop: tuple[int, int], caption: str) -> Image.Image:
    """The crop of a gray image on the 0..255 scale, enlarged without smoothing, above its text."""
    y, x = crop
    cut = Image.fromarray(image[y : y + CROP, x : x + CROP])
    drawn = Image.new("L", (SHOWN, SHOWN + CAPTION), 255)
    drawn.paste(cut.resize((SHOWN, SHOWN), Image.Resampling.NEAREST), (0, 0))
    font = ImageFont.load_default(14)
    ImageDraw.Draw(drawn).multiline_text((2, SHOWN + 2), caption, fill=0, font=font, spacing=2)
    return drawn


def overview(image: np.ndarray, crop: tuple[int, int], caption: str) -> Image.Image:
    """The whole image, small, with a frame where the crop is."""
    whole = Image.fromarray(image).convert("RGB")
    y, x = crop
    frame = (x, y, x + CROP, y + CROP)
    ImageDraw.Draw(whole).rectangle(frame, outline="red", width=max(whole.size) // 150)
    whole.thumbnail((SHOWN, SHOWN))
    drawn = Image.new("RGB", (SHOWN, SHOWN + CAPTION), "white")
    drawn.paste(whole, (0, 0))
    ImageDraw.Draw(drawn).text(
        (2, SHOWN + 2), caption, fill="black", font=ImageFont.load_default(14)
    )
    return drawn


def row(
    figure: Figure, picture: tuple[str, str, int, int], root: Path, how: methods.MethodOptions
) -> list[Image.Image]:
    """Overview, ground truth, and what each method makes of the degraded image."""
    image_set, name, *corner = picture
    crop = (corner[0], corner[1])
    file = next(f for f in datasets.image_files(image_set, root) if f.stem == name)
    task, level = figure.table.task, figure.level
    clean, degraded = degraded_pair(task, datasets.read_image(file), level, 0, file)
    panels = [overview(clean, crop, f"{image_set} {name}"), panel(clean, crop, "ground truth")]
    for method in figure.methods:
        try:
            prepared = methods.prepare(figure.table, image_set, level, method, how)
        except methods.UnavailableError as error:
            print(f"left out: {error}")
            continue
        restored = prepared.restore(degraded, level)
        psnr, ssim = score(restored, clean, border=level if task == "sr" else 0)
        print(f"{image_set} {name} {method}: {psnr:.2f} dB, SSIM {ssim:.4f}", flush=True)
        shown = images.from_float(restored, np.uint8)
        panels.append(panel(shown, crop, f"{method}\n{psnr:.2f} dB / {ssim:.4f}"))
    return panels


def draw(rows: list[list[Image.Image]]) -> Image.Image:
    """The panels of all rows on one sheet."""
    width, height = SHOWN + GAP, SHOWN + CAPTION + GAP
    sheet = Image.new("RGB", (max(map(len, rows)) * width - GAP, len(rows) * height - GAP), "white")
    for y, panels in enumerate(rows):
        for x, part in enumerate(panels):
            sheet.paste(part, (x * width, y * height))
    return sheet


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", choices=FIGURES, action="append", help="one of them only")
    parser.add_argument("--data", help="the data root; NLRN_DATA if not given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--weight", help="a file or a name to restore with instead")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--limit", type=int, help="the first images of each figure only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(dtype=options.dtype, device=options.device)
    choices = methods.MethodOptions(weight=options.weight, settings=settings)
    source = datasets.find_root(options.data)
    for chosen in options.figure or FIGURES:
        wanted = FIGURES[chosen]
        sheet = draw([row(wanted, p, source, choices) for p in wanted.pictures[: options.limit]])
        path = options.out / f"{chosen}-{wanted.level}.png"
        sheet.save(path)
        print(path)
