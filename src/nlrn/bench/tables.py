"""What each table is made of, and the figures of others in it: the paper's, or its peers'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

AUTO = 0  # a level: the noise is estimated
# How the numbers of a task come about.
_PROTOCOLS = {
    "denoise": (
        "Gray images, Gaussian noise seeded by the image's name, neither clipped nor rounded; PSNR "
        "and SSIM of the result rounded to 0..255, mean over the images."
    ),
    "color": (
        "Whole RGB images, Gaussian noise in all channels seeded by the image's name, neither "
        "clipped nor rounded; PSNR over the three channels together and SSIM averaged over them, "
        "of the result rounded to 0..255, mean over the images."
    ),
    "camera": (
        "Photographs with a camera's own noise beside the mean of many shots, whole; the level is "
        "given, or estimated by nlrn for every method (auto). PSNR over the three channels "
        "together and SSIM averaged over them, of the result rounded to 0..255, mean over the "
        "images."
    ),
    "sr": (
        "Luminance of the image cut to a multiple of the scale, shrunk by MATLAB's bicubic "
        "imresize without rounding; PSNR and SSIM of the result rounded to 0..255 without a border "
        "of `scale` pixels, mean over the images. Models for color get the color image shrunk to 8 "
        "bits, as the papers after this one do it; the luminance of their result counts."
    ),
    "sr-color": (
        "RGB images cut to a multiple of the scale, shrunk by MATLAB's bicubic imresize to 8 bits; "
        "PSNR over the three channels together and SSIM averaged over them, of the result rounded "
        "to 0..255 without a border of `scale` pixels, mean over the images."
    ),
}


@dataclass(frozen=True)
class Table:
    """A table: every method on every set at every level.

    Attributes:
        name: as `nlrn bench run` takes it.
        title: one line for people.
        task: "denoise" (gray) or "color", where a level is sigma on the 0..255 scale; "camera",
            where it is what methods are told, or `AUTO`; "sr" (luminance) or "sr-color", where it
            is the scale.
        sets: image sets.
        levels: noise levels or scales.
        methods: those that run unless others are asked for.
        weights: method -> level -> the weight of the package that it runs with; a level that is
            missing is left out. So is a set that the weight has seen: `methods.check_no_leakage`.
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
        if value == AUTO:
            return "auto"
        return f"x{value}" if self.is_sr else str(value)

    @property
    def is_sr(self) -> bool:
        """Whether it is about super-resolution."""
        return self.task in ("sr", "sr-color")


