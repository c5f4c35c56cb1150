"""Networks that enlarge: the bicubic image that they add to, their factors, their training."""

from __future__ import annotations

import contextlib
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from training_runs import RUNTIME

import nlrn
from nlrn import datasets, degrade, images, models, training, weights
from nlrn.bench import run as bench
from nlrn.degrade import imresize, mod_crop
from nlrn.images import Image
from nlrn.inference import Settings
from nlrn.inference.overlap import restore_patches
from nlrn.inference.tiles import Tile
from nlrn.models.bicubic import enlarge
from nlrn.models.nlrn_sr import (
    SuperResolutionConfig,
    SuperResolutionNLRN,
    random_super_resolution,
)
from nlrn.restoration import Denoiser, Upscaler
from nlrn.restoration.choice import QUALITIES, choose_upscaler
from nlrn.training.batches import repetition
from nlrn.training.config_tables import Data
from nlrn.training.pairs import PairSampler, shrunk
from nlrn.training.parsing import TrainingError
from nlrn.training.report import read_metrics
from nlrn.training.validate import Validation
from nlrn.weights import ModelCard

CPU = torch.device("cpu")
TINY = SuperResolutionConfig(steps=2, channels=4, embed=2, window=5)


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 2), (9, 14)], ids=str)
@pytest.mark.parametrize("scale", [1, 2, 3, 4])
def test_bicubic_is_that_of_matlab(scale: int, size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).random((*size, 3))
    batch = torch.from_numpy(image).permute(2, 0, 1)[None].repeat(2, 1, 1, 1)
    expected = imresize(image, scale)
    for one in enlarge(batch, scale):
        np.testing.assert_allclose(one.permute(1, 2, 0), expected, atol=1e-12)
    single = enlarge(batch.float(), scale)[0].permute(1, 2, 0)
    np.testing.assert_allclose(single, expected, atol=1e-5)


def test_gradients_pass_through_bicubic_also_after_inference() -> None:
    with torch.inference_mode():
        enlarge(torch.rand(1, 1, 3, 4, dtype=torch.float64), 3)
    x = torch.rand(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: enlarge(x, 3), (x,))


def test_an_untrained_network_is_bicubic_and_knows_its_factors() -> None:
    network = models.build("nlrn-sr", {"steps": 2, "channels": 4, "window": 5, "factors": [2, 4]})
    x = torch.rand(1, 3, 6, 7)
    for scale in (2, 4):
        assert torch.equal(network.with_scale(scale)(x), enlarge(x, scale))
    assert (network.scale, network.factors, network.card.task) == (2, (2, 4), "sr")
    with pytest.raises(ValueError, match="nlrn-sr enlarges by 2, 4, got 3"):
        network.with_scale(3)
    with pytest.raises(ValueError, match="nlrn enlarges by nothing, got 2"):
        models.build("nlrn", {}).with_scale(2)
    with pytest.raises(ValueError, match=r"factors must be whole numbers of 2..8, got \[1\]"):
        SuperResolutionConfig(factors=(1,))
    with pytest.raises(ValueError, match="results of the size of the image"):
        restore_patches(network, x)


def test_factors_share_all_but_the_last_convolution() -> None:
    network = random_super_resolution(TINY)
    with torch.no_grad():
        before = {s: network.with_scale(s)(torch.ones(1, 3, 5, 6) * 0.3) for s in (2, 3, 4)}
        network.tails["x3"].bias.add_(1.0)  # type: ignore[operator]
        after = {s: network.with_scale(s)(torch.ones(1, 3, 5, 6) * 0.3) for s in (2, 3, 4)}
    assert torch.equal(before[2], after[2]) and torch.equal(before[4], after[4])
    torch.testing.assert_close(after[3], before[3] + 1)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_small_images_are_those_of_imresize(factor: int) -> None:
    rng = np.random.default_rng(1)
    for shape in ((37, 53, 3), (20, 17)):
        image = rng.integers(0, 256, shape, dtype=np.uint8)
        expected = np.atleast_3d(imresize(mod_crop(image, factor), 1 / factor))
        small = shrunk(image, factor, CPU).permute(1, 2, 0)
        assert np.array_equal(small, expected)


def waves(height: int, width: int) -> np.ndarray:
    """A smooth color image that looks different every way round."""
    y, x = np.mgrid[:height, :width] / 24.0
    planes = [np.sin(x + y * y / 2), np.cos(2 * y), np.sin(x * y / 3 + 1)]
    return (127 + 120 * np.stack(planes, 2)).astype(np.uint8)


