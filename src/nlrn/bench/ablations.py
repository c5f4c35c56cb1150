"""The paper's ablations: variants of the network, all trained alike, on Set12 at sigma 25.

A variant and a seed make a row (`nlrn.ablate` trains and measures them). Rows lie in files of JSON
beside the schedules they were trained with, in words; files of several machines can be joined.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nlrn.bench import curves, tables
from nlrn.bench.report import RenderedTable
from nlrn.bench.run import write_json

SET, SIGMA, BASE = "Set12", 25, "base"
WINDOWS, STEPS = (5, 15, 25, 35, 45, 55, 65), (2, 4, 6, 8, 10, 12, 14, 16)
WHOLE = 89  # on patches of 45 pixels every pixel sees every other
# variant -> what of the network's config it changes
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "euclidean": {"affinity": "euclidean"},
    "dot": {"affinity": "dot"},
    "embedded-dot": {"affinity": "embedded_dot"},
    "gaussian": {"affinity": "gaussian"},
    "symmetric": {"affinity": "symmetric_embedded_gaussian"},
    "untied": {"tied": False},
    "rnn": {"channels": 135, "non_local_every": 0},
    "every-2": {"non_local_every": 2},
    "every-3": {"non_local_every": 3},
    "no-propagation": {"propagate": False},
    **{f"q{window}": {"window": window} for window in WINDOWS if window != 45},
    "whole": {"window": WHOLE},
    **{f"T{steps}": {"steps": steps} for steps in STEPS if steps != 12},
}


@dataclass(frozen=True)
class Ablation:
    """One comparison of the paper.

    Attributes:
        name: as `nlrn bench` takes it.
        title: one line for people.
        labels: variant -> what stands in its line, in the paper's order.
        axis: for a curve, what its labels are.
        finding: what the paper says of a curve that it draws without figures.
    """

    name: str
    title: str
    labels: Mapping[str, str]
    axis: str = ""
    finding: str = ""


_WINDOWS = {f"q{q}": str(q) for q in WINDOWS} | {"whole": "whole patch"}
ABLATIONS = {
    ablation.name: ablation
    for ablation in (
        Ablation(
            "ablation-metric", "Table 1: how two pixels are compared",
            {"euclidean": "Euclidean distance", "dot": "dot product",
             "embedded-dot": "embedded dot product", "gaussian": "Gaussian",
             "symmetric": "symmetric embedded Gaussian", BASE: "embedded Gaussian"},
        ),
        Ablation(
            "ablation-variant", "Table 2: variants of the network",
            {"untied": "without parameter sharing", "rnn": "RNN with the same number of parameters",
             "every-2": "non-local module in every other state",
             "every-3": "non-local module in every 3 states",
             "no-propagation": "without propagating correlations", BASE: "NLRN"},
        ),
        Ablation(
            "window", "Figure 5: side q of the neighbourhood",
            {BASE if name == "q45" else name: label for name, label in _WINDOWS.items()},
            "q", "highest at q = 45",
        ),
        Ablation(
            "steps", "Figure 6: number T of states",
            {BASE if steps == 12 else f"T{steps}": str(steps) for steps in STEPS},
            "T", "rising, hardly any more after T = 12",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class AblationRow:
    """A variant that was trained and measured.

    Attributes:
        variant: a name of `VARIANTS`.
        seed: of the weights' start and the patches.
        schedule: key of the schedule, the same for all rows of a table.
        steps: it was trained for.
        minutes: that took, all in all.
        device: that trained it.
        precision: in which the test images were restored.
        validation_psnr: of the averaged weights, mean over the crops.
        test_psnr: on Set12 at sigma 25, whole images, mean over the images.
    """

    variant: str
    seed: int
    schedule: str
    steps: int
    minutes: float
    device: str
    precision: str
    validation_psnr: float
    test_psnr: float

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is a row of."""
        return self.schedule, self.variant, self.seed


@dataclass(frozen=True)
class AblationRows:
    """Rows, and the schedules behind them in words.

    Attributes:
        schedules: key of a schedule -> the schedule in words.
        rows: in the order in which they were made.
    """

    schedules: dict[str, str] = field(default_factory=dict)
    rows: tuple[AblationRow, ...] = ()

    def joined(self, other: AblationRows) -> AblationRows:
        """Both; of rows for the same variant, seed and schedule the other's."""
        rows = {row.key: row for row in (*self.rows, *other.rows)}
        return AblationRows(self.schedules | other.schedules, tuple(rows.values()))


