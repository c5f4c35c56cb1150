"""The neighbourhood operator: every pixel attends to the window around it."""

from nlrn.ops.correlation import Correlation
from nlrn.ops.dispatch import (
    AFFINITIES,
    BORDERS,
    memory_per_pixel,
    neighborhood_attention,
    unsupported,
)

__all__ = [
    "AFFINITIES",
    "BORDERS",
    "Correlation",
    "memory_per_pixel",
    "neighborhood_attention",
    "unsupported",
]
