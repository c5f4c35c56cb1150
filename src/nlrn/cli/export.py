"""nlrn export: models as files for other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from nlrn.cli.entry import errors_in_one_line


def export(
    name: Annotated[
        str, typer.Argument(help="A model's name (see nlrn models) or a .safetensors file.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The file, for one model.onnx.")],
    scale: Annotated[
        int | None,
        typer.Option(
            "--scale", "-s", help="For a model that enlarges, and needed there: one of its factors."
        ),
    ] = None,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx; vsmlrt: image and noise map in one input; bioimageio: a zip.",
            autocompletion=lambda: ["onnx", "vsmlrt", "bioimageio"],
        ),
    ] = "onnx",
    fp16: Annotated[bool, typer.Option("--fp16", help="Half precision, for GPUs.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = (
        False
    ),
) -> None:
    """Write a model as ONNX: images of any size, without nlrn or torch.

    Denoisers take any noise level. Of those that enlarge, a file has one factor: --scale.
    """
    with errors_in_one_line():
        from nlrn.export import export as write

        done = write(
            name, output, scale=scale, file_format=file_format, fp16=fp16, overwrite=overwrite
        )
    size = f"{done.size / 1e6:.1f} MB"
    typer.echo(f"{done.path} ({size}, at most {done.difference:.1g} from the package's results)")
