"""The paper's experiments: which of its cells have a figure of ours."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from nlrn.bench import documents, report, tables
from nlrn.bench.tables import TABLES

ROOT = Path(__file__).parents[1]
OURS = ("BM3D", "WNNM", "NLRN", "NLRN-MV", "NLRN-400", "NLRN-300", "NLRN-300-MV")
# Cells that are still to be measured: table, set, levels, methods.
MISSING = """
denoise-bsd400 BSD68 15,50 BM3D,WNNM
denoise-bsd400 Urban100 15,25,50 BM3D,WNNM
denoise-bsd300 S14 30,50,70 BM3D,WNNM,NLRN,NLRN-MV
denoise-bsd300 BSD200-half 30,50,70 BM3D,WNNM,NLRN,NLRN-MV
denoise-bsd300 Urban100 30,50,70 BM3D,WNNM,NLRN-MV
complexity Set12 50 NLRN-300-MV
"""

Cell = tuple[str, str, int, str]


def test_every_cell_of_tables_3_to_6_has_a_figure_of_ours() -> None:
    """Whoever fills a cell shortens the list of the missing ones."""
    wanted = {
        (table.name, image_set, level, method)
        for table in TABLES.values()
        if tables.is_of_paper(table.name)
        for image_set, level in product(table.sets, table.levels)
        for method in tables.published(table.name, image_set, level)
        if method in OURS
    }
    assert len(wanted) == 3 * 9 + 4 * 9 + 12 + 3
    found = report.means(documents.stored_rows(ROOT))
    filled = {(m.table, m.set, m.level, m.method) for m in found if m.complete}
    assert wanted - filled == set(_missing())


def _missing() -> list[Cell]:
    lines = (line.split() for line in MISSING.strip().splitlines())
    return [
        (table, image_set, int(level), method)
        for table, image_set, levels, names in lines
        for level, method in product(levels.split(","), names.split(","))
    ]
