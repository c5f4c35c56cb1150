"""nlrn data, nlrn train: image sets and training."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from nlrn.cli.entry import errors_in_one_line

data_app = typer.Typer(help="The image sets for training and tables.")
SHOWN_PROBLEMS = 12  # lines: one for each folder that lacks images, and one for each damaged file


@data_app.command("check")
def check_data(
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option("--sets", help="Only these sets, all of them needed: Set12,bsd400."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What is there of each image set, by sha256.

    Exit code 1 if an image is damaged, or missing in a folder that is there. Sets whose folders are
    not there count as missing only where --sets names them.
    """
    with errors_in_one_line():
        from nlrn import datasets as sets

        root = sets.find_root(data)
        states = sets.check(root, None if names is None else names.split(","))
    if as_json:
        facts = [asdict(s) | {"found": s.found, "state": s.state} for s in states]
        typer.echo(json.dumps({"root": str(root), "sets": facts}, indent=2))
    else:
        typer.echo(f"{'set':<18} {'folders':<35} {'images':>7}  state")
        for s in states:
            where, images = " + ".join(s.folders), f"{s.found}/{s.expected}"
            typer.echo(f"{s.name:<18} {where:<35} {images:>7}  {s.state}")
    problems = sets.complaints(root, states, all_needed=names is not None)
    for line in problems[:SHOWN_PROBLEMS]:
        typer.echo(f"error: {line}", err=True)
    if len(problems) > SHOWN_PROBLEMS:
        typer.echo(f"error: and {len(problems) - SHOWN_PROBLEMS} more (see --json)", err=True)
    raise typer.Exit(1 if problems else 0)


def train(
    config: Annotated[str, typer.Argument(help="What to train, a .toml file (see configs/).")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")
    ] = False,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop, with everything saved, after 90s, 8m or 1.5h.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; runs/NAME otherwise.")] = None,
    devices: Annotated[int, typer.Option(help="GPUs, or CPU processes, of each node.")] = 1,
    nodes: Annotated[int, typer.Option(help="Number of machines.")] = 1,
    start_from: Annotated[
        str | None, typer.Option(help="Begin with these weights instead of the config's.")
    ] = None,
) -> None:
    """Train a network; a run that was stopped or killed goes on with --resume."""
    with errors_in_one_line():
        from nlrn import training

        seconds = None if time_budget is None else training.seconds(time_budget)
        training.run(
            config,
            resume=resume,
            time_budget_seconds=seconds,
            data_root=data,
            out=out,
            devices=devices,
            nodes=nodes,
            start_from=start_from,
        )
