"""Networks side by side: the same images, noise, patches and minutes for all of them.

A network and a seed make a row (`nlrn.equal` trains and measures them). Rows lie in files of JSON
beside the budgets they were trained under, in words, and the short trials by which a network's
optimizer was chosen; files of several machines can be joined.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from nlrn import models
from nlrn.bench import curves, tables
from nlrn.bench.report import RenderedTable
from nlrn.bench.run import write_json

CPU_SIDE, GPU_SIDE = 256, 512  # of the images that times are taken of


class Place(NamedTuple):
    """An image set at a level, and the tables that have figures for it, the nearest first."""

    set: str
    level: int
    tables: tuple[str, ...]

    @property
    def name(self) -> str:
        """As rows have it."""
        return f"{self.set} {self.level}"


@dataclass(frozen=True)
class Comparison:
    """A table of networks under one budget.

    Attributes:
        name: as `nlrn bench` takes it.
        title: one line for people.
        task: "denoise" or "sr".
        networks: architecture -> the name that it has in the paper, in the paper's order.
        places: what is measured.
        note: what is to be known of the paper's figures.
    """

    name: str
    title: str
    task: str
    networks: Mapping[str, str]
    places: tuple[Place, ...]
    note: str = ""

    def level(self, value: int) -> str:
        """A level for people."""
        return f"x{value}" if self.task == "sr" else str(value)


COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison(
            "equal-denoise", "Denoising networks after equal minutes", "denoise",
            {"tnrd": "TNRD", "nlnet": "NLNet", "dncnn": "DnCNN", "red": "RED", "memnet": "MemNet",
             "nlrn": "NLRN"},
            (
                Place("Set12", 50, ("complexity", "denoise-bsd400")),
                Place("S14", 50, ("denoise-bsd300",)),
            ),
            "The paper's TNRD and DnCNN were trained on 400 images; its RED averages eight views.",
        ),
        Comparison(
            "equal-sr", "Super-resolution networks after equal minutes", "sr",
            {"srcnn": "SRCNN", "vdsr": "VDSR", "drcn": "DRCN", "lapsrn": "LapSRN", "drrn": "DRRN",
             "memnet": "MemNet", "nlrn": "NLRN"},
            tuple(Place(name, x, ("sr",)) for name in ("Set5", "Set14") for x in (2, 3, 4)),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class EqualRow:
    """A network that was trained under a budget and measured.

    Attributes:
        task: "denoise" or "sr".
        network: its architecture.
        seed: of the weights' start and the patches.
        budget: key of the budget, the same for all rows of a table.
        optimizer: method and rate, for people.
        steps: it was trained for.
        minutes: that took, all in all.
        device: that trained it.
        precision: in which the test images were restored.
        validation_psnr: of the averaged weights, mean over the crops.
        psnr: set and level -> mean over the images, whole.
        parameters: all of them.
        flop_per_pixel: useful work for a pixel of the result.
        cpu_seconds: for an image of 256 x 256 in float32, the best of three.
        gpu_milliseconds: for one of 512 x 512 in bfloat16; None where there is no GPU.
    """

    task: str
    network: str
    seed: int
    budget: str
    optimizer: str
    steps: int
    minutes: float
    device: str
    precision: str
    validation_psnr: float
    psnr: Mapping[str, float]
    parameters: int
    flop_per_pixel: float
    cpu_seconds: float
    gpu_milliseconds: float | None = None

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What it is a row of."""
        return self.budget, self.task, self.network, self.seed


@dataclass(frozen=True)
class Trial:
    """A short run with one optimizer and rate.

    Attributes:
        run: name of the run that it is a trial for.
        budget: key of that run's budget.
        method: "adam" or "muon".
        lr: learning rate at the start.
        psnr: on validation images, at its end.
    """

    run: str
    budget: str
    method: str
    lr: float
    psnr: float

    @property
    def key(self) -> tuple[str, str, str, float]:
        """What it is a trial of."""
        return self.budget, self.run, self.method, self.lr


@dataclass(frozen=True)
class EqualRows:
    """Rows and trials, and the budgets behind them in words.

    Attributes:
        budgets: key of a budget -> the budget in words.
        rows: in the order in which they were made.
        trials: likewise.
    """

    budgets: dict[str, str] = field(default_factory=dict)
    rows: tuple[EqualRow, ...] = ()
    trials: tuple[Trial, ...] = ()

    def joined(self, other: EqualRows) -> EqualRows:
        """Both; of rows for the same network, seed and budget the other's."""
        rows = {row.key: row for row in (*self.rows, *other.rows)}
        trials = {trial.key: trial for trial in (*self.trials, *other.trials)}
        budgets = self.budgets | other.budgets
        return EqualRows(budgets, tuple(rows.values()), tuple(trials.values()))


