"""LSSC against plain loops, and what it makes of odd input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from skimage import data as photographs

from nlrn.classic import denoise_lssc, lssc, patches
from nlrn.classic.transforms import dct, separable
from nlrn.degrade import add_noise, rgb2gray
from nlrn.images import from_float, to_float

Array = np.ndarray
# The learned dictionary in less time.
LIGHT: dict[str, Any] = {"blocks": 4, "iterations": 3, "window": 15}


def psnr(result: Array, clean: Array) -> float:
    return float(-10 * np.log10(np.mean((result.clip(0, 1) - clean) ** 2)))


def random_image(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape).astype(np.float32)


@pytest.fixture(scope="module")
def photograph() -> Array:
    """Clean, float, never square."""
    return rgb2gray(photographs.astronaut()[:80, 150:250]) / 255


# --- coding -------------------------------------------------------------------------------------


def simultaneous_omp(group: Array, atoms: Array, bound: float) -> Array:
    """Takes the atom that all patches together like best until the error is within the bound."""
    residual, support = group.copy(), []
    while (residual**2).sum() > bound:
        support.append(int(((residual @ atoms) ** 2).sum(0).argmax()))
        chosen = atoms[:, support]
        codes = np.linalg.lstsq(chosen, group.T, rcond=None)[0]
        residual = group - (chosen @ codes).T
    return group - residual


def rotation(size: int, seed: int) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


@pytest.mark.parametrize("bound", [1e-9, 3.0, 20.0, 1e6])
def test_unitary_codes_are_those_of_simultaneous_matching_pursuit(bound: float) -> None:
    atoms = rotation(9, 1)
    group = np.random.default_rng(2).standard_normal((3, 5, 9)) * np.linspace(0.1, 2, 9)
    codes = lssc.joint_threshold(torch.from_numpy(group @ atoms), bound)
    for one, code in zip(group, codes.numpy(), strict=True):
        np.testing.assert_allclose(code @ atoms.T, simultaneous_omp(one, atoms, bound), atol=1e-10)


def test_shrinkage_is_the_formula() -> None:
    codes = np.random.default_rng(3).standard_normal((2, 6, 5)) * np.array([0.5, 0.8, 1.2, 2, 4])
    price = 7.0
    found = lssc.joint_shrinkage(torch.from_numpy(codes), price).numpy()
    kept = 0
    for g in range(2):
        for atom in range(5):
            energy = sum(codes[g, k, atom] ** 2 for k in range(6))
            factor = (1 + np.sqrt(1 - price / energy)) / 2 if energy > price else 0
            kept += factor > 0
            np.testing.assert_allclose(found[g, :, atom], codes[g, :, atom] * factor)
    assert 0 < kept < 10  # some stay, some go


def test_groups_get_the_block_that_codes_them_at_the_least_cost() -> None:
    generator = np.random.default_rng(4)
    flat = generator.standard_normal((40, 4)) * np.array([3, 1, 0.3, 0.1]) @ rotation(4, 5).T
    level = generator.uniform(0.2, 0.6, 40)
    index = generator.integers(0, 40, (7, 6))
    blocks = np.stack([rotation(4, seed) for seed in (5, 6, 7)])
    models = blocks * np.arange(1, 5) @ blocks.transpose(0, 2, 1)  # whose eigenvectors they are
    groups = lssc.Groups(torch.from_numpy(flat), torch.from_numpy(level))
    found = groups.cheapest(torch.from_numpy(index), torch.from_numpy(models), 5.0)
    for numbers, choice in zip(index, found.tolist(), strict=True):
        group = (flat[numbers] - flat[numbers].mean(0)) / level[numbers[0]]
        costs = [np.minimum(((group @ block) ** 2).sum(0), 5.0).sum() for block in blocks]
        assert choice == int(np.argmin(costs))


def test_learning_finds_the_blocks_that_made_the_groups() -> None:
    truth = [rotation(6, 8), rotation(6, 9)]
    generator = np.random.default_rng(10)
    spread = np.array([20, 10, 5, 1e-3, 1e-3, 1e-3])  # three atoms of each block are in use
    groups = [generator.standard_normal((30, 6)) * spread @ truth[g % 2].T for g in range(20)]
    grams = torch.from_numpy(np.stack([group.T @ group for group in groups]))
    blocks = np.linalg.eigh(lssc.learn(grams, 2, 1.0, None).numpy())[1]
    for own in truth:
        common = [np.linalg.norm(own[:, :3].T @ block[:, 3:]) for block in blocks]
        assert max(common) == pytest.approx(np.sqrt(3), abs=1e-3)  # the same subspace


# --- the method ---------------------------------------------------------------------------------


def slow_unitary(image: Array, sigma: float, side: int, count: int, step: int, reach: int) -> Array:
    """The appendix in loops, with the cosine transform, two rounds."""
    atoms = separable(dct(side)).T.numpy()
    height, width = (n - side + 1 for n in image.shape)
    bound = count * (sigma / 255 * side) ** 2

    def cut(picture: Array, y: int, x: int) -> Array:
        return picture[y : y + side, x : x + side].ravel()

    estimate = image
    for _ in range(2):
        total, weight = np.zeros_like(image), np.zeros_like(image)
        for y in patches.grid(height, step).tolist():
            for x in patches.grid(width, step).tolist():
                near = []
                for v in range(max(0, y - reach), min(height, y + reach + 1)):
                    for u in range(max(0, x - reach), min(width, x + reach + 1)):
                        gap = cut(estimate, y, x) - cut(estimate, v, u)
                        near.append(((gap**2).sum(), v, u))
                places = [(v, u) for _, v, u in sorted(near)[:count]]
                codes = np.stack([cut(image, v, u) for v, u in places]) @ atoms
                energy, dropped = (codes**2).sum(0), 0.0
                for atom in np.argsort(energy):
                    dropped += energy[atom]
                    if dropped <= bound:
                        codes[:, atom] = 0
                for (v, u), clean in zip(places, codes @ atoms.T, strict=True):
                    total[v : v + side, u : u + side] += clean.reshape(side, side)
                    weight[v : v + side, u : u + side] += 1
        estimate = total / weight
    return estimate


def test_unitary_case_is_the_appendix(photograph: Array) -> None:
    noisy = add_noise(photograph[:19, :23], 25, 0, "astronaut")
    expected = slow_unitary(noisy, 25, side=4, count=5, step=3, reach=4)
    options: dict[str, Any] = {"patch": 4, "group": 5, "step": 3, "window": 9}
    found = denoise_lssc(noisy, 25, dictionary="unitary", **options)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    given = separable(dct(4)).T.numpy()
    same = denoise_lssc(noisy, 25, dictionary=given, **options)
    np.testing.assert_array_equal(same, found)


@pytest.mark.slow
def test_gain_on_a_photograph(photograph: Array) -> None:
    """Measured: 8.53 dB, with the cosine transform 8.20."""
    noisy = add_noise(photograph, 25, 0, "astronaut")
    before = psnr(noisy, photograph)
    learned = psnr(denoise_lssc(noisy, 25), photograph) - before
    unitary = psnr(denoise_lssc(noisy, 25, dictionary="unitary"), photograph) - before
    assert learned > 8.4 and unitary > 8.1


def test_same_result_again() -> None:
    image = random_image(24, 31)
    first, second = (denoise_lssc(image, 25, **LIGHT) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dictionary", ["learned", "unitary"])
def test_odd_images(dictionary: str) -> None:
    options = LIGHT | {"dictionary": dictionary}
    image = random_image(20, 23)
    same = denoise_lssc(image, 0, **options)
    np.testing.assert_array_equal(same, image)
    assert same is not image
    for value in (0, 0.3):
        flat = np.full((20, 23), value, np.float32)
        np.testing.assert_allclose(denoise_lssc(flat, 25, **options), flat, atol=1e-4)
    for shape, sigma in (((1, 1), 25), ((2, 5), 255), ((7, 40), 1e-3), ((9, 12, 3), 25)):
        result = denoise_lssc(random_image(*shape), sigma, **options)
        assert result.shape == shape and np.isfinite(result).all()
    for dtype in (np.uint8, np.uint16):
        deep = from_float(image, dtype)
        result = denoise_lssc(deep, 20, **options)
        exact = denoise_lssc(to_float(deep), 20, **options).clip(0, 1)
        assert result.dtype == dtype
        np.testing.assert_allclose(to_float(result), exact, atol=1.1 / np.iinfo(dtype).max)
    np.testing.assert_array_equal(image, random_image(20, 23))  # the input is left alone


def test_progress_ends_at_its_total() -> None:
    told: list[tuple[int, int]] = []
    image = random_image(16, 19, 3)
    denoise_lssc(image, 25, **LIGHT, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 9) for done in range(1, 10)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dictionary": "dct"}, "dictionary must be learned, unitary or an array, got 'dct'"),
        ({"dictionary": np.eye(9), "patch": 4}, r"dictionary must be \[16, 16\], got \(9, 9\)"),
        ({"dictionary": np.eye(8)}, r"dictionary must be \[4, 4\], got \(8, 8\)"),
        ({"dictionary": np.ones((9, 9))}, "dictionary must be unitary"),
        ({"prior": -1}, "prior must be 0 or more, got -1"),
        ({"blocks": 0}, "blocks must be above 0, got 0"),
        ({"iterations": 0}, "iterations must be above 0, got 0"),
        ({"window": 8}, "window must be odd and positive, got 8"),
    ],
)
def test_bad_parameters_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        denoise_lssc(random_image(9, 9), 25, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("image", "sigma", "message"),
    [
        ([[1.0]], 25, "image must be a NumPy array, got list"),
        (np.zeros((0, 4)), 25, "not empty"),
        (np.full((9, 9), np.nan), 25, "NaN"),
        (np.zeros((9, 9)), -1, "sigma must be a number from 0 to 255, got -1"),
        (np.zeros((9, 9), int), 25, "must be one of uint8"),
    ],
)
def test_bad_input_gets_one_line(image: Any, sigma: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        denoise_lssc(image, sigma)
