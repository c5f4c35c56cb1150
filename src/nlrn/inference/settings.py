"""How a network is run."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch

from nlrn.inference.tiles import BLEND

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Settings:
    """How a network is run.

    Attributes:
        tile: side of the tiles; 0 for the whole image at once; None to decide by `memory`.
        exact: tiles read so far around them that the result equals that of the whole image.
        views: 1, or up to 8 to average the results for flipped and rotated images.
        dtype: precision of the network: "fp32" or "bf16".
        device: "auto" takes the device on which the image is or, for one on the CPU, a GPU where
            there is one.
        memory: bytes that the network may take; None for half of what is free.
    """

    tile: int | None = None
    exact: bool = False
    views: int = 1
    dtype: str = "fp32"
    device: str = "auto"
    memory: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.exact not in (True, False):
            raise ValueError(f"exact must be True or False, got {self.exact!r}")
        whole = (("tile", self.tile), ("views", self.views), ("memory", self.memory))
        for name, value in whole:
            automatic = value is None and name != "views"
            if not automatic and (isinstance(value, bool) or not isinstance(value, Integral)):
                raise ValueError(f"{name} must be a whole number, got {value!r}")
        if self.tile is not None and self.tile != 0 and self.tile < 2 * BLEND:
            raise ValueError(f"tile must be 0 or at least {2 * BLEND}, got {self.tile}")
        if not 1 <= self.views <= 8:
            raise ValueError(f"views must be between 1 and 8, got {self.views}")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"memory must be a number of bytes, got {self.memory}")

    @property
    def precision(self) -> torch.dtype:
        """The dtype that the network computes in."""
        return DTYPES[self.dtype]


def check_settings(settings: Settings | None) -> Settings:
    """The settings, the usual ones for None; raises for anything else."""
    if settings is not None and not isinstance(settings, Settings):
        got = "a class" if isinstance(settings, type) else type(settings).__name__
        raise ValueError(f"settings must be nlrn.Settings(tile=..., dtype=...), got {got}")
    return settings or Settings()
