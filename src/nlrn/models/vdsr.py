"""VDSR: a deep stack of convolutions that predicts what an enlarged image lacks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork, convolution, last_convolution


@dataclass(frozen=True)
class VDSRConfig(ConfigFromDict):
    """The shape of a `VDSR`.

    Attributes:
        layers: convolutions from input to output.
        channels: features of every layer.
        in_channels: of the image.
    """

    layers: int = 20
    channels: int = 64
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "channels", "in_channels")
        if self.layers < 2:
            raise ValueError(f"layers must be at least 2, got {self.layers}")


class VDSR(ConvolutionalNetwork):
    """Convolution and ReLU, 20 layers deep, on the image that bicubic interpolation has enlarged.

    664,704 weights are in the convolutions, the 665 k that papers print; biases are 1,217 more.

    Args:
        config: shape of the network.
    """

    architecture = "vdsr"
    paper = "Kim et al., Accurate Image Super-Resolution Using Very Deep Networks, CVPR 2016"
    config_class = VDSRConfig
    config: VDSRConfig

    def __init__(self, config: VDSRConfig | None = None) -> None:
        super().__init__(config or VDSRConfig())
        image, m = self.config.in_channels, self.config.channels
        layers: list[nn.Module] = []
        for inputs in [image] + [m] * (self.config.layers - 2):
            layers += [convolution(inputs, m), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, last_convolution(m, image))

    def correction(self, image: Tensor) -> Tensor:
        """What the enlarged image [B, C, H, W] lacks."""
        return self.layers(image)

    @property
    def depth(self) -> int:
        return self.config.layers

    @property
    def halo(self) -> int:
        return self.config.layers

    @property
    def held_channels(self) -> int:
        return 3 * self.config.channels
