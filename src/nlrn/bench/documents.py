"""README and docs: their tables are written from rows that lie in the repository.

A table stands between `<!-- bench TABLE full -->` (or `compact`) and `<!-- /bench -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nlrn import atomic, weights
from nlrn.bench import ablations, equal, methods, tables
from nlrn.bench.ablations import ABLATIONS, AblationRows
from nlrn.bench.equal import COMPARISONS, EqualRows
from nlrn.bench.report import Mean, difference, markdown, means, pair, render
from nlrn.bench.run import Row, read_rows, write_json
from nlrn.bench.tables import TABLES, Figures, Table

ROWS = Path("docs") / "results"  # one file of rows for each table
ABLATION_ROWS, EQUAL_ROWS = ROWS / "ablation.json", ROWS / "equal.json"
IMAGES = Path("docs") / "images"
DOCUMENTS = (Path("README.md"), Path("docs") / "results.md")
RIVALS_PAGE = Path("docs") / "rivals.md"
# What the README shows: of the paper's other methods, of peers, and of what ran here.
RIVALS = ("BM3D", "DnCNN", "MemNet")
PEERS = (
    "DnCNN, authors' weights", "FFDNet, authors' weights", "ADNet, authors' weights",
    "ADNet, published", "DRUNet, published", "GRL-T, published",
)  # fmt: skip
MEASURED = ("bicubic", "BM3D-package", "BM3D", "WNNM")
NONE, NO_EQUALS = AblationRows(), EqualRows()
_BLOCK = re.compile(r"(<!-- bench (\S+) (\S+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def write(
    rows: Sequence[Row],
    root: Path,
    trained: AblationRows = NONE,
    equals: EqualRows = NO_EQUALS,
) -> list[Path]:
    """Adds rows to those behind the documents, and writes tables and curves in them anew.

    Args:
        rows: of tables.
        root: of the repository.
        trained: rows of ablations.
        equals: rows of networks under equal budgets.

    Returns:
        The files that have changed.
    """
    for document in DOCUMENTS:
        if not (root / document).is_file():
            raise ValueError(f"{root / document}: no such file; run this in the repository's root")
    folder = root / ROWS
    folder.mkdir(exist_ok=True)
    known = {(row.table, row.key): row for row in stored_rows(root)}
    known |= {(row.table, row.key): row for row in rows}
    kept = current_rows(known.values())
    trained = stored_ablations(root).joined(trained)
    equals = stored_equals(root).joined(equals)
    pictures = {root / IMAGES / f"{name}.svg": ablations.curve(a, trained)
                for name, a in ABLATIONS.items()}  # fmt: skip
    pictures |= {root / IMAGES / f"{name}.svg": equal.plot(c, equals)
                 for name, c in COMPARISONS.items()}  # fmt: skip
    pages = [root / page for page in DOCUMENTS]
    pages += [root / RIVALS_PAGE] if (root / RIVALS_PAGE).is_file() else []
    files = (*_row_files(root), root / ABLATION_ROWS, root / EQUAL_ROWS, *pictures, *pages)
    before = {path: _content(path) for path in files}
    for name, file in zip(TABLES, _row_files(root), strict=True):
        if own := [row.to_json() for row in kept if row.table == name]:
            write_json(file, own)
        else:
            file.unlink(missing_ok=True)
    if trained.rows:
        ablations.write(root / ABLATION_ROWS, trained)
    if equals.rows:
        equal.write(root / EQUAL_ROWS, equals)
    for path, picture in pictures.items():
        if picture:
            path.parent.mkdir(exist_ok=True)
            atomic.write_text(path, picture)
    for path in pages:
        atomic.write_text(path, fill(path.read_text(encoding="utf-8"), kept, trained, equals))
    return [path for path, content in before.items() if _content(path) != content]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _row_files(root: Path) -> list[Path]:
    return [root / ROWS / f"{name}.json" for name in TABLES]


def stored_rows(root: Path) -> list[Row]:
    """The rows behind the documents."""
    return read_rows(_row_files(root), missing_ok=True)


def stored_ablations(root: Path) -> AblationRows:
    """The rows of ablations behind the documents."""
    return ablations.read(path for path in [root / ABLATION_ROWS] if path.exists())


def stored_equals(root: Path) -> EqualRows:
    """The rows of equal budgets behind the documents."""
    return equal.read(path for path in [root / EQUAL_ROWS] if path.exists())


def current_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of the tables as they are now: a network's only with the weight in the package."""
    labels = {name: methods.weight_label(name) for name in weights.manifest()}
    return [row for row in rows if row.table in TABLES and _is_current(row, labels)]


