"""NLNet: filters whose responses are averaged over similar patches before they are changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.config_values import ConfigFromDict, check_positive
from nlrn.models.convolutional import ConvolutionalNetwork
from nlrn.models.diffusion import (
    INFLUENCE_FLOP,
    READING,
    CosineFilters,
    InfluenceFunctions,
    pad,
    pad_transposed,
)

CENTERS, REACH = 51, 100.0  # Gaussians of an influence function; responses beyond are cut off


@dataclass(frozen=True)
class NLNetConfig(ConfigFromDict):
    """The shape of an `NLNet`.

    Attributes:
        stages: steps from input to output.
        size: odd side of filters and patches; there are size^2 - 1 filters.
        neighbors: K, similar patches in a group, the patch itself among them.
        reach: how many pixels away similar patches are looked for.
        in_channels: of the image, 1.
    """

    stages: int = 5
    size: int = 7
    neighbors: int = 8
    reach: int = 15
    in_channels: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "stages", "size", "neighbors", "reach", "in_channels")
        if self.size % 2 == 0 or self.size < 3:
            raise ValueError(f"size must be odd and at least 3, got {self.size}")
        if self.neighbors > (2 * self.reach + 1) ** 2:
            most = (2 * self.reach + 1) ** 2
            raise ValueError(f"neighbors must be at most {most}, got {self.neighbors}")
        if self.in_channels != 1:
            raise ValueError(f"in_channels must be 1, got {self.in_channels}")


class Groups:
    """For every pixel the pixels whose patches look like its own, the nearest first.

    Args:
        image: [B, 1, H, W].
        config: size of the patches, how many are looked for and where.
    """

    def __init__(self, image: Tensor, config: NLNetConfig) -> None:
        with torch.no_grad():
            distances, places = _most_similar(image, config)
        self._places = places  # B K HW
        self._exists = distances.isfinite().to(image.dtype)  # small images have few patches

    def mean(self, x: Tensor, weights: Tensor) -> Tensor:
        """The sum over a pixel's group, patch k with weights [K]: features [B, N, H, W] alike."""
        flat = x.flatten(2)
        total = torch.zeros_like(flat)
        for weight, (place, exists) in zip(weights, self._by_rank(), strict=True):
            total = total + weight * exists * flat.gather(2, place.expand_as(flat))
        return total.view_as(x)

    def spread(self, x: Tensor, weights: Tensor) -> Tensor:
        """The transpose of `mean`: every pixel's value goes to all of its group."""
        flat = x.flatten(2)
        total = torch.zeros_like(flat)
        for weight, (place, exists) in zip(weights, self._by_rank(), strict=True):
            total = total.scatter_add(2, place.expand_as(flat), weight * exists * flat)
        return total.view_as(x)

    def _by_rank(self) -> list[tuple[Tensor, Tensor]]:
        """Places and whether they exist, both [B, 1, HW], from the most similar patch on."""
        ranks = zip(self._places.unbind(1), self._exists.unbind(1), strict=True)
        return [(place[:, None], exists[:, None]) for place, exists in ranks]


def _most_similar(image: Tensor, config: NLNetConfig) -> tuple[Tensor, Tensor]:
    """Squared distances of patches and flat places of their centers, both [B, K, HW]."""
    batch, _, height, width = image.shape
    margin, reach = config.size // 2, config.reach
    padded = F.pad(pad(image, margin), [reach] * 4, value=torch.inf)
    patches = pad(image, margin)
    place = torch.arange(height * width, device=image.device).view(height, width)
    best = image.new_full((batch, config.neighbors, height, width), torch.inf)
    where = place.expand_as(best)
    row, column = (torch.arange(n, device=image.device) for n in (height, width))
    for dy in range(-reach, reach + 1):
        distances, places = [best], [where]
        for dx in range(-reach, reach + 1):
            y, x = dy + reach, dx + reach
            other = padded[..., y : y + patches.shape[2], x : x + patches.shape[3]]
            inside = ((row + dy >= 0) & (row + dy < height))[:, None]
            inside = inside & (column + dx >= 0) & (column + dx < width)
            squares = (patches - other).square().nan_to_num(posinf=0.0)
            distance = F.avg_pool2d(squares, config.size, stride=1) * config.size**2
            distances.append(distance.masked_fill(~inside, torch.inf))
            places.append(
                (place + dy * width + dx).clamp(0, height * width - 1).expand_as(distance)
            )
        best, chosen = torch.cat(distances, 1).topk(config.neighbors, 1, largest=False)
        where = torch.cat(places, 1).gather(1, chosen)
    return best.flatten(2), where.flatten(2)


