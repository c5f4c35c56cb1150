"""TNRD: diffusion whose filters and influence functions are learned, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork
from nlrn.models.diffusion import INFLUENCE_FLOP, READING, CosineFilters, InfluenceFunctions, pad

CENTERS, REACH = 63, 310.0  # Gaussians of an influence function, from -310 to 310


@dataclass(frozen=True)
class TNRDConfig(ConfigFromDict):
    """The shape of a `TNRD`.

    Attributes:
        stages: T, steps of the diffusion.
        size: odd side of the filters, of which there are size^2 - 1.
        in_channels: of the image, 1.
    """

    stages: int = 5
    size: int = 7
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "stages", "size", "in_channels")
        if self.size % 2 == 0 or self.size < 3:
            raise ValueError(f"size must be odd and at least 3, got {self.size}")
        if self.in_channels != 1:
            raise ValueError(f"in_channels must be 1, got {self.in_channels}")


class DiffusionStage(nn.Module):
    """u - sum_i k'_i * phi_i(k_i * u) - lambda (u - f), k' being k turned by 180 degrees.

    Both convolutions see the mirrored image beyond its border: the second is the transpose of the
    first inside, and another filter near the border, as the paper chooses.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.filters = CosineFilters(size)
        self.influence = InfluenceFunctions(self.filters.count, CENTERS, REACH)
        self.fidelity = nn.Parameter(torch.tensor(0.1))  # lambda

    def forward(self, u: Tensor, f: Tensor) -> Tensor:
        """The image so far and the noisy one [B, 1, H, W], 0..255 -> the next."""
        filters, margin = self.filters(), self.filters.size // 2
        flow = self.influence(F.conv2d(pad(u, margin), filters))
        turned = filters.flip(-1, -2).transpose(0, 1)
        return u - F.conv2d(pad(flow, margin), turned) - self.fidelity * (u - f)


class TNRD(ConvolutionalNetwork):
    """Five steps of trainable nonlinear reaction diffusion, 48 filters of 7 x 7 in each.

    A filter is a mixture of cosines without the constant, of length 1; an influence function is a
    sum of 63 Gaussians. 26,645 parameters: 48 x 48 + 48 x 63 + 1 for each stage. The authors train
    stage by stage and then jointly, here all stages are trained together.

    Args:
        config: shape of the network.
    """

    architecture = "tnrd"
    paper = "Chen and Pock, Trainable Nonlinear Reaction Diffusion, TPAMI 2017"
    config_class = TNRDConfig
    config: TNRDConfig
    computes_in_half = False  # a step is small beside the image that it changes

    def __init__(self, config: TNRDConfig | None = None) -> None:
        super().__init__(config or TNRDConfig())
        self.stages = nn.ModuleList(
            DiffusionStage(self.config.size) for _ in range(self.config.stages)
        )

    def correction(self, image: Tensor) -> Tensor:
        """What is to be added to the image [B, 1, H, W]."""
        noisy = u = image * 255
        for stage in self.stages:
            u = stage(u, noisy)
        return (u - noisy) / 255

    @property
    def depth(self) -> int:
        return 2 * self.config.stages

    @property
    def halo(self) -> int:
        return 2 * self.config.stages * (self.config.size // 2)

    @property
    def flop_per_pixel(self) -> float:
        """That of both convolutions, and of the influence functions."""
        filters = self.config.size**2 - 1
        return self.config.stages * filters * (4 * self.config.size**2 + INFLUENCE_FLOP)

    @property
    def held_channels(self) -> int:
        return READING * self.config.size**2

    def repeated_modules(self) -> nn.ModuleList:
        return self.stages