def _is_current(row: Row, labels: Mapping[str, str]) -> bool:
    table = TABLES[row.table]
    if row.method not in table.weights:
        return row.method in methods.names(table)
    return row.version == labels.get(table.weights[row.method].get(row.level, ""))


def fill(
    document: str,
    rows: Sequence[Row],
    trained: AblationRows = NONE,
    equals: EqualRows = NO_EQUALS,
) -> str:
    """The document with every table between its marks written anew."""
    found = means(rows)

    def table(match: re.Match[str]) -> str:
        start, name, form, end = match.groups()
        if form not in ("full", "compact"):
            raise ValueError(f"a table in the documents is full or compact, not {form!r}")
        if name in ABLATIONS:
            return f"{start}{_ablation(name, trained)}{end}"
        if name in COMPARISONS:
            return f"{start}{_comparison(name, equals)}{end}"
        named = tables.find(name)
        full = form == "full"
        body = markdown(render(named, found, everywhere=True)) if full else compact(named, found)
        return f"{start}{body}{end}"

    return _BLOCK.sub(table, document)


def _ablation(name: str, trained: AblationRows) -> str:
    """The table of an ablation, its curve below."""
    ablation = ABLATIONS[name]
    drawn = ablations.curve(ablation, trained)
    return markdown(ablations.render(ablation, trained)) + _picture(drawn, ablation.title, name)


def _comparison(name: str, equals: EqualRows) -> str:
    """The table of networks under one budget, quality over work below."""
    comparison = COMPARISONS[name]
    drawn = equal.plot(comparison, equals)
    return markdown(equal.render(comparison, equals)) + _picture(drawn, comparison.title, name)


def _picture(drawn: str, title: str, name: str) -> str:
    return f"\n![{title}]({IMAGES.name}/{name}.svg)\n" if drawn else ""


def compact(table: Table, found: Sequence[Mean]) -> str:
    """A few columns for the README: our networks, the paper's, and the nearest others."""
    is_of_paper = tables.is_of_paper(table.name)
    others, ran = (RIVALS, MEASURED) if is_of_paper else (PEERS, ("noisy", *MEASURED))
    own = [m for m in found if m.table == table.name and m.complete]
    ours = [name for name in methods.NETWORKS if any(m.method == name for m in own)]
    places = dict.fromkeys((m.set, m.level) for m in own if m.method in ours)
    paper = {place: tables.published(table.name, *place) for place in places}
    if is_of_paper:  # sets that we have added are for the whole table
        paper = {place: cells for place, cells in paper.items() if cells}
    rivals = [name for name in others if any(name in cells for cells in paper.values())]
    measured = [name for name in ran if any(m.method == name for m in own)]
    columns = ["set", "scale" if table.is_sr else "sigma"]
    known = [name for name in ours if any(name in cells for cells in paper.values())]
    columns += [f"{name}, ours" for name in ours] + [f"{name}, paper" for name in known]
    columns += [f"{name}, here" for name in measured]
    columns += [f"{name}, paper" if is_of_paper else name for name in rivals]
    columns.append("precision of ours")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for place, published in paper.items():
        here = {m.method: m for m in own if (m.set, m.level) == place}
        cells = [_ours(here.get(name), published.get(name)) for name in ours]
        cells += [_cell(published.get(name)) for name in known]
        cells += [_cell(here.get(name)) for name in measured]
        cells += [_cell(published.get(name)) for name in rivals]
        precisions = (here[name].precision for name in ours if name in here)
        cells.append(", ".join(dict.fromkeys(precisions)))
        line = [place[0], table.level(place[1]), *(cell or "-" for cell in cells)]
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines) + "\n"


def _ours(mean: Mean | None, paper: Figures | None) -> str:
    """Our figures; bold where they are at or above the paper's."""
    text, above = _cell(mean), None
    if mean is not None and paper is not None:
        above = difference(mean.psnr, paper.psnr)
    return text if above is None or above < 0 else f"**{text}**"


def _cell(figures: Mean | Figures | None) -> str:
    return pair(figures.psnr, figures.ssim) if figures else ""
