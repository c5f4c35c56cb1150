"""The application, its entry point, and how mistakes are told."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from nlrn import __version__
from nlrn.errors import one_line

# What loading torch says where there is no memory for it.
NO_ROOM = ("failed to map segment", "std::bad_alloc", "annot allocate memory")
SMALLEST_LIMIT = 680 * 2**20  # bytes of address space; with less, torch ends the process itself

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Restore images with the Non-Local Recurrent Network.",
)


def main() -> None:
    """Entry point; errors become one line on stderr and exit code 2."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    _mend_streams()
    warnings.showwarning = _show_warning
    try:
        code = app(prog_name="nlrn", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads any more: the usual end of `nlrn ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        code = _fail(error.strerror or one_line(error))
    except MemoryError:
        code = _fail("not enough memory")
    except Exception as error:
        # A mistake in the options; the class lives in different places in different typers.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "nlrn"
        message = " ".join(error.format_message().split())
        code = _fail(f"{message} (see {command} --help)")
    sys.exit(code or 0)


def _fail(message: str) -> int:
    typer.echo(f"error: {message}", err=True)
    return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A line without the place in the source, which is nothing to whoever types commands."""
    typer.echo(f"warning: {message}", err=True)


def _mend_streams() -> None:
    """Makes sure that printing never raises: a stream may be closed, or not know all letters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif getattr(stream, "errors", "") == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Known errors become one line and exit code 2."""
    try:
        _check_address_space()
        yield
    except BrokenPipeError:
        raise
    except (ImportError, RuntimeError) as error:
        if not any(words in str(error) for words in NO_ROOM):
            raise
        typer.echo("error: not enough memory to load torch", err=True)
        raise typer.Exit(2) from error
    except (ValueError, OSError) as error:
        typer.echo(f"error: {in_words_of_the_command(one_line(error, 1000))}", err=True)
        raise typer.Exit(2) from error


def _check_address_space() -> None:
    """Raises if torch could not even be loaded: it would end the process without a word."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < SMALLEST_LIMIT:
        least, got = SMALLEST_LIMIT // 2**20, limit // 2**20
        raise ValueError(f"not enough memory: torch needs {least} MiB, ulimit -v allows {got}")


def in_words_of_the_command(message: str) -> str:
    """A message of the library with the names of flags in place of arguments."""
    said = message.replace("overwrite=True", "--overwrite")
    return re.sub(r"\b(white|axis|axes)=(\S+)", r"--\1 \2", said)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nlrn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def number(text: str, name: str, *automatic: str) -> float | None:
    """The number in an option, or None for a word that leaves the choice to us."""
    if text in automatic:
        return None
    try:
        value = float(text)
    except ValueError:
        known = f"{', '.join(automatic)} or a number" if automatic else "a number"
        raise ValueError(f"{name} must be {known}, got {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a number, got {text}")
    if name == "tile" and value != int(value):
        raise ValueError(f"tile must be a whole number, got {text}")
    return value
