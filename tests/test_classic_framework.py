"""The framework's form of each method, its matrices written out, against the fast function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage import data as photographs
from torch import Tensor

from nlrn.classic import (
    bm3d,
    denoise_bm3d,
    denoise_lssc,
    denoise_nlm,
    denoise_wnnm,
    framework,
    patches,
    transforms,
)
from nlrn.degrade import add_noise, rgb2gray
from nlrn.models.nlrn import NonLocal2d
from nlrn.ops import AFFINITIES

SIGMA = 25


@pytest.fixture(scope="module")
def noisy() -> np.ndarray:
    """A photograph's eye with noise: 18 x 21, float32."""
    clean = rgb2gray(photographs.astronaut()[104:122, 160:181]) / 255
    return add_noise(clean, SIGMA, 0, "astronaut").astype(np.float32)


def groups(image: Tensor, side: int, step: int, window: int, count: int) -> Tensor:
    """Numbers of the patches in groups [B, K], all of them full."""
    found = patches.match(patches.extract(image, side), step, window, count)
    assert found.distance.isfinite().all()
    return found.index


def test_non_local_means(noisy: np.ndarray) -> None:
    patch, window, a, h = 5, 7, 1.1, 20.0
    fast = denoise_nlm(noisy, SIGMA, patch=patch, window=window, a=a, h=h, unbiased=True)
    image = torch.from_numpy(noisy).double()
    form = framework.non_local_means(image, patch, window, a, h / 255, 2 * (SIGMA / 255) ** 2)
    middle = form.output()[:, patch * patch // 2].view(noisy.shape)
    np.testing.assert_allclose(fast, middle, atol=1e-5)
    assert ((form.phi > 0).sum(1) <= window**2).all()  # soft matching: all of the window


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_the_papers_module(affinity: str) -> None:
    torch.manual_seed(0)
    module = NonLocal2d(6, embed=3, window=5, affinity=affinity, bandwidth=2.0).double()
    torch.nn.init.normal_(module.g.weight)  # it starts at zero
    features = torch.randn(1, 6, 9, 7, dtype=torch.float64)
    x = features[0].flatten(1).T  # N m

    def embedded(layer: torch.nn.Conv2d | None) -> Tensor:
        return x if layer is None else torch.nn.functional.linear(x, layer.weight[..., 0, 0],
                                                                  layer.bias)  # fmt: skip

    theta = embedded(module.theta)
    psi = theta if module.psi is None else embedded(module.psi)
    form = framework.attention(theta, psi, embedded(module.g), (9, 7), 5, affinity, 2.0)
    fast, _ = module(features)
    torch.testing.assert_close(x + form.output(), fast[0].flatten(1).T)


def test_both_steps_of_bm3d(noisy: np.ndarray) -> None:
    first = bm3d.Stage(4, 3, 9, 8, 3000, "bior1.5", 2.0)
    second = bm3d.Stage(4, 3, 9, 8, 400, "dct", 2.0)
    fast = denoise_bm3d(
        noisy, SIGMA, patch=(4, 4), step=(3, 3), window=(9, 9), group=(8, 8), threshold=2.7
    )
    image, level = torch.from_numpy(noisy), SIGMA / 255
    step = framework.bm3d_step(image, None, level, first, bm3d.hard_threshold(2.7))
    basic = framework.bm3d_image(step, image.shape, first)
    step = framework.bm3d_step(image, basic, level, second, bm3d.wiener)
    np.testing.assert_allclose(fast, framework.bm3d_image(step, image.shape, second), atol=1e-5)
    assert step.phi.shape[0] == 16 and (step.phi != 0).any(0).sum(1).max() < step.phi.shape[1]


def test_a_round_of_wnnm(noisy: np.ndarray) -> None:
    fast = denoise_wnnm(noisy, SIGMA, patch=5, group=30, iterations=1, step=3, window=9)
    image = torch.from_numpy(noisy)
    index = groups(image, 5, 3, 9, 20)  # 10 less: the first matching's
    every = patches.extract(image, 5).flatten(0, 1)
    level = torch.full((len(index),), SIGMA / 255)
    form = framework.wnnm_round(every, index, level, 2 * 2**0.5)
    slow = framework.mean_image(form.output(), form.delta, image.shape)
    np.testing.assert_allclose(fast, slow, atol=1e-5)


def test_a_round_of_lssc(noisy: np.ndarray) -> None:
    fast = denoise_lssc(
        noisy, SIGMA, dictionary="unitary", patch=5, group=20, iterations=1, step=3, window=9
    )
    image = torch.from_numpy(noisy)
    index = groups(image, 5, 3, 9, 20)
    every = patches.extract(image, 5).flatten(0, 1)
    atoms = transforms.separable(transforms.dct(5)).T.float()
    form = framework.lssc_round(every, index, atoms, (SIGMA / 255 * 5) ** 2)
    slow = framework.mean_image(form.output() @ atoms.T, form.delta, image.shape)
    np.testing.assert_allclose(fast, slow, atol=1e-5)
    assert 0 < (form.phi != 0).any(dim=(1, 2)).sum() < 25  # some atoms stay, some go
