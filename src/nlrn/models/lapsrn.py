"""LapSRN: an image that is doubled again and again, each time with the detail it lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork, convolution, he_, last_convolution

LEAK = 0.2  # slope of the activations below zero


@dataclass(frozen=True)
class LapSRNConfig(ConfigFromDict):
    """The shape of a `LapSRN`.

    Attributes:
        levels: how often the image is doubled: 2 for x2 and x4.
        layers: convolutions of a level.
        channels: features of every layer.
        in_channels: of the image.
    """

    levels: int = 2
    layers: int = 10
    channels: int = 64
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "levels", "layers", "channels", "in_channels")


class Level(nn.Module):
    """Convolutions, and a transposed one that doubles the features; the detail is read from them.

    The image is doubled by a transposed convolution of its own, which begins as bilinear.
    """

    def __init__(self, config: LapSRNConfig) -> None:
        super().__init__()
        image, m = config.in_channels, config.channels
        self.layers = nn.ModuleList(convolution(m, m) for _ in range(config.layers))
        self.enlarge = he_(nn.ConvTranspose2d(m, m, 3, stride=2))
        self.detail = last_convolution(m, image)
        self.enlarge_image = nn.ConvTranspose2d(
            image, image, 4, stride=2, padding=1, groups=image, bias=False
        )
        with torch.no_grad():
            line = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 4
            self.enlarge_image.weight.copy_(torch.outer(line, line))

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, C, H, W] -> [B, C, 2 H, 2 W]."""
        for layer in self.layers:
            features = _leaky(layer(features))
        return _leaky(self.enlarge(features)[..., :-1, :-1])  # one more than twice as many


class LapSRN(ConvolutionalNetwork):
    """A pyramid of two levels that takes the small image: x2 after the first, x4 after the second.

    812,768 weights are in the convolutions, the 812 k (or 813 k) that papers print for x4; biases
    are more. The transposed convolutions of the features are 3 x 3, as in the authors' code and by
    that count, where the paper says 4 x 4. Its 27 layers are all that there are, those of the image
    included. The authors train a network for each factor, with a robust loss on every level; here
    one network has both factors, and the loss of all networks.

    Args:
        config: shape of the network.
    """

    architecture = "lapsrn"
    paper = "Lai et al., Deep Laplacian Pyramid Networks for Super-Resolution, CVPR 2017"
    config_class = LapSRNConfig
    config: LapSRNConfig

    def __init__(self, config: LapSRNConfig | None = None) -> None:
        super().__init__(config or LapSRNConfig())
        self.factors = tuple(2**level for level in range(1, self.config.levels + 1))
        self.scale = self.factors[-1]
        self.extract = convolution(self.config.in_channels, self.config.channels)
        self.levels = nn.ModuleList(Level(self.config) for _ in self.factors)

    @property
    def used_levels(self) -> list[Level]:
        """Those that the scale takes."""
        count = int(math.log2(self.scale))
        return [level for level in self.levels[:count] if isinstance(level, Level)]

    def basis(self, image: Tensor) -> Tensor:
        """The image [B, C, H, W], doubled by each level."""
        for level in self.used_levels:
            image = level.enlarge_image(image)
        return image

    def correction(self, image: Tensor) -> Tensor:
        """The detail that the enlarged image lacks [B, C, scale H, scale W]."""
        features, detail = _leaky(self.extract(image)), image.new_zeros(())
        for level in self.used_levels:
            features = level(features)
            detail = level.enlarge_image(detail) if detail.ndim else detail
            detail = detail + level.detail(features)
        return detail

    @property
    def depth(self) -> int:
        return 1 + len(self.used_levels) * (self.config.layers + 3)

    @property
    def halo(self) -> int:
        """In pixels of the small image, of which a level's features have twice as many."""
        reach = 1.0
        for level in range(len(self.used_levels)):
            reach += (self.config.layers + 1) / 2**level
        return math.ceil(reach + 1 / self.scale)

    @property
    def held_channels(self) -> int:
        """For a pixel of the small image."""
        return 4 * self.config.channels * self.scale**2

    def repeated_modules(self) -> nn.ModuleList:
        return self.levels


def _leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, LEAK)
