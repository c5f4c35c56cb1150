"""nlrn data, nlrn train, nlrn bench: image sets, training, the paper's tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from nlrn.cli.entry import app, errors_in_one_line

if TYPE_CHECKING:
    from pathlib import Path

    from nlrn.bench.run import Cell, Row

data_app = typer.Typer(help="The image sets for training and tables.")
SHOWN_PROBLEMS = 12  # lines: one for each folder that lacks images, and one for each damaged file


@data_app.command("check")
def check_data(
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What is there of each image set, by sha256; exit code 1 if anything is missing or damaged."""
    with errors_in_one_line():
        from nlrn import datasets as sets

        root = sets.find_root(data)
        states = sets.check(root)
    if as_json:
        facts = [asdict(s) | {"found": s.found, "state": s.state} for s in states]
        typer.echo(json.dumps({"root": str(root), "sets": facts}, indent=2))
    else:
        typer.echo(f"{'set':<18} {'folders':<29} {'images':>7}  state")
        for s in states:
            where, images = " + ".join(s.folders), f"{s.found}/{s.expected}"
            typer.echo(f"{s.name:<18} {where:<29} {images:>7}  {s.state}")
    problems = sets.complaints(root, states)
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


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]", help="Table to run: denoise-bsd400, denoise-bsd300, sr, complexity."
        ),
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Some of its sets: Set12,BSD68.")] = None,
    levels: Annotated[
        str | None, typer.Option(help="Some of its noise levels or scales: 15,25.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods: NLM,BM3D,WNNM,LSSC,NLRN; a wrong one lists all.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="The first N images of each set only.")] = None,
    part: Annotated[
        str, typer.Option(help="2/3: every third image from the second on; see --merge.")
    ] = "1/1",
    protocol: Annotated[
        str, typer.Option(help="Networks on the whole image, or overlap: averaged patches.")
    ] = "whole",
    weight: Annotated[
        str | None, typer.Option(help="A weight of yours to run networks with, .safetensors.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="fp32, or bf16: faster on recent hardware.")] = "fp32",
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Folder of rows: what is there is not computed again.")
    ] = "rows",
    as_json: Annotated[
        str | None, typer.Option("--json", help="Write rows and means.", metavar="FILE")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", help="Write the table.", metavar="FILE")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Run nothing: join the rows of the files given.")
    ] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Put the rows into README.md and docs/.")
    ] = False,
) -> None:
    """A table of the paper with our figures beside the printed ones.

    Rows are kept image by image: a run that was stopped goes on where it was. Of several machines
    each can take a --part of the images; nlrn bench --merge rows/*.json joins their rows.
    """
    with errors_in_one_line():
        from pathlib import Path

        from nlrn import atomic
        from nlrn.bench import documents, report, tables
        from nlrn.bench import run as runs

        for file in (as_json, as_markdown):
            if file is not None and not Path(file).absolute().parent.is_dir():
                raise ValueError(f"{file}: its folder does not exist")
        if merge:
            found = runs.read_rows(names or [])
        elif names and len(names) == 1:
            setting = (protocol, dtype, device, weight)
            found = _run_table(
                names[0], setting, sets, levels, methods, limit, part, seed, data, Path(rows)
            )
        elif names or not write_docs:
            raise ValueError("give one TABLE, or --merge FILES, or --write-docs")
        else:
            found = []
        shown = report.everything(found)
        if not merge and names and not found:  # nothing can run yet: what the paper has
            shown = [report.shown(tables.find(names[0]), [], everywhere=True)]
        if as_json is not None:
            runs.write_json(Path(as_json), report.to_json(found))
        if as_markdown is not None:
            atomic.write_text(Path(as_markdown), "\n".join(map(report.markdown, shown)))
        if write_docs:
            for path in documents.write(found, Path()):
                typer.echo(f"wrote {path}", err=True)
    typer.echo("\n\n".join(map(report.text, shown)))


def _run_table(
    name: str,
    setting: tuple[str, str, str, str | None],
    sets: str | None,
    levels: str | None,
    wanted: str | None,
    limit: int | None,
    part: str,
    seed: int,
    root: str | None,
    folder: Path,
) -> list[Row]:
    """Runs a table with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from nlrn import datasets
    from nlrn.bench import run as runs
    from nlrn.bench import tables
    from nlrn.bench.methods import Setting

    numbers = None if levels is None else [_level(text) for text in levels.split(",")]
    cells, notes = runs.plan(
        tables.find(name),
        datasets.find_root(root),
        Setting(*setting),
        sets=None if sets is None else sets.split(","),
        levels=numbers,
        wanted=None if wanted is None else wanted.split(","),
        limit=limit,
        part=runs.part_of(part),
    )
    for note in notes:
        typer.echo(f"left out: {note}", err=True)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)

        def on_image(cell: Cell, done: int, total: int) -> None:
            label = f"{cell.set} {cell.table.level(cell.level)} {cell.method}"
            progress.update(bar, description=label, completed=done, total=total)

        return runs.run(cells, folder, seed=seed, on_image=on_image)


def _level(text: str) -> int:
    try:
        return int(text.removeprefix("x"))
    except ValueError:
        raise ValueError(f"levels must be whole numbers such as 15,25, got {text!r}") from None
