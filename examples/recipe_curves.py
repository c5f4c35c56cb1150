"""Draws validation over steps and over minutes for runs of `nlrn train`, into docs/images.

    nlrn train configs/paper-s25.toml --data DATA --time-budget 10m
    nlrn train configs/denoise-gray-s25.toml --data DATA --time-budget 10m
    python examples/recipe_curves.py "the paper's=runs/paper-s25" ours=runs/denoise-gray-s25

The points are kept in docs/results/recipes.json; without arguments they are drawn again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nlrn import atomic
from nlrn.bench import curves
from nlrn.training.report import METRICS, read_metrics

Points = list[tuple[int, float, float]]  # step, minutes, PSNR


def points(run: Path) -> Points:
    """The validations of a run, from its folder."""
    seconds, found = 0.0, []
    for entry in read_metrics(run / METRICS):
        seconds = entry.get("seconds", seconds)  # of the reading before the validation
        if "loss" not in entry:
            found.append((entry["step"], round(seconds / 60, 3), round(entry["psnr"], 4)))
    if not found:
        raise SystemExit(f"error: {run}: no validation in its {METRICS}")
    return found


def main(runs: dict[str, Path], root: Path) -> None:
    """Adds runs to those that are kept, and draws all of them."""
    store = root / "docs" / "results" / "recipes.json"
    known: dict[str, Points] = json.loads(store.read_text()) if store.exists() else {}
    known |= {name: points(run) for name, run in runs.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in known.items())
    atomic.write_text(store, "{\n" + ",\n".join(lines) + "\n}\n")
    for column, (name, label) in enumerate((("steps", "steps"), ("minutes", "minutes on a GPU"))):
        series = {run: [(p[column], p[2]) for p in each] for run, each in known.items()}
        picture = curves.svg(
            f"Two recipes over {name}", series, x_label=label, y_label="validation PSNR in dB"
        )
        path = root / "docs" / "images" / f"recipes-{name}.svg"
        atomic.write_text(path, picture)
        print(path)


if __name__ == "__main__":
    given = (text.partition("=") for text in sys.argv[1:])
    main({name: Path(folder) for name, _, folder in given}, Path())
