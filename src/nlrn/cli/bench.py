"""nlrn bench: tables, run, joined and put into the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nlrn.cli.entry import errors_in_one_line
from nlrn.cli.restore import Device, Dtype

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nlrn.bench.report import RenderedTable
    from nlrn.bench.run import Cell, Row

bench_app = typer.Typer(help="Tables of the paper and others, with published figures beside ours.")

# Options that two commands have.
JsonFile = Annotated[
    str | None,
    typer.Option("--json", help="File to write rows per image and means to.", metavar="FILE"),
]
MarkdownFile = Annotated[
    str | None,
    typer.Option("--markdown", help="File to write the tables to.", metavar="FILE"),
]


@bench_app.command("run")
def run_table(
    table: Annotated[
        str,
        typer.Argument(
            help="Table: denoise-bsd400, denoise-bsd300, sr and complexity are the paper's; "
            "color, universal, camera."
        ),
    ],
    sets: Annotated[str | None, typer.Option(help="Run only these sets: Set12,BSD68.")] = None,
    levels: Annotated[
        str | None, typer.Option(help="Run only these levels: 15,25 or x2 or auto,10.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Run these methods: NLM,BM3D,WNNM,LSSC,NLRN; a wrong one lists all."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Run only the first N images of each set; with --shard, of the share.",
            metavar="N",
        ),
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            help="Run one of N shares of the images: 2/3 is every third from the second on.",
            metavar="K/N",
        ),
    ] = "1/1",
    protocol: Annotated[
        str,
        typer.Option(
            help="Run networks on whole images, or on averaged patches as the authors: overlap."
        ),
    ] = "whole",
    weight: Annotated[
        str | None,
        typer.Option(help="Run networks with this model's name or .safetensors file."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "fp32",
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    data: Annotated[
        str | None, typer.Option(help="Folder of the image sets; the variable NLRN_DATA otherwise.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Folder to keep rows in; what is there is not computed again.")
    ] = "rows",
    as_json: JsonFile = None,
    as_markdown: MarkdownFile = None,
) -> None:
    """Run a table and print it.

    Rows are kept image by image: a run that was stopped goes on where it was. Of several machines
    each can take a --shard of the images; nlrn bench merge rows/*.json joins their rows.
    """
    with errors_in_one_line():
        from pathlib import Path

        _check_folders(as_json, as_markdown)
        from nlrn.bench import tables

        chosen = tables.find(table)
        # Loads torch: only after the table was found.
        from nlrn import datasets
        from nlrn.bench import report
        from nlrn.bench import run as runs
        from nlrn.bench.methods import MethodOptions
        from nlrn.inference import Settings

        cells, notes = runs.plan(
            chosen,
            datasets.find_root(data),
            MethodOptions(protocol, weight, Settings(dtype=dtype, device=device)),
            sets=_split(sets),
            levels=None if levels is None else [_level(text) for text in levels.split(",")],
            wanted=_split(methods),
            limit=limit,
            shard=runs.parse_shard(shard),
        )
        for note in notes:
            typer.echo(f"left out: {note}", err=True)
        found = _run_with_bar(cells, Path(rows), seed)
        # Where nothing can run yet: what others have.
        shown = report.render_all(found) or [report.render(chosen, [], everywhere=True)]
        _show(shown, found, as_json, as_markdown)


@bench_app.command()
def merge(
    files: Annotated[
        list[str], typer.Argument(help="Files of rows, as run keeps or --json writes them.")
    ],
    as_json: JsonFile = None,
    as_markdown: MarkdownFile = None,
) -> None:
    """Join rows of several runs or machines and print their tables."""
    with errors_in_one_line():
        _check_folders(as_json, as_markdown)
        from nlrn.bench import report
        from nlrn.bench import run as runs

        found = runs.read_rows(files)
        _show(report.render_all(found), found, as_json, as_markdown)


@bench_app.command()
def docs(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files of rows, of ablations and equal budgets too, to add to docs/results.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the tables in README.md and docs/ anew; run it in the repository's root."""
    with errors_in_one_line():
        from pathlib import Path

        from nlrn.bench import ablations, documents, equal
        from nlrn.bench import run as runs

        paths = [Path(file) for file in files or []]
        trained = [path for path in paths if ablations.is_file_of_rows(path)]
        equals = [path for path in paths if equal.is_file_of_rows(path)]
        rows = runs.read_rows(path for path in paths if path not in (*trained, *equals))
        changed = documents.write(rows, Path(), ablations.read(trained), equal.read(equals))
    for path in changed:
        typer.echo(path)


def _check_folders(*files: str | None) -> None:
    """Raises if a file could not be written after hours of work."""
    from pathlib import Path

    for file in files:
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise ValueError(f"{file}: its folder does not exist")


def _split(text: str | None) -> list[str] | None:
    return None if text is None else text.split(",")


def _level(text: str) -> int:
    from nlrn.bench.tables import AUTO

    try:
        return AUTO if text == "auto" else int(text.removeprefix("x"))
    except ValueError:
        raise ValueError(f"levels must be whole numbers such as 15,25, got {text!r}") from None


def _run_with_bar(cells: Sequence[Cell], folder: Path, seed: int) -> list[Row]:
    """Runs the cells of a table, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from nlrn.bench import run as runs

    console = Console(stderr=True)
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)

        def on_image(cell: Cell, done: int, total: int) -> None:
            label = f"{cell.set} {cell.table.level(cell.level)} {cell.method}"
            progress.update(bar, description=label, completed=done, total=total)

        return runs.run(cells, folder, seed=seed, on_image=on_image)


def _show(
    shown: Sequence[RenderedTable],
    rows: Sequence[Row],
    as_json: str | None,
    as_markdown: str | None,
) -> None:
    """Writes the files that were asked for, and prints the tables."""
    from pathlib import Path

    from nlrn import atomic
    from nlrn.bench import report
    from nlrn.bench import run as runs

    if as_json is not None:
        runs.write_json(Path(as_json), report.to_json(rows))
    if as_markdown is not None:
        atomic.write_text(Path(as_markdown), "\n".join(map(report.markdown, shown)))
    typer.echo("\n\n".join(map(report.text, shown)))
