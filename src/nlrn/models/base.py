"""What every network promises to those who run, train, describe or store it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nlrn.weights.card import ModelCard

CPU = torch.device("cpu")


class Conditioned(NamedTuple):
    """An image prepared for a network, and the way back.

    Attributes:
        input: what the network is to be given [B, C', H, W].
        removed: from what it then gives [B, C, H, W], how much is to be taken away from the image.
    """

    input: Tensor
    removed: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TrainingMode:
    """How a network computes in one stage of training; it may ignore what it does not know.

    Attributes:
        non_local: whether its non-local modules take part.
        border: what neighbourhoods do at the edge of a patch.
        backend: of the neighbourhood operator: "auto", or "dense" for all pairs of pixels.
        dtype: in which the weights are used, where that is not their own.
    """

    non_local: bool = True
    border: str = "mask"
    backend: str = "auto"
    dtype: torch.dtype | None = None


class Network(nn.Module, ABC):
    """A network for image restoration: degraded image in, restored image out.

    Images are [B, C, H, W] in [0, 1]. `forward` takes what `condition` gives, of any size whose
    sides divide by `multiple`.

    Attributes:
        config: frozen dataclass that decides shape and arithmetic; `from_dict` makes it.
        card: what is known about its weights.
    """

    config: Any
    card: ModelCard

    @property
    @abstractmethod
    def in_channels(self) -> int:
        """Channels of the images it takes, 1 or 3; a noise map is not counted."""

    @property
    @abstractmethod
    def halo(self) -> int:
        """How many pixels away something can still change the result."""

    @property
    def multiple(self) -> int:
        """What the sides of its input have to divide by."""
        return 1

    @property
    @abstractmethod
    def steps(self) -> int:
        """How often a pass reports progress."""

    @property
    @abstractmethod
    def flop_per_pixel(self) -> float:
        """Useful work for one pixel of the image."""

    @abstractmethod
    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the prepared network takes at most for an image of this size."""

    @abstractmethod
    def for_inference(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> nn.Module:
        """A module that computes the same without gradients, in this precision, on this device.

        Called with (input, on_step), it returns the result in float32 on the input's device, and
        calls `on_step` `steps` times. Later changes of the network do not reach it.
        """

    def for_training(self, mode: TrainingMode) -> Callable[[Tensor], Tensor]:
        """`forward` as a stage of training wants it, with the same parameters."""
        return self

    def condition(self, image: Tensor, sigma: float | Tensor | None) -> Conditioned:
        """The input for an image [B, C, H, W] with noise of level sigma.

        Args:
            image: in [0, 1].
            sigma: in the units of the image: a number, [B], or a map [B, 1, H, W] where the
                network takes one; None if there is no noise to speak of.
        """
        return Conditioned(image, lambda restored: image - restored)

    def input_for(self, image: Tensor, sigma: float | Tensor) -> Tensor:
        """The input for an image [B, C, H, W] as it is: with a noise map where one is taken.

        Training uses it, where levels are those the network is to learn; `condition` may change
        the contrast.

        Args:
            image: in [0, 1].
            sigma: level of the noise in the units of the image, a number or [B].
        """
        return image

    def matrices(self) -> list[nn.Parameter]:
        """The parameters that map channels to channels, which Muon makes orthogonal steps for."""
        return []

    def repeated_modules(self) -> Iterable[nn.Module]:
        """The modules worth compiling one by one, because a pass goes through them repeatedly."""
        return (self,)

    def describe(self) -> dict[str, Any]:
        """Facts for people: counts first, then the configuration."""
        count = sum(p.numel() for p in self.parameters())
        return {"parameters": count, **dataclasses.asdict(self.config)}