_BSD400 = {level: f"denoise-gray-s{level}" for level in (15, 25, 50)}
_BSD300 = {30: "denoise-gray-s30", 50: "denoise-gray-s50-bsd300", 70: "denoise-gray-s70"}
_SR, _SR_RGB, _SR_FAST = (
    dict.fromkeys((2, 3, 4), name) for name in ("sr-y", "sr-rgb", "sr-rgb-fast")
)
_SR_COLOR = {"NLRN": _SR, "sr-rgb-fast": _SR_FAST, "sr-rgb": _SR_RGB}
# LSSC and WNNM can be asked for: on a CPU they take minutes for an image.
_CLASSIC = ("noisy", "NLM-OpenCV", "NLM-skimage", "NLM", "BM3D-package", "BM3D")
_FILTERS = ("noisy", "NLM-skimage", "bilateral-skimage", "BM3D-package", "BM3D")
_COLOR, _GRAY, _CAMERA = (5, 15, 25, 50, 75), (5, 10, 15, 25, 35, 50, 75), (AUTO, 5, 10, 15)
# The paper's network nearest to a level, the contrast scaled to it.
_NEAREST = {
    15: "denoise-gray-s15", 25: "denoise-gray-s25", 35: "denoise-gray-s30", 50: "denoise-gray-s50",
    75: "denoise-gray-s70",
}  # fmt: skip
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
            "denoise", sets=("S14", "BSD200-half", "Urban100", "Set14", "BSD200"),
            levels=(30, 50, 70), methods=(*_CLASSIC, "NLRN", "NLRN-MV"),
            weights={"NLRN": _BSD300, "NLRN-MV": _BSD300},
        ),
        Table(
            "sr", "Super-resolution, one model for all scales", "sr",
            sets=("Set5", "Set14", "BSD100", "Urban100"), levels=(2, 3, 4),
            methods=("bicubic", "NLRN", "sr-rgb-fast", "sr-rgb"),
            weights=_SR_COLOR | {"NLRN-MV": _SR},
        ),
        Table(
            "sr-color", "Super-resolution of color images", "sr-color",
            sets=("Set5", "Set14", "BSD100", "Urban100"), levels=(2, 3, 4),
            methods=("bicubic", *_SR_COLOR), weights=_SR_COLOR,
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
        Table(
            "color", "Color images, one model for all noise levels", "color",
            sets=("CBSD68", "Kodak24"), levels=_COLOR,
            methods=(
                *_FILTERS, "NLRN-by-channel", "denoise-rgb-fast", "denoise-rgb", "denoise-rgb-MV",
            ),
            weights={
                "NLRN-by-channel": _BSD400,
                "denoise-rgb-fast": dict.fromkeys(_COLOR, "denoise-rgb-fast"),
                "denoise-rgb": dict.fromkeys(_COLOR, "denoise-rgb"),
                "denoise-rgb-MV": dict.fromkeys(_COLOR, "denoise-rgb"),
            },
        ),
        Table(
            "universal", "Gray images, one model for all noise levels", "denoise",
            sets=("Set12", "BSD68", "Urban100"), levels=_GRAY,
            methods=(*_FILTERS, "denoise-gray-fast", "denoise-gray", "denoise-gray-MV", "NLRN"),
            weights={
                "denoise-gray-fast": dict.fromkeys(_GRAY, "denoise-gray-fast"),
                "denoise-gray": dict.fromkeys(_GRAY, "denoise-gray"),
                "denoise-gray-MV": dict.fromkeys(_GRAY, "denoise-gray"),
                "NLRN": _NEAREST,
            },
        ),
        Table(
            "camera", "Photographs with a camera's noise, its level given or estimated", "camera",
            sets=("PolyU",), levels=_CAMERA,
            methods=(
                "noisy", "NLM-skimage", "bilateral-skimage", "BM3D-package", "denoise-rgb-fast",
                "denoise-rgb",
            ),
            weights={
                "denoise-rgb-fast": dict.fromkeys(_CAMERA, "denoise-rgb-fast"),
                "denoise-rgb": dict.fromkeys(_CAMERA, "denoise-rgb"),
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
    """PSNR in dB and SSIM of a cell by others; None where nothing is known."""

    psnr: float | None = None
    ssim: float | None = None


@cache
def _content(file: str) -> dict[str, Any]:
    text = files("nlrn.bench").joinpath(file).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def _paper() -> dict[str, Any]:
    return _content("paper.json")


def is_of_paper(table: str) -> bool:
    """Whether the table is one of the paper's; the others have figures of peers."""
    return table in _paper()["figures"]


def published(table: str, image_set: str, level: int) -> dict[str, Figures]:
    """The figures of others for a set and level by method: the paper's, or those of peers.

    The name of a peer says whether its figures are published, or measured by us with the weights
    of its authors.
    """
    if not is_of_paper(table):
        peers = _content("peers.json")["figures"].get(table, {})
        psnr = {name: sets.get(image_set, {}).get(str(level)) for name, sets in peers.items()}
        return {name: Figures(value) for name, value in psnr.items() if value is not None}
    cells = _paper()["figures"][table].get(image_set, {}).get(str(level), {})
    return {method: Figures(*figures) for method, figures in cells.items()}


def published_for(table: str, image_set: str, level: int, method: str) -> Figures:
    """The figures of others for a method of ours."""
    return published(table, image_set, level).get(_PUBLISHED_AS.get(method, method), Figures())


def published_ablation(name: str) -> dict[str, float]:
    """What the paper prints for the variants of an ablation: PSNR on Set12 at sigma 25."""
    content: dict[str, float] = _paper()["ablations"][name]
    return content


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
