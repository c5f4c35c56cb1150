"""Means of rows beside the figures of others: as lines of text, Markdown and JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from nlrn import datasets, weights
from nlrn.bench import methods, tables
from nlrn.bench.run import Row, image_count
from nlrn.bench.tables import TABLES, Figures, Table

BETTER = "▲"  # at a figure of ours that is above the paper's
MISPRINT = "†"  # at a figure of the paper whose SSIM cannot be right
BASE = "BM3D-package"  # what gains are measured over: the program that everyone has
OVER_BASE = f"Over BM3D: PSNR above that of {BASE} with the same noise"
# Under a table that has figures of other networks.
OTHERS = (
    "Others: PSNR as published, or measured by us with the authors' weights on the noise of this "
    "table."
)
COLUMNS = ("set", "level", "method", "ours", "paper", "difference", "over BM3D", "s", "how")


@dataclass(frozen=True)
class Mean:
    """Mean over the images of a cell; rows of other settings make a mean of their own.

    Attributes:
        psnr: mean over the images whose result is not exact; infinite if all are.
        seconds: median, since on a GPU the first image waits for the compiler.
        exact: number of images whose result is exact, that is of infinite PSNR.
        images: number of images.
        complete: whether these are all images of the set.
    """

    table: str
    set: str
    level: int
    method: str
    psnr: float
    ssim: float
    seconds: float
    images: int
    exact: int
    complete: bool
    protocol: str
    version: str
    precision: str
    device: str
    seed: int

    def to_json(self) -> dict[str, Any]:
        """The mean and the paper's figures for JSON; an infinite PSNR is the text "inf"."""
        paper = tables.published_for(self.table, self.set, self.level, self.method)
        number = self.psnr if math.isfinite(self.psnr) else str(self.psnr)
        own = vars(self) | {"psnr": number}
        return own | {"paper_psnr": paper.psnr, "paper_ssim": paper.ssim}


def means(rows: Iterable[Row]) -> list[Mean]:
    """A mean for every cell and setting, in the order of the tables."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = (*row.cell, row.protocol, row.version, row.precision, row.seed)
        groups.setdefault(key, []).append(row)
    return sorted((_mean(group) for group in groups.values()), key=_place)


def _mean(rows: list[Row]) -> Mean:
    finite = [row.psnr for row in rows if not math.isinf(row.psnr)]
    first, count = rows[0], len(rows)
    devices = sorted({row.device for row in rows})
    return Mean(
        *first.cell,
        psnr=round(sum(finite) / len(finite), 4) if finite else math.inf,
        ssim=round(sum(row.ssim for row in rows) / count, 6),
        seconds=round(statistics.median(row.seconds for row in rows), 4),
        images=count,
        exact=count - len(finite),
        complete=count == image_count(first.set),
        protocol=first.protocol,
        version=first.version,
        precision=first.precision,
        device=" + ".join(devices),
        seed=first.seed,
    )


def _place(mean: Mean) -> tuple[Any, ...]:
    table = tables.find(mean.table)
    order = _method_order(table, mean.set, mean.level)
    return (
        list(TABLES).index(table.name), table.sets.index(mean.set), mean.level,
        order.index(mean.method), mean.protocol, mean.version, mean.precision, mean.seed,
    )  # fmt: skip


def _method_order(table: Table, image_set: str, level: int) -> list[str]:
    """Baselines that the paper does not have, the paper's methods in its order, other networks."""
    paper = [name for name, cell in tables.published(table.name, image_set, level).items()
             if cell.psnr is not None]  # fmt: skip
    known = methods.names(table)
    own = [name for name in known if name not in paper]
    first = [name for name in own if name not in methods.NETWORKS]
    first.sort(key=lambda name: name == BASE)  # beside the paper's BM3D
    return [*first, *paper, *(name for name in own if name in methods.NETWORKS)]


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Everything as JSON: `rows` per image, and `means` with the paper's figures."""
    found = means(rows)
    return {
        "protocols": {m.table: tables.find(m.table).protocol for m in found},
        "means": [mean.to_json() for mean in found],
        "rows": [row.to_json() for row in rows],
    }


@dataclass(frozen=True)
class RenderedTable:
    """A table as text: title, columns, lines, remarks below."""

    title: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]
    remarks: list[str]


def render_all(rows: Sequence[Row]) -> list[RenderedTable]:
    """Every table that the rows belong to."""
    found = means(rows)
    names = dict.fromkeys(mean.table for mean in found)
    return [render(tables.find(name), found) for name in names]


