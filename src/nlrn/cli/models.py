"""nlrn explain, nlrn web, nlrn info, nlrn models: look into networks and try them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from nlrn.cli.entry import errors_in_one_line, number


def explain(
    image: Annotated[str, typer.Argument(help="A noisy image.")],
    at: Annotated[str, typer.Option(help="The pixel: row and column, from 0.", metavar="ROW,COL")],
    output: Annotated[str, typer.Option("--output", "-o", help="The figure, for one maps.png.")],
    sigma: Annotated[
        str, typer.Option(help="Noise level on the 0..255 scale; auto estimates it.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = (
        False
    ),
    model: Annotated[
        str | None, typer.Option(help="A model's name (see nlrn models) or a .safetensors file.")
    ] = None,
    channel: Annotated[
        int,
        typer.Option(
            help="Channel of a colour image that a gray model gets: 0 red, 1 green, 2 blue."
        ),
    ] = 1,
    device: Annotated[
        str, typer.Option(help="Device: auto, cpu, cuda, cuda:1, mps or xpu.")
    ] = "auto",
) -> None:
    """Draw where the network looks for one pixel: the weights of its neighbours, by state."""
    with errors_in_one_line():
        position = _pixel(at)
        level = number(sigma, "sigma", "auto")
        import numpy as np

        from nlrn import images

        picture = images.read(image)
        blank = images.Image(np.zeros((1, 1, 3), np.uint8))
        if Path(output).resolve() == Path(image).resolve():
            raise ValueError(f"{image}: would be replaced by its own maps")
        images.check_writable(output, blank, overwrite=overwrite)
        from nlrn import attention_maps

        maps = attention_maps.explain(
            picture.pixels, position, level, model, channel=channel, device=device
        )
        images.write(output, images.Image(attention_maps.figure(maps)), overwrite=overwrite)
    typer.echo(output)


def _pixel(text: str) -> tuple[int, int]:
    row, _, column = text.partition(",")
    if not (row.strip().isdecimal() and column.strip().isdecimal()):
        raise ValueError(f"at must be a row and a column such as 120,80, got {text!r}")
    return int(row), int(column)


def web(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    device: Annotated[
        str, typer.Option(help="Device: auto, cpu, cuda, cuda:1, mps or xpu.")
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Precision: fp32, or bf16, faster on recent hardware.")
    ] = "fp32",
    model: Annotated[
        list[str] | None, typer.Option(help="A .safetensors file of yours to offer too.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page where there is a desktop.")] = True,
) -> None:
    """Restore pictures in the browser, and see where the network looks."""
    with errors_in_one_line():
        from pathlib import Path

        try:
            from nlrn.web.server import serve
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("nlrn"):
                raise
            missing = f"nlrn web needs {error.name}; in a checkout of nlrn: pip install '.[web]'"
            raise ValueError(missing) from error
        from nlrn.web.service import Options

        desktop = sys.platform in ("darwin", "win32") or bool(
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        )
        options = Options(host, device, dtype, tuple(map(Path, model or [])))
        serve(options, port, browser=browser and desktop)


def info(
    name: Annotated[
        str, typer.Argument(help="A configuration, a model's name, or a .safetensors file.")
    ] = "nlrn",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Parameters, depth and work of a network, with or without weights."""
    with errors_in_one_line():
        from nlrn.models import info as facts_about

        facts = facts_about.network(name)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        typer.echo(f"{key.replace('_', ' '):<24} {shown}")


def models(
    architectures: Annotated[
        bool, typer.Option("--architectures", help="List the networks, and their papers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The trained models in this package, and the configurations that nlrn info knows."""
    if architectures:
        _print_architectures(as_json)
        return
    with errors_in_one_line():
        from nlrn.models import info as facts_about

        facts = facts_about.everything()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo("trained models:")
    for weight in facts["weights"]:
        typer.echo(f"  {weight['name']:<24} {weight['description']}")
    typer.echo("configurations (see nlrn info NAME):")
    for config in facts["configurations"]:
        typer.echo(f"  {config['name']:<22} {config['parameters']:>9,} parameters")


def _print_architectures(as_json: bool) -> None:
    with errors_in_one_line():
        from nlrn.models import info as facts_about

        found = facts_about.architectures()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for network in found:
        work = f"{network['flop_per_pixel'] / 1e6:.2f} MFLOP/pixel"
        size = f"{network['parameters']:>9,} parameters  {work:>18}"
        typer.echo(f"{network['name']:<14} {size}  {network['paper']}")
