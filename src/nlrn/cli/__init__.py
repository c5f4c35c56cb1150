"""The command line. Handlers are short and call the library."""

# Commands register themselves; nlrn --help shows them in the order of these lines.
from nlrn.cli import restore  # isort: skip
from nlrn.cli import models, research
from nlrn.cli.entry import app, main
from nlrn.cli.research import SHOWN_PROBLEMS

__all__ = ["SHOWN_PROBLEMS", "app", "main", "models", "research", "restore"]
