"""The paper: which of its cells have a figure of ours, the map of it, its pictures."""

from __future__ import annotations

import json
import re
import runpy
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from nlrn.bench import documents, report, tables
from nlrn.bench.tables import TABLES
from nlrn.cli import app
from nlrn.models.nlrn import NLRNConfig, random_network

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper-map.md"
OURS = ("BM3D", "WNNM", "NLRN", "NLRN-MV", "NLRN-400", "NLRN-300", "NLRN-300-MV")
# Cells that are still to be measured: table, set, levels, methods.
MISSING = """
denoise-bsd400 BSD68 15,50 WNNM
denoise-bsd400 Urban100 15,25,50 WNNM
denoise-bsd300 BSD200-half 30,50,70 WNNM,NLRN,NLRN-MV
denoise-bsd300 Urban100 30,70 BM3D
denoise-bsd300 Urban100 30,50,70 WNNM,NLRN-MV
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


def _names(pattern: str) -> set[str]:
    return set(re.findall(pattern, MAP.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("what", "count"), [("Equation", 9), ("Table", 6), ("Figure", 8)])
def test_the_map_has_every_numbered_thing_of_the_paper(what: str, count: int) -> None:
    lines = _names(rf"^\| {what} (\d+) \| .*`.*\|$")  # with something of ours beside it
    assert lines == {str(number) for number in range(1, count + 1)}


def test_the_map_names_files_and_commands_that_exist() -> None:
    files = _names(r"`((?:src|docs|tests|examples|configs|benchmarks)/[\w./-]+)")
    assert len(files) > 20
    for file in files:
        assert (ROOT / file).is_file(), file
    commands = _names(r"`nlrn ((?:bench run [\w-]+)|(?:bench [\w-]+)|\w+)")
    assert {"bench ablation-metric", "bench window", "bench run sr", "explain"} <= commands
    for command in commands:
        words = command.split()
        if words[:2] == ["bench", "run"]:
            assert tables.is_of_paper(words.pop())
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0, f"there is no nlrn {command}"


def test_the_map_names_the_networks_of_the_papers_comparisons() -> None:
    names = _names(r"^\*\*(Wang et al\.|\w+)")
    assert names == {"Wang et al.", "NLNet", "DRCN", "DRRN", "MemNet"}


def test_the_figure_of_the_states_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "six.safetensors"
    random_network(NLRNConfig(steps=6, channels=8, embed=4, window=15)).save_pretrained(file)
    script = runpy.run_path(str(ROOT / "examples" / "attention_figure.py"))
    script["main"](str(file), tmp_path / "maps.png")
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.size == (8 * (135 + 6) - 6, 20 + 3 * (135 + 6))


def test_the_curves_of_two_recipes_are_drawn(tmp_path: Path) -> None:
    for name in ("docs/results", "docs/images"):
        (tmp_path / name).mkdir(parents=True)
    runs = {}
    for name, speed in (("paper", 100), ("ours", 50)):
        runs[name] = tmp_path / name
        runs[name].mkdir()
        lines = []
        for minute in (1, 2):
            step = 60 * speed * minute
            lines.append({"step": step, "loss": 0.1, "seconds": 60.0 * minute, "psnr": None})
            lines.append({"step": step, "psnr": 27.5 + 0.1 * minute})
        (runs[name] / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    script = runpy.run_path(str(ROOT / "examples" / "recipe_curves.py"))
    script["main"]({"paper": runs["paper"]}, tmp_path)
    script["main"]({"ours": runs["ours"]}, tmp_path)
    stored = json.loads((tmp_path / "docs/results/recipes.json").read_text())
    assert stored["paper"] == [[6000, 1.0, 27.6], [12000, 2.0, 27.7]]
    assert list(stored) == ["paper", "ours"]
    for name, label in (("steps", "12,000"), ("minutes", "minutes on a GPU")):
        assert f">{label}<" in (tmp_path / f"docs/images/recipes-{name}.svg").read_text()
