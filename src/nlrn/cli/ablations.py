"""nlrn bench ablate, ablation-metric, ablation-variant, window, steps: the paper's ablations."""

from __future__ import annotations

from typing import Annotated

import typer

from nlrn.cli.entry import errors_in_one_line
from nlrn.cli.restore import Dtype

STORED = "docs/results/ablation.json"
Files = Annotated[
    list[str] | None,
    typer.Argument(help=f"Files of rows; {STORED} otherwise.", show_default=False),
]


def ablate(
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            help="Variants such as base dot q15 T6; all otherwise. A wrong one lists them.",
            show_default=False,
        ),
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="Config of the base, which all variants share.")
    ] = "configs/ablation-s25.toml",
    seed: Annotated[int, typer.Option(help="Seed of the weights' start and the patches.")] = 0,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop training, with everything saved, after 90s or 8m.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    dtype: Dtype = "fp32",
    out: Annotated[str, typer.Option(help="Folder for the folders of the runs.")] = "runs/ablation",
    rows: Annotated[
        str, typer.Option(help="File to keep rows in; what has a row is not trained again.")
    ] = "runs/ablation.json",
) -> None:
    """Train variants of the network in short, measure them on Set12, keep a row for each.

    A run that was stopped goes on where it was; nlrn bench docs joins the rows of several machines.
    """
    with errors_in_one_line():
        from pathlib import Path

        from nlrn import ablate as ablating
        from nlrn import datasets, training
        from nlrn.bench.ablations import VARIANTS
        from nlrn.training import config as configuration

        file = Path(rows)
        file.parent.mkdir(parents=True, exist_ok=True)
        found = ablating.ablate(
            configuration.load(schedule),
            variants or list(VARIANTS),
            file,
            seed=seed,
            root=datasets.find_root(data),
            out=Path(out),
            dtype=dtype,
            time_budget_seconds=None if time_budget is None else training.seconds(time_budget),
        )
    for row in found.rows:
        typer.echo(
            f"{row.variant:<15} seed {row.seed}  Set12 {row.test_psnr:.3f} dB  validation "
            f"{row.validation_psnr:.3f} dB  {row.steps} steps  {row.minutes} minutes"
        )


def ablation_metric(files: Files = None) -> None:
    """Print the paper's Table 1, six ways to compare two pixels, with ours beside it."""
    _show("ablation-metric", files)


def ablation_variant(files: Files = None) -> None:
    """Print the paper's Table 2, variants of the network, with ours beside it."""
    _show("ablation-variant", files)


def window(files: Files = None) -> None:
    """Print the curve of the paper's Figure 5, over the side of the neighbourhood."""
    _show("window", files)


def steps(files: Files = None) -> None:
    """Print the curve of the paper's Figure 6, over the number of states."""
    _show("steps", files)


def _show(name: str, files: list[str] | None) -> None:
    with errors_in_one_line():
        from pathlib import Path

        from nlrn.bench import ablations, report

        paths = map(Path, files) if files else filter(Path.exists, [Path(STORED)])
        found = ablations.read(paths)
        typer.echo(report.text(ablations.render(ablations.ABLATIONS[name], found)))
