"""Networks on images of any size: the engine, its settings, tiles, the authors' protocol."""

from nlrn.inference.engine import Engine
from nlrn.inference.settings import Settings

__all__ = ["Engine", "Settings"]