def is_file_of_rows(file: Path) -> bool:
    """Whether a file holds rows of ablations, not those of tables."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "schedules" in content


def read(files: Iterable[Path]) -> AblationRows:
    """The rows of all files together."""
    found = AblationRows()
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            rows = tuple(AblationRow(**row) for row in content["rows"])
            found = found.joined(AblationRows(dict(content["schedules"]), rows))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            names = ", ".join(entry.name for entry in fields(AblationRow))
            raise ValueError(f"{file}: no rows of ablations (schedules, and {names})") from error
    return found


def write(file: Path, found: AblationRows) -> None:
    """Writes rows and schedules, whole or not at all."""
    write_json(file, {"schedules": found.schedules, "rows": [asdict(row) for row in found.rows]})


@dataclass(frozen=True)
class Point:
    """A variant of an ablation, over its seeds.

    Attributes:
        label: what stands in its line.
        test_psnr, validation_psnr: means over the seeds.
        spread: largest minus smallest PSNR on the test set; None for a single seed.
        rows: one for each seed.
    """

    label: str
    test_psnr: float
    validation_psnr: float
    spread: float | None
    rows: tuple[AblationRow, ...]


def points(ablation: Ablation, found: AblationRows, schedule: str) -> dict[str, Point]:
    """The figures of each variant under a schedule, for those that have been trained."""
    result = {}
    for variant, label in ablation.labels.items():
        rows = tuple(r for r in found.rows if (r.variant, r.schedule) == (variant, schedule))
        if rows:
            test = [row.test_psnr for row in rows]
            spread = max(test) - min(test) if len(test) > 1 else None
            validation = statistics.fmean(row.validation_psnr for row in rows)
            result[variant] = Point(label, statistics.fmean(test), validation, spread, rows)
    return result


COLUMNS = (
    "set", "sigma", "variant", "ours", "spread", "to base", "paper", "to base, paper",
    "validation", "steps", "minutes", "how",
)  # fmt: skip


def render(ablation: Ablation, found: AblationRows) -> RenderedTable:
    """Our figures beside the paper's; of several schedules those of the last one."""
    schedule = last_schedule(found)
    here = points(ablation, found, schedule)
    remarks = [found.schedules[schedule]] if here else ["No rows of ours yet."]
    remarks += _order(ablation, here)
    remarks.append("Spread: largest minus smallest over the seeds. PSNR of whole images in dB.")
    lines = [_line(ablation, variant, here) for variant in ablation.labels]
    return RenderedTable(ablation.title, COLUMNS, lines, remarks)


def last_schedule(found: AblationRows) -> str:
    """Key of the schedule that rows were last made with; empty without any."""
    return found.rows[-1].schedule if found.rows else ""


def _line(ablation: Ablation, variant: str, here: Mapping[str, Point]) -> tuple[str, ...]:
    point, base = here.get(variant), here.get(BASE)
    paper = tables.published_ablation(ablation.name)
    label = ablation.labels[variant]
    first = (SET, str(SIGMA), f"{ablation.axis} = {label}" if label.isdigit() else label)
    printed = f"{paper[variant]:.2f}" if variant in paper else "-"
    to_paper = f"{paper[variant] - paper[BASE]:+.2f}" if variant in paper else ""
    if point is None:
        return (*first, "-", "", "", printed, to_paper, "", "", "", "")
    return (
        *first,
        f"{point.test_psnr:.3f}",
        "" if point.spread is None else f"{point.spread:.3f} ({len(point.rows)} seeds)",
        f"{point.test_psnr - base.test_psnr:+.3f}" if base else "",
        printed,
        to_paper,
        f"{point.validation_psnr:.3f}",
        _range([row.steps for row in point.rows]),
        _range([round(row.minutes, 1) for row in point.rows]),
        " + ".join(sorted({f"{row.precision}, {row.device}" for row in point.rows})),
    )


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _order(ablation: Ablation, here: Mapping[str, Point]) -> list[str]:
    """What comes first, ours and the paper's, in a line; nothing while variants are missing."""
    if len(here) < len(ablation.labels):
        return []
    best = sorted(here, key=lambda variant: -here[variant].test_psnr)
    if ablation.axis:
        there = f"The paper draws its curve without figures: {ablation.finding}."
        return [f"Highest here at {ablation.axis} = {here[best[0]].label}. {there}"]
    paper = tables.published_ablation(ablation.name)
    printed = sorted(paper, key=lambda variant: -paper[variant])
    ours, theirs = (", ".join(ablation.labels[v] for v in order) for order in (best, printed))
    return [f"Best first, ours: {ours}. The paper's: {theirs}."]


def curve(ablation: Ablation, found: AblationRows) -> str:
    """The picture of a curve, SVG; the bar at a point spans its seeds. Empty without points."""
    here = points(ablation, found, last_schedule(found))
    if not here or not ablation.axis:
        return ""
    places = {variant: float(place) for place, variant in enumerate(ablation.labels)}
    line = [(places[variant], point.test_psnr) for variant, point in here.items()]
    spans = []
    for variant, point in here.items():
        if point.spread:
            test = [row.test_psnr for row in point.rows]
            spans.append((places[variant], min(test), max(test)))
    return curves.svg(
        ablation.title,
        {"ours": line},
        x_label=ablation.axis,
        y_label=f"PSNR in dB, {SET}, sigma {SIGMA}",
        x_ticks={places[variant]: label for variant, label in ablation.labels.items()},
        spans=spans,
    )
