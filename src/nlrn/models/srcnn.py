"""SRCNN: three layers from the enlarged image to the sharp one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork, convolution

KERNELS = (9, 5, 5)


@dataclass(frozen=True)
class SRCNNConfig(ConfigFromDict):
    """The shape of an `SRCNN`, of the kernels 9-5-5.

    Attributes:
        channels: features of the first layer.
        channels2: features of the second layer.
        in_channels: of the image.
    """

    channels: int = 64
    channels2: int = 32
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "channels", "channels2", "in_channels")


class SRCNN(ConvolutionalNetwork):
    """Three convolutions on the image that bicubic interpolation has enlarged.

    The only one of the networks that computes the image itself, not what it lacks: so it begins
    far from the identity, and bfloat16 is too coarse for it. 57,184 weights are in the
    convolutions, the 57 k that papers print; biases are 97 more. The borders are padded with zeros,
    where the paper leaves them out.

    Args:
        config: shape of the network.
    """

    architecture = "srcnn"
    paper = "Dong et al., Image Super-Resolution Using Deep Convolutional Networks, TPAMI 2016"
    config_class = SRCNNConfig
    config: SRCNNConfig
    computes_in_half = False

    def __init__(self, config: SRCNNConfig | None = None) -> None:
        super().__init__(config or SRCNNConfig())
        c = self.config
        first, second, third = KERNELS
        self.layers = nn.Sequential(
            convolution(c.in_channels, c.channels, first),
            nn.ReLU(inplace=True),
            convolution(c.channels, c.channels2, second),
            nn.ReLU(inplace=True),
            convolution(c.channels2, c.in_channels, third),
        )

    def basis(self, image: Tensor) -> Tensor:
        """Nothing: the image is computed."""
        return torch.zeros_like(image)

    def correction(self, image: Tensor) -> Tensor:
        """Enlarged image [B, C, H, W] in [0, 1] -> sharp image."""
        return self.layers(image)

    @property
    def depth(self) -> int:
        return len(KERNELS)

    @property
    def halo(self) -> int:
        return sum(size // 2 for size in KERNELS)

    @property
    def held_channels(self) -> int:
        return 2 * (self.config.channels + self.config.channels2)
