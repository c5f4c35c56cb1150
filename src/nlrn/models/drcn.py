"""DRCN: one convolution applied again and again, with an image from every time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork, convolution, last_convolution


@dataclass(frozen=True)
class DRCNConfig(ConfigFromDict):
    """The shape of a `DRCN`.

    Attributes:
        recursions: D, how often the inner convolution is applied.
        channels: features of every layer.
        in_channels: of the image.
    """

    recursions: int = 16
    channels: int = 256
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "recursions", "channels", "in_channels")


class DRCN(ConvolutionalNetwork):
    """Embedding, a recursion of 16 times, and a reconstruction from each: their weighted sum.

    y = sum_d w_d (x + f_3(H_d)), H_d = ReLU(W * H_(d-1) + b). The weights w are learned and begin
    alike; they are not made to sum to one. The recursion begins with the identity, as in the paper.
    1,774,080 weights are in the convolutions, the 1774 k of later papers; 20 layers as the paper
    counts them, recursions and all. The paper also compares each recursion's image with the clean
    one; here the loss is that of the sum alone, as it is for all networks.

    Args:
        config: shape of the network.
    """

    architecture = "drcn"
    paper = "Kim et al., Deeply-Recursive Convolutional Network for Super-Resolution, CVPR 2016"
    config_class = DRCNConfig
    config: DRCNConfig

    def __init__(self, config: DRCNConfig | None = None) -> None:
        super().__init__(config or DRCNConfig())
        image, m = self.config.in_channels, self.config.channels
        self.embed1, self.embed2 = convolution(image, m), convolution(m, m)
        self.recursion = convolution(m, m)
        nn.init.dirac_(self.recursion.weight)
        self.reconstruct1, self.reconstruct2 = convolution(m, m), last_convolution(m, image)
        times = self.config.recursions
        self.weights = nn.Parameter(torch.full((times,), 1 / times))

    def correction(self, image: Tensor) -> Tensor:
        """What is to be added to the image [B, C, H, W]."""
        state = F.relu(self.embed2(F.relu(self.embed1(image))))
        total = (self.weights.sum() - 1) * image
        for weight in self.weights:
            state = F.relu(self.recursion(state))
            total = total + weight * self.reconstruct2(F.relu(self.reconstruct1(state)))
        return total

    @property
    def depth(self) -> int:
        return 4 + self.config.recursions

    @property
    def halo(self) -> int:
        return 4 + self.config.recursions

    @property
    def held_channels(self) -> int:
        return 4 * self.config.channels
