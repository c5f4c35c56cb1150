"""The neighbourhood operator: every pixel attends to the window around it."""

from nlrn.ops.affinity import AFFINITIES, BORDERS, AttentionSpec
from nlrn.ops.correlation import Correlation
from nlrn.ops.dispatch import (
    attend,
    correlation_bytes,
    kernels_run_on,
    neighborhood_attention,
    unsupported,
)

__all__ = [
    "AFFINITIES",
    "BORDERS",
    "AttentionSpec",
    "Correlation",
    "attend",
    "correlation_bytes",
    "kernels_run_on",
    "neighborhood_attention",
    "unsupported",
]
