"""Maps of a pixel: what the operator itself computes, for any part, affinity and place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import assert_one_clear_line, nlrn, picture

import nlrn as package
from nlrn import images
from nlrn.attention_maps import AttentionMaps, explain, figure, planes_for, trace
from nlrn.attention_maps.figure import color
from nlrn.models.nlrn import CONFIGS, NLRN, NLRNConfig, NonLocal2d, random_network
from nlrn.ops import AFFINITIES, Correlation

SMALL = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=3, channels=8, embed=4)


def noisy(shape: tuple[int, ...] = (11, 14), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, shape).astype(np.float32)


def correlations(network: NLRN, image: torch.Tensor) -> list[torch.Tensor]:
    """The scores [H, W, q * q] that the network hands from state to state."""
    found: list[torch.Tensor] = []

    def keep(
        module: NonLocal2d, given: object, out: tuple[torch.Tensor, Correlation]
    ) -> tuple[torch.Tensor, Correlation | None]:
        found.append(out[1].scores()[0].clone())
        return out[0], out[1] if network.config.propagate else None

    for module in network.modules():
        if isinstance(module, NonLocal2d):
            module.keep_correlation = True
            module.register_forward_hook(keep)
    with torch.no_grad():
        network(image)
    return found


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        dataclasses.replace(SMALL, window=9),  # on one axis almost as large as the picture
        dataclasses.replace(SMALL, non_local_every=2),
        dataclasses.replace(SMALL, propagate=False, tied=False),
        *(dataclasses.replace(SMALL, affinity=name) for name in AFFINITIES),
    ],
    ids=lambda c: f"{c.affinity}-{c.window}-{c.non_local_every}-{c.propagate}",
)
@pytest.mark.parametrize("position", [(0, 0), (10, 13), (5, 6)], ids=str)
def test_maps_are_the_weights_of_the_operator(
    config: NLRNConfig, position: tuple[int, int]
) -> None:
    network = random_network(config)
    image = noisy()
    maps = explain(image, position, 25, network)
    scores = correlations(network, torch.from_numpy(image)[None, None])
    assert maps.states == tuple(t + 1 for t in range(3) if config.is_non_local(t))
    assert maps.weights.shape == (len(scores), config.window, config.window)
    inside = _inside(image.shape, position, config.window)
    total = np.zeros((config.window, config.window))
    for state, weights in zip(scores, maps.weights, strict=True):
        total = state[position].double().numpy().reshape(total.shape)
        if AFFINITIES[config.affinity].softmax:
            expected = np.where(inside, np.exp(total - total[inside].max()), 0)
            expected /= expected.sum()
        else:
            expected = np.where(inside, total, 0) / inside.sum()
        np.testing.assert_allclose(weights, expected, atol=1e-6)
    assert not maps.weights[:, ~inside].any()


def _inside(shape: tuple[int, ...], position: tuple[int, int], window: int) -> np.ndarray:
    steps = np.arange(window) - window // 2
    rows, columns = (
        (p + steps >= 0) & (p + steps < n) for p, n in zip(position, shape, strict=True)
    )
    return rows[:, None] & columns


def test_maps_sum_to_one_and_patches_are_those_of_the_picture() -> None:
    network = random_network(SMALL)
    image = noisy((12, 9))
    maps = explain(image, (1, 8), 25, network)
    np.testing.assert_allclose(maps.weights.sum((1, 2)), 1, atol=1e-9)
    assert maps.corner == (-1, 6) and maps.position == (1, 8)
    np.testing.assert_array_equal(maps.noisy[1:, :3], image[0:4, 6:9])
    assert np.isnan(maps.noisy[0]).all() and np.isnan(maps.noisy[:, 3:]).all()
    restored = package.denoise(image, 25, model=network)
    np.testing.assert_allclose(maps.restored[1:, :3], restored[0:4, 6:9], atol=1e-5)


def test_with_the_exact_halo_a_part_gives_the_maps_of_the_whole() -> None:
    network = random_network(SMALL)
    image = noisy((60, 53))
    whole = trace(network, planes_for(images.Image(image), network), 25)
    exact = SMALL.halo
    for position in [(30, 26), (29, 0), (3, 50)]:
        maps = explain(image, position, 25, network, halo=exact)
        expected = whole.maps(position)
        np.testing.assert_allclose(maps.weights, expected.weights, atol=1e-4)
        assert expected.halo is None
    assert explain(image, (30, 26), 25, network, halo=exact).halo == exact
    assert explain(image, (30, 26), 25, network, halo=100).halo is None


def test_a_trace_answers_for_neighbours_but_not_beyond_its_part() -> None:
    network = random_network(SMALL)
    planes = torch.from_numpy(noisy((40, 44)))[None, None]
    part = trace(network, planes, 25, around=(20, 20), halo=6)
    assert part.halo((20, 20)) == 6 and part.halo((23, 20)) == 3
    assert part.maps((23, 20)).halo == 3
    with pytest.raises(ValueError, match=r"neighborhood of \(30, 20\) is not in the part"):
        part.maps((30, 20))


def test_contrast_is_scaled_as_in_denoise() -> None:
    network = random_network(SMALL)
    image = noisy()
    plain = explain(0.5 + (image - 0.5) / 2, (4, 4), 25, network)
    network.card = package.ModelCard(sigma=25.0)
    scaled = explain(image, (4, 4), 50, network)
    np.testing.assert_allclose(scaled.weights, plain.weights, atol=1e-6)
    np.testing.assert_allclose(scaled.noisy, image[2:7, 2:7], atol=1e-6)


def test_colour_goes_by_channel_or_all_at_once() -> None:
    image = noisy((11, 14, 3))
    gray, rgb = (random_network(dataclasses.replace(SMALL, in_channels=c)) for c in (1, 3))
    for channel in range(3):
        of_colour = explain(image, (4, 5), 25, gray, channel=channel)
        alone = explain(np.ascontiguousarray(image[..., channel]), (4, 5), 25, gray)
        np.testing.assert_array_equal(of_colour.weights, alone.weights)
    assert explain(image, (4, 5), 25, rgb).noisy.shape == (5, 5, 3)
    with_alpha = np.dstack([image, image[..., :1]])
    np.testing.assert_array_equal(explain(with_alpha, (4, 5), 25, rgb).weights.shape, (3, 5, 5))


@pytest.mark.parametrize("size", [1.0, 1e7], ids=str)
def test_a_whole_picture_is_kept_in_two_bytes_that_are_enough(size: float) -> None:
    network = random_network(SMALL)
    planes = torch.from_numpy(noisy((20, 23)) * size)[None, None]
    whole, part = trace(network, planes, 25), trace(network, planes, 25, around=(9, 9), halo=99)
    assert whole.queries[0].values.dtype == torch.int16
    assert part.queries[0].values.dtype == torch.float32
    if size == 1:
        found, expected = (t.maps((9, 9)).weights for t in (whole, part))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.isfinite(whole.maps((3, 3)).weights).all()


@pytest.mark.parametrize(
    ("position", "options", "message"),
    [
        ((11, 0), {}, r"11 rows and 14 columns, got \(11, 0\)"),
        ((0, -1), {}, r"got \(0, -1\)"),
        ((1.5, 2), {}, r"got \(1.5, 2\)"),
        (3, {}, "got 3"),
        ((1, 2, 3), {}, r"got \(1, 2, 3\)"),
        ((0, 0), {"channel": 3}, "channel must be 0, 1 or 2, got 3"),
        ((0, 0), {"halo": -1}, "halo must be 0 or more, got -1"),
        ((0, 0), {"sigma": -2}, "sigma must be 0 or more"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(position: tuple[int, int], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explain(noisy(), position, **({"sigma": 25, "model": random_network(SMALL)} | options))


def test_it_takes_what_denoise_takes() -> None:
    network, image = random_network(SMALL), noisy()
    expected = explain(image, (4, 5), 25, network).weights
    channels: list[Any] = [image[..., None], np.dstack([image] * 3), np.dstack([image] * 4)]
    for given in (*channels, torch.tensor(image)):
        np.testing.assert_allclose(explain(given, (4, 5), 25, network).weights, expected)
    for wrong in (image.tolist(), np.dstack([image] * 5)):
        with pytest.raises(ValueError, match="image must be"):
            explain(wrong, (4, 5), 25, network)


@pytest.mark.parametrize("change", [{"border": "circular"}, {"non_local_every": 0}], ids=str)
def test_networks_without_such_neighbourhoods_are_refused(change: dict) -> None:
    network = random_network(dataclasses.replace(SMALL, **change))
    with pytest.raises(ValueError, match="compares pixels within the image"):
        explain(noisy(), (0, 0), 25, network)


def test_the_public_name_can_be_called_whatever_was_imported_before() -> None:
    import nlrn.attention_maps  # makes nlrn.explain the module

    assert isinstance(nlrn.explain(noisy(), (0, 0), 25, random_network(SMALL)), AttentionMaps)
    assert "explain" in package.__all__


def test_colours_go_from_dark_to_light() -> None:
    ramp = color(np.linspace(0, 1, 64))
    assert (np.diff(ramp @ [0.3, 0.59, 0.11]) > 0).all()
    assert color(np.zeros((2, 3))).shape == (2, 3, 3)


def test_the_strongest_leave_the_pixel_out() -> None:
    weights = np.zeros((1, 3, 3))
    weights[0, 1, 1], weights[0, 2, 0], weights[0, 0, 1] = 0.7, 0.2, 0.1
    maps = AttentionMaps(weights, (1,), (5, 5), weights[0], weights[0], None)
    assert maps.strongest(0, 2) == [(2, 0), (0, 1)]


def test_the_figure_has_a_panel_for_every_state() -> None:
    maps = explain(noisy((20, 23, 3)), (0, 22), 25, random_network(SMALL))
    drawn = figure(maps)
    assert drawn.dtype == np.uint8 and drawn.ndim == 3 and min(drawn.shape[:2]) > 300
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 30


def test_the_command_draws_the_figure(tmp_path: Path) -> None:
    random_network(SMALL).save_pretrained(tmp_path / "m.safetensors")
    source = picture(tmp_path / "a.png", (20, 30, 3))
    model = ("--model", tmp_path / "m.safetensors", "--sigma", 25)
    out = tmp_path / "maps.png"
    result = nlrn("explain", source, "--at", "12,8", "-o", out, *model)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out) and images.read(out).pixels.ndim == 3
    assert_one_clear_line(nlrn("explain", source, "--at", "1,2", "-o", out, *model), "exists")
    assert nlrn("explain", source, "--at", "1,2", "-o", out, "--overwrite", *model).exit_code == 0
    for at in ("12", "a,b", "1,-2", "1,2,3"):
        result = nlrn("explain", source, "--at", at, "-o", tmp_path / "b.png", *model)
        assert_one_clear_line(result, "row and a column", at)
    result = nlrn("explain", source, "--at", "20,8", "-o", tmp_path / "b.png", *model)
    assert_one_clear_line(result, "20 rows and 30 columns")
    result = nlrn("explain", tmp_path / "no.png", "--at", "1,2", "-o", tmp_path / "b.png")
    assert_one_clear_line(result, "no.png")
    assert not (tmp_path / "b.png").exists()