def test_patches_are_pairs_of_the_same_place_and_way_round() -> None:
    images = [waves(61, 83), waves(90, 50), waves(9, 9)]
    sampler = PairSampler(images, CPU, Data(task="sr", channels=3, factors=(2, 3, 4)), seed=0)
    for step, factor in enumerate((2, 3, 4)):
        low, clean, sigma = sampler.batch(step, 40, 10)
        assert low.shape == (40, 3, 10, 10) and clean.shape == (40, 3, 10 * factor, 10 * factor)
        assert not sigma.any()
        inside = (..., slice(4, -4), slice(4, -4))
        errors = [
            (enlarge(one, factor) - clean)[inside].abs().mean() for one in (low, low.flip(-1))
        ]
        assert errors[0] < 0.004 and errors[1] > 5 * errors[0]
    again = sampler.batch(1, 40, 10, slice(7, 12))
    assert torch.equal(again.clean, sampler.batch(1, 40, 10).clean[7:12])
    twice = PairSampler(images, CPU, Data(task="sr", channels=3, factors=(2, 2, 3)), seed=0)
    assert [twice.batch(step, 1, 10).clean.shape[-1] for step in range(4)] == [20, 20, 30, 20]
    with pytest.raises(TrainingError, match="shrunk by 4 has room for patches of 30"):
        sampler.batch(2, 4, 30)


def test_a_share_of_the_pairs_repeats_itself() -> None:
    rng = np.random.default_rng(0)
    tile = rng.integers(0, 256, (18, 18, 3), dtype=np.uint8)
    noise = [rng.integers(0, 256, (80, 80, 3), dtype=np.uint8) for _ in range(5)]
    images = [np.tile(tile, (5, 5, 1)), *noise]  # every sixth pair repeats itself
    data = Data(task="sr", channels=3, factors=(2,), self_similar_fraction=0.25)
    pairs = PairSampler(images, CPU, data, seed=0)
    low, clean, _ = pairs.batch(3, 400, 32)
    repeats = repetition(low.mean(1)) > 0.01
    assert 0.72 < repeats[:100].float().mean() < 0.82  # 1 - (5/6)**8 is 0.77
    assert 0.10 < repeats[100:].float().mean() < 0.23
    assert torch.equal(pairs.batch(3, 400, 32, slice(90, 110)).clean, clean[90:110])


CONFIG = (
    "name = 'larger'\n[model]\narchitecture = 'nlrn-sr'\nsteps = 2\nchannels = 8\nembed = 4\n"
    "window = 5\n[data]\ntask = 'sr'\ntrain = ['bsds500/train']\nvalidation = 'bsds500/test'\n"
    "channels = {channels}\nsigma = 8\ncrop = 24\nvalidation_images = 2\nscales = [1.0]\n"
    "{more}[optimizer]\nmethod = 'muon'\nloss_balance = 0.5\n"
)


def write_config(path: Path, steps: int = 30, channels: int = 3, more: str = "") -> Path:
    runtime = RUNTIME.format(log_every=15, save=60.0, tensorboard="false")
    stage = f"[[stages]]\nsteps = {steps}\nlr = 3e-3\nbatch = 4\npatch = 8\n"
    path.write_text(CONFIG.format(channels=channels, more=more) + runtime + stage)
    return path


def test_a_network_that_enlarges_is_trained_validated_and_described(
    root: Path, tmp_path: Path
) -> None:
    folder = training.run(write_config(tmp_path / "c.toml"), data_root=root, out=tmp_path / "out")
    network = models.load(folder / "weights.safetensors")
    card = network.card
    assert (card.task, card.channels, card.factors) == ("sr", 3, (2, 3, 4))
    assert (card.sigma, card.training_sets) == (None, ("bsds500/train",))
    entries = list(read_metrics(folder / "metrics.jsonl"))
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[-1] < losses[0]
    last = entries[-1]
    assert last["psnr_x2"] > last["psnr_x3"] > last["psnr_x4"]
    assert last["psnr"] == pytest.approx(sum(last[f"psnr_x{f}"] for f in (2, 3, 4)) / 3)
    with Pillow.open(folder / "validation.png") as picture:
        assert picture.size == (3 * 24, 24) and picture.mode == "RGB"


