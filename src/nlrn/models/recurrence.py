"""The recurrence of the everyday networks: states that add to what they get.

The paper's cell begins every state anew from the first one, s^t = s^0 + f(s^(t-1)), with batch
norms whose statistics are frozen: nothing bounds what twelve rounds of that can become. Here the
states are a stream, s^t = s^(t-1) + gate_t f(norm(s^(t-1))): what a state adds is bounded, whatever
it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.non_local import Attend, NonLocal2d, xavier_
from nlrn.models.shared_weights import OneForEachState
from nlrn.ops import AttentionSpec, Correlation, correlation_bytes

EPSILON = 1e-3  # of the norm: what is weaker than a few percent of the usual stays weak
FIRST_GATE = 0.3  # twelve states that add in full would drown the image at the start
FEATURE_MAPS = 12  # tensors of the size of a state that the network and its libraries hold at most


@dataclass(frozen=True)
class RecurrenceConfig(ConfigFromDict):
    """Everything that decides the shape of the recurrence.

    Attributes:
        steps: T, how many states there are.
        channels: m, features of every state.
        embed: l, channels of the embeddings theta and psi.
        window: q, odd side of the neighbourhood.
        cells: sets of weights; each serves as many states in a row. 1 is the recurrent network,
            as many as there are states an ordinary one.
        non_local_every: k, a non-local module in every k-th state; 0 for none.
        border: what a neighbourhood does at the image's edge, "mask" or "circular".
        embed_limit: how long the embeddings of a pixel can become at most; 0 for any length.
        in_channels: channels of the image, 1 for gray, 3 for RGB.
    """

    steps: int = 12
    channels: int = 128
    embed: int = 64
    window: int = 23
    cells: int = 1
    non_local_every: int = 1
    border: str = "mask"
    embed_limit: float = 0.0
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "steps", "channels", "embed", "cells", "in_channels")
        _ = self.attention  # checks its own values
        if self.steps % self.cells:
            raise ValueError(f"cells must divide steps ({self.steps}), got {self.cells}")
        if self.non_local_every < 0:
            raise ValueError(f"non_local_every must be 0 or more, got {self.non_local_every}")
        if not self.embed_limit >= 0:
            raise ValueError(f"embed_limit must be 0 or more, got {self.embed_limit}")

    @property
    def attention(self) -> AttentionSpec:
        """What the non-local modules compute."""
        return self.attention_with(self.border)

    def attention_with(self, border: str) -> AttentionSpec:
        """The same with neighbourhoods that do something else at the image's edge."""
        return AttentionSpec(self.window, border=border)

    def cell_of(self, step: int) -> int:
        """Which cell serves state `step`, both counted from 0."""
        return step * self.cells // self.steps

    def is_non_local(self, step: int) -> bool:
        """Whether state `step`, counted from 0, holds a non-local module."""
        return self.non_local_every > 0 and step % self.non_local_every == 0

    @property
    def modules(self) -> int:
        """How many states hold a non-local module."""
        return sum(map(self.is_non_local, range(self.steps)))

    @property
    def reach(self) -> int:
        """How far away a cell of the grid can still change a state."""
        return 2 * self.steps + self.window // 2 * self.modules

    @property
    def flop(self) -> int:
        """Useful work of all states for one cell of the grid; masked work does not count."""
        m, embed = self.channels, self.embed
        module = 2 * (2 * m * embed + m * m) + 2 * self.window**2 * (embed + m)
        return self.steps * 36 * m * m + self.modules * module

    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the states of a grid take at most: the scores and a dozen feature maps."""
        if device.type == "cuda" and height * width * (self.channels + 2 * self.embed) >= 2**31:
            return 2**62  # kernels count elements in 32 bits: no memory is enough
        stream = max(0, torch.float32.itemsize - dtype.itemsize) * 2  # it and its sums are float32
        features = height * width * self.channels * (FEATURE_MAPS * dtype.itemsize + stream)
        if not self.non_local_every:
            return features
        return features + correlation_bytes(
            height, width, self.attention, embed=self.embed, channels=self.channels,
            dtype=dtype, device=device,
        )  # fmt: skip


class ResidualCell(nn.Module):
    """What a state adds: a non-local module and two convolutions behind one norm."""

    def __init__(self, config: RecurrenceConfig, with_non_local: bool) -> None:
        super().__init__()
        m = config.channels
        self.non_local = (
            NonLocal2d(
                m,
                config.embed,
                config.window,
                border=config.border,
                center_keys=True,
                limit=config.embed_limit,
            )
            if with_non_local
            else None
        )
        self.conv1 = xavier_(nn.Conv2d(m, m, 3, padding=1))
        self.conv2 = xavier_(nn.Conv2d(m, m, 3, padding=1))

    def forward(
        self,
        stream: Tensor,
        correlation: Correlation | None,
        own: tuple[Tensor, ...],
        non_local: bool,
        attend: Attend | None,
        spec: AttentionSpec,
    ) -> tuple[Tensor, Correlation | None]:
        """Stream s^(t-1) [B, m, H, W] -> (s^t, correlation to hand on).

        Args:
            stream: the state before.
            correlation: what it handed on.
            own: the vectors [m] of this state, in the order of `StateVectors`.
            non_local: whether the non-local module takes part. (Not to be told from `attend`: of
                that, torch.compile would take what it was at the first state.)
            attend: computes the operator.
            spec: takes the place of the module's own.
        """
        scale, shift, scale1, scale2, shift2, gate = (vector.view(1, -1, 1, 1) for vector in own)
        x = F.relu(channel_norm(stream) * scale + shift)
        if non_local and self.non_local is not None:
            x, correlation = self.non_local(x, correlation, attend, spec)
        x = self.conv1(x * scale1)
        x = self.conv2(F.relu(x * scale2 + shift2))
        return stream + x * gate, correlation


class StateVectors(nn.Module):
    """What every state has of its own: scales and shifts of its channels, each [T, m]."""

    def __init__(self, steps: int, channels: int) -> None:
        super().__init__()
        starts = {"norm_scale": 1.0, "norm_shift": 0.0, "scale1": 1.0, "scale2": 1.0,
                  "shift2": 0.0, "gate": FIRST_GATE}  # fmt: skip
        for name, start in starts.items():
            self.register_parameter(name, nn.Parameter(torch.full((steps, channels), start)))

    def by_state(self) -> list[tuple[Tensor, ...]]:
        """The vectors [m] of each state."""
        return list(zip(*(p.unbind(0) for p in self.parameters()), strict=True))


class Recurrence(nn.Module):
    """All states: features of an image in, features out."""

    def __init__(self, config: RecurrenceConfig) -> None:
        super().__init__()
        self.config = config
        used = {config.cell_of(t) for t in range(config.steps) if config.is_non_local(t)}
        self.cells = nn.ModuleList(ResidualCell(config, i in used) for i in range(config.cells))
        self.vectors = StateVectors(config.steps, config.channels)

    def forward(
        self,
        features: Tensor,
        attend: Attend | None,
        spec: AttentionSpec,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Features [B, m, H, W] -> features alike.

        Args:
            features: s^0.
            attend: computes the operator; without it the non-local modules take no part.
            spec: of the operator.
            dtype: in which weights are used; those that states share are then cast once.
        """
        config = self.config
        cells: list[Callable[[int], Callable[..., Any]]] = [self._same(cell) for cell in self.cells]
        if dtype is not None:
            each = config.steps // config.cells
            cells = [OneForEachState(cell, each, dtype) for cell in self.cells]
        stream, correlation = features, None
        for t, own in enumerate(self.vectors.by_state()):
            which = config.cell_of(t)
            cell = cells[which](t - which * config.steps // config.cells)
            here = attend is not None and config.is_non_local(t)
            stream, correlation = cell(stream, correlation, own, here, attend, spec)
        return stream

    def cell(self, step: int) -> ResidualCell:
        """The cell of state `step`, counted from 0."""
        return self.cells[self.config.cell_of(step)]  # type: ignore[return-value]

    @staticmethod
    def _same(cell: nn.Module) -> Callable[[int], Callable[..., Any]]:
        return lambda _: cell


def channel_norm(x: Tensor) -> Tensor:
    """The channels of every pixel [B, C, H, W] with mean square 1; float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPSILON)
