"""Draws a run's curves with Pillow, so that looking at a run needs no plotting library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from nlrn.training.config import TrainingError
from nlrn.training.report import METRICS, read_metrics

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

NAME = "curves.png"
_WIDTH, _HEIGHT, _MARGIN = 900, 300, 60
_INK, _GRID, _CURVE = (40, 40, 40), (225, 225, 225), (31, 119, 180)
Points = list[tuple[float, float]]


def plot(folder: str | Path) -> Path:
    """Draws loss, validation PSNR and learning rate over the steps of a run, returns the file."""
    from PIL import Image, ImageDraw

    folder = Path(folder)
    entries = read_metrics(folder / METRICS)
    if not entries:
        raise TrainingError(f"{folder / METRICS}: no metrics of a run")
    readings = [entry for entry in entries if "loss" in entry]
    validations = [entry for entry in entries if "loss" not in entry]
    panels = [
        ("log10 of the loss", [(e["step"], _log10(e["loss"])) for e in readings]),
        ("validation PSNR, dB", [(e["step"], e["psnr"]) for e in validations]),
        ("log10 of the learning rate", [(e["step"], _log10(e["lr"])) for e in readings]),
    ]
    picture = Image.new("RGB", (_WIDTH, _HEIGHT * len(panels)), "white")
    draw = ImageDraw.Draw(picture)
    for number, (title, points) in enumerate(panels):
        _panel(draw, number * _HEIGHT, title, points)
    picture.save(folder / NAME)
    return folder / NAME


def _panel(draw: ImageDraw, top: int, title: str, points: Points) -> None:
    """One curve in a box with four lines of a grid, numbers at the left and below."""
    draw.text((_MARGIN, top + 8), title, fill=_INK)
    if not points:
        return
    (x0, x1), (y0, y1) = (_range([point[axis] for point in points]) for axis in (0, 1))
    left, right = _MARGIN, _WIDTH - 20
    upper, lower = top + 28, top + _HEIGHT - 28
    for i in range(5):
        y = lower + (upper - lower) * i / 4
        x = left + (right - left) * i / 4
        draw.line((left, y, right, y), fill=_GRID)
        draw.text((6, y - 6), f"{y0 + (y1 - y0) * i / 4:.4g}", fill=_INK)
        draw.text((x - 10, lower + 6), f"{x0 + (x1 - x0) * i / 4:.0f}", fill=_INK)
    curve = [
        (
            left + (right - left) * (x - x0) / (x1 - x0),
            lower + (upper - lower) * (y - y0) / (y1 - y0),
        )
        for x, y in points
    ]
    draw.line(curve, fill=_CURVE, width=2)
    for x, y in curve if len(curve) < 60 else []:
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=_CURVE)


def _range(values: list[float]) -> tuple[float, float]:
    """Smallest and largest value, never the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _log10(value: float) -> float:
    return math.log10(max(value, 1e-12))
