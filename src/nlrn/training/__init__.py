"""Training that can be stopped and resumed; `run` is the way in."""

from nlrn.training.loop import run
from nlrn.training.parsing import TrainingError, seconds

__all__ = ["TrainingError", "run", "seconds"]
