"""Enlarging: luminance through the network, everything else bicubic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import tifffile
import torch
from typer.testing import CliRunner

import nlrn
from nlrn import images
from nlrn.cli import app
from nlrn.degrade import imresize, rgb2gray
from nlrn.images import Image
from nlrn.inference import Engine
from nlrn.models.nlrn import NLRN, NLRNConfig, random_network
from nlrn.restoration import Upscaler, resize
from nlrn.weights import ModelCard

# Patches of a ColorChecker in sRGB, row by row.
COLOUR_CHECKER = """
735244 c29682 627a9d 576c43 8580b1 67bdaa d67e2c 505ba6 c15a63 5e3c6c 9dbc40 e0a32e
383d96 469449 af363c e7c71f bb5695 0885a1 f3f3f2 c8c8c8 a0a0a0 7a7a79 555555 343434
"""
TINY = NLRNConfig(steps=2, channels=8, embed=4, window=7)
CPU = nlrn.Settings(device="cpu")


@pytest.fixture
def network() -> NLRN:
    model = random_network(TINY)
    model.card = ModelCard(task="sr")
    with torch.no_grad():
        model.conv_out.weight *= 30  # so that it changes something
    return model


@pytest.fixture
def weight(network: NLRN, tmp_path: Path) -> Path:
    network.save_pretrained(tmp_path / "sr.safetensors")
    return tmp_path / "sr.safetensors"


def random_image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(np.float32)


@pytest.mark.parametrize("scale", [2, 3, 4, 1.5, 2.7])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_size_and_type(scale: float, dtype: type, network: NLRN) -> None:
    image = images.from_float(random_image(9, 13, 3), dtype)
    large = nlrn.upscale(image, scale, model=network, settings=CPU)
    assert large.shape == (int(np.ceil(9 * scale)), int(np.ceil(13 * scale)), 3)
    assert large.dtype == dtype


def test_an_identity_network_leaves_the_bicubic_image() -> None:
    fresh = NLRN(TINY)  # its last convolution is zero
    for shape in ((9, 13), (9, 13, 3)):
        image = random_image(*shape)
        large = nlrn.upscale(image, 3, model=fresh, settings=CPU)
        np.testing.assert_allclose(large, imresize(image.astype(np.float64), 3), atol=1e-5)


def test_gray_goes_through_as_it_is(network: NLRN) -> None:
    image = random_image(8, 11)
    given = torch.from_numpy(imresize(image.astype(np.float64), 2)).float()[None, None]
    expected = Engine(network, CPU)(given)[0, 0].numpy()
    result = nlrn.upscale(image, 2, model=network, settings=CPU)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    with_axis = nlrn.upscale(image[..., None], 2, model=network, settings=CPU)
    np.testing.assert_array_equal(with_axis, result[..., None])


def test_of_colour_the_luminance_goes_through(network: NLRN) -> None:
    """Against the long way: to YCbCr, Y through the network, back to RGB."""
    forth = np.array([[65.481, 128.553, 24.966], [-37.797, -74.203, 112], [112, -93.786, -18.214]])
    shift = np.array([16, 128, 128]) / 255
    image = random_image(8, 11, 3)
    ycbcr = imresize(image.astype(np.float64), 2) @ (forth.T / 255) + shift
    given = torch.from_numpy(ycbcr[..., 0]).float()[None, None]
    ycbcr[..., 0] = Engine(network, CPU)(given)[0, 0].numpy()
    expected = (ycbcr - shift) @ np.linalg.inv(forth / 255).T
    large = nlrn.upscale(image, 2, model=network, settings=CPU)
    np.testing.assert_allclose(large, expected, atol=1e-5)
    assert np.abs(large - imresize(image.astype(np.float64), 2)).max() > 0.01  # it did something


def test_white_stays_white_and_gray_stays_gray() -> None:
    for level in (0, 100, 255):
        flat = np.full((10, 12, 3), level, np.uint8)
        assert (nlrn.upscale(flat, 2, model=NLRN(TINY), settings=CPU) == level).all()


def test_where_nothing_varies_the_network_changes_nothing(network: NLRN) -> None:
    half = np.full((14, 20), 200, np.uint8)
    half[:, :10] = 50
    for image in (half, np.repeat(half[..., None], 3, axis=2)):
        large = nlrn.upscale(image, 2, model=network, settings=CPU)
        bicubic = nlrn.upscale(image, 2, model=NLRN(TINY), settings=CPU)
        assert (large[:, :12] == 50).all() and (large[:, -12:] == 200).all()
        assert (large != bicubic)[:, 17:23].any()  # at the edge it did something


def test_gray_in_colour_stays_without_colour(network: NLRN) -> None:
    gray = np.repeat(images.from_float(random_image(9, 10), np.uint8)[..., None], 3, axis=2)
    large = nlrn.upscale(gray, 2, model=network, settings=CPU).astype(int)
    assert np.ptp(large, axis=2).max() == 0


def test_what_is_hidden_leaves_no_fringe() -> None:
    pixels = np.zeros((12, 14, 4), np.uint8)
    pixels[..., 1] = 255  # green, hidden
    pixels[:, 7:] = (255, 0, 0, 255)  # red, shown
    large = nlrn.upscale(pixels, 3, model=NLRN(TINY), settings=CPU)
    assert large.shape == (36, 42, 4)
    shown = large[..., 3] > 8
    assert shown.any() and not shown.all()
    assert (large[shown][:, :3] == (255, 0, 0)).all()
    assert (large[:, :15, 3] == 0).all() and (large[:, -15:, 3] == 255).all()
    gray = Image(pixels[..., 0], pixels[..., 3])
    assert Upscaler(2, NLRN(TINY), settings=CPU).restore(gray).image.pixels[:, -1].min() == 255


@pytest.mark.slow
def test_the_model_of_the_package_keeps_colours_and_beats_bicubic() -> None:
    patches = np.array([int(colour, 16) for colour in COLOUR_CHECKER.split()])
    colours = (patches[:, None] >> np.array([16, 8, 0]) & 255).astype(np.uint8).reshape(4, 6, 3)
    chart = np.kron(colours, np.ones((12, 12, 1), np.uint8))
    bicubic = nlrn.upscale(chart, 2, model=NLRN(TINY)).astype(float)
    large = nlrn.upscale(chart, 2).astype(float)
    assert np.abs((large - bicubic).mean((0, 1))).max() < 0.5
    gray_patches = large[78:90]  # the last row, off its upper edge
    assert np.ptp(gray_patches, axis=2)[:, 6:-6].mean() < 2  # as in the chart
    white = nlrn.upscale(np.full((24, 24, 3), 255, np.uint8), 2)
    assert np.ptp(white, axis=2).max() == 0 and white.min() == 255
    photograph = rgb2gray(skimage.data.astronaut())[40:112, 160:232] / 255
    small = imresize(photograph, 1 / 3)
    errors = [float(np.mean((result - photograph) ** 2))
              for result in (nlrn.upscale(small, 3), imresize(small, 3))]  # fmt: skip
    assert errors[0] < 0.85 * errors[1]


@pytest.mark.parametrize("hidden", [0, 255])
def test_the_network_sees_no_edge_where_the_picture_ends(hidden: int, network: NLRN) -> None:
    """A flat disc stays flat, whatever colour lies hidden around it."""
    y, x = np.mgrid[:24, :30]
    disc = (y - 12) ** 2 + (x - 15) ** 2 < 64
    pixels = np.where(disc[..., None], np.array([200, 100, 60, 255]), np.array([hidden] * 3 + [0]))
    large = nlrn.upscale(pixels.astype(np.uint8), 2, model=network, settings=CPU)
    flat = np.broadcast_to(np.array([200, 100, 60], np.uint8), (24, 30, 3)).copy()
    whole = nlrn.upscale(flat, 2, model=network, settings=CPU)
    shown = large[..., 3] > 0
    assert np.abs(large[shown][:, :3].astype(int) - whole[shown]).max() <= 1


def test_hidden_pixels_take_the_colours_around_them() -> None:
    pixels = np.zeros((5, 6, 3), np.float32)
    pixels[0, 0] = (0.2, 0.4, 0.6)
    weights = np.zeros((5, 6, 1), np.float32)
    weights[0, 0] = 0.5
    continued = resize.continued(pixels, weights)
    np.testing.assert_allclose(continued, np.broadcast_to(pixels[0, 0], (5, 6, 3)), rtol=1e-6)
    assert not resize.continued(pixels, 0 * weights)[0, 0].any()  # nothing shows


def test_values_far_beyond_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float values are to be in \[0, 1\]"):
        nlrn.upscale(255 * random_image(5, 6), 2, model=NLRN(TINY), settings=CPU)


@pytest.mark.parametrize("shape", [(9, 13), (9, 13, 3), (9, 13, 4)], ids=str)
def test_small_factors_go_by_two(shape: tuple[int, ...], network: NLRN) -> None:
    image = random_image(*shape)
    image[..., 3:] = 1  # nothing hidden
    double = nlrn.upscale(image, 2, model=network, settings=CPU)
    found = nlrn.upscale(image, 1.5, model=network, settings=CPU)
    np.testing.assert_allclose(found, imresize(double, size=(14, 20)), atol=1e-5)


@pytest.mark.parametrize("scale", [0, 5, -1, 1, float("nan"), "abc", True, None])
def test_scales_that_make_no_sense(scale: float, network: NLRN) -> None:
    with pytest.raises(ValueError, match="scale must be"):
        nlrn.upscale(random_image(5, 6), scale, model=network)


def test_models_of_the_other_task_are_refused(network: NLRN, weight: Path) -> None:
    with pytest.raises(ValueError, match="for denoising, not for super-resolution"):
        nlrn.upscale(random_image(5, 6), 2, model="denoise-gray-s25")
    with pytest.raises(ValueError, match="a model for super-resolution, not for denoising"):
        nlrn.denoise(random_image(5, 6), 25, model=weight)


def test_the_command(weight: Path, tmp_path: Path) -> None:
    source = tmp_path / "photo.png"
    exif = b"MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"
    images.write(source, Image(images.from_float(random_image(7, 9, 3), np.uint16), exif=exif))
    arguments = ["upscale", str(source), "--scale", "3", "--model", str(weight), "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (fact,) = json.loads(result.stdout)["done"]
    assert fact["scale"] == 3 and fact["output"] == str(tmp_path / "photo_x3.png")
    large = images.read(tmp_path / "photo_x3.png")
    assert large.pixels.shape == (21, 27, 3) and large.pixels.dtype == np.uint16
    assert large.exif is not None
    result = CliRunner().invoke(app, [*arguments, "--overwrite", "--scale", "1.5"])
    assert "photo_x1.5.png (x1.5, " in result.stdout


def test_a_tiff_forgets_the_size_it_had(weight: Path, tmp_path: Path) -> None:
    """Tifffile writes the shape into the description, and warns where it does not fit."""
    tifffile.imwrite(tmp_path / "a.tif", random_image(7, 9))
    note = b'{"shape": [7, 9]'
    assert note in (tmp_path / "a.tif").read_bytes()
    arguments = ["upscale", str(tmp_path / "a.tif"), "--model", str(weight), "--device", "cpu"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert tifffile.imread(tmp_path / "a_x2.tif").shape == (14, 18)
    assert note not in (tmp_path / "a_x2.tif").read_bytes()


@pytest.mark.parametrize(
    ("scale", "message"),
    [("0", "at most 4, got 0"), ("5", "at most 4, got 5"), ("-1", "at most 4, got -1"),
     ("abc", "must be a number, got 'abc'"), ("nan", "must be a number, got nan")],
)  # fmt: skip
def test_mistakes_get_one_line(scale: str, message: str, weight: Path, tmp_path: Path) -> None:
    images.write(tmp_path / "photo.png", Image(images.from_float(random_image(7, 9), np.uint8)))
    arguments = ["upscale", str(tmp_path / "photo.png"), "--model", str(weight), f"--scale={scale}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and message in result.stderr
    assert not list(tmp_path.glob("photo_*"))


@pytest.mark.slow
def test_large_results_stay_within_the_memory_and_show_no_seam(tmp_path: Path) -> None:
    """300 x 200 at x4 in a process of its own: over 0.4 GiB as a whole, 1/16 GiB allowed."""
    script = """
