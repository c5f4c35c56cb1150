"""The everyday network: all noise levels, gray or color, on cells of several pixels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.base import noise_map_for
from nlrn.models.config_values import check_unshuffle
from nlrn.models.non_local import Attend, xavier_
from nlrn.models.pixel_grid import from_grid, to_grid
from nlrn.models.recurrence import Recurrence, RecurrenceConfig
from nlrn.models.recurrent import RecurrentNetwork, randomize
from nlrn.models.residual_inference import ResidualInference


@dataclass(frozen=True)
class ResidualConfig(RecurrenceConfig):
    """Everything that decides the shape and the arithmetic of a `ResidualNLRN`.

    Attributes:
        unshuffle: r, side in pixels of the cells that the states compute on.
    """

    unshuffle: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unshuffle(self.unshuffle)


class ResidualNLRN(RecurrentNetwork):
    """A recurrent network for all noise levels: image and noise map in, restored image out.

    Args:
        config: shape of the network.
    """

    architecture = "nlrn-residual"
    paper = "none: grown here out of nlrn, for all noise levels"
    config_class = ResidualConfig
    config: ResidualConfig
    takes_noise_map = True

    def __init__(self, config: ResidualConfig | None = None) -> None:
        config = config or ResidualConfig()
        super().__init__(config)
        self.card = dataclasses.replace(self.card, channels=config.in_channels)
        self.steps, self.multiple = config.steps, config.unshuffle
        inside = config.unshuffle**2 * config.in_channels
        self.conv_in = xavier_(nn.Conv2d(inside + 1, config.channels, 3, padding=1))
        self.states = Recurrence(config)
        self.conv_out = xavier_(nn.Conv2d(config.channels, inside, 3, padding=1))
        nn.init.zeros_(self.conv_out.weight)  # so that training starts at the identity

    def restore(
        self,
        image: Tensor,
        attend: Attend | None,
        border: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Image and noise map [B, in + 1, H, W] in [0, 1] -> restored image [B, in, H, W]."""
        config = self.config
        spec = config.attention_with(border or config.border)
        features = self.conv_in(centered_cells(image, config.unshuffle))
        features = self.states(features, attend, spec, dtype)
        residual = self.conv_out(F.relu(features))
        return image[:, : config.in_channels] + from_grid(residual, image, config.unshuffle)

    def for_inference(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> ResidualInference:
        """The network with the vectors of its states folded into its convolutions."""
        return ResidualInference(self, dtype, torch.device(device))

    def input_for(self, image: Tensor, sigma: float | Tensor) -> Tensor:
        """The image [B, C, H, W] and the noise map.

        Args:
            image: in [0, 1].
            sigma: noise level in the units of the image: a number, [B], or a map [B, 1, H, W].
        """
        return torch.cat([image, noise_map_for(image, sigma)], 1)


def centered_cells(image: Tensor, r: int) -> Tensor:
    """Image and noise map [B, C + 1, H, W] -> cells [B, C r r + 1, H/r, W/r] around zero."""
    cells = to_grid(image, r, noise_map=True)
    return 2 * torch.cat([cells[:, :-1] - 0.5, cells[:, -1:]], 1)


def gray_weights(color: ResidualNLRN) -> dict[str, Tensor]:
    """What a gray network of the same shape can begin with: the color network on gray images.

    All channels get the gray image and the mean of what comes out counts. Noise of independent
    channels is a third of their variance in their mean, so that gray noise is to the network what
    color noise of a level higher by the square root of 3 is.
    """
    weights, cells = color.state_dict(), color.config.unshuffle**2
    channels = color.config.in_channels
    image, noise = weights["conv_in.weight"].split([channels * cells, 1], 1)
    image = image.unflatten(1, (channels, cells)).sum(1)
    weights["conv_in.weight"] = torch.cat([image, noise * channels**0.5], 1)
    for name in ("conv_out.weight", "conv_out.bias"):
        weights[name] = weights[name].unflatten(0, (channels, cells)).mean(0)
    return weights


def random_residual(config: ResidualConfig, seed: int = 0) -> ResidualNLRN:
    """An untrained network in which every part acts: for demonstrations, benchmarks and tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResidualNLRN(config)
        randomize(model)
        nn.init.normal_(model.conv_out.weight, std=0.002)
    return model.eval()
