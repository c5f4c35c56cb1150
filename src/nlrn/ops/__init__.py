"""The neighbourhood operator: every pixel attends to the window around it."""

from nlrn.ops.affinity import AFFINITIES, BORDERS
from nlrn.ops.correlation import Correlation
from nlrn.ops.dispatch import (
    correlation_bytes,
    kernels_run_on,
    neighborhood_attention,
    unsupported,
)

__all__ = [
    "AFFINITIES",
    "BORDERS",
    "Correlation",
    "correlation_bytes",
    "kernels_run_on",
    "neighborhood_attention",
    "unsupported",
]
