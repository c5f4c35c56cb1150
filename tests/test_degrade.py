"""MATLAB's gray, luminance and resize against exact arithmetic, and the noise of the tables."""

import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nlrn import degrade
from nlrn.degrade import add_noise, imresize, luminance, mod_crop, rgb2gray, standard_noise
from nlrn.metrics import psnr, ssim

DATA = Path(os.environ.get("NLRN_DATA", ""))
needs_data = pytest.mark.skipif(
    "NLRN_DATA" not in os.environ,
    reason="NLRN_DATA is not set: it names the folder that holds set5/, bsd68/ and bsds500/",
)
HALF = Fraction(1, 2)
# At these factors the weights are multiples of a power of 1/2, which floats hold exactly, or of
# 1/81, which never add up to a half: so rounding to uint8 must agree with exact arithmetic.
FACTORS = [Fraction(1, 4), Fraction(1, 3), HALF, Fraction(1), Fraction(2), Fraction(3), Fraction(4)]


def image_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def exact_kernel(x: Fraction) -> Fraction:
    """Keys' cubic with a = -1/2."""
    x = abs(x)
    if x <= 1:
        return Fraction(3, 2) * x**3 - Fraction(5, 2) * x**2 + 1
    if x <= 2:
        return -HALF * x**3 + Fraction(5, 2) * x**2 - 4 * x + 2
    return Fraction(0)


def exact_pixel(row: list[Fraction], centre: Fraction, scale: Fraction) -> Fraction:
    """Value of a row at a position in it: kernel, widened when shrinking, over a mirrored row."""
    shrink = min(scale, Fraction(1))
    total = weights = Fraction(0)
    for j in range(math.floor(centre - 2 / shrink), math.ceil(centre + 2 / shrink) + 1):
        weight = exact_kernel((centre - j) * shrink)
        inside = j
        while not 0 <= inside < len(row):  # the edge pixel is its own neighbour
            inside = -1 - inside if inside < 0 else 2 * len(row) - 1 - inside
        total += weight * row[inside]
        weights += weight
    return total / weights


def exact_rows(
    rows: list[list[Fraction]], length: int, scale: Fraction, rounded: bool
) -> list[list[Fraction]]:
    """Each row resized to length; pixel i of the new row is centred on (i + 1/2) / scale - 1/2."""
    out = [
        [exact_pixel(row, (i + HALF) / scale - HALF, scale) for i in range(length)] for row in rows
    ]
    if rounded:
        return [[Fraction(min(max(math.floor(v + HALF), 0), 255)) for v in row] for row in out]
    return out


def transposed(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    return [list(column) for column in zip(*rows, strict=True)]


def exact(
    image: np.ndarray,
    scales: tuple[Fraction, Fraction],
    lengths: tuple[int, int],
    *,
    rounded: bool,
    horizontal_first: bool = False,
) -> np.ndarray:
    """An image [H, W] of whole numbers resized in exact arithmetic."""
    rows = [[Fraction(int(value)) for value in row] for row in image]
    for axis in (1, 0) if horizontal_first else (0, 1):
        rows = rows if axis == 1 else transposed(rows)
        rows = exact_rows(rows, lengths[axis], scales[axis], rounded)
        rows = rows if axis == 1 else transposed(rows)
    return np.array([[float(value) for value in row] for row in rows])


def scaled(shape: tuple[int, ...], scale: Fraction) -> tuple[int, int]:
    return math.ceil(shape[0] * scale), math.ceil(shape[1] * scale)


def assert_exact(image: np.ndarray, scale: Fraction) -> None:
    """Resizing a uint8 image by scale agrees with exact arithmetic, as uint8 and as float."""
    lengths = scaled(image.shape, scale)
    as_uint8 = imresize(image, float(scale))
    assert as_uint8.dtype == np.uint8
    expected = exact(image, (scale, scale), lengths, rounded=True)
    np.testing.assert_array_equal(as_uint8, expected)
    expected = exact(image, (scale, scale), lengths, rounded=False)
    np.testing.assert_allclose(imresize(image / 1.0, float(scale)), expected, rtol=0, atol=1e-10)


def test_ramp_by_two_worked_by_hand():
    ramp = np.array([[0, 64, 128, 192]], np.uint8)
    # Halfway steps weigh (111, 29, -9, -3) / 128; beyond the edges the ramp is mirrored.
    up = [-6, 11.5, 46.5, 80, 112, 145.5, 180.5, 198]
    np.testing.assert_array_equal(imresize(ramp / 1.0, 2), [up, up])
    rounded = [0, 12, 47, 80, 112, 146, 181, 198]  # clipped, and halves up
    np.testing.assert_array_equal(imresize(ramp, 2), [rounded, rounded])
    np.testing.assert_array_equal(imresize(ramp.T, 2), np.array([rounded, rounded]).T)


def test_single_pixel_by_a_third_worked_by_hand():
    row = np.zeros((1, 9))
    row[0, 3] = 81
    # Weights at distance 0, 1, ... 5 are (27, 21, 9, 0, -2, -1) / 81. The new pixels lie on 1, 4
    # and 7; the mirror image at -4 adds -1 to the first.
    np.testing.assert_allclose(imresize(row, 1 / 3), [[9 - 1, 21, -2]], atol=1e-12)


@pytest.mark.parametrize("scale", FACTORS, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (6, 6), (5, 7), (1, 4), (12, 3), (3, 10)], ids=str)
def test_small_images_in_exact_arithmetic(shape, scale):
    assert_exact(image_of(*shape), scale)
    extreme = np.where(image_of(*shape) > 127, 255, 0).astype(np.uint8)  # overshoots are clipped
    assert_exact(extreme, scale)