import numpy as np
import nlrn
from nlrn.models.nlrn import NLRNConfig, random_network

def memory(kind):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) / 2**20

network = random_network(NLRNConfig(steps=1, channels=8, embed=4, window=3))
network.card = nlrn.ModelCard(task="sr")
image = np.random.default_rng(0).random((200, 300)).astype(np.float32)
settings = nlrn.Settings(device="cpu", memory=2**26)
nlrn.upscale(image[:20, :20], 4, model=network, settings=settings)
before = memory("VmRSS")
picture = nlrn.upscale(image, 4, model=network, settings=settings)
assert memory("VmHWM") - before < 0.2, (memory("VmHWM"), before)
whole = nlrn.upscale(image, 4, model=network, settings=nlrn.Settings(device="cpu", tile=0))
print(np.abs(picture - whole).max())
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
    assert float(found.stdout) < 1e-4


def test_a_chart_keeps_its_colours(network: NLRN) -> None:
    """Patches of colour: what the network adds is gray, and the same for all three channels."""
    colours = [[255, 0, 0], [0, 160, 0], [0, 0, 255], [255, 255, 0], [0, 200, 200], [128, 64, 32]]
    chart = np.kron(np.array(colours, np.uint8).reshape(2, 3, 3), np.ones((12, 12, 1), np.uint8))
    large = nlrn.upscale(chart, 2, model=network, settings=CPU).astype(float)
    bicubic = nlrn.upscale(chart, 2, model=NLRN(TINY), settings=CPU).astype(float)
    inside = (bicubic.min(-1) > 40) & (bicubic.max(-1) < 215)  # where nothing is clipped
    change = (large - bicubic)[inside]
    assert np.abs(change).max() > 1
    assert np.ptp(change, axis=-1).max() <= 1  # rounding
