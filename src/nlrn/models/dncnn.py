"""DnCNN: a stack of convolutions that predicts the noise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork, convolution, last_convolution


@dataclass(frozen=True)
class DnCNNConfig(ConfigFromDict):
    """The shape of a `DnCNN`.

    Attributes:
        layers: convolutions from input to output.
        channels: features of every layer.
        norm: whether the layers in the middle have batch norm; without it they have biases, which
            is what a norm with fixed statistics amounts to.
        in_channels: of the image.
    """

    layers: int = 17
    channels: int = 64
    norm: bool = True
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "channels", "in_channels")
        if self.layers < 2:
            raise ValueError(f"layers must be at least 2, got {self.layers}")


class DnCNN(ConvolutionalNetwork):
    """Convolution, batch norm and ReLU, 17 layers deep: what comes out is the noise.

    554,112 weights are in its convolutions, the 554 k of the complexity table. Other counts have
    the norms and the biases of the first and the last layer (556 k), or the norms' statistics as
    well (558 k).

    Args:
        config: shape of the network.
    """

    architecture = "dncnn"
    paper = "Zhang et al., Beyond a Gaussian Denoiser, IEEE TIP 2017"
    config_class = DnCNNConfig
    config: DnCNNConfig

    def __init__(self, config: DnCNNConfig | None = None) -> None:
        super().__init__(config or DnCNNConfig())
        c, m = self.config, self.config.channels
        layers: list[nn.Module] = [convolution(c.in_channels, m), nn.ReLU(inplace=True)]
        for _ in range(c.layers - 2):
            layers.append(convolution(m, m, bias=not c.norm))
            layers += [nn.BatchNorm2d(m)] if c.norm else []
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers, last_convolution(m, c.in_channels))

    def correction(self, image: Tensor) -> Tensor:
        """Minus the noise that is found in the image [B, C, H, W]."""
        return -self.layers(image)

    @property
    def depth(self) -> int:
        return self.config.layers

    @property
    def halo(self) -> int:
        return self.config.layers

    @property
    def held_channels(self) -> int:
        return 3 * self.config.channels