def is_file_of_rows(file: Path) -> bool:
    """Whether a file holds rows of these tables."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "budgets" in content


def read(files: Iterable[Path]) -> EqualRows:
    """The rows of all files together."""
    found = EqualRows()
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            rows = tuple(EqualRow(**row) for row in content["rows"])
            trials = tuple(Trial(**trial) for trial in content["trials"])
            found = found.joined(EqualRows(dict(content["budgets"]), rows, trials))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            names = ", ".join(entry.name for entry in fields(EqualRow))
            raise ValueError(f"{file}: no rows of equal budgets (budgets, {names})") from error
    return found


def write(file: Path, found: EqualRows) -> None:
    """Writes rows, trials and budgets, whole or not at all."""
    trials, rows = [asdict(t) for t in found.trials], [asdict(row) for row in found.rows]
    write_json(file, {"budgets": found.budgets, "trials": trials, "rows": rows})


def rows_of(comparison: Comparison, found: EqualRows) -> dict[str, EqualRow]:
    """The last row of each network, under the budget of the last row of all."""
    own = [row for row in found.rows if row.task == comparison.task]
    return {row.network: row for row in own if row.budget == own[-1].budget}


def published(comparison: Comparison, place: Place, network: str) -> float | None:
    """What the paper prints for a network there."""
    label = comparison.networks[network]
    for table in place.tables:
        figures = tables.published(table, place.set, place.level)
        for name in (label, f"{label}-300"):
            if name in figures and figures[name].psnr is not None:
                return figures[name].psnr
    return None


def render(comparison: Comparison, found: EqualRows) -> RenderedTable:
    """Our figures beside the paper's; what has not been trained yet has none."""
    here = rows_of(comparison, found)
    lines, remarks = [], ["No rows of ours yet."]
    if here:
        remarks = [found.budgets[next(iter(here.values())).budget]]
    for place in comparison.places:
        lines += [_line(comparison, place, name, here.get(name)) for name in comparison.networks]
        remarks += _order(comparison, place, here)
    remarks += [comparison.note] if comparison.note else []
    remarks.append(
        "PSNR in dB of whole images. Work in MFLOP for a pixel of the result; seconds on a CPU for "
        f"{CPU_SIDE} x {CPU_SIDE} pixels in float32, milliseconds on a GPU for {GPU_SIDE} x "
        f"{GPU_SIDE} in bfloat16 (float32 for TNRD, NLNet and SRCNN)."
    )
    level = "scale" if comparison.task == "sr" else "sigma"
    return RenderedTable(comparison.title, ("set", level, *COLUMNS), lines, remarks)


COLUMNS = ("method", "ours", "paper", "parameters", "work", "CPU s", "GPU ms", "steps", "minutes",
           "validation", "seed", "how")  # fmt: skip


def _line(
    comparison: Comparison, place: Place, network: str, row: EqualRow | None
) -> tuple[str, ...]:
    printed = published(comparison, place, network)
    paper = "-" if printed is None else f"{printed:.2f}"
    first = (place.set, comparison.level(place.level), comparison.networks[network])
    if row is None:
        return (*first, "-", paper, *_size(*size_of(network)), *[""] * (len(COLUMNS) - 5))
    gpu = row.gpu_milliseconds
    return (
        *first,
        f"{row.psnr[place.name]:.2f}" if place.name in row.psnr else "-",
        paper,
        *_size(row.parameters, row.flop_per_pixel),
        f"{row.cpu_seconds:.2f}",
        "" if gpu is None else f"{gpu:.1f}",
        f"{row.steps:,}",
        f"{row.minutes:g}",
        f"{row.validation_psnr:.2f}",
        str(row.seed),
        f"{row.optimizer}, {row.precision}, {row.device}",
    )


def _size(parameters: int, flop_per_pixel: float) -> tuple[str, str]:
    return f"{parameters:,}", f"{flop_per_pixel / 1e6:.2f}"


@cache
def size_of(network: str) -> tuple[int, float]:
    """Parameters of an architecture in its full size, and work for a pixel of the result."""
    with torch.device("meta"):
        made = models.build(network, {})
    return sum(p.numel() for p in made.parameters()), made.flop_per_pixel / made.scale**2


def _order(comparison: Comparison, place: Place, here: Mapping[str, EqualRow]) -> list[str]:
    """Where our order differs from the paper's, in a line; nothing while networks are missing."""
    printed = {n: published(comparison, place, n) for n in comparison.networks}
    known = {n: psnr for n, psnr in printed.items() if psnr is not None}
    ours = {n: row.psnr[place.name] for n, row in here.items() if place.name in row.psnr}
    if set(ours) != set(comparison.networks):
        return []
    orders = [sorted(known, key=lambda n: -figures[n]) for figures in (ours, known)]
    if orders[0] == orders[1]:
        return []
    mine, theirs = (", ".join(comparison.networks[n] for n in order) for order in orders)
    where = f"{place.set}, {comparison.level(place.level)}"
    return [f"{where}: best first, ours {mine}; the paper's {theirs}."]


def plot(comparison: Comparison, found: EqualRows) -> str:
    """Quality over work, SVG; empty without rows."""
    place, here = comparison.places[0], rows_of(comparison, found)
    points = {
        comparison.networks[name]: [(math.log10(row.flop_per_pixel), row.psnr[place.name])]
        for name, row in here.items()
        if place.name in row.psnr
    }
    if not points:
        return ""
    places = [x for ((x, _),) in points.values()]
    whole = range(math.floor(min(places)), math.ceil(max(places)) + 1)
    return curves.svg(
        comparison.title,
        points,
        x_label="work for a pixel in MFLOP",
        y_label=f"PSNR in dB, {place.set}, {comparison.level(place.level)}",
        x_ticks={float(x): f"{10.0 ** (x - 6):g}" for x in whole},
    )