@pytest.mark.slow
@given(
    st.tuples(st.integers(1, 11), st.integers(1, 11)), st.sampled_from(FACTORS), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_any_shape_in_exact_arithmetic(shape, scale, seed):
    assert_exact(image_of(*shape, seed=seed), scale)


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 14), st.integers(1, 14)),
)
@settings(max_examples=60, deadline=None)
def test_any_size_in_exact_arithmetic(shape, size):
    image = image_of(*shape)
    scales = Fraction(size[0], shape[0]), Fraction(size[1], shape[1])
    expected = exact(image, scales, size, rounded=False)
    np.testing.assert_allclose(imresize(image / 1.0, size=size), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 7), (9, 4), (13, 11)], ids=str)
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_odd_sizes_down_and_up(shape, scale):
    image = image_of(*shape)
    down = imresize(image, 1 / scale)
    assert down.shape == tuple(-(-side // scale) for side in shape)
    small = exact(image, (Fraction(1, scale),) * 2, down.shape, rounded=True)
    up = imresize(down, scale)
    assert up.shape == tuple(scale * side for side in down.shape)
    expected = exact(small, (Fraction(scale),) * 2, up.shape, rounded=True)
    np.testing.assert_array_equal(up, expected)
    assert imresize(down, size=shape).shape == shape


def test_vertical_first_when_the_scales_are_equal():
    image = image_of(8, 6)
    orders = [
        exact(image, (HALF, HALF), (4, 3), rounded=True, horizontal_first=first)
        for first in (False, True)
    ]
    assert (orders[0] != orders[1]).any()
    np.testing.assert_array_equal(imresize(image, 0.5), orders[0])


@pytest.mark.parametrize("size", [(5, 2), (2, 4), (20, 4)], ids=str)
def test_the_smaller_scale_first(size):
    image = image_of(10, 8)
    scales = Fraction(size[0], 10), Fraction(size[1], 8)
    orders = [
        exact(image, scales, size, rounded=True, horizontal_first=first) for first in (False, True)
    ]
    assert (orders[0] != orders[1]).any()
    np.testing.assert_array_equal(imresize(image, size=size), orders[scales[1] < scales[0]])


@pytest.mark.parametrize("scale", [2, 3, 4, 5, 8])
def test_multiples_shrink_to_the_exact_quotient(scale):
    for side in range(1, 1500):
        assert math.ceil(1 / scale * (side * scale)) == side
    assert imresize(image_of(7 * scale, 3 * scale), 1 / scale).shape == (7, 3)


@pytest.mark.parametrize("scale", [1 / 3, 0.7, 2, 1.37])
def test_constant_images_stay_constant(scale):
    assert (imresize(np.full((7, 10), 200, np.uint8), scale) == 200).all()
    np.testing.assert_allclose(imresize(np.full((7, 10), 0.3), scale), 0.3, rtol=1e-14)


def test_scale_one_changes_nothing_and_shares_nothing():
    image = image_of(6, 9)
    same = imresize(image, 1)
    np.testing.assert_array_equal(same, image)
    assert not np.shares_memory(same, image)


def test_channels_one_by_one_and_types_kept():
    image = image_of(9, 14, 3)
    for dtype in (np.uint8, np.float64, np.float32):
        typed = image.astype(dtype)
        out = imresize(typed, 1 / 3)
        assert out.dtype == dtype
        assert out.flags.c_contiguous
        np.testing.assert_array_equal(
            out, np.dstack([imresize(typed[..., c], 1 / 3) for c in range(3)])
        )
    np.testing.assert_array_equal(image, image_of(9, 14, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either scale or size"),
        ({"scale": 2, "size": (3, 4)}, "either scale or size"),
        ({"scale": 0}, "scale must be positive and finite, got 0"),
        ({"scale": -1.5}, "got -1.5"),
        ({"scale": math.nan}, "got nan"),
        ({"scale": math.inf}, "got inf"),
        ({"size": (0, 4)}, r"got \(0, 4\)"),
        ({"size": (4,)}, r"got \(4,\)"),
    ],
)
def test_bad_scales_and_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        imresize(np.zeros((5, 6)), **options)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros(5), r"\(5,\)"),
        (np.zeros((0, 5)), r"\(0, 5\)"),
        (np.zeros((1, 2, 3, 4)), r"\(1, 2, 3, 4\)"),
        (np.zeros((5, 6), np.uint16), "uint16"),
        (np.zeros((5, 6), bool), "bool"),
    ],
)
def test_bad_images(image, message):
    for call in (
        lambda: imresize(image, 2),
        lambda: mod_crop(image, 2),
        lambda: add_noise(image, 25, 0, "a"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_mod_crop():
    image = image_of(11, 15, 3)
    np.testing.assert_array_equal(mod_crop(image, 4), image[:8, :12])
    np.testing.assert_array_equal(mod_crop(image[..., 0], 3), image[:9, :15, 0])
    np.testing.assert_array_equal(mod_crop(image, 1), image)
    with pytest.raises(ValueError, match="at least 12 x 12"):
        mod_crop(image, 12)
    with pytest.raises(ValueError, match="got 0"):
        mod_crop(image, 0)


def test_gray_and_luminance_of_known_colours():
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [77, 77, 77]]
    rgb = np.array([colours], np.uint8)
    np.testing.assert_array_equal(rgb2gray(rgb), [[76, 150, 29, 255, 0, 77]])
    # (65.481, 128.553, 24.966) + 16, and 219 / 255 of gray + 16
    np.testing.assert_array_equal(luminance(rgb), [[81, 145, 41, 235, 16, 82]])
    assert rgb2gray(rgb).dtype == luminance(rgb).dtype == np.uint8


def test_gray_and_luminance_in_exact_arithmetic():
    rgb = image_of(9, 31, 3)
    rgb[0, 0] = [0, 204, 68]  # 125.5 exactly before rounding: goes up
    gray = [Fraction(589399, 1971656), Fraction(1157447, 1971656), Fraction(112405, 985828)]
    luma = [Fraction(n, 255_000) for n in (65481, 128553, 24966)]
    for function, weights, offset in ((rgb2gray, gray, 0), (luminance, luma, 16)):
        expected = [
            math.floor(offset + sum(w * int(c) for w, c in zip(weights, pixel, strict=True)) + HALF)
            for pixel in rgb.reshape(-1, 3)
        ]
        np.testing.assert_array_equal(function(rgb), np.reshape(expected, (9, 31)))
    assert luminance(rgb)[0, 0] == 126


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 5), np.uint8), np.zeros((4, 5, 4), np.uint8), np.zeros((4, 5, 3))],
    ids=lambda image: f"{image.dtype} {image.shape}",
)
@pytest.mark.parametrize("function", [rgb2gray, luminance])
def test_gray_and_luminance_take_rgb_bytes_only(function, image):
    with pytest.raises(ValueError, match=r"uint8 \[H, W, 3\], got"):
        function(image)


