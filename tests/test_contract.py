"""What every network and every restoration promises, for all of them in one loop."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_networks import RIVALS, rival
from torch import Tensor, nn

import nlrn
from nlrn import images, models
from nlrn.images import Image
from nlrn.inference import Engine, Settings
from nlrn.models import ARCHITECTURES, Network, TrainingMode
from nlrn.models.bicubic import enlarge
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.models.nlrn_residual import ResidualConfig, random_residual
from nlrn.models.nlrn_sr import SuperResolutionConfig, random_super_resolution
from nlrn.restoration import ClassicDenoiser, Denoiser, Upscaler
from nlrn.restoration.classic import METHODS
from nlrn.weights import ModelCard

CPU = torch.device("cpu")
TINY = NLRNConfig(steps=2, channels=8, embed=4, window=5)
RESIDUAL = ResidualConfig(steps=4, channels=8, embed=4, window=5)
ENLARGING = SuperResolutionConfig(steps=4, channels=8, embed=4, window=5, non_local_every=2)
# A small network of each architecture, in the variants that change its input or its result.
SMALL: dict[str, Callable[[], Network]] = {
    "nlrn": lambda: random_network(TINY),
    **{name: functools.partial(rival, name) for name in RIVALS},
    "nlrn-rgb": lambda: random_network(replace(TINY, in_channels=3, out_channels=3)),
    "nlrn-map": lambda: random_network(replace(TINY, noise_map=True)),
    "nlrn-grid": lambda: random_network(
        replace(TINY, in_channels=3, out_channels=3, unshuffle=2, noise_map=True)
    ),
    "nlrn-grid-4": lambda: random_network(replace(TINY, unshuffle=4)),
    "residual": lambda: random_residual(RESIDUAL),
    "residual-rgb": lambda: random_residual(replace(RESIDUAL, in_channels=3, non_local_every=2)),
    "residual-limit": lambda: random_residual(replace(RESIDUAL, embed_limit=0.5)),
    "residual-cells": lambda: random_residual(replace(RESIDUAL, cells=2, unshuffle=1)),
    "residual-plain": lambda: random_residual(replace(RESIDUAL, cells=4, non_local_every=0)),
    "sr": lambda: random_super_resolution(ENLARGING),
    "sr-x3": lambda: random_super_resolution(ENLARGING).with_scale(3),
    "sr-gray": lambda: random_super_resolution(replace(ENLARGING, in_channels=1, factors=(4,))),
}
DENOISING = [name for name in SMALL if not SMALL[name]().factors]
SIZES = [(1, 1), (7, 10), (24, 13)]


def random_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def strong(name: str) -> Network:
    """A network that changes something visibly."""
    network = SMALL[name]()
    if name in RIVALS:
        return network
    with torch.no_grad():
        last = network.tail if network.factors else network.conv_out
        last.weight.mul_(50)  # type: ignore[operator, union-attr]
    return network


def test_every_architecture_is_in_the_loop() -> None:
    assert {SMALL[name]().architecture for name in SMALL} == set(ARCHITECTURES)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_networks_take_any_size_and_are_prepared_for_inference(
    name: str, size: tuple[int, int]
) -> None:
    if size == (1, 1) and name in ("tnrd", "nlnet"):
        pytest.skip("filters without mean leave a single pixel as it is")
    network = strong(name)
    image = random_images(2, network.in_channels, *size)
    given = network.input_for(image, torch.tensor([0.1, 0.2]))
    with torch.no_grad():
        expected = network.double()(given.double())
    larger = [network.scale * side for side in size]
    assert expected.shape == (2, network.out_channels, *larger)
    assert not torch.equal(expected.float(), enlarge(image, network.scale))
    seen: list[None] = []
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        prepared = network.to(dtype).for_inference(dtype, CPU)
        assert isinstance(prepared, nn.Module)
        result = prepared(given.to(dtype), lambda: seen.append(None))
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)
    assert len(seen) == 2 * network.steps


@pytest.mark.parametrize("name", SMALL)
def test_networks_train_through_the_contract(name: str) -> None:
    network = SMALL[name]().train()
    image = random_images(2, network.in_channels, 12, 16)
    for mode in (TrainingMode(), TrainingMode(non_local=False), TrainingMode(backend="dense")):
        network.zero_grad()
        forward = network.for_training(mode)
        forward(network.input_for(image, 0.1)).square().mean().backward()
        used = [p for p in network.parameters() if p.grad is not None]
        assert used and all(p.grad.isfinite().all() for p in used)  # type: ignore[union-attr]
    parameters = {id(p) for p in network.parameters()}
    assert all(id(p) in parameters and p.ndim > 1 for p in network.matrices())
    assert all(isinstance(module, nn.Module) for module in network.repeated_modules())


@pytest.mark.parametrize("name", SMALL)
def test_shared_weights_that_are_cast_once_learn_the_same(name: str) -> None:
    network = strong(name).train()
    image = network.input_for(random_images(2, network.in_channels, 12, 16), 0.1)
    grads = []
    for dtype in (None, torch.float32):
        network.zero_grad()
        network.for_training(TrainingMode(dtype=dtype))(image).square().mean().backward()
        # the tails of other factors have none
        grads.append({n: p.grad for n, p in network.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for key, grad in grads[0].items():
        torch.testing.assert_close(grads[1][key], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_networks_say_what_they_need(name: str) -> None:
    network = SMALL[name]()
    memory = [network.memory(side, 2 * side, torch.float32, CPU) for side in (16, 64)]
    assert 0 < memory[0] < memory[1]
    assert network.halo >= network.multiple and network.flop_per_pixel > 0
    assert all(count > 0 for count in network.counts().values())


@pytest.mark.parametrize("name", SMALL)
def test_exact_tiles_equal_the_whole_image(name: str) -> None:
    network = strong(name)
    image = network.input_for(random_images(1, network.in_channels, 75, 58), 0.1)
    whole = Engine(network, Settings(tile=0))(image)
    tiled = Engine(network, Settings(tile=17, exact=True))(image)
    torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-5)
    views = Engine(network, Settings(tile=0, views=3))(image)
    assert (views - whole).abs().max() > 1e-6


@pytest.mark.parametrize("name", SMALL)
def test_the_halo_is_how_far_a_network_looks(name: str) -> None:
    network = strong(name).double()
    halo, width = network.halo, 2 * network.halo + 8
    image = random_images(1, network.in_channels, 1, width).double()
    base = network(network.input_for(image, 0.1))
    for column in range(network.multiple):
        other = image.clone()
        other[..., column + halo + 1 :] += 0.5
        moved = network(network.input_for(other, 0.1))
        near = slice(
            0, (column + 1) * network.scale
        )  # but for the rounding of what all keys have in common
        torch.testing.assert_close(moved[..., near], base[..., near], rtol=0, atol=1e-14)
    other = image.clone()
    other[..., 1:] += 0.5
    moved = network(network.input_for(other, 0.1))
    assert (moved - base)[..., 0].abs().max() > 1e-12


@pytest.mark.parametrize("name", SMALL)
def test_networks_are_saved_with_their_cards(name: str, tmp_path: Path) -> None:
    network, path = SMALL[name](), tmp_path / "n.safetensors"
    card = ModelCard(
        "n", network.architecture, "denoise", network.in_channels, sigma_range=(0.0, 75.0)
    )
    network.save_pretrained(path, card)
    again = models.load(path).with_scale(network.scale)
    assert type(again) is type(network) and again.card == card and again.config == network.config
    image = network.input_for(random_images(1, network.in_channels, 9, 12), 0.1)
    with torch.no_grad():
        assert torch.equal(again(image), network(image))


def denoisers() -> dict[str, Denoiser | ClassicDenoiser]:
    made: dict[str, Denoiser | ClassicDenoiser] = {
        name: Denoiser(strong(name)) for name in DENOISING
    }
    made |= {method: ClassicDenoiser(method) for method in METHODS}
    return made | {"auto": Denoiser()}


DENOISERS = list(denoisers())


@pytest.fixture(params=DENOISERS)
def denoiser(request: pytest.FixtureRequest) -> Denoiser | ClassicDenoiser:
    return denoisers()[request.param]


@pytest.mark.filterwarnings("ignore:noise of sigma")
@pytest.mark.parametrize("channels", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_denoisers_keep_shape_dtype_and_device(
    denoiser: Denoiser | ClassicDenoiser, channels: int
) -> None:
    for dtype, size in ((torch.float32, (9, 14)), (torch.float64, (16, 7))):
        x = random_images(2, channels, *size).to(dtype)
        before = x.clone()
        result = denoiser(x, 0.1)
        assert result.shape == x.shape and result.dtype == dtype and result.device == x.device
        assert torch.equal(x, before) and not torch.equal(result, x)
        assert not result.is_inference()
        each = denoiser(x, torch.tensor([0.1, 0.2]))
        torch.testing.assert_close(each[:1], result[:1], rtol=0, atol=1e-5)
        torch.testing.assert_close(each[1:], denoiser(x[1:], 0.2), rtol=0, atol=1e-5)
        assert torch.equal(denoiser(x, 0), x)


def test_denoisers_can_be_pickled_and_copied(denoiser: Denoiser | ClassicDenoiser) -> None:
    x = random_images(1, 1, 11, 8)
    expected = denoiser(x, 0.1)  # what was prepared for this call stays behind
    for again in (pickle.loads(pickle.dumps(denoiser)), copy.deepcopy(denoiser)):
        assert torch.equal(again(x, 0.1), expected)


def test_models_of_the_package_are_pickled_by_name() -> None:
    denoiser = Denoiser("denoise-gray-s25")
    denoiser(random_images(1, 1, 6, 7), 0.1)
    assert len(pickle.dumps(denoiser)) < 2000
    upscaler = Upscaler(2)
    upscaler(random_images(1, 1, 4, 5))
    assert len(pickle.dumps(upscaler)) < 2000


@pytest.mark.filterwarnings("ignore:noise of sigma")
def test_denoisers_do_the_same_to_images(denoiser: Denoiser | ClassicDenoiser) -> None:
    pixels = random_images(10, 13, 3).numpy()
    alpha = random_images(10, 13, seed=1).numpy()
    restored = denoiser.restore(Image(pixels, alpha), 25.5)
    assert restored.facts["sigma"] == 25.5
    assert restored.image.alpha is not None and np.array_equal(restored.image.alpha, alpha)
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    expected = denoiser(x, 0.1)[0].permute(1, 2, 0)
    np.testing.assert_allclose(restored.image.pixels, expected, atol=1e-5)
    half = denoiser.restore(Image(pixels), 25.5, strength=0.5).image.pixels
    np.testing.assert_allclose(half, (restored.image.pixels + pixels) / 2, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "sigma", "message"),
    [
        (torch.zeros(5, 6), 0.1, r"x must be \[B, 1, H, W\] or \[B, 3, H, W\], got \(5, 6\)"),
        (torch.zeros(1, 2, 5, 6), 0.1, r"got \(1, 2, 5, 6\)"),
        (torch.zeros(1, 1, 0, 6), 0.1, r"x is empty: \(1, 1, 0, 6\)"),
        (torch.full((1, 1, 5, 6), 128.0), 0.1, r"x is to be in \[0, 1\], got values up to 128"),
        (torch.full((1, 3, 5, 6), 255.0), None, r"x is to be in \[0, 1\], got values up to 255"),
        (torch.zeros(1, 1, 5, 6), True, r"sigma must be a number or a tensor \[B\], got True"),
        (torch.zeros(2, 1, 5, 6), torch.zeros(5, 6), r"a map \[B, 1, H, W\].*got \(5, 6\)"),
        (torch.zeros(1, 1, 5, 6, dtype=torch.uint8), 0.1, "got torch.uint8"),
        (torch.zeros(1, 1, 5, 6).to_sparse(), 0.1, "a dense tensor with values, got a sparse_coo"),
        (torch.zeros(1, 1, 5, 6, device="meta"), 0.1, "a dense tensor with values, got a meta one"),
        (np.zeros((1, 1, 5, 6)), 0.1, "x must be a tensor"),
        (torch.zeros(1, 1, 5, 6), -0.1, "sigma must be between 0 and 1, in the units of x"),
        (torch.zeros(1, 1, 5, 6), float("nan"), "got nan"),
        (torch.zeros(1, 1, 5, 6), "much", r"sigma must be a number or a tensor \[B\], got 'much'"),
        (torch.zeros(1, 1, 5, 6), 25, r"25 of 255 is 0.098\), got 25"),
        (torch.full((1, 1, 5, 6), float("nan")), 0.1, "x has NaN or infinite values"),
        (torch.zeros(3, 1, 5, 6), torch.tensor([0.1, 0.2]), "one for each of 3, got 2"),
    ],
    ids=lambda value: str(value)[:24].replace("\n", ""),
)
def test_bad_input_is_named(
    denoiser: Denoiser | ClassicDenoiser, x: Tensor, sigma: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        denoiser(x, sigma)


@pytest.mark.parametrize("name", DENOISING)
def test_noise_maps_go_where_they_are_taken(name: str) -> None:
    network = strong(name)
    denoiser, x = Denoiser(network), random_images(2, network.in_channels, 9, 14)
    level = torch.full((2, 1, 9, 14), 0.1)
    if not network.takes_noise_map:
        with pytest.raises(ValueError, match="takes one noise level"):
            denoiser(x, level)
        return
    torch.testing.assert_close(denoiser(x, level), denoiser(x, 0.1), rtol=0, atol=1e-6)
    level[..., 7:] = 0.3
    mixed = denoiser(x, level)
    assert (mixed - denoiser(x, 0.1)).abs().max() > 1e-4
    torch.testing.assert_close(denoiser(x, level.numpy()), mixed)
    colored = random_images(2, 3, 9, 14, seed=4)
    own = torch.cat([level[:1], 0.5 * level[1:]])
    each = [denoiser(colored[i : i + 1], own[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(denoiser(colored, own), torch.cat(each), rtol=0, atol=1e-6)
    half = level.clone()
    half[..., :5] = 0
    assert torch.equal(denoiser(x, half)[..., :5], x[..., :5])
    whole = torch.zeros(2, 1, 9, 14, dtype=torch.int64)
    torch.testing.assert_close(denoiser(x, whole), x)
    for value, shown in ((-0.1, "got -0.1"), (float("nan"), "got nan"), (25.0, "got 25")):
        level[0, 0, 3, 4] = value
        with pytest.raises(ValueError, match=f"sigma must be between 0 and 1.*{shown}"):
            denoiser(x, level)
    for wrong in ((2, 1, 9, 13), (3, 1, 9, 14), (2, 3, 9, 14)):
        with pytest.raises(ValueError, match="a noise map for this image must be"):
            denoiser(x, torch.full(wrong, 0.1))


@pytest.mark.parametrize("name", [name for name in SMALL if SMALL[name]().takes_noise_map])
def test_noise_beyond_the_trained_range_is_brought_into_it(name: str) -> None:
    network = strong(name)
    network.card = replace(network.card, sigma_range=(0.0, 51.0))
    x = random_images(1, network.in_channels, 9, 14)
    plain = Denoiser(network)(0.5 + (x - 0.5) / 2, 0.2)
    strong_noise = Denoiser(network)(x, 0.4)
    torch.testing.assert_close(strong_noise, 0.5 + (plain - 0.5) * 2, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", DENOISING)
def test_where_nothing_varies_nothing_is_changed(name: str) -> None:
    network = strong(name)
    x = random_images(1, network.in_channels, 30, 24)
    x[..., 12:] = 1.0
    result = Denoiser(network)(x, 0.2)
    assert (result[..., 16:] == 1).all() and (result[..., :12] != x[..., :12]).any()
    for level in (0.0, 0.5, 1.0):
        flat = np.full((20, 30, 3), level, np.float32)
        assert np.array_equal(Denoiser(network).restore(Image(flat), 50).image.pixels, flat)


@pytest.mark.parametrize("name", DENOISING)
def test_gradients_flow_when_asked_for(name: str) -> None:
    network = strong(name)
    denoiser = Denoiser(network)
    x = random_images(1, network.in_channels, 5, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: denoiser(x, 0.1), (x,), eps=1e-6, atol=1e-4)
    single = x.detach().float().requires_grad_()
    result = denoiser(single, 0.1)
    torch.testing.assert_close(result.detach(), denoiser(single.detach(), 0.1), rtol=0, atol=1e-5)
    assert not denoiser(x.detach(), 0.1).requires_grad
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize("name", DENOISING)
def test_an_engine_prepares_its_network_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, prepared = SMALL[name](), []
    prepare = type(network).for_inference

    def counted(self: Network, *arguments: object) -> nn.Module:
        prepared.append(self)
        return prepare(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(network), "for_inference", counted)
    denoiser = Denoiser(network)
    for size in ((9, 14), (12, 6)):
        denoiser(random_images(2, 1, *size), 0.1)
        denoiser.restore(Image(random_images(*size).numpy()), 25)
    assert len(prepared) == 1


def test_the_functions_prepare_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = images.from_float(random_images(8, 9).numpy(), np.uint8)
    nlrn.denoise(noisy, 25)
    nlrn.upscale(noisy, 2)
    for name in ("load", "from_weight", "for_inference"):
        owner = models if name == "load" else models.nlrn.NLRN
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("prepared again"))
    nlrn.denoise(noisy, 25)
    nlrn.denoise(noisy, 26)
    nlrn.upscale(noisy, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_upscalers_take_batches(channels: int) -> None:
    network = strong("nlrn")
    upscaler = Upscaler(2, network)
    x = random_images(2, channels, 7, 9).double()
    large = upscaler(x)
    assert large.shape == (2, channels, 14, 18) and large.dtype == torch.float64
    assert torch.equal(pickle.loads(pickle.dumps(upscaler))(x), large)
    pixels = x[1].permute(1, 2, 0).float().numpy()
    one = upscaler.restore(Image(pixels if channels == 3 else pixels[..., 0])).image.pixels
    np.testing.assert_allclose(large[1].permute(1, 2, 0).reshape(one.shape), one, atol=1e-6)
    with pytest.raises(ValueError, match="x must be"):
        upscaler(x[0])


def test_list_models_gives_the_cards() -> None:
    cards = nlrn.list_models()
    assert {"denoise-gray-s25", "sr-y"} <= {card.name for card in cards}
    assert all(card.architecture in ARCHITECTURES and card.channels in (1, 3) for card in cards)
