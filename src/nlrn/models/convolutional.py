"""What the networks of others share: how they are prepared, counted and told apart from ours.

Each says what it adds to the image (`correction`); how far it looks, how deep it is and how many
channels it holds at once follow from its config. Residual ones begin with zeros in their last
convolution, so that all of them start training at the identity, as ours do.
"""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nlrn.models.base import Network

Layer = TypeVar("Layer", nn.Conv2d, nn.ConvTranspose2d)
SIDE = 16  # of the image whose work is counted


class ConvolutionalNetwork(Network):
    """A network whose pass needs nothing but its own layers.

    Attributes:
        computes_in_half: whether bfloat16 is precise enough for what it computes.
    """

    computes_in_half: ClassVar[bool] = True

    @abstractmethod
    def correction(self, image: Tensor) -> Tensor:
        """What is to be added to the image [B, C, H, W]."""

    def basis(self, image: Tensor) -> Tensor:
        """What it is added to: the image, or for networks that enlarge the image enlarged."""
        return image

    @property
    @abstractmethod
    def depth(self) -> int:
        """Layers from input to output, as the paper counts them."""

    @property
    @abstractmethod
    def held_channels(self) -> int:
        """Channels of all features that are in memory at once."""

    def forward(self, image: Tensor) -> Tensor:
        """Image [B, C, H, W] in [0, 1] -> restored image."""
        if self.computes_in_half:
            return self.basis(image) + self.correction(image)
        with torch.autocast(image.device.type, enabled=False):
            return self.basis(image) + self.correction(image)

    def for_inference(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> nn.Module:
        """A copy of the layers in this precision, on this device."""
        return Prepared(self, dtype, torch.device(device))

    @property
    def in_channels(self) -> int:
        channels: int = self.config.in_channels
        return channels

    @property
    def out_channels(self) -> int:
        return self.in_channels

    @property
    def flop_per_pixel(self) -> float:
        """Useful work for one pixel of the image: that of all convolutions."""
        return _flop_per_pixel(type(self), self.config, self.scale)

    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the prepared network takes at most."""
        itemsize = dtype.itemsize if self.computes_in_half else torch.float32.itemsize
        weights = sum(p.numel() for p in self.parameters()) * itemsize
        images = 16 * self.in_channels * self.scale**2
        return height * width * (self.held_channels * itemsize + images) + 2 * weights

    def matrices(self) -> list[nn.Parameter]:
        """All weights of convolutions but those from and to the image, which are filters."""
        inner = (
            c for c in self.convolutions() if min(c.in_channels, c.out_channels) > self.in_channels
        )
        return [p for c in inner for p in c.parameters() if p.ndim > 1]

    def convolutions(self) -> list[nn.Conv2d | nn.ConvTranspose2d]:
        """All convolutions, each once."""
        return [m for m in self.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]

    def counts(self) -> dict[str, int]:
        """Parameters, those that papers print (weights of convolutions alone), and layers."""
        found = super().counts()
        if weights := sum(c.weight.numel() for c in self.convolutions()):
            found["convolution_weights"] = weights
        return found | {"effective_depth": self.depth}


class Prepared(nn.Module):
    """A network for inference: only the correction is computed in `dtype`, what it corrects not."""

    def __init__(
        self, network: ConvolutionalNetwork, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.exact = torch.promote_types(dtype, torch.float32)
        self.dtype, self.device = dtype if network.computes_in_half else self.exact, device
        low, exact = (copy.deepcopy(network).requires_grad_(False).eval() for _ in range(2))
        low = low.to(device, self.dtype)
        self.network = low.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.exact_network = exact.to(device, self.exact)

    @torch.inference_mode()
    def forward(self, image: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """Image [B, C, H, W] -> restored image, float32, on the image's device."""
        given = image.to(self.device, self.exact)
        low = given.to(self.dtype, memory_format=torch.channels_last)
        result = self.exact_network.basis(given) + self.network.correction(low)
        if on_step is not None:
            on_step()
        return result.to(image.device)


@functools.cache
def _flop_per_pixel(network: type[ConvolutionalNetwork], config: Any, scale: int) -> float:
    """Counted on an image without content."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        image = torch.empty(1, config.in_channels, SIDE, SIDE)
        made = network(config).with_scale(scale).eval()
        made.basis(image), made.correction(image)
    return counter.get_total_flops() / SIDE**2


def convolution(inputs: int, outputs: int, size: int = 3, *, bias: bool = True) -> nn.Conv2d:
    """A convolution that keeps the image's size, with weights as He et al. (2015) draw them."""
    return he_(nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias))


def last_convolution(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    """A convolution that begins with zeros: training starts at the identity."""
    layer = convolution(inputs, outputs, size)
    nn.init.zeros_(layer.weight)
    return layer


def he_(layer: Layer) -> Layer:
    """The layer with weights drawn for ReLUs, and no bias."""
    nn.init.normal_(layer.weight, std=(2 / (layer.in_channels * layer.kernel_size[0] ** 2)) ** 0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class NormReluConv(nn.Module):
    """A convolution with batch norm and ReLU ahead of it."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(layer.in_channels), layer

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, C, H, W] -> features."""
        return self.conv(self.norm(x).relu_())


class RecursiveUnit(nn.Module):
    """Two convolutions that are used several times, with batch norms of each time's own.

    Args:
        channels: in and out.
        times: how often it is used.
    """

    def __init__(self, channels: int, times: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = convolution(channels, channels), convolution(channels, channels)
        self.norms1 = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(times))
        self.norms2 = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(times))

    def forward(self, x: Tensor, time: int) -> Tensor:
        """What the unit adds to features [B, C, H, W] at its `time`-th use, from 0."""
        x = self.conv1(self.norms1[time](x).relu_())
        return self.conv2(self.norms2[time](x).relu_())