def test_noise_is_pinned():
    expected = [
        [0.37257633474153934, -2.2485448273965196, -0.4137891523243962],
        [-0.9165704588100061, 0.6970437449431852, -0.9205018098219517],
    ]
    np.testing.assert_allclose(standard_noise(0, "01", (2, 3)), expected, rtol=1e-15)
    np.testing.assert_array_equal(standard_noise(0, "01", (6,)).reshape(2, 3), expected)


def test_noise_does_not_depend_on_the_process():
    code = "from nlrn.degrade import standard_noise as n; print(n(3, 'bäby', (50,)).tolist())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "1"},
    )
    np.testing.assert_array_equal(json.loads(result.stdout), standard_noise(3, "bäby", (50,)))


def test_noise_differs_by_name_and_seed_and_is_standard_normal():
    noise = standard_noise(0, "a", (400, 300))
    for other in (standard_noise(1, "a", (400, 300)), standard_noise(0, "b", (400, 300))):
        assert abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < 0.02
    assert noise.dtype == np.float64
    assert abs(noise.mean()) < 0.01
    assert noise.std() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("shape", [(40, 31), (20, 9, 3)], ids=str)
def test_add_noise_neither_clips_nor_rounds(shape):
    image = image_of(*shape)
    noisy = add_noise(image, 50, 7, "x")
    assert noisy.dtype == np.float64
    np.testing.assert_allclose((noisy - image / 255) * 255 / 50, standard_noise(7, "x", shape))
    assert noisy.min() < 0
    assert noisy.max() > 1
    np.testing.assert_array_equal(add_noise(image / 255, 50, 7, "x"), noisy)
    np.testing.assert_array_equal(add_noise(image, 0, 7, "x"), image / 255)


