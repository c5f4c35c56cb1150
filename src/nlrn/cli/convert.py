"""nlrn convert: published weights of others as files of this package."""

from __future__ import annotations

from typing import Annotated

import typer

from nlrn.cli.entry import errors_in_one_line


def convert(
    file: Annotated[
        str, typer.Argument(help="DnCNN's weights: MATLAB's (.mat), or PyTorch's (.pt, .pth).")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    sigma: Annotated[
        float | None,
        typer.Option(help="Noise level that it was trained for, on the 0..255 scale."),
    ] = None,
    trained_on: Annotated[
        str | None,
        typer.Option(help="Image sets that it has seen, for tables to mind: bsd400 for DnCNN-S."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = (
        False
    ),
) -> None:
    """Turn the published weights of DnCNN into a model that all commands take."""
    with errors_in_one_line():
        from pathlib import Path

        target = Path(output)
        if target.suffix != ".safetensors":
            raise ValueError(f"{output}: must end in .safetensors")
        if target.exists() and not overwrite:
            raise ValueError(f"{output}: exists already; overwrite=True replaces it")
        from nlrn import convert as converting
        from nlrn import datasets
        from nlrn.errors import warn
        from nlrn.restoration.base import check_level
        from nlrn.weights import ModelCard

        sets = [name.strip() for name in trained_on.split(",")] if trained_on else []
        card = ModelCard(
            name=target.stem,
            architecture="dncnn",
            task="denoise",
            sigma=None if sigma is None else check_level(sigma),
            training_sets=tuple(sets),
            description=f"DnCNN, converted from {Path(file).name}",
        )
        network = converting.read_dncnn(file, card)
        network.save_pretrained(target)
        if not sets:
            warn("no image sets that it was trained on: tables cannot leave out what it has seen")
        elif unknown := [name for name in sets if name not in datasets.SETS]:
            known = ", ".join(datasets.SETS)
            warn(f"no table has images of {', '.join(unknown)} to leave out; known are {known}")
    typer.echo(f"{output}: {network.counts()['effective_depth']} layers")
