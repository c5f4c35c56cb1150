"""Super-resolution at the size of the input: one recurrence, a tail for each factor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.bicubic import enlarge
from nlrn.models.non_local import Attend, xavier_
from nlrn.models.recurrence import Recurrence, RecurrenceConfig
from nlrn.models.recurrent import RecurrentNetwork, randomize
from nlrn.models.residual_inference import RecurrenceInference

LARGEST_FACTOR = 8
OUTPUT_COPIES = 6  # of the enlarged image in float32 that exist at a time: tail, shuffle, bicubic


@dataclass(frozen=True)
class SuperResolutionConfig(RecurrenceConfig):
    """Everything that decides the shape of a `SuperResolutionNLRN`.

    Attributes:
        factors: by which it enlarges; each has a convolution of its own at the end.
    """

    in_channels: int = 3
    factors: tuple[int, ...] = (2, 3, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = range(2, LARGEST_FACTOR + 1)
        if not self.factors or any(factor not in known for factor in self.factors):
            got = list(self.factors)
            raise ValueError(f"factors must be whole numbers of 2..{LARGEST_FACTOR}, got {got}")


class SuperResolutionNLRN(RecurrentNetwork):
    """A recurrent network that enlarges: a small image in, a large one out.

    The states compare and filter the pixels of the input; only the last convolution makes as many
    values as the result has. Their sum with the bicubic image is the result.

    Args:
        config: shape of the network.
    """

    architecture = "nlrn-sr"
    paper = "none: grown here out of nlrn, to enlarge at the size of the input"
    config_class = SuperResolutionConfig
    config: SuperResolutionConfig

    def __init__(self, config: SuperResolutionConfig | None = None) -> None:
        config = config or SuperResolutionConfig()
        super().__init__(config)
        self.card = dataclasses.replace(
            self.card, task="sr", channels=config.in_channels, factors=config.factors
        )
        self.steps, self.factors, self.scale = config.steps, config.factors, config.factors[0]
        self.conv_in = xavier_(nn.Conv2d(config.in_channels, config.channels, 3, padding=1))
        self.states = Recurrence(config)
        self.tails = nn.ModuleDict({f"x{factor}": self._tail(factor) for factor in self.factors})

    def _tail(self, factor: int) -> nn.Conv2d:
        config = self.config
        tail = xavier_(nn.Conv2d(config.channels, config.in_channels * factor**2, 3, padding=1))
        nn.init.zeros_(tail.weight)  # so that training starts at the bicubic image
        return tail

    @property
    def tail(self) -> nn.Conv2d:
        """The last convolution for the factor."""
        return self.tails[f"x{self.scale}"]  # type: ignore[return-value]

    def restore(
        self,
        image: Tensor,
        attend: Attend | None,
        border: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Image [B, C, H, W] in [0, 1] -> [B, C, scale H, scale W]."""
        spec = self.config.attention_with(border or self.config.border)
        features = self.states(self.conv_in(2 * image - 1), attend, spec, dtype)
        residual = F.pixel_shuffle(self.tail(F.relu(features)), self.scale)
        return enlarge(image, self.scale) + residual

    def for_inference(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> SuperResolutionInference:
        """The network for its factor, the vectors of its states folded into its convolutions."""
        return SuperResolutionInference(self, dtype, torch.device(device))

    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the states take at most, and what their result becomes."""
        output = 4 * self.config.in_channels * self.scale**2 * height * width
        return super().memory(height, width, dtype, device) + OUTPUT_COPIES * output


class SuperResolutionInference(nn.Module):
    """A `SuperResolutionNLRN` that computes in `dtype` on `device`, without gradients.

    Args:
        network: what it is made from, for the factor that it has; it is not changed.
        dtype: float32 or bfloat16 for speed, float64 for comparisons.
        device: where to compute.
    """

    can_be_recorded = True  # what it launches depends on the size of the image alone

    def __init__(
        self, network: SuperResolutionNLRN, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.scale, self.dtype, self.device = network.scale, dtype, device
        self.states = RecurrenceInference(network.states, network.config.border, dtype, device)
        self._in = self.states.of(network.conv_in)
        self._out = self.states.of(network.tail)

    @torch.inference_mode()
    def forward(self, image: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """Image [B, C, H, W] -> [B, C, scale H, scale W], float32, on the image's device.

        Args:
            image: values in [0, 1].
            on_step: called after every state, to show progress; on CUDA, when it has been launched.
        """
        here = image.to(self.device, torch.promote_types(image.dtype, torch.float32))
        cells = (2 * here - 1).to(self.dtype, memory_format=torch.channels_last)
        features = F.conv2d(cells, *self._in, padding=1)
        features = self.states(features.contiguous(memory_format=torch.channels_last), on_step)
        residual = F.conv2d(features.relu_(), *self._out, padding=1)
        large = enlarge(here, self.scale)
        return large.add_(F.pixel_shuffle(residual, self.scale)).to(image.device)


def random_super_resolution(config: SuperResolutionConfig, seed: int = 0) -> SuperResolutionNLRN:
    """An untrained network in which every part acts: for demonstrations, benchmarks and tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SuperResolutionNLRN(config)
        randomize(model)
        for tail in model.tails.values():
            nn.init.normal_(tail.weight, std=0.002)  # type: ignore[arg-type]
    return model.eval()
