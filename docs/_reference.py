"""Pages of the reference that are made from the code: the command line and the training configs."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {"reference/cli.md": command_line(), "reference/config.md": training_configs()}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def command_line() -> str:
    """Every command with its arguments and options."""
    import typer.main

    from nlrn.cli import app

    lines = ["# Command line", "", "Errors are one line and exit code 2; of several files, those "
             "that fail are named and the exit code is 1.", ""]  # fmt: skip
    for path, command in _commands(typer.main.get_command(app), "nlrn"):
        lines += [f"## {path}", "", _paragraphs(command.help or ""), ""]
        rows = [_row(parameter) for parameter in command.params if not _is_help(parameter)]
        if rows:
            lines += ["| | | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if getattr(child, "commands", None):
            yield from _commands(child, f"{path} {name}")
        else:
            yield f"{path} {name}", child


def _is_help(parameter: Any) -> bool:
    return "--help" in parameter.opts


def _row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    is_argument = parameter.param_type_name == "argument"
    shown = parameter.name.upper() if is_argument else ", ".join(f"`{name}`" for name in names)
    default = parameter.default
    is_plain = default not in (None, False, (), []) and not callable(default)
    text = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", r"\|")
    return f"| {shown} | {text} | {f'`{default}`' if is_plain else ''} |"


def _paragraphs(text: str) -> str:
    return inspect.cleandoc(text)


def training_configs() -> str:
    """Every key of a training config, from the dataclasses that check them."""
    from nlrn.models import ARCHITECTURES
    from nlrn.training import config

    parts = [
        ("[data]", config.Data), ("[optimizer]", config.Optimizer),
        ("[runtime]", config.RuntimeConfig), ("[[stages]]", config.Stage),
    ]  # fmt: skip
    for name, network in ARCHITECTURES.items():
        parts.append((f"[model] architecture = {name!r}", network.config_class))
    lines = ["# Training configs", "", "A TOML file with `name`, `[[stages]]`, and these tables; "
             "a key that does not exist is an error that names it.", ""]  # fmt: skip
    for title, kind in parts:
        lines += [f"## {title}", "", "| key | default | |", "|---|---|---|"]
        meanings = _attributes(kind)
        for field in dataclasses.fields(kind):
            default = field.default
            shown = list(default) if isinstance(default, tuple) else default
            meaning = meanings.get(field.name, "").replace("|", r"\|")
            lines.append(f"| `{field.name}` | `{shown!r}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _attributes(kind: type) -> dict[str, str]:
    """What the docstrings of a class and of those it is made from say about its fields."""
    found: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        text = inspect.cleandoc(parent.__dict__.get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        for name, meaning in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(meaning.split())
    return found
