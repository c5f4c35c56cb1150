"""What the networks around a `Recurrence` have in common: how they run, train, tile and compare."""

from __future__ import annotations

import copy
import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from nlrn.models.base import AttentionLayout, Network, TrainingMode, Watch
from nlrn.models.non_local import Attend, xavier_
from nlrn.models.recurrence import Recurrence, RecurrenceConfig
from nlrn.ops import attend

_CELLS = "states.cells."  # what the names of a cell's weights begin with


class RecurrentNetwork(Network):
    """A network whose middle is a `Recurrence`, on cells of `multiple` x `multiple` pixels.

    Attributes:
        states: the recurrence.
    """

    config: RecurrenceConfig
    states: Recurrence

    @abstractmethod
    def restore(
        self,
        image: Tensor,
        attend: Attend | None,
        border: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The whole network with this operator; without one the modules take no part.

        Args:
            image: as `forward` takes it.
            attend: computes the operator.
            border: what neighbourhoods do at the edge, where that is not as in the config.
            dtype: in which weights that states share are used, where that is not their own.
        """

    def forward(self, image: Tensor, *, non_local: bool = True) -> Tensor:
        """What `input_for` gives [B, C', H, W] in [0, 1] -> the restored image.

        Args:
            image: with the noise map as last channel where the network takes one.
            non_local: whether the non-local modules take part.
        """
        operator = functools.partial(attend, reuse_prior=True) if non_local else None
        return self.restore(image, operator)

    def watch(self, image: Tensor, watch: Watch) -> Tensor:
        """`forward`, with `watch` called for query and key of each comparison."""

        def watched(query: Tensor, key: Tensor, *others: Any, **options: Any) -> Any:
            watch(query, key)
            return attend(query, key, *others, reuse_prior=True, **options)

        return self.restore(image, watched)

    def for_training(self, mode: TrainingMode) -> Callable[[Tensor], Tensor]:
        """`forward` with the operator and the border of a stage."""
        operator: Attend | None = None
        if mode.non_local:
            operator = functools.partial(attend, backend=mode.backend)
            if mode.backend != "dense":  # kernels or loops: not for the compiler to look into
                operator = torch.compiler.disable(operator)
        return functools.partial(
            self.restore, attend=operator, border=mode.border, dtype=mode.dtype
        )

    @property
    def in_channels(self) -> int:
        return self.config.in_channels

    @property
    def out_channels(self) -> int:
        return self.config.in_channels

    @property
    def halo(self) -> int:
        """That of the states and of the convolutions before and after them, in whole cells."""
        return (self.config.reach + 2 + 1) * self.multiple - 1

    @property
    def can_tile_exactly(self) -> bool:
        return self.config.border != "circular"

    @property
    def flop_per_pixel(self) -> float:
        return self.config.flop / self.multiple**2

    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the network takes at most."""
        height, width = (-(-side // self.multiple) for side in (height, width))
        return self.config.memory(height, width, dtype, device)

    @property
    def attention(self) -> AttentionLayout | None:
        config = self.config
        states = tuple(t + 1 for t in range(config.steps) if config.is_non_local(t))
        return AttentionLayout(config.attention, states, True, 2 * config.embed) if states else None

    def with_border(self, border: str) -> Self:
        """The same parameters with neighbourhoods that do something else at the image's edge."""
        view = copy.copy(self)
        view.config = dataclasses.replace(self.config, border=border)
        return view

    def matrices(self) -> list[nn.Parameter]:
        """All weights of convolutions but those from and to the image, which are filters."""
        return [p for p in self.states.cells.parameters() if p.ndim > 1]

    def repeated_modules(self) -> Iterable[nn.Module]:
        return self.states.cells

    def counts(self) -> dict[str, int]:
        """Parameters, and layers from input to output, a non-local module counted as one."""
        depth = 2 + 2 * self.config.steps + self.config.modules
        return super().counts() | {"effective_depth": depth}


def spread_cells(network: RecurrentNetwork, cells: int) -> dict[str, Tensor]:
    """The weights for a network of more cells: each begins as the one that served its states.

    Args:
        network: what the weights are of.
        cells: how many there are to be, a multiple of those that there are.
    """
    before = network.config
    after = dataclasses.replace(before, cells=cells)
    weights = {k: v for k, v in network.state_dict().items() if not k.startswith(_CELLS)}
    for step in range(0, after.steps, after.steps // cells):
        cell = network.states.cells[before.cell_of(step)].state_dict()
        compares = any(map(after.is_non_local, range(step, step + after.steps // cells)))
        for name, values in cell.items():
            if compares or not name.startswith("non_local."):
                weights[f"{_CELLS}{after.cell_of(step)}.{name}"] = values
    return weights


def randomize(network: RecurrentNetwork) -> None:
    """Gives an untrained network values with which every part of its states acts."""
    for cell in network.states.cells:
        if cell.non_local is not None:
            xavier_(cell.non_local.g)  # type: ignore[union-attr, arg-type]
    for vectors in network.states.vectors.parameters():
        vectors.data += 0.1 * torch.randn_like(vectors)
