"""The notebook is committed without results, and runs from its first cell to its last."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"
# In a process of its own: Jupyter warns about itself, and warnings are errors here.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_it_is_committed_without_results() -> None:
    for cell in code_cells(TOUR):
        assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.slow
def test_the_tour_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("skimage")
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, TOUR, tmp_path / "tour.ipynb"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = [output for cell in code_cells(tmp_path / "tour.ipynb") for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 5
    said = "".join("".join(output.get("text", [])) for output in outputs)
    levels = [float(found) for found in re.findall(r"([\d.]+) dB", said)]
    noisy, restored, *rest = levels
    assert len(rest) == 4 + 5 and restored > noisy + 9
    assert rest[:4] == sorted(rest[:4]) and rest[3] == restored  # by strength
    assert min(rest[4:]) > noisy + 6  # by method
