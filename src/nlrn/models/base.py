"""What every network promises to those who run, train, describe or store it."""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from nlrn import weights
from nlrn.errors import one_line
from nlrn.models.conditioning import Conditioned, for_one_level, limit_to_noise
from nlrn.ops import AttentionSpec
from nlrn.weights import ModelCard, Weight, WeightsError

Watch = Callable[[Tensor, Tensor], None]  # gets query and key [B, D, H, W]


@dataclass(frozen=True)
class TrainingMode:
    """How a network computes in one stage of training; it may ignore what it does not know.

    Attributes:
        non_local: whether its non-local modules take part.
        border: what neighbourhoods do at the edge of a patch.
        backend: of the neighbourhood operator: "auto", or "dense" for all pairs of pixels.
        dtype: in which shared weights are used, where that is not their own.
    """

    non_local: bool = True
    border: str = "mask"
    backend: str = "auto"
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class AttentionLayout:
    """Where a network compares pixels, for those who want to see it.

    Attributes:
        spec: the operator.
        states: numbers, from 1, of the states that compare.
        propagate: whether a state adds the previous state's scores to its own.
        channels: of query and key together.
    """

    spec: AttentionSpec
    states: tuple[int, ...]
    propagate: bool
    channels: int


class Network(nn.Module, ABC):
    """A network for image restoration: degraded image in, restored image out.

    Images are [B, C, H, W] in [0, 1], of any size. `forward` takes what `condition` gives.

    Attributes:
        architecture: its key in `ARCHITECTURES`.
        paper: where it was published.
        config_class: frozen dataclass with a classmethod `from_dict`.
        config: decides shape and arithmetic.
        card: what is known about its weights.
        steps: how often a pass reports progress.
        multiple: side in pixels of the cells in which it computes; tiles begin at multiples of it.
        takes_noise_map: whether the noise level is part of its input.
        scale: how many times the sides of the result are those of the image; halo, multiple, work
            and memory are counted in pixels of the image.
        factors: the scales of `with_scale`; none where the result has the size of the image.
    """

    architecture: ClassVar[str]
    paper: ClassVar[str] = ""
    config_class: ClassVar[Any]
    config: Any
    card: ModelCard
    steps: int = 1
    multiple: int = 1
    takes_noise_map: bool = False
    scale: int = 1
    factors: tuple[int, ...] = ()

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.card = ModelCard(architecture=self.architecture)

    @property
    @abstractmethod
    def in_channels(self) -> int:
        """Channels of the images it takes; a noise map is not counted."""

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """Channels of the images it gives."""

    @property
    @abstractmethod
    def halo(self) -> int:
        """How many pixels away something can still change the result."""

    @property
    def can_tile_exactly(self) -> bool:
        """Whether tiles that overlap by the halo give what the whole image gives."""
        return True

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
        calls `on_step` after each of `steps`. Later changes of the network do not reach it.
        """

    def for_training(self, mode: TrainingMode) -> Callable[[Tensor], Tensor]:
        """`forward` as a stage of training wants it, with the same parameters."""
        return self

    def input_for(self, image: Tensor, sigma: float | Tensor) -> Tensor:
        """The image [B, C, H, W], and the noise map where the network takes one.

        Args:
            image: in [0, 1].
            sigma: noise level in the units of the image: a number, [B], or a map [B, 1, H, W].
        """
        return image

    def condition(self, image: Tensor, sigma: float | Tensor) -> Conditioned:
        """What `forward` is to get for an image with noise, and how its answer is to be read.

        Args:
            image: [B, C, H, W] in [0, 1].
            sigma: noise level on the 0..255 scale; with a noise map also [B] or [B, 1, H, W].
        """
        if not self.takes_noise_map:
            return for_one_level(image, sigma, self.card.sigma)
        level = torch.as_tensor(sigma, device=image.device, dtype=image.dtype) / 255
        level = level if level.dim() == 4 else level.reshape(-1, 1, 1, 1)
        highest = math.inf if self.card.sigma_range is None else self.card.sigma_range[1] / 255
        if not bool((level > highest).any()):
            given = self.input_for(image, level)
            return Conditioned(given, lambda restored: limit_to_noise(image - restored, level))
        # The contrast is lowered, of each image by itself.
        scale = (highest / level.amax((1, 2, 3), keepdim=True)).clamp(max=1)

        def removed(restored: Tensor) -> Tensor:
            return limit_to_noise(image - (0.5 + (restored - 0.5) / scale), level)

        return Conditioned(self.input_for(0.5 + (image - 0.5) * scale, level * scale), removed)

    def with_border(self, border: str) -> Self:
        """The same parameters with neighbourhoods that do something else at the image's edge."""
        return self

    def with_scale(self, scale: int) -> Self:
        """The same parameters for another of its factors."""
        if scale == self.scale:
            return self
        if scale not in self.factors:
            known = ", ".join(map(str, self.factors)) or "nothing"
            raise ValueError(f"{self.architecture} enlarges by {known}, got {scale}")
        view = copy.copy(self)
        view.scale = scale
        return view

    @property
    def attention(self) -> AttentionLayout | None:
        """Where it compares pixels; None if it does not."""
        return None

    def watch(self, image: Tensor, watch: Watch) -> Tensor:
        """`forward`, with `watch` called for query and key of each comparison."""
        raise ValueError(f"{self.architecture} compares no pixels")

    def matrices(self) -> list[nn.Parameter]:
        """The parameters that map channels to channels, which Muon makes orthogonal steps for."""
        return []

    def repeated_modules(self) -> Iterable[nn.Module]:
        """The modules worth compiling one by one, because a pass goes through them repeatedly."""
        return (self,)

    def counts(self) -> dict[str, int]:
        """Numbers of parameters and layers, for people."""
        return {"parameters": sum(p.numel() for p in self.parameters())}

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path) -> Self:
        """The network of a weight in the package, or of what `save_pretrained` wrote."""
        weight = weights.load(name_or_path)
        if weight.card.architecture != cls.architecture:
            found = weight.card.architecture
            raise WeightsError(f"{name_or_path}: architecture {found!r}, not {cls.architecture!r}")
        return cls.from_weight(weight, str(name_or_path))

    @classmethod
    def from_weight(cls, weight: Weight, name: str) -> Self:
        """The network of a weight that was loaded; `name` is for error messages."""
        config = cls.config_class.from_dict(weight.config)
        with torch.device("meta"):  # a file's config takes no memory before its tensors fit it
            network = cls(config)
        # Files from before there were cards do not say how many channels.
        network.card = dataclasses.replace(weight.card, channels=network.in_channels)
        try:
            network.load_state_dict(weight.tensors, assign=True)
        except RuntimeError as error:
            raise WeightsError(f"{name}: {one_line(error)}") from error
        return network.eval()

    def save_pretrained(self, path: str | Path, card: ModelCard | None = None) -> None:
        """Writes weights, config and card into one safetensors file, or a folder.

        Args:
            path: the file; without an ending it is a folder, made if need be, as Hugging Face has
                them: model.safetensors, config.json, README.md.
            card: takes the place of the network's own.
        """
        card = dataclasses.replace(card or self.card, architecture=self.architecture)
        weights.save(path, card, dataclasses.asdict(self.config), self.state_dict())


def noise_map_for(image: Tensor, sigma: float | Tensor | np.ndarray) -> Tensor:
    """The noise level of every pixel [B, 1, H, W] of an image [B, C, H, W].

    Args:
        image: in [0, 1].
        sigma: noise level in the units of the image: a number, [B], or a map [B, 1, H, W].
    """
    level = torch.as_tensor(sigma, dtype=image.dtype, device=image.device)
    batch, _, height, width = image.shape
    level = level if level.dim() == 4 else level.reshape(-1, 1, 1, 1)
    try:
        return level.expand(batch, 1, height, width)
    except RuntimeError as error:
        expected, got = f"[{batch}, 1, {height}, {width}]", tuple(level.shape)
        raise ValueError(f"a noise map for this image must be {expected}, got {got}") from error
