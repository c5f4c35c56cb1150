"""DRRN: a residual unit applied again and again, always beside the first features."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import (
    ConvolutionalNetwork,
    NormReluConv,
    RecursiveUnit,
    convolution,
    last_convolution,
)


@dataclass(frozen=True)
class DRRNConfig(ConfigFromDict):
    """The shape of a `DRRN`.

    Attributes:
        blocks: B, recursive blocks.
        units: U, how often a block uses its residual unit.
        channels: features of every layer.
        in_channels: of the image.
    """

    blocks: int = 1
    units: int = 9
    channels: int = 128
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "blocks", "units", "channels", "in_channels")


class RecursiveBlock(nn.Module):
    """H_0 = f(x), then H_u = H_0 + F(H_(u-1)): F is one residual unit, used U times."""

    def __init__(self, inputs: int, config: DRRNConfig) -> None:
        super().__init__()
        self.first = NormReluConv(convolution(inputs, config.channels))
        self.unit, self.times = RecursiveUnit(config.channels, config.units), config.units

    def forward(self, x: Tensor) -> Tensor:
        """Features or image [B, C, H, W] -> features."""
        first = state = self.first(x)
        for time in range(self.times):
            state = first + self.unit(state, time)
        return state


class DRRN(ConvolutionalNetwork):
    """20 layers of which 18 are one residual unit, on the bicubic image (B1U9).

    297,216 weights are in the convolutions, the 297 k that papers print; biases and norms are
    beside them. Batch norm and ReLU stand ahead of every convolution, on the image too, and norms
    are not shared by units: as in the authors' code.

    Args:
        config: shape of the network.
    """

    architecture = "drrn"
    paper = "Tai et al., Image Super-Resolution via Deep Recursive Residual Network, CVPR 2017"
    config_class = DRRNConfig
    config: DRRNConfig

    def __init__(self, config: DRRNConfig | None = None) -> None:
        super().__init__(config or DRRNConfig())
        c = self.config
        widths = [c.in_channels] + [c.channels] * (c.blocks - 1)
        self.blocks = nn.Sequential(*(RecursiveBlock(inputs, c) for inputs in widths))
        self.last = NormReluConv(last_convolution(c.channels, c.in_channels))

    def correction(self, image: Tensor) -> Tensor:
        """What the enlarged image [B, C, H, W] lacks."""
        return self.last(self.blocks(image))

    @property
    def depth(self) -> int:
        return self.config.blocks * (2 * self.config.units + 1) + 1

    @property
    def halo(self) -> int:
        return self.depth

    @property
    def held_channels(self) -> int:
        return 5 * self.config.channels
