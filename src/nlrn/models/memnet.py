"""MemNet: blocks that remember what the blocks before them have found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
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
class MemNetConfig(ConfigFromDict):
    """The shape of a `MemNet`.

    Attributes:
        blocks: M, memory blocks.
        recursions: R, how often a block uses its residual unit.
        channels: features of every layer.
        in_channels: of the image.
    """

    blocks: int = 6
    recursions: int = 6
    channels: int = 64
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "blocks", "recursions", "channels", "in_channels")


class MemoryBlock(nn.Module):
    """A residual unit used R times, and a gate that weighs old and new features pixel by pixel.

    Args:
        config: of the network.
        number: of the block, from 1: as many memories are older than its own states.
    """

    def __init__(self, config: MemNetConfig, number: int) -> None:
        super().__init__()
        m, self.recursions = config.channels, config.recursions
        self.unit = RecursiveUnit(m, self.recursions)
        self.gate = NormReluConv(convolution(m * (number + self.recursions), m, 1))

    def forward(self, memories: list[Tensor]) -> Tensor:
        """B_0 .. B_(m-1), each [B, C, H, W] -> B_m."""
        x, states = memories[-1], []
        for time in range(self.recursions):
            x = x + self.unit(x, time)
            states.append(x)
        return self.gate(torch.cat([*memories, *states], 1))


class MemNet(ConvolutionalNetwork):
    """80 layers with memory, for denoising and super-resolution (M6R6).

    Every block's memory is turned into an image of its own, and the result is their weighted sum,
    y = sum_m w_m (x + f_rec(B_m)). 676,992 weights are in the convolutions, the 677 k of the
    authors (the complexity table prints 667 k); biases, norms and w are beside them. Batch norm,
    ReLU, convolution is the order everywhere, on the image too, and norms are not shared by
    recursions: both as in the authors' code. They also compare every block's image with the clean
    one; here the loss is that of the sum alone, as it is for all networks.

    Args:
        config: shape of the network.
    """

    architecture = "memnet"
    paper = "Tai et al., MemNet: A Persistent Memory Network for Image Restoration, ICCV 2017"
    config_class = MemNetConfig
    config: MemNetConfig

    def __init__(self, config: MemNetConfig | None = None) -> None:
        super().__init__(config or MemNetConfig())
        c = self.config
        self.extract = NormReluConv(convolution(c.in_channels, c.channels))
        self.blocks = nn.ModuleList(MemoryBlock(c, m + 1) for m in range(c.blocks))
        self.reconstruct = NormReluConv(last_convolution(c.channels, c.in_channels))
        self.weights = nn.Parameter(torch.full((c.blocks,), 1 / c.blocks))

    def correction(self, image: Tensor) -> Tensor:
        """What is to be added to the image [B, C, H, W]."""
        memories = [self.extract(image)]
        total = (self.weights.sum() - 1) * image
        for block, weight in zip(self.blocks, self.weights, strict=True):
            memories.append(block(memories))
            total = total + weight * self.reconstruct(memories[-1])
        return total

    @property
    def depth(self) -> int:
        return 2 + self.config.blocks * (2 * self.config.recursions + 1)

    @property
    def halo(self) -> int:
        return 2 + self.config.blocks * 2 * self.config.recursions

    @property
    def held_channels(self) -> int:
        # Memories and states, then joined and normed beside that.
        return (4 * (self.config.blocks + self.config.recursions) + 3) * self.config.channels

    def repeated_modules(self) -> nn.ModuleList:
        return self.blocks
