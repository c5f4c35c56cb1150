"""denoise(): arrays of every kind in, the same kind out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from scipy.ndimage import gaussian_filter

import nlrn
from nlrn import images, weights
from nlrn.degrade import add_noise, rgb2gray
from nlrn.images import Image
from nlrn.inference import Settings
from nlrn.models.nlrn import CONFIGS, NLRN, random_network
from nlrn.restoration import Denoiser, classic
from nlrn.restoration.base import at_strength
from nlrn.restoration.choice import choose_denoiser
from nlrn.weights import ModelCard, Published

SMALL = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=2, channels=8, embed=4)


@pytest.fixture
def network() -> NLRN:
    return random_network(SMALL)


def noisy(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).uniform(0.1, 0.9, shape)
    return images.from_float(values, dtype) if dtype != "float16" else values.astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(12, 17), (8, 9, 1), (9, 14, 3), (11, 7, 4)], ids=str)
def test_shape_and_type_are_kept(network: NLRN, shape: tuple[int, ...], dtype: str) -> None:
    image = noisy(shape, dtype)
    before = image.copy()
    result = nlrn.denoise(image, 25, model=network)
    assert result.shape == image.shape and result.dtype == image.dtype
    assert np.array_equal(image, before), "the input was changed"
    if shape[2:] == (4,):
        assert np.array_equal(result[..., 3], image[..., 3])
    if dtype.startswith("float") or dtype == "uint16":
        assert not np.array_equal(result, image)


def test_colour_goes_channel_by_channel(network: NLRN) -> None:
    image = noisy((10, 13, 3), "float32")
    result = nlrn.denoise(image, 25, model=network)
    for c in range(3):
        alone = nlrn.denoise(np.ascontiguousarray(image[..., c]), 25, model=network)
        np.testing.assert_allclose(result[..., c], alone, atol=1e-6)


def test_a_colour_network_takes_gray_and_colour() -> None:
    network = random_network(dataclasses.replace(SMALL, in_channels=3, out_channels=3))
    for shape in ((10, 13), (10, 13, 3)):
        assert nlrn.denoise(noisy(shape, "float32"), 25, model=network).shape == shape


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
def test_any_strength_is_had_from_one_result(network: NLRN, dtype: str) -> None:
    image = images.Image(noisy((10, 12, 3), dtype))
    for denoiser in (nlrn.Denoiser(network), nlrn.ClassicDenoiser("nlm", device="cpu")):
        full = denoiser.restore(image, 25).full
        for strength in (0, 0.3, 1):
            expected = denoiser.restore(image, 25, strength=strength).image.pixels
            assert np.array_equal(at_strength(image, full, strength).pixels, expected)
        assert denoiser.restore(image, 0).full is None


def test_strength_blends(network: NLRN) -> None:
    image = noisy((10, 12), "float32")
    full = nlrn.denoise(image, 25, model=network)
    half = nlrn.denoise(image, 25, model=network, strength=0.5)
    np.testing.assert_allclose(half, (full + image) / 2, atol=1e-6)
    for same in (
        nlrn.denoise(image, 25, model=network, strength=0),
        nlrn.denoise(image, 0, model=network),
    ):
        assert np.array_equal(same, image) and not np.shares_memory(same, image)


def test_float_values_outside_the_range_are_kept(network: NLRN) -> None:
    image = noisy((10, 12), "float32") * 3 - 1
    result = nlrn.denoise(image, 25, model=network)
    assert result.min() < -0.5 and result.max() > 1.15


def test_noise_is_scaled_to_what_the_model_knows(network: NLRN) -> None:
    """A model trained at 25 sees an image of sigma 50 with half the contrast."""
    image = noisy((10, 12), "float32")
    plain = nlrn.denoise(0.5 + (image - 0.5) / 2, 25, model=network)
    network.card = ModelCard(sigma=25.0)
    scaled = nlrn.denoise(image, 50, model=network)
    np.testing.assert_allclose(scaled, 0.5 + (plain - 0.5) * 2, atol=1e-5)


def test_slightly_weaker_noise_is_blown_up(network: NLRN) -> None:
    image = noisy((10, 12), "float32")
    plain = nlrn.denoise(0.5 + (image - 0.5) * 1.15, 25, model=network)
    network.card = ModelCard(sigma=25.0)
    near = nlrn.denoise(image, 25 / 1.15 + 1e-9, model=network)
    np.testing.assert_allclose(near, 0.5 + (plain - 0.5) / 1.15, atol=1e-5)


def test_weak_noise_is_said_and_no_more_is_removed_than_noise(network: NLRN) -> None:
    """Against the definition: what the network took away, times sigma^2 / local energy at most."""
    with torch.no_grad():
        network.conv_out.weight *= 30  # so that it takes away more than such noise
    image = noisy((40, 44), "float32")
    removed = image - nlrn.denoise(image, 25, model=network)
    network.card = ModelCard(sigma=25.0)
    with pytest.warns(UserWarning, match="sigma 1 is weak for this model, made for 25") as caught:
        weak = nlrn.denoise(image, 1, model=network)
    assert caught[0].filename == __file__
    energy = gaussian_filter(removed.astype(float) ** 2, 4, mode="nearest", radius=12)
    share = np.minimum(1, (1 / 255) ** 2 / energy)
    assert share.min() < 0.5
    np.testing.assert_allclose(weak, image - share * removed, atol=1e-5)
    assert nlrn.denoise(image[:1, :1], 20, model=network).shape == (1, 1)


def test_noise_beyond_what_a_model_knows_is_said() -> None:
    image = noisy((12, 16), "float32")
    with pytest.warns(
        UserWarning, match="sigma 90 is more than this model was trained for, up to 75"
    ):
        nlrn.denoise(image, 90, quality="fast")


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "gain"), [(1, 0), (5, 1.5)])
@pytest.mark.filterwarnings("ignore:noise of sigma")
def test_weak_noise_gets_weaker_still(sigma: int, gain: float) -> None:
    """The models of the package never made a picture worse than it was."""
    clean = images.to_float(rgb2gray(skimage.data.astronaut())[40:104, 160:224])
    given = add_noise(clean, sigma, 0, "astronaut").astype(np.float32)
    before, after = (-10 * np.log10(np.mean((x - clean) ** 2))
                     for x in (given, nlrn.denoise(given, sigma)))  # fmt: skip
    assert after > before + gain


def test_sigma_is_estimated_when_not_given(network: NLRN, monkeypatch: pytest.MonkeyPatch) -> None:
    network.card = ModelCard(sigma=25.0)
    image = noisy((32, 40), "float32")
    level = nlrn.estimate_sigma(image)
    automatic = nlrn.denoise(image, model=network)
    np.testing.assert_array_equal(automatic, nlrn.denoise(image, level, model=network))


def test_paths_of_images_and_models(network: NLRN, tmp_path: Path) -> None:
    image = noisy((10, 12, 3), "uint8")
    images.write(tmp_path / "a.png", images.Image(image))
    network.save_pretrained(tmp_path / "m.safetensors")
    result = nlrn.denoise(tmp_path / "a.png", 25, model=tmp_path / "m.safetensors")
    assert np.array_equal(result, nlrn.denoise(image, 25, model=network))


def test_settings_reach_the_network(network: NLRN) -> None:
    image = noisy((40, 44), "float32")
    whole = nlrn.denoise(image, 25, model=network)
    tiled = nlrn.denoise(image, 25, model=network, settings=Settings(tile=16, exact=True))
    np.testing.assert_allclose(tiled, whole, atol=1e-5)
    half = nlrn.denoise(image, 25, model=network, settings=Settings(dtype="bf16"))
    assert 0 < np.abs(half - whole).max() < 0.01
    views = nlrn.denoise(image, 25, model=network, settings=Settings(views=8))
    assert np.abs(views - whole).max() > 1e-6


def test_quality_and_channels_choose_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*names: str) -> None:
        cards = {"s25": ModelCard("s25", task="denoise", sigma=25.0)} | {
            name: ModelCard(name, task="denoise", channels=3 if "rgb" in name else 1,
                            sigma_range=(0.0, 75.0)) for name in names
        }  # fmt: skip
        found = {name: Published(card, "", "") for name, card in cards.items()}
        monkeypatch.setattr(weights, "manifest", lambda: found)

    listed("rgb-fast", "rgb", "gray")
    assert choose_denoiser(3) == ("rgb", 1) and choose_denoiser(3, "best") == ("rgb", 8)
    assert choose_denoiser(3, "fast") == ("rgb-fast", 1)
    assert choose_denoiser(1) == choose_denoiser(1, "fast") == ("gray", 1)
    assert choose_denoiser(1, "best") == ("gray", 8)
    with pytest.raises(ValueError, match="quality must be one of fast, balanced, best, got 'ok'"):
        nlrn.denoise(noisy((5, 6), "uint8"), 25, quality="ok")
    with pytest.raises(ValueError, match="quality is for method nlrn, not for nlm"):
        nlrn.denoise(noisy((5, 6), "uint8"), 25, quality="fast", method="nlm")
    with pytest.raises(ValueError, match="quality chooses a model: it means nothing beside one"):
        nlrn.denoise(noisy((5, 6), "uint8"), 25, quality="fast", model="denoise-gray-s25")
    with pytest.raises(ValueError, match="quality chooses a model"):
        Denoiser("denoise-gray-s25", quality="best")


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [20, 35, 60])
def test_between_the_levels_it_beats_the_next_model_as_it_is(sigma: int) -> None:
    """On a photograph, against each neighbour in the package without scaling the contrast."""
    clean = images.to_float(rgb2gray(skimage.data.astronaut())[40:104, 160:224])
    given = add_noise(clean, sigma, 0, "astronaut").astype(np.float32)
    levels = sorted(card.sigma for card in weights.list_models() if card.sigma is not None)
    naive = {max((s for s in levels if s < sigma), default=None),
             min((s for s in levels if s > sigma), default=None)} - {None}  # fmt: skip

    def error(result: np.ndarray) -> float:
        return float(np.mean((result.clip(0, 1) - clean) ** 2))

    ours = error(nlrn.denoise(given, sigma))
    assert naive
    for level in naive:
        assert ours < 0.95 * error(nlrn.denoise(given, level, model=f"denoise-gray-s{level:g}"))


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (np.zeros((3, 4, 5), np.uint8), {}, r"got \(3, 4, 5\)"),
        (np.zeros((0, 4), np.uint8), {}, r"got \(0, 4\)"),
        (np.zeros((3, 4), np.int32), {}, "got int32"),
        (np.full((3, 4), np.nan), {}, "NaN or infinite"),
        ([[1, 2]], {}, "or a path, got list"),
        (np.zeros((3, 4), np.uint8), {"sigma": -1}, "sigma must be 0 or more.*got -1"),
        (np.zeros((3, 4), np.uint8), {"sigma": float("nan")}, "sigma must be 0 or more"),
        (np.zeros((3, 4), np.uint8), {"sigma": 1000}, "at most 255, got 1000"),
        (np.zeros((3, 4), np.uint8), {"sigma": "auto"}, "a number, 'map', or None .*got 'auto'"),
        (np.zeros((3, 4), np.uint8), {"sigma": np.ones((3, 4))}, "a number, .*got ndarray"),
        (np.random.default_rng(0).normal(9, 5, (30, 30)), {"sigma": None}, "to be in .0, 1."),
        (np.zeros((3, 4), np.uint8), {"strength": 1.5}, "strength must be between 0 and 1"),
        (np.zeros((3, 4), np.uint8), {"model": "nope"}, "nope: neither a file nor a model"),
    ],
    ids=lambda value: str(value)[:20].replace("\n", ""),
)
def test_bad_arguments_are_named(
    network: NLRN, image: np.ndarray, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        nlrn.denoise(image, **({"sigma": 25, "model": network} | options))


@pytest.mark.parametrize("method", classic.METHODS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((12, 17), "uint16"), ((9, 14, 3), "float64"), ((11, 7, 4), "uint8")]
)
def test_classic_methods_keep_shape_type_and_alpha(
    method: str, shape: tuple[int, ...], dtype: str
) -> None:
    image = noisy(shape, dtype)
    before = image.copy()
    told: list[tuple[int, int]] = []
    result = nlrn.denoise(image, 25, method=method, progress=lambda *done: told.append(done))
    assert result.shape == image.shape and result.dtype == image.dtype
    assert np.array_equal(image, before) and not np.array_equal(result, image)
    colours = (..., slice(0, 3)) if len(shape) == 3 else ...
    expected = classic.METHODS[method](np.ascontiguousarray(image[colours]), 25)
    np.testing.assert_array_equal(result[colours], expected)
    if shape[2:] == (4,):
        assert np.array_equal(result[..., 3], image[..., 3])
    assert told[-1][0] == told[-1][1] > 0


def test_strength_and_sigma_of_classic_methods() -> None:
    image = noisy((30, 34), "float32")
    full = nlrn.denoise(image, 25, method="nlm")
    half = nlrn.denoise(image, 25, method="nlm", strength=0.5)
    np.testing.assert_allclose(half, (full + image) / 2, atol=1e-6)
    assert np.array_equal(nlrn.denoise(image, 0, method="nlm"), image)
    automatic = nlrn.denoise(image, method="nlm")
    level = nlrn.estimate_sigma(image)
    np.testing.assert_array_equal(automatic, nlrn.denoise(image, level, method="nlm"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "median"}, "method must be one of nlrn, nlm, bm3d, wnnm.*got 'median'"),
        ({"method": "bm3d", "model": "x"}, "model is for method nlrn, not for bm3d"),
        ({"method": "nlm", "settings": Settings(tile=64)}, "tile is for method nlrn, not for nlm"),
        ({"method": "nlm", "settings": Settings(views=8)}, "views is for method nlrn"),
        ({"method": "nlm", "settings": Settings(dtype="bf16")}, "dtype is for method nlrn"),
        ({"method": "nlm", "strength": 2}, "strength must be between 0 and 1, got 2"),
    ],
)
def test_what_a_classic_method_cannot_take_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nlrn.denoise(noisy((9, 9), "uint8"), 25, **options)


def test_without_memory_for_a_tile_a_classic_method_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classic, "free_memory", lambda device: 2**20)
    with pytest.raises(ValueError, match="wnnm needs 287 MiB at least, it may take 0 MiB"):
        nlrn.denoise(noisy((50, 60), "uint8"), 25, method="wnnm")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nlm", "bm3d"])
@pytest.mark.parametrize("colour", [(), (3,)], ids=["gray", "colour"])
def test_classic_methods_work_in_tiles_where_memory_is_short(
    method: str, colour: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph = skimage.data.astronaut()[40:240, 100:310] / 255
    clean = photograph if colour else photograph.mean(-1)
    given = clean + np.random.default_rng(0).normal(0, 25 / 255, clean.shape)
    whole = nlrn.denoise(given, 25, method=method)
    side = 60 + 2 * classic.HALO[method]
    memory = 2 * classic.MEMORY[method] * side**2
    monkeypatch.setattr(classic, "free_memory", lambda device: memory)
    told: list[tuple[int, int]] = []
    tiled = nlrn.denoise(given, 25, method=method, progress=lambda *step: told.append(step))
    assert told[-1][0] == told[-1][1]
    assert told == sorted(told)
    assert len({total for _, total in told}) <= 2
    if method == "nlm":
        np.testing.assert_allclose(tiled, whole, rtol=0, atol=1e-6)
    else:  # its reference patches stand elsewhere: another result, as good
        errors = [np.square(result - clean).mean() for result in (tiled, whole)]
        assert errors[0] == pytest.approx(errors[1], rel=0.01)
        assert np.abs(tiled - whole).mean() < 0.5 / 255


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="dtype must be one of fp32, bf16, got 'fp8'"):
        Settings(dtype="fp8")
    with pytest.raises(ValueError, match="memory must be a number of bytes, got -1"):
        Settings(memory=-1)


@pytest.mark.parametrize("level", [0, 128, 255])
@pytest.mark.parametrize("sigma", [15, 25, 50])
def test_what_does_not_vary_stays_as_it_is(level: int, sigma: float) -> None:
    """White paper stays white: the networks of one level alone would take a level or two off it."""
    page = np.full((23, 31), level, np.uint8)
    np.testing.assert_array_equal(nlrn.denoise(page, sigma), page)
    page[:9, :9] = np.random.default_rng(0).integers(0, 256, (9, 9))
    after = nlrn.denoise(page, sigma)
    assert (after[14:, 14:] == level).all() and (after[:9, :9] != page[:9, :9]).any()


def test_gray_that_is_stored_as_color_stays_gray() -> None:
    gray = np.random.default_rng(0).integers(0, 256, (12, 15), dtype=np.uint8)
    color = np.repeat(gray[..., None], 3, 2)
    denoiser = Denoiser()
    alone = denoiser.restore(Image(gray), 25)
    threefold = denoiser.restore(Image(color), 25)
    assert threefold.facts["model"] == alone.facts["model"]
    assert np.array_equal(threefold.image.pixels, np.repeat(alone.image.pixels[..., None], 3, 2))


def test_color_through_a_gray_model_is_told() -> None:
    color = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    denoiser = Denoiser("denoise-gray-fast")
    restored = denoiser.restore(Image(color), 25)
    assert restored.facts["by_channel"]
    for c in range(3):
        channel = denoiser.restore(Image(color[..., c]), 25)
        assert "by_channel" not in channel.facts
        off = channel.image.pixels.astype(int) - restored.image.pixels[..., c]
        assert np.abs(off).max() <= 1
