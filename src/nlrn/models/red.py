"""RED: convolutions and as many transposed ones, with skips between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork, convolution, he_

SKIP = 2  # layers between two skips


@dataclass(frozen=True)
class REDConfig(ConfigFromDict):
    """The shape of a `RED`.

    Attributes:
        layers: half of them convolutions, half of them transposed.
        channels: features of every layer.
        in_channels: of the image.
    """

    layers: int = 30
    channels: int = 128
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "layers", "channels", "in_channels")
        if self.layers % 2:
            raise ValueError(f"layers must be even, got {self.layers}")


class RED(ConvolutionalNetwork):
    """A residual encoder-decoder of 30 layers, at the size of the image all the way.

    The result of every second convolution is added to that of the transposed convolution that
    mirrors it, before its ReLU; the image itself is added to the last one's. 4,131,072 weights are
    in the convolutions, the 4131 k of the complexity table; biases are 3,713 more.

    Args:
        config: shape of the network.
    """

    architecture = "red"
    paper = "Mao et al., Very Deep Convolutional Encoder-Decoder Networks, NeurIPS 2016"
    config_class = REDConfig
    config: REDConfig

    def __init__(self, config: REDConfig | None = None) -> None:
        super().__init__(config or REDConfig())
        image, m, half = self.config.in_channels, self.config.channels, self.config.layers // 2
        widths = list(pairwise([image] + [m] * half))
        self.encoder = nn.ModuleList(convolution(a, b) for a, b in widths)
        self.decoder = nn.ModuleList(
            he_(nn.ConvTranspose2d(b, a, 3, padding=1)) for a, b in reversed(widths)
        )
        nn.init.zeros_(self.decoder[-1].weight)  # type: ignore[arg-type]

    def correction(self, image: Tensor) -> Tensor:
        """What is to be added to the image [B, C, H, W]."""
        x, skips = image, []
        for number, layer in enumerate(self.encoder, 1):
            x = F.relu(layer(x))
            if number % SKIP == 0 and number < len(self.encoder):
                skips.append((number, x))
        for number, layer in zip(range(len(self.decoder) - 1, -1, -1), self.decoder, strict=True):
            x = layer(x)  # mirrors the result of convolution `number`
            if skips and skips[-1][0] == number:
                x = x + skips.pop()[1]
            x = F.relu(x) if number else x
        return x

    @property
    def depth(self) -> int:
        return self.config.layers

    @property
    def halo(self) -> int:
        return self.config.layers

    @property
    def held_channels(self) -> int:
        return (self.config.layers // 2 // SKIP + 3) * self.config.channels
