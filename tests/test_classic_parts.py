"""Non-local means, BM3D and WNNM against plain loops and the packages everyone uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from skimage import data as photographs
from skimage.restoration import denoise_nl_means

from nlrn.classic import (
    denoise_bm3d,
    denoise_nlm,
    denoise_wnnm,
    patches,
    spectral,
    transforms,
    wnnm,
)
from nlrn.degrade import add_noise, rgb2gray
from nlrn.images import from_float, to_float

METHODS = [denoise_nlm, denoise_bm3d, denoise_wnnm]


def psnr(result: np.ndarray, clean: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((result.clip(0, 1) - clean) ** 2)))


@pytest.fixture(scope="module")
def photograph() -> np.ndarray:
    """Clean, float, never square."""
    return rgb2gray(photographs.astronaut()[:96, 150:270]) / 255


def random_image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(np.float32)


# --- parts --------------------------------------------------------------------------------------


def test_matches_are_those_of_plain_loops() -> None:
    image = torch.from_numpy(random_image(13, 17))
    side, step, window, count = 3, 4, 7, 6
    found = patches.match(patches.extract(image, side), step, window, count)
    height, width = 13 - side + 1, 17 - side + 1
    number = 0
    for y in [0, 4, 8, 10]:
        for x in [0, 4, 8, 12, 14]:
            own = image[y : y + side, x : x + side]
            near = []
            for v in range(max(0, y - 3), min(height, y + 4)):
                for u in range(max(0, x - 3), min(width, x + 4)):
                    other = image[v : v + side, u : u + side]
                    near.append((float((own - other).square().sum()), v * width + u))
            expected = sorted(near)[:count]
            assert found.index[number].tolist() == [place for _, place in expected]
            distances = [distance for distance, _ in expected]
            np.testing.assert_allclose(found.distance[number], distances, atol=1e-5)
            number += 1
    assert number == len(found.index)


def test_overlap_add_is_the_adjoint_of_extract() -> None:
    image, given = torch.rand(9, 12, dtype=torch.float64), torch.rand(6, 9, 16, dtype=torch.float64)
    added = patches.overlap_add(given.permute(2, 0, 1), 4)
    left = (patches.extract(image, 4) * given).sum()
    torch.testing.assert_close(left, (image * added).sum())


@pytest.mark.parametrize("side", [1, 2, 8])
def test_transforms(side: int) -> None:
    eye = torch.eye(side, dtype=torch.float64)
    for rows in (transforms.dct(side), transforms.haar(side)):
        torch.testing.assert_close(rows @ rows.T, eye)
    bior = transforms.bior(side)
    torch.testing.assert_close(bior.norm(dim=1), eye.diagonal())
    assert abs(float(torch.linalg.det(bior))) > 0.1  # it can be undone
    with pytest.raises(ValueError, match="power of two, got 6"):
        transforms.haar(6)


# --- methods ------------------------------------------------------------------------------------


def test_non_local_means_against_plain_loops() -> None:
    image = random_image(9, 11).astype(np.float64)
    sigma, h, patch, window, a = 20.0, 25.0, 3, 5, 0.8
    weights = np.exp(-0.5 * (np.arange(-1, 2) / a) ** 2)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    padded = np.pad(image, 1, mode="reflect")
    expected = np.empty_like(image)
    for y in range(9):
        for x in range(11):
            total = norm = 0.0
            for v in range(max(0, y - 2), min(9, y + 3)):
                for u in range(max(0, x - 2), min(11, x + 3)):
                    gap = padded[y : y + 3, x : x + 3] - padded[v : v + 3, u : u + 3]
                    distance = max(0.0, (weights * gap**2).sum() - 2 * (sigma / 255) ** 2)
                    weight = np.exp(-distance / (h / 255) ** 2)
                    total, norm = total + weight * image[v, u], norm + weight
            expected[y, x] = total / norm
    found = denoise_nlm(image, sigma, patch=patch, window=window, a=a, h=h)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_non_local_means_agrees_with_scikit_image(photograph: np.ndarray) -> None:
    noisy = add_noise(photograph, 25, 0, "astronaut")
    theirs = denoise_nl_means(noisy, 7, 7, h=0.6 * 25 / 255, sigma=25 / 255, fast_mode=False)
    ours = denoise_nlm(noisy, 25, patch=7, window=15, h=0.6 * 25)
    assert abs(psnr(ours, photograph) - psnr(theirs, photograph)) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [15, 25, 50])
def test_bm3d_is_as_good_as_the_package(sigma: int, photograph: np.ndarray) -> None:
    import bm3d

    noisy = add_noise(photograph, sigma, 0, "astronaut")
    theirs = psnr(bm3d.bm3d(noisy, sigma / 255), photograph)
    assert psnr(denoise_bm3d(noisy, sigma), photograph) > theirs - 0.2


def test_low_rank_is_the_published_formula() -> None:
    """Against singular values one by one, in float64."""
    group = torch.from_numpy(np.random.default_rng(3).standard_normal((2, 12, 9)))
    level, c = torch.tensor([0.3, 0.5], dtype=torch.float64), 2.0
    for one, noise, found in zip(group, level, wnnm.low_rank(group, level, c), strict=True):
        mean = one.mean(0)
        u, s, v = np.linalg.svd((one - mean).numpy(), full_matrices=False)
        inside = s**2 - 4 * c * np.sqrt(12) * float(noise) ** 2
        shrunk = np.where(inside > 0, (s + np.sqrt(np.maximum(inside, 0))) / 2, 0)
        assert 0 < (shrunk > 0).sum() < len(s)  # some stay, some go
        np.testing.assert_allclose(found, (u * shrunk) @ v + mean.numpy(), atol=1e-10)


@pytest.mark.parametrize("noise", [25, 3])
def test_shrinkage_by_products_is_that_by_eigenvectors(
    noise: float, photograph: np.ndarray
) -> None:
    image = torch.from_numpy(add_noise(photograph, noise, 0, "astronaut")).float()
    every = patches.extract(image, 7)
    found = patches.match(every, 40, 31, 60)
    group = every.flatten(0, 1)[found.index]
    centered = group - group.mean(dim=1, keepdim=True)
    gram = torch.cat([centered.mT @ centered, torch.zeros(1, 49, 49)])  # a constant group too
    for limit in (80 * (noise / 255) ** 2, 1e-9, 0.0):
        limits = torch.full((len(gram),), limit)
        exact = spectral.by_eigenvectors(gram.double(), limits.double())
        clean = [centered @ m[:-1] for m in (exact.float(), spectral.by_products(gram, limits))]
        assert (clean[0] - clean[1]).square().mean().sqrt() < 1e-4
        assert torch.isfinite(spectral.by_products(gram, limits)).all()


def test_eigenvectors_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: from several threads, in order."""
    monkeypatch.setattr(spectral, "_is_slow", lambda matrices: True)
    matrices = torch.from_numpy(np.random.default_rng(4).standard_normal((70, 5, 5)))
    matrices = matrices @ matrices.mT
    vectors = spectral.eigenvectors(matrices)
    turned = vectors.mT @ matrices @ vectors
    torch.testing.assert_close(turned, torch.diag_embed(turned.diagonal(dim1=1, dim2=2)))
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(5).to(vectors).expand(70, -1, -1))