def render(table: Table, found: Sequence[Mean], *, everywhere: bool = False) -> RenderedTable:
    """Our means beside the figures of others.

    Args:
        table: which table.
        found: means, of this table or others.
        everywhere: all sets and levels of the table, not only those that were run.
    """
    own = [mean for mean in found if mean.table == table.name]
    places = dict.fromkeys((mean.set, mean.level) for mean in own)
    if everywhere:
        places = dict.fromkeys(product(table.sets, table.levels))
    lines, remarks = [], [table.protocol]
    for place in places:
        paper = tables.published(table.name, *place)
        here = [mean for mean in own if (mean.set, mean.level) == place]
        for method in _method_order(table, *place):
            measured: list[Mean | None] = [mean for mean in here if mean.method == method]
            if not measured and method in paper:
                measured = [None]
            for mean in measured:
                lines.append(_line(table, *place, method, mean, here))
                remarks += _notes(table, *place, method).values()
    if any(BETTER in line[5] for line in lines):
        remarks.append(f"{BETTER}: above the paper's figure.")
    if any("(" in line[6] for line in lines):
        remarks.append(f"{OVER_BASE} (in the paper, above BM3D).")
    if any(mean.protocol == "overlap" for mean in own):
        remarks.append("overlap: patches of 45 pixels at stride 7, averaged.")
    level_name = "scale" if table.is_sr else "sigma"
    columns = tuple(level_name if name == "level" else name for name in COLUMNS)
    if table.is_sr:
        columns, lines = _without(columns, lines, "over BM3D")
    if not tables.is_of_paper(table.name):
        remarks += [f"{OVER_BASE}."] if any(line[6] for line in lines) else []
        remarks += [OTHERS] if any(line[4] != "-" for line in lines) else []
        columns, lines = _without_paper(columns, lines)
    if tables.facts(table.name):
        columns, lines = _with_facts(table, own, columns, lines)
    return RenderedTable(table.title, columns, lines, list(dict.fromkeys(remarks)))


def _line(
    table: Table, image_set: str, level: int, method: str, mean: Mean | None, here: list[Mean]
) -> tuple[str, ...]:
    """The cells of a line; `here` are all means of its set and level."""
    paper = tables.published_for(table.name, image_set, level, method)
    notes = _notes(table, image_set, level, method)
    return (
        image_set,
        table.level(level),
        method,
        _ours(mean),
        " ".join([pair(paper.psnr, paper.ssim) or "-", *notes]),
        _differences(mean, paper, notes),
        _gains(table, image_set, level, method, mean, here),
        f"{mean.seconds:.2f}" if mean else "",
        _how(mean) if mean else "",
    )


def _notes(table: Table, image_set: str, level: int, method: str) -> dict[str, str]:
    """What is to be said about a figure of the paper: mark at the figure -> remark."""
    found = {}
    if note := tables.misprint(table.name, image_set, level, method):
        where = f"{image_set}, {table.level(level)}, {method}"
        found[MISPRINT] = f"{MISPRINT}: {where}: {note} (a misprint)."
    return found


def pair(psnr: float | None, ssim: float | None) -> str:
    """PSNR and SSIM with the digits that papers have; empty without a PSNR."""
    if psnr is None:
        return ""
    return f"{psnr:.2f}" if ssim is None else f"{psnr:.2f} / {ssim:.4f}"


def _ours(mean: Mean | None) -> str:
    if mean is None:
        return "-"
    exact = f" ({mean.exact} exact)" if mean.exact and math.isfinite(mean.psnr) else ""
    count = "" if mean.complete else f" ({mean.images} of {image_count(mean.set)})"
    return pair(mean.psnr, mean.ssim) + exact + count


def _differences(mean: Mean | None, paper: Figures, notes: Container[str]) -> str:
    """Ours minus the paper's; empty where the two cannot be compared."""
    if mean is None or not mean.complete or mean.exact:
        return ""
    psnr = difference(mean.psnr, paper.psnr)
    if psnr is None:
        return ""
    text = f"{psnr:+.2f}"
    if paper.ssim is not None and MISPRINT not in notes:
        text += f" / {round(mean.ssim, 4) - paper.ssim:+.4f}"
    return f"{text} {BETTER}" if psnr > 0 else text


def difference(a: float | None, b: float | None) -> float | None:
    """Difference of the digits that are shown, so that the columns of a table add up."""
    return None if a is None or b is None else round(round(a, 2) - round(b, 2), 2)


