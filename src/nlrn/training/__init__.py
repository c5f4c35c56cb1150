"""Training that can be stopped and resumed; `run` is the way in."""

from nlrn.training.config import TrainingError, seconds
from nlrn.training.loop import run
from nlrn.training.plot import plot

__all__ = ["TrainingError", "plot", "run", "seconds"]
