"""TNRD and NLNet beside slow readings of their equations: filters, influence, borders, groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_networks import acting, assert_same_with_gradients, picture, rival
from torch import Tensor

from nlrn.models.diffusion import InfluenceFunctions, cosine_basis, pad, pad_transposed
from nlrn.models.nlnet import NLNet, NLNetConfig
from nlrn.models.tnrd import TNRD, TNRDConfig

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_cosines_are_orthonormal_and_without_mean() -> None:
    basis = cosine_basis(5, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(basis @ basis.T, torch.eye(24).double())
    torch.testing.assert_close(basis.sum(1), torch.zeros(24).double())


@pytest.mark.parametrize(("size", "margin"), [((1, 1), 3), ((2, 5), 3), ((6, 4), 2)], ids=str)
def test_borders_are_mirrored_as_numpy_does_it(size: tuple[int, int], margin: int) -> None:
    image = picture(2, 3, *size).double()
    wide = pad(image, margin)
    around = ((0, 0), (0, 0), (margin, margin), (margin, margin))
    assert np.array_equal(wide, np.pad(image.numpy(), around, mode="symmetric"))
    other = picture(*wide.shape).double()
    back = pad_transposed(other, margin)
    assert float((wide * other).sum()) == pytest.approx(float((image * back).sum()))


def gaussians(weights: Tensor, reach: float, z: Tensor) -> Tensor:
    """The influence functions [N, M] as the sums that papers print, for z [B, N, H, W]."""
    centers = torch.linspace(-reach, reach, weights.shape[1], dtype=z.dtype)
    gamma = centers[1] - centers[0]
    each = torch.exp(-(z.unsqueeze(-1) - centers).square() / (2 * gamma**2))
    return torch.einsum("bnhwm,nm->bnhw", each, weights)


def test_influence_functions_are_sums_of_gaussians() -> None:
    influence = InfluenceFunctions(3, 13, 60.0).double()
    torch.nn.init.normal_(influence.weights, generator=torch.Generator().manual_seed(0))
    z = torch.linspace(-300, 300, 3 * 7 * 10, dtype=torch.float64).view(1, 3, 7, 10)
    z = torch.cat([z, 0.3 * z]).requires_grad_()
    found = []
    for function in (influence, lambda z: gaussians(influence.weights, 60.0, z)):
        result = function(z)
        slopes = torch.autograd.grad(result.square().sum(), (z, influence.weights))
        found.append((result, *slopes))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-9)


def shifted(x: Tensor, dy: int, dx: int, margin: int) -> Tensor:
    """The image moved by up to the margin, its mirror image beyond the border."""
    height, width = x.shape[-2:]
    rows = np.pad(np.arange(height), margin, mode="symmetric")[margin + dy :][:height]
    columns = np.pad(np.arange(width), margin, mode="symmetric")[margin + dx :][:width]
    return x[..., torch.from_numpy(rows), :][..., torch.from_numpy(columns)]


def filters_of(stage: Any) -> Tensor:
    c, size = stage.filters.coefficients, stage.filters.size
    basis = cosine_basis(size, c.dtype, c.device)
    return (c / c.norm(dim=1, keepdim=True) @ basis).view(-1, size, size)


def act(network: Any) -> None:
    """Makes every part act, with influence functions of some gray levels."""
    acting(network)
    for stage in network.stages:
        torch.nn.init.normal_(stage.influence.weights, std=0.5)


@pytest.mark.parametrize("shape", [(1, 1, 6, 9), (2, 1, 1, 3)], ids=str)
def test_tnrd_is_the_diffusion_of_its_paper(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = TNRD(TNRDConfig(stages=2, size=5))
    act(network)
    stages: Any = network.stages

    def slow(image: Tensor) -> Tensor:
        f = u = 255 * image
        reach = range(-2, 3)
        for stage in stages:
            step = torch.zeros_like(u)
            for k, w in zip(filters_of(stage), stage.influence.weights, strict=True):
                response = sum(k[y + 2, x + 2] * shifted(u, y, x, 2) for y in reach for x in reach)
                flow = gaussians(w[None], 310.0, response)
                step = step + sum(
                    k[y + 2, x + 2] * shifted(flow, -y, -x, 2) for y in reach for x in reach
                )
            u = u - step - stage.fidelity * (u - f)
        return u / 255

    assert_same_with_gradients(network, slow, *shape, tolerance=1e-6)


@pytest.mark.parametrize("name", ["tnrd", "nlnet"])
def test_filters_without_mean_leave_a_single_pixel_as_it_is(name: str) -> None:
    network, pixel = rival(name), torch.full((2, 1, 1, 1), 0.4)
    torch.testing.assert_close(network(pixel), pixel, rtol=0, atol=1e-5)
    torch.testing.assert_close(network.for_inference()(pixel), pixel, rtol=0, atol=1e-5)


def brute_groups(image: Tensor, size: int, reach: int, neighbors: int) -> list[tuple[int, ...]]:
    """For every pixel of an image [H, W] the centers of its most similar patches."""
    margin, (height, width) = size // 2, image.shape
    wide = np.pad(image.numpy(), margin, mode="symmetric")
    found = []
    for y in range(height):
        for x in range(width):
            near = [(v, u) for v in range(max(0, y - reach), min(height, y + reach + 1))
                    for u in range(max(0, x - reach), min(width, x + reach + 1))]  # fmt: skip
            patch = wide[y : y + size, x : x + size]
            far = [((wide[v : v + size, u : u + size] - patch) ** 2).sum() for v, u in near]
            best = sorted(range(len(near)), key=far.__getitem__)[:neighbors]
            found.append(tuple(near[i][0] * width + near[i][1] for i in best))
    return found


# In a row of four the first pixel has fewer patches around it than a group takes.
@pytest.mark.parametrize("shape", [(1, 1, 6, 9), (2, 1, 1, 4)], ids=str)
def test_nlnet_groups_filters_and_goes_back(shape: tuple[int, ...]) -> None:
    """L as a matrix, built patch by patch; L^T is its transpose."""
    torch.manual_seed(0)
    network = NLNet(NLNetConfig(stages=2, size=3, neighbors=4, reach=2))
    act(network)
    stages: Any = network.stages
    height, width = shape[-2:]

    def matrix(stage: Any, groups: list[tuple[int, ...]]) -> Tensor:
        """L: one row for each filter and pixel, one column for each pixel."""
        place = np.pad(np.arange(height * width).reshape(height, width), 1, mode="symmetric")
        rows = []
        for k in filters_of(stage):
            own = []  # the filter at each pixel, as a row over all pixels
            for pixel in range(height * width):
                y, x = divmod(pixel, width)
                columns = torch.from_numpy(place[y : y + 3, x : x + 3].flatten())
                own.append(k.new_zeros(height * width).index_add(0, columns, k.flatten()))
            rows.append(torch.stack([
                sum((g * own[j] for g, j in zip(stage.weights, group, strict=False)),
                    k.new_zeros(height * width))
                for group in groups
            ]))  # fmt: skip
        return torch.stack(rows)

    def slow(images: Tensor) -> Tensor:
        restored = []
        for image in images[:, 0]:
            y = x = 255 * image.flatten()
            groups = brute_groups(255 * image.detach(), 3, 2, 4)
            for stage in stages:
                big = matrix(stage, groups)
                z = torch.einsum("npq,q->np", big, x).clamp(-100, 100)
                psi = gaussians(stage.influence.weights, 100.0, z[None, :, :, None])[0, :, :, 0]
                step = torch.einsum("npq,np->q", big, psi)
                x = (1 - stage.fidelity) * x + stage.fidelity * y - step
            restored.append(x.view_as(image) / 255)
        return torch.stack(restored)[:, None]

    assert_same_with_gradients(network, slow, *shape, tolerance=1e-6)