def _gains(
    table: Table, image_set: str, level: int, method: str, mean: Mean | None, here: list[Mean]
) -> str:
    """PSNR above BM3D's, ours (and the paper's)."""
    cells = tables.published(table.name, image_set, level)
    ours = paper = None
    if mean is not None and method != BASE:
        ours = difference(mean.psnr, _base_psnr(here, mean))
    if method not in (BASE, "BM3D"):
        paper = difference(cells.get(method, Figures()).psnr, cells.get("BM3D", Figures()).psnr)
    text = "" if ours is None else f"{ours:+.2f}"
    return text if paper is None else f"{text} ({paper:+.2f})".strip()


def _base_psnr(here: list[Mean], mean: Mean) -> float | None:
    """That of BM3D by its package on the same images with the same noise."""
    wanted = (BASE, mean.seed, mean.images)
    return next((m.psnr for m in here if (m.method, m.seed, m.images) == wanted), None)


def _how(mean: Mean) -> str:
    """How a number came about, in a few words."""
    seed = f", seed {mean.seed}" if mean.seed else ""
    if not mean.precision:
        return mean.version + seed
    return f"{mean.protocol}, {mean.precision}, {mean.device}, {mean.version}{seed}"


def _without(
    columns: tuple[str, ...], lines: list[tuple[str, ...]], name: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    at = columns.index(name)
    return columns[:at] + columns[at + 1 :], [line[:at] + line[at + 1 :] for line in lines]


def _without_paper(
    columns: tuple[str, ...], lines: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The column of the paper is that of peers, if there are any."""
    columns, lines = _without(columns, lines, "difference")
    if all(line[4] == "-" for line in lines):
        return _without(columns, lines, "paper")
    return tuple("others" if name == "paper" else name for name in columns), lines


_FACTS = {"depth": "depth", "shared": "shared", "parameters_k": "parameters",
          "training_images": "trained on", "views": "views"}  # fmt: skip


def _with_facts(
    table: Table, found: list[Mean], columns: tuple[str, ...], lines: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Adds what the paper says about each method, and what is true of ours where it differs."""
    published, wider = tables.facts(table.name), []
    for line in lines:
        paper = published.get(line[2], {})
        ours = next((_own_facts(m) for m in found if m.method == line[2]), {})
        texts = [_fact(key, paper.get(key), ours.get(key)) for key in _FACTS]
        wider.append((*line[:3], *texts, *line[3:]))
    return (*columns[:3], *_FACTS.values(), *columns[3:]), wider


def _fact(key: str, paper: Any, ours: Any) -> str:
    def text(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:,}k" if key == "parameters_k" else str(value)

    if key == "views":
        return str(paper or ours or 1)
    return text(paper) if ours in (None, paper) else f"{text(paper)} (ours {text(ours)})"


def _own_facts(mean: Mean) -> dict[str, Any]:
    name = mean.version.split("@")[0]
    if name not in weights.manifest():
        return {}
    from nlrn.models import info as describe

    facts = describe.network(name)
    return {
        "depth": facts["effective_depth"],
        "shared": True,
        "parameters_k": facts["convolution_parameters"] // 1000,
        "training_images": sum(
            len(datasets.published(name)) for name in weights.manifest()[name].card.training_sets
        ),
    }


def text(table: RenderedTable) -> str:
    """The table for a terminal: a paragraph for each set and level, the widest column last."""
    names, level = table.columns[2:], table.columns[1]
    widths = [max(len(line[i + 2]) for line in [table.columns, *table.lines])
              for i in range(len(names))]  # fmt: skip
    parts, last = [table.title], ""
    for line in table.lines:
        heading = f"{line[0]}, {level} {line[1]}"
        if heading != last:
            parts += ["", heading, _aligned(names, names, widths)]
            last = heading
        parts.append(_aligned(line[2:], names, widths))
    return "\n".join([*parts, "", *table.remarks])


def _aligned(cells: Sequence[str], names: Sequence[str], widths: Sequence[int]) -> str:
    left = ("method", "variant", "how")
    texts = [cell.ljust(width) if name in left else cell.rjust(width)
             for cell, name, width in zip(cells, names, widths, strict=True)]  # fmt: skip
    return ("  " + "  ".join(texts)).rstrip()


def markdown(table: RenderedTable) -> str:
    """The table as Markdown, remarks below."""
    head = [f"| {' | '.join(table.columns)} |", "|" + "---|" * len(table.columns)]
    body = [f"| {' | '.join(line)} |" for line in table.lines]
    return "\n".join([*head, *body, "", *table.remarks]) + "\n"