@pytest.mark.parametrize("sigma", [-1, math.nan, math.inf])
def test_bad_sigma(sigma):
    with pytest.raises(ValueError, match=f"sigma must be 0 or more and finite, got {sigma}"):
        add_noise(np.zeros((4, 5)), sigma, 0, "a")


@needs_data
def test_gray_reproduces_bsd68():
    manifest = json.loads((DATA / "MANIFEST.json").read_text())
    (bsd68,) = (entry for entry in manifest["datasets"] if entry["name"] == "bsd68")
    for file in bsd68["files"][::8]:
        colour = np.asarray(Image.open(DATA / file["same_as"]))
        gray = np.asarray(Image.open(DATA / "bsd68" / file["file"]))
        np.testing.assert_array_equal(rgb2gray(colour), gray, file["file"])


def bicubic_scores(path: Path, scale: int) -> tuple[float, float]:
    """PSNR and SSIM of bicubic interpolation on one image, by the protocol of the field."""
    truth = mod_crop(np.asarray(Image.open(path)), scale)
    truth = (luminance(truth) if truth.ndim == 3 else truth) / 255
    result = imresize(imresize(truth, 1 / scale), scale)
    pair = torch.from_numpy(result)[None, None], torch.from_numpy(truth)[None, None]
    decibels = psnr(*pair, border=scale, quantize=True)
    return decibels.item(), ssim(*pair, border=scale, quantize=True).item()


@needs_data
@pytest.mark.parametrize(
    ("scale", "decibels", "similarity"),
    [(2, 33.66, 0.9299), (3, 30.39, 0.8682), (4, 28.42, 0.8104)],
)
def test_bicubic_on_set5_gives_the_published_figures(scale, decibels, similarity):
    paths = sorted((DATA / "set5").glob("*.png"))
    assert len(paths) == 5
    scores = np.mean([bicubic_scores(path, scale) for path in paths], axis=0)
    assert scores[0] == pytest.approx(decibels, abs=0.02)
    assert scores[1] == pytest.approx(similarity, abs=0.001)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_shrinking_and_enlarging_as_a_matrix(scale: int) -> None:
    image = np.random.default_rng(scale).random((5 * scale, 7 * scale))
    rows, columns = (degrade.enlarged_matrix(side, scale) for side in image.shape)
    expected = degrade.imresize(degrade.imresize(image, 1 / scale), scale)
    np.testing.assert_allclose(rows @ image @ columns.T, expected, atol=1e-12)
    with pytest.raises(ValueError, match="multiple of the scale"):
        degrade.enlarged_matrix(5 * scale + 1, scale)