class NonLocalStage(nn.Module):
    """(1 - lambda) x + lambda y - L^T psi(L x): L filters and averages over groups."""

    def __init__(self, config: NLNetConfig) -> None:
        super().__init__()
        self.filters = CosineFilters(config.size)
        self.weights = nn.Parameter(torch.full((config.neighbors,), 1 / config.neighbors))
        self.influence = InfluenceFunctions(self.filters.count, CENTERS, REACH)
        self.fidelity = nn.Parameter(torch.tensor(0.1))  # lambda

    def forward(self, x: Tensor, y: Tensor, groups: Groups) -> Tensor:
        """The image so far and the noisy one [B, 1, H, W], 0..255 -> the next."""
        filters, margin = self.filters(), self.filters.size // 2
        responses = groups.mean(F.conv2d(pad(x, margin), filters), self.weights)
        changed = groups.spread(self.influence(responses.clamp(-REACH, REACH)), self.weights)
        step = pad_transposed(F.conv_transpose2d(changed, filters), margin)
        return x - self.fidelity * (x - y) - step


class NLNet(ConvolutionalNetwork):
    """Five steps down the gradient of a non-local regularizer, 48 filters of 7 x 7 in each.

    Groups are found once, in the noisy image, by squared distance. 23,805 parameters: 48 x 48 + 8 +
    48 x 51 + 1 for each stage. Eight neighbours, a window of 31 x 31, 51 Gaussians from -100 to 100
    and mirrored borders are those of the authors' code. They train stage by stage and then jointly,
    here all stages are trained together.

    Args:
        config: shape of the network.
    """

    architecture = "nlnet"
    paper = "Lefkimmiatis, Non-Local Color Image Denoising with CNNs, CVPR 2017"
    config_class = NLNetConfig
    config: NLNetConfig
    computes_in_half = False  # a step is small beside the image that it changes

    def __init__(self, config: NLNetConfig | None = None) -> None:
        super().__init__(config or NLNetConfig())
        self.stages = nn.ModuleList(NonLocalStage(self.config) for _ in range(self.config.stages))

    def correction(self, image: Tensor) -> Tensor:
        """What is to be added to the image [B, 1, H, W]."""
        noisy = x = image * 255
        groups = Groups(noisy, self.config)
        for stage in self.stages:
            x = stage(x, noisy, groups)
        return (x - noisy) / 255

    @property
    def depth(self) -> int:
        return 4 * self.config.stages  # filter, group, and both of them back

    @property
    def halo(self) -> int:
        return 2 * self.config.stages * (self.config.reach + self.config.size // 2)

    @property
    def flop_per_pixel(self) -> float:
        """Two convolutions, two sums over groups and an influence function; and the search."""
        c = self.config
        work = 4 * c.size**2 + 4 * c.neighbors + INFLUENCE_FLOP
        return c.stages * (c.size**2 - 1) * work + 3 * (2 * c.reach + 1) ** 2 * c.size**2

    @property
    def held_channels(self) -> int:
        c = self.config
        return (READING + 3) * c.size**2 + 6 * (2 * c.reach + 1 + c.neighbors)

    def repeated_modules(self) -> nn.ModuleList:
        return self.stages
