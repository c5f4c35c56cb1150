"""What TNRD and NLNet share: filters of a cosine basis, influence functions, the image's border.

Both are steps down a gradient, x - sum_i K_i^T phi_i(K_i x) - lambda (x - y), on the 0..255 scale.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Cells of an influence function's table between two centers; and how many centers' distances it
# goes beyond the last, where nothing is left of the function.
FINE, BEYOND = 128, 8
INFLUENCE_FLOP = 20  # of reading one
READING = 20  # numbers for a response that are in memory while it is read
RELAXATION, DETAIL = 0.4, 50.0  # of the first step: how much it takes away, up to which response


class CosineFilters(nn.Module):
    """Learned filters of length 1 and mean 0: mixtures of all cosines but the constant.

    Args:
        size: side of the filters; there are size^2 - 1 of them.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, size * size - 1
        self.coefficients = nn.Parameter(torch.eye(self.count))

    def forward(self) -> Tensor:
        """The filters [N, 1, size, size]."""
        weights = self.coefficients
        basis = cosine_basis(self.size, weights.dtype, weights.device)
        return (F.normalize(weights) @ basis).view(-1, 1, self.size, self.size)


@functools.cache
def cosine_basis(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal cosines of a size x size patch without the constant [size^2 - 1, size^2].

    They are kept, for a CUDA graph cannot record how they come to the device.
    """
    with torch.inference_mode(False), torch.device("cpu"):  # what is kept is for training too
        place, frequency = torch.arange(size).double() + 0.5, torch.arange(size).double()
        line = torch.cos(math.pi / size * frequency[:, None] * place)
        line = line / line.norm(dim=1, keepdim=True)
        return torch.kron(line, line)[1:].to(device, dtype)


class InfluenceFunctions(nn.Module):
    """A learned function of one number for each channel: a sum of equally spaced Gaussians.

    phi_i(z) = sum_j w_ij exp(-(z - mu_j)^2 / (2 gamma^2)), gamma the distance of two centers. They
    begin as z / (1 + (z / 50)^2) times a small number, so that the first step smooths. They are
    read from a table of values and slopes, by cubic interpolation: 1e-10 of a weight off, and for a
    pixel a few numbers are computed where the sum takes all Gaussians.

    Args:
        channels: how many functions.
        centers: Gaussians of each.
        reach: the centers go from -reach to reach.
    """

    def __init__(self, channels: int, centers: int, reach: float) -> None:
        super().__init__()
        self.reach, self.gamma = reach, 2 * reach / (centers - 1)
        begin = _weights_of_first_step(channels, centers, reach)
        self.weights = nn.Parameter(begin.expand(channels, -1).clone())

    def forward(self, z: Tensor) -> Tensor:
        """Responses [B, N, H, W] -> their influence."""
        values, slopes = self._table(z.dtype)  # N cells + 1
        flat = z.transpose(0, 1).flatten(1)  # N BHW
        place = (flat + self.reach) * (FINE / self.gamma) + FINE * BEYOND
        place = place.clamp(0, values.shape[1] - 1)
        left = place.detach().long().clamp(max=values.shape[1] - 2)
        t = place - left
        a, b = values.gather(1, left), values.gather(1, left + 1)
        da, db = slopes.gather(1, left), slopes.gather(1, left + 1)
        s = 1 - t
        result = s * s * ((1 + 2 * t) * a + t * da) + t * t * ((1 + 2 * s) * b - s * db)
        return result.view(z.shape[1], z.shape[0], *z.shape[2:]).transpose(0, 1)

    def _table(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The functions and their slopes for a cell, at the cells' edges, both [N, cells + 1]."""
        centers = self.weights.shape[1]
        cells = FINE * (centers - 1 + 2 * BEYOND)
        edges = torch.arange(cells + 1, device=self.weights.device) / FINE - BEYOND
        away = edges.to(dtype) - torch.arange(centers, device=edges.device)[:, None]
        gaussians = torch.exp(-0.5 * away.square())  # centers, cells + 1
        weights = self.weights.to(dtype)
        return weights @ gaussians, weights @ (gaussians * away) * (-1 / FINE)


def _weights_of_first_step(channels: int, centers: int, reach: float) -> Tensor:
    """The weights whose sum of Gaussians is the first influence function at all centers."""
    centers_at = torch.linspace(-reach, reach, centers, dtype=torch.float64)
    gamma = 2 * reach / (centers - 1)
    gaussians = torch.exp(-0.5 * ((centers_at[:, None] - centers_at) / gamma) ** 2)
    wanted = RELAXATION / (channels + 1) * centers_at / (1 + (centers_at / DETAIL) ** 2)
    return torch.linalg.solve(gaussians, wanted).float()


def mirrored(length: int, margin: int, device: torch.device) -> Tensor:
    """Which of `length` pixels stands at each place of a line that is mirrored at its ends.

    The last pixel is repeated, as MATLAB's "symmetric" does; a line shorter than the margin is
    mirrored several times.
    """
    place = torch.arange(-margin, length + margin, device=device) % (2 * length)
    return torch.minimum(place, 2 * length - 1 - place)


def pad(x: Tensor, margin: int) -> Tensor:
    """The image [B, C, H, W] continued by its mirror image on all sides."""
    rows, columns = (mirrored(side, margin, x.device) for side in x.shape[-2:])
    return x.index_select(2, rows).index_select(3, columns)


def pad_transposed(x: Tensor, margin: int) -> Tensor:
    """The transpose of `pad`: the margins are added to the pixels whose copies they are."""
    height, width = (side - 2 * margin for side in x.shape[-2:])
    rows, columns = (mirrored(side, margin, x.device) for side in (height, width))
    x = x.new_zeros(*x.shape[:2], height, x.shape[3]).index_add(2, rows, x)
    return x.new_zeros(*x.shape[:3], width).index_add(3, columns, x)