@pytest.mark.slow
def test_wnnm_is_better_than_bm3d(photograph: np.ndarray) -> None:
    noisy = add_noise(photograph, 25, 0, "astronaut")
    gained = psnr(denoise_wnnm(noisy, 25), photograph) - psnr(denoise_bm3d(noisy, 25), photograph)
    assert 0 < gained < 1


def test_bm3d_in_color_gains_from_the_luminance() -> None:
    clean = photographs.astronaut()[:80, 150:246] / 255
    noisy = add_noise(clean, 25, 0, "astronaut")
    together = denoise_bm3d(noisy, 25)
    apart = np.stack([denoise_bm3d(noisy[..., c], 25) for c in range(3)], axis=2)
    assert psnr(together, clean) > psnr(apart, clean) + 0.5


@pytest.mark.parametrize("method", METHODS)
def test_odd_images(method: Callable[..., np.ndarray]) -> None:
    image = random_image(20, 23)
    same = method(image, 0)
    np.testing.assert_array_equal(same, image)
    assert same is not image
    flat = np.full((20, 23), 0.3, np.float32)
    np.testing.assert_allclose(method(flat, 25), flat, atol=1e-4)
    for shape in ((1, 1), (2, 5), (7, 40), (20, 23, 3)):
        result = method(random_image(*shape), 25)
        assert result.shape == shape and np.isfinite(result).all()
    for dtype in (np.uint8, np.uint16):
        deep = from_float(image, dtype)
        result, exact = method(deep, 20), method(to_float(deep), 20).clip(0, 1)
        assert result.dtype == dtype
        np.testing.assert_allclose(to_float(result), exact, atol=1.1 / np.iinfo(dtype).max)
    np.testing.assert_array_equal(image, random_image(20, 23))  # the input is left alone


@pytest.mark.parametrize("method", METHODS)
def test_progress_ends_at_its_total(method: Callable[..., np.ndarray]) -> None:
    told: list[tuple[int, int]] = []
    method(random_image(16, 19), 25, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] and [done for done, _ in told] == sorted(d for d, _ in told)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("image", "sigma", "message"),
    [
        ([[1.0]], 25, "image must be a NumPy array, got list"),
        (np.zeros((3, 4, 2)), 25, "image must be"),
        (np.zeros((0, 4)), 25, "not empty"),
        (np.full((9, 9), np.nan), 25, "NaN"),
        (np.zeros((9, 9)), -1, "sigma must be a number from 0 to 255, got -1"),
        (np.zeros((9, 9)), "25", "sigma must be a number"),
        (np.zeros((9, 9)), float("nan"), "sigma must be a number"),
        (np.zeros((9, 9), int), 25, "must be one of uint8"),
    ],
)
def test_bad_input_gets_one_line(
    method: Callable[..., np.ndarray], image: object, sigma: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        method(image, sigma)
    assert "\n" not in str(caught.value)


def test_bad_parameters_are_named() -> None:
    with pytest.raises(ValueError, match="window must be odd and positive, got 8"):
        denoise_nlm(random_image(9, 9), 25, window=8)
    with pytest.raises(ValueError, match="iterations must be above 0, got 0"):
        denoise_wnnm(random_image(9, 9), 25, iterations=0)
    with pytest.raises(ValueError, match="group must be a power of two, got 12"):
        denoise_bm3d(random_image(9, 9), 25, group=(12, 16))
    with pytest.raises(ValueError, match="transform must be one of"):
        denoise_bm3d(random_image(9, 9), 25, transform=("fourier", "dct"))
