"""The everyday network: all noise levels, gray or color, on cells of several pixels."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.base import AttentionLayout, Network, TrainingMode, Watch, noise_map_for
from nlrn.models.config_values import check_positive, check_unshuffle, config_from_dict
from nlrn.models.non_local import Attend, xavier_
from nlrn.models.pixel_grid import from_grid, to_grid
from nlrn.models.recurrence import Recurrence, RecurrenceConfig
from nlrn.models.residual_inference import ResidualInference
from nlrn.ops import attend


@dataclass(frozen=True)
class ResidualConfig(RecurrenceConfig):
    """Everything that decides the shape and the arithmetic of a `ResidualNLRN`.

    Attributes:
        in_channels: channels of the image, 1 for gray, 3 for RGB.
        unshuffle: r, side in pixels of the cells that the states compute on.
    """

    in_channels: int = 1
    unshuffle: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "in_channels")
        check_unshuffle(self.unshuffle)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ResidualConfig:
        """The config with these fields; a field that does not exist is an error naming it."""
        return config_from_dict(cls, values)

    @property
    def halo(self) -> int:
        """How far away a pixel can still change the result: that of the states, in whole cells."""
        return (self.reach + 2 + 1) * self.unshuffle - 1


class ResidualNLRN(Network):
    """A recurrent network for all noise levels: image and noise map in, restored image out.

    Args:
        config: shape of the network.
    """

    architecture = "nlrn-residual"
    paper = "none: grown here out of nlrn, for all noise levels"
    config_class = ResidualConfig
    config: ResidualConfig
    takes_noise_map = True

    def __init__(self, config: ResidualConfig | None = None) -> None:
        config = config or ResidualConfig()
        super().__init__(config)
        self.card = dataclasses.replace(self.card, channels=config.in_channels)
        self.steps, self.multiple = config.steps, config.unshuffle
        inside = config.unshuffle**2 * config.in_channels
        self.conv_in = xavier_(nn.Conv2d(inside + 1, config.channels, 3, padding=1))
        self.states = Recurrence(config)
        self.conv_out = xavier_(nn.Conv2d(config.channels, inside, 3, padding=1))
        nn.init.zeros_(self.conv_out.weight)  # so that training starts at the identity

    def forward(self, image: Tensor, *, non_local: bool = True) -> Tensor:
        """Image and noise map [B, in + 1, H, W] in [0, 1] -> restored image [B, in, H, W].

        Args:
            image: with the noise map as last channel.
            non_local: whether the non-local modules take part.
        """
        operator = functools.partial(attend, reuse_prior=True) if non_local else None
        return self._restore(image, operator)

    def watch(self, image: Tensor, watch: Watch) -> Tensor:
        """`forward`, with `watch` called for query and key of each comparison."""

        def watched(query: Tensor, key: Tensor, *others: Any, **options: Any) -> Any:
            watch(query, key)
            return attend(query, key, *others, reuse_prior=True, **options)

        return self._restore(image, watched)

    def _restore(
        self,
        image: Tensor,
        attend: Attend | None,
        border: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The whole network with this operator."""
        config = self.config
        spec = config.attention_with(border or config.border)
        features = self.conv_in(centered_cells(image, config.unshuffle))
        features = self.states(features, attend, spec, dtype)
        residual = self.conv_out(F.relu(features))
        return image[:, : config.in_channels] + from_grid(residual, image, config.unshuffle)

    def for_training(self, mode: TrainingMode) -> Callable[[Tensor], Tensor]:
        """`forward` with the operator and the border of a stage."""
        operator: Attend | None = None
        if mode.non_local:
            operator = functools.partial(attend, backend=mode.backend)
            if mode.backend != "dense":  # kernels or loops: not for the compiler to look into
                operator = torch.compiler.disable(operator)
        return functools.partial(
            self._restore, attend=operator, border=mode.border, dtype=mode.dtype
        )

    def for_inference(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> ResidualInference:
        """The network with the vectors of its states folded into its convolutions."""
        return ResidualInference(self, dtype, torch.device(device))

    @property
    def in_channels(self) -> int:
        return self.config.in_channels

    @property
    def out_channels(self) -> int:
        return self.config.in_channels

    @property
    def halo(self) -> int:
        return self.config.halo

    @property
    def can_tile_exactly(self) -> bool:
        return self.config.border != "circular"

    @property
    def flop_per_pixel(self) -> float:
        return self.config.flop / self.config.unshuffle**2

    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the network takes at most."""
        height, width = (-(-side // self.config.unshuffle) for side in (height, width))
        return self.config.memory(height, width, dtype, device)

    def input_for(self, image: Tensor, sigma: float | Tensor) -> Tensor:
        """The image [B, C, H, W] and the noise map.

        Args:
            image: in [0, 1].
            sigma: noise level in the units of the image: a number, [B], or a map [B, 1, H, W].
        """
        return torch.cat([image, noise_map_for(image, sigma)], 1)

    @property
    def attention(self) -> AttentionLayout | None:
        config = self.config
        states = tuple(t + 1 for t in range(config.steps) if config.is_non_local(t))
        return AttentionLayout(config.attention, states, True, 2 * config.embed) if states else None

    def with_border(self, border: str) -> ResidualNLRN:
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


def centered_cells(image: Tensor, r: int) -> Tensor:
    """Image and noise map [B, C + 1, H, W] -> cells [B, C r r + 1, H/r, W/r] around zero."""
    cells = to_grid(image, r, noise_map=True)
    return 2 * torch.cat([cells[:, :-1] - 0.5, cells[:, -1:]], 1)


def random_residual(config: ResidualConfig, seed: int = 0) -> ResidualNLRN:
    """An untrained network in which every part acts: for demonstrations, benchmarks and tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResidualNLRN(config)
        for cell in model.states.cells:
            if cell.non_local is not None:
                xavier_(cell.non_local.g)  # type: ignore[union-attr, arg-type]
        for vectors in model.states.vectors.parameters():
            vectors.data += 0.1 * torch.randn_like(vectors)
        nn.init.normal_(model.conv_out.weight, std=0.002)
    return model.eval()