@pytest.mark.parametrize(
    ("more", "channels", "message"),
    [
        ("factors = [2, 5]\n", 3, r"factors must be the network's, got \[2, 5\]"),
        ("full_range = 0.5\n", 3, "full_range is not for networks that enlarge"),
        ("", 1, "takes 3 channels and gives 3"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    more: str, channels: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=message):
        training.config.load(write_config(tmp_path / "c.toml", channels=channels, more=more))


def test_networks_that_do_not_enlarge_take_no_color_for_it(tmp_path: Path) -> None:
    path = write_config(tmp_path / "c.toml")
    text = (
        path.read_text()
        .replace("'nlrn-sr'", "'nlrn'")
        .replace("window", "in_channels = 3\nout_channels = 3\nwindow")
    )
    path.write_text(text)
    with pytest.raises(TrainingError, match="'sr' in color is for networks that enlarge"):
        training.config.load(path)


def larger(seed: int = 0, channels: int = 3) -> SuperResolutionNLRN:
    """A network that changes something visibly, and adds color where there is none."""
    network = random_super_resolution(replace(TINY, in_channels=channels), seed)
    with torch.no_grad():
        for tail in network.tails.values():
            tail.weight.mul_(40)  # type: ignore[operator]
    return network


@pytest.mark.parametrize("scale", [1.3, 2, 2.5, 3, 4])
def test_any_scale_is_reached_through_the_next_factor(scale: float) -> None:
    network, pixels = larger(), np.random.default_rng(2).random((7, 10, 3), np.float32)
    result = Upscaler(scale, network).restore(Image(pixels))
    factor = next(f for f in (2, 3, 4) if f >= scale)
    with torch.no_grad():
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        expected = network.with_scale(factor)(batch)[0].permute(1, 2, 0).numpy()
    size = (math.ceil(7 * scale), math.ceil(10 * scale))
    if factor != scale:
        expected = imresize(expected, size=size)
    assert result.image.pixels.shape == (*size, 3)
    np.testing.assert_allclose(result.image.pixels, expected, atol=1e-5)
    assert result.facts == {"scale": scale, "model": "unnamed"}


@pytest.mark.parametrize("channels", [1, 3])
def test_gray_stays_gray_and_white_stays_white(channels: int) -> None:
    upscaler = Upscaler(3, larger(channels=channels))
    gray = np.random.default_rng(3).integers(0, 256, (9, 12), dtype=np.uint8)
    gray[:, 6:] = 255
    alone = upscaler.restore(Image(gray)).image.pixels
    assert alone.shape == (27, 36) and (alone[:, 28:] == 255).all()
    assert not np.array_equal(alone, imresize(gray, 3))
    threefold = upscaler.restore(Image(np.repeat(gray[..., None], 3, 2))).image.pixels
    assert np.array_equal(threefold, np.repeat(alone[..., None], 3, 2))


def test_nothing_comes_from_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is near in the image bounds values and changes of color, as loops over pixels say."""
    rng, network = np.random.default_rng(6), larger().with_scale(2)
    pixels = np.repeat(rng.random((11, 14, 1), np.float32), 3, 2)
    pixels[:, 9:] += 0.02 * rng.random((11, 5, 3), np.float32)
    pixels[:6, :6] = 0.7
    pixels[2, 2] = 0.69
    pixels = pixels.clip(0, 1)
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    smooth, free = enlarge(batch, 2)[0].numpy(), network(batch)[0].detach().numpy()
    recolored, expected = np.empty_like(free), np.empty_like(free)
    for y, x in np.ndindex(22, 28):

        def near(reach: int, y: int = y // 2, x: int = x // 2) -> np.ndarray:
            return pixels[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]

        most = float(np.ptp(near(2), axis=2).max())
        change = free[:, y, x] - smooth[:, y, x]
        color = change - change.mean()
        color *= min(1, most / max(float(np.abs(color).max()), 1e-9))
        recolored[:, y, x] = smooth[:, y, x] + change.mean() + color
        low, high = near(1).min((0, 1)), near(1).max((0, 1))
        bounds = low - 2 * (high - low), high + 2 * (high - low)
        expected[:, y, x] = recolored[:, y, x].clip(*bounds)
    assert np.abs(recolored - free).max() > 0.01 and np.abs(expected - recolored).max() > 0.01
    for rows in (3, 64):
        monkeypatch.setattr("nlrn.restoration.upscaler.BAND", rows)
        result = Upscaler(2, network).restore(Image(pixels)).image.pixels
        np.testing.assert_allclose(result, expected.transpose(1, 2, 0), atol=1e-5)
        assert np.ptp(result[:, :14], axis=2).max() < 1e-5  # gray up to two pixels from color


def test_opacity_depth_and_color_are_kept() -> None:
    rng = np.random.default_rng(4)
    pixels = rng.integers(0, 65536, (8, 9, 3), dtype=np.uint16)
    alpha = np.zeros((8, 9), np.uint16)
    alpha[2:6, 2:7] = 65535
    upscaler = Upscaler(2, larger())
    enlarged = upscaler.restore(Image(pixels, alpha)).image
    assert enlarged.pixels.dtype == np.uint16 and enlarged.alpha is not None
    opacity = imresize(alpha / 65535, 2).clip(0, 1)
    np.testing.assert_allclose(enlarged.alpha / 65535, opacity, atol=1e-4)
    hidden = pixels.copy()
    hidden[alpha == 0] = 12345  # what does not show makes no difference
    again = upscaler.restore(Image(hidden, alpha)).image
    assert np.array_equal(again.pixels, enlarged.pixels)


def test_upscalers_of_networks_that_enlarge_are_copied_and_take_tensors() -> None:
    upscaler = Upscaler(4, larger(), settings=Settings(tile=16, exact=True))
    x = torch.rand(2, 3, 20, 45)
    expected = Upscaler(4, larger())(x)
    for one in (upscaler, pickle.loads(pickle.dumps(upscaler))):
        torch.testing.assert_close(one(x), expected, rtol=0, atol=1e-5)


def test_noise_is_removed_first_if_asked() -> None:
    noisy = degrade.add_noise(waves(40, 52) / 255, 15, 0, "waves").astype(np.float32)
    plain, cleaned = (
        Upscaler(2, larger(), denoise=denoise).restore(Image(noisy)) for denoise in (False, True)
    )
    assert "sigma" not in plain.facts and 10 < cleaned.facts["sigma"] < 20
    before = Denoiser().restore(Image(noisy)).image
    expected = Upscaler(2, larger()).restore(before).image.pixels
    assert np.array_equal(cleaned.image.pixels, expected)


def test_a_run_in_half_precision_learns_beside_the_exact_bicubic_image() -> None:
    """bfloat16 has steps of a level above one half: networks learned to be as far off."""
    network, image = SuperResolutionNLRN(replace(TINY, in_channels=3)), torch.rand(1, 3, 6, 7)
    expected = enlarge(image, network.scale)
    with torch.autocast("cpu", torch.bfloat16):
        restored = network(image, non_local=False)  # an untrained tail adds nothing
    assert restored.dtype == torch.float32 and torch.equal(restored, expected)


@pytest.mark.parametrize("model", ["sr-rgb-fast", "sr-y"])
def test_what_rounding_leaves_makes_no_picture_larger(model: str) -> None:
    result = nlrn.upscale(np.zeros((10, 20, 3), np.uint8), 1.1, model=model)  # 1.1 * 10 > 11
    assert result.shape == (11, 22, 3)


def test_the_model_is_chosen_by_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        ModelCard("sr-y", task="sr"),
        ModelCard("sr-rgb", "nlrn-sr", "sr", 3),
        ModelCard("sr-rgb-fast", "nlrn-sr", "sr", 3),
    ]
    monkeypatch.setattr(weights, "list_models", lambda: cards)
    found = {quality: choose_upscaler(quality) for quality in QUALITIES}
    assert found == {"fast": ("sr-rgb-fast", 1), "balanced": ("sr-rgb", 1), "best": ("sr-rgb", 8)}
    monkeypatch.setattr(weights, "list_models", lambda: cards[:1])
    assert {choose_upscaler(quality).model for quality in QUALITIES} == {"sr-y"}
    with pytest.raises(ValueError, match="quality chooses a model"):
        Upscaler(2, larger(), quality="best")


def test_a_network_that_enlarges_is_no_denoiser() -> None:
    with pytest.raises(ValueError, match="a model for super-resolution, not for denoising"):
        Denoiser(larger())


def test_a_tile_of_a_larger_result_is_scaled_in_all_its_parts() -> None:
    tile = Tile((slice(4, 9), slice(0, 7)), (slice(1, 12), slice(0, 10)), blend=2)
    assert tile.scaled(3) == Tile(
        (slice(12, 27), slice(0, 21)), (slice(3, 36), slice(0, 30)), blend=6
    )


def test_validation_measures_luminance_without_a_border_as_tables_do(
    root: Path, tmp_path: Path
) -> None:
    config = training.config.load(write_config(tmp_path / "c.toml"))
    file = root / "bsds500" / "test" / "100007.png"
    validation = Validation(config, [file], CPU)
    found = validation.psnr(config.network().eval(), OneProcess())  # untrained: bicubic
    crop = datasets.center_crop(datasets.read_rgb(file), 24)
    assert crop is not None
    for scale in (2, 3, 4):
        clean, small = bench.degraded_pair("sr-color", crop, scale, 0, file)
        large = images.from_float(imresize(small, scale), np.uint8)
        expected, _ = bench.score(bench.luminance(large), bench.luminance(clean), border=scale)
        assert found[f"x{scale}"] == pytest.approx(expected, abs=0.02)


class OneProcess:
    """What validation asks of Fabric."""

    def autocast(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()


def test_sizes_are_rounded_up_but_not_for_what_binary_fractions_add() -> None:
    image = np.zeros((3, 100), np.uint8)  # 100 * 1.1 is 110.00000000000001
    assert nlrn.upscale(image, 1.1, quality="fast").shape == (4, 110)
