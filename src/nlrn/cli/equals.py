"""nlrn bench equal, equal-denoise, equal-sr: networks after equal minutes."""

from __future__ import annotations

from typing import Annotated

import typer

from nlrn.cli.entry import errors_in_one_line
from nlrn.cli.restore import Dtype

STORED = "docs/results/equal.json"
Files = Annotated[
    list[str] | None,
    typer.Argument(help=f"Files of rows; {STORED} otherwise.", show_default=False),
]


def equal(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            help="Configs such as denoise-dncnn sr-vdsr; all otherwise. A wrong one lists them.",
            show_default=False,
        ),
    ] = None,
    configs: Annotated[str, typer.Option(help="Folder of the configs.")] = "configs/equal",
    trials: Annotated[
        bool,
        typer.Option(
            "--trials", help="Choose optimizer and rate by runs of half a minute, before all else."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the weights' start and the patches.")] = 0,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop training, with everything saved, after 90s or 8m.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    dtype: Dtype = "bf16",
    out: Annotated[str, typer.Option(help="Folder for the folders of the runs.")] = "runs/equal",
    rows: Annotated[
        str, typer.Option(help="File to keep rows in; what has a row is not trained again.")
    ] = "runs/equal.json",
) -> None:
    """Train networks for equal minutes, measure them, keep a row for each.

    A run that was stopped goes on where it was; nlrn bench docs joins the rows of several machines.
    """
    with errors_in_one_line():
        from pathlib import Path

        from nlrn import datasets, training
        from nlrn import equal as equals

        found = equals.run(
            equals.load(Path(configs), networks or ()),
            Path(rows),
            seed=seed,
            root=datasets.find_root(data),
            out=Path(out),
            dtype=dtype,
            trials=trials,
            time_budget_seconds=None if time_budget is None else training.seconds(time_budget),
        )
    for row in found.rows:
        figures = ", ".join(f"{place} {psnr:.2f} dB" for place, psnr in row.psnr.items())
        typer.echo(f"{row.task:<8} {row.network:<8} {row.optimizer:<16} {figures}")


def equal_denoise(files: Files = None) -> None:
    """Print denoising networks after equal minutes, with the paper's figures beside them."""
    _show("equal-denoise", files)


def equal_sr(files: Files = None) -> None:
    """Print super-resolution networks after equal minutes, beside the paper's figures."""
    _show("equal-sr", files)


def _show(name: str, files: list[str] | None) -> None:
    with errors_in_one_line():
        from pathlib import Path

        from nlrn.bench import equal, report

        paths = map(Path, files) if files else filter(Path.exists, [Path(STORED)])
        found = equal.read(paths)
        typer.echo(report.text(equal.render(equal.COMPARISONS[name], found)))
