"""What each table of the paper is made of, and the figures published in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

# How the numbers of a task come about.
_PROTOCOLS = {
    "denoise": (
        "Gray images, Gaussian noise seeded by the image's name, neither clipped nor rounded; PSNR "
        "and SSIM of the result rounded to 0..255, mean over the images."
    ),
    "sr": (
        "Luminance of the image cut to a multiple of the scale, shrunk by MATLAB's bicubic "
        "imresize without rounding; PSNR and SSIM of the result rounded to 0..255 without a border "
        "of `scale` pixels, mean over the images."
    ),
}


@dataclass(frozen=True)
class Table:
    """A table: every method on every set at every level.

    Attributes:
        name: as `nlrn bench run` takes it.
        title: one line for people.
        task: "denoise", where a level is sigma on the 0..255 scale, or "sr", where it is the scale.
        sets: image sets.
        levels: noise levels or scales.
        methods: those that run unless others are asked for.
        weights: method -> level -> the weight of the package that it runs with. No weight may
            have seen a set of its table: `methods.check_no_leakage` refuses that.
    """

    name: str
    title: str
    task: str
    sets: tuple[str, ...]
    levels: tuple[int, ...]
    methods: tuple[str, ...]
    weights: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @property
    def protocol(self) -> str:
        """How its numbers come about, for people."""
        return _PROTOCOLS[self.task]

    def level(self, value: int) -> str:
        """A level for people."""
        return f"x{value}" if self.task == "sr" else str(value)


_BSD400 = {level: f"denoise-gray-s{level}" for level in (15, 25, 50)}
_BSD300 = {30: "denoise-gray-s30", 50: "denoise-gray-s50-bsd300", 70: "denoise-gray-s70"}
_SR = dict.fromkeys((2, 3, 4), "sr-y")
# LSSC and WNNM can be asked for: on a CPU they take minutes for an image.
_CLASSIC = ("noisy", "NLM-OpenCV", "NLM-skimage", "NLM", "BM3D-package", "BM3D")
_PUBLISHED_AS = {"BM3D-package": "BM3D"}  # two programs for one method of the paper

TABLES = {
    table.name: table
    for table in (
        Table(
            "denoise-bsd400", "Denoising, models trained on 400 images (as DnCNN)", "denoise",
            sets=("Set12", "BSD68", "Urban100"), levels=(15, 25, 50),
            methods=(*_CLASSIC, "NLRN"), weights={"NLRN": _BSD400, "NLRN-MV": _BSD400},
        ),
        Table(
            "denoise-bsd300", "Denoising, models trained on 300 images (as RED and MemNet)",
            "denoise", sets=("Set14", "BSD200", "Urban100"), levels=(30, 50, 70),
            methods=(*_CLASSIC, "NLRN", "NLRN-MV"), weights={"NLRN": _BSD300, "NLRN-MV": _BSD300},
        ),
        Table(
            "sr", "Super-resolution, one model for all scales", "sr",
            sets=("Set5", "Set14", "BSD100", "Urban100"), levels=(2, 3, 4),
            methods=("bicubic", "NLRN"), weights={"NLRN": _SR, "NLRN-MV": _SR},
        ),
        Table(
            "complexity", "Size of the networks, and what they reach on Set12 at sigma 50",
            "denoise", sets=("Set12",), levels=(50,),
            methods=("NLRN-400", "NLRN-300", "NLRN-300-MV"),
            weights={
                "NLRN-400": {50: "denoise-gray-s50"},
                "NLRN-300": {50: "denoise-gray-s50-bsd300"},
                "NLRN-300-MV": {50: "denoise-gray-s50-bsd300"},
            },
        ),
    )
}  # fmt: skip


def find(name: str) -> Table:
    """The table of this name."""
    if name not in TABLES:
        raise ValueError(f"unknown table {name!r}; tables: {', '.join(TABLES)}")
    return TABLES[name]


class Figures(NamedTuple):
    """PSNR in dB and SSIM of a cell of the paper; None where nothing is published."""

    psnr: float | None = None
    ssim: float | None = None


@cache
def _paper() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        files("nlrn.bench").joinpath("paper.json").read_text(encoding="utf-8")
    )
    return content


def published(table: str, image_set: str, level: int) -> dict[str, Figures]:
    """The paper's figures for a set and level by method."""
    cells = _paper()["figures"].get(table, {}).get(image_set, {}).get(str(level), {})
    return {method: Figures(*figures) for method, figures in cells.items()}


def published_for(table: str, image_set: str, level: int, method: str) -> Figures:
    """The paper's figures for a method of ours."""
    return published(table, image_set, level).get(_PUBLISHED_AS.get(method, method), Figures())


def facts(table: str) -> dict[str, dict[str, Any]]:
    """What the paper says about the methods themselves: method -> facts."""
    content: dict[str, dict[str, Any]] = _paper()["facts"].get(table, {})
    return content


def misprint(table: str, image_set: str, level: int, method: str) -> str:
    """Why the SSIM published there cannot be right; empty if nothing is known against it."""
    for cell in _paper()["misprints"]:
        if (cell["table"], cell["set"], cell["level"], cell["method"]) == (
            table, image_set, level, method,
        ):  # fmt: skip
            return str(cell["note"])
    return ""


def has_unknown_protocol(table: str, image_set: str) -> bool:
    """Whether the paper's figures for the set follow a protocol that is not known.

    Its BM3D is then far from what BM3D gives on the published images, so only gains over BM3D
    can be compared.
    """
    return image_set in _paper()["other_protocol"].get(table, ())
