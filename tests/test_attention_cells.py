"""Maps of networks that compare cells of several pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nlrn.attention_maps import explain, figure, planes_for, trace
from nlrn.images import Image
from nlrn.models.nlrn_residual import ResidualConfig, ResidualNLRN, random_residual
from nlrn.models.non_local import NonLocal2d

COLOR = ResidualConfig(steps=3, channels=8, embed=4, window=5, in_channels=3, non_local_every=2)
CONFIGS = [COLOR, replace(COLOR, unshuffle=4, in_channels=1, embed_limit=2.0)]


def photo(config: ResidualConfig, height: int = 23, width: int = 30) -> np.ndarray:
    shape = (height, width, 3) if config.in_channels == 3 else (height, width)
    return np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)


def correlations(network: ResidualNLRN, image: torch.Tensor) -> list[torch.Tensor]:
    """The scores [H, W, q * q] of the cells that the network hands from state to state."""
    found: list[torch.Tensor] = []
    for module in network.modules():
        if isinstance(module, NonLocal2d):
            module.register_forward_hook(lambda *args: found.append(args[2][1].scores()[0].clone()))
    with torch.no_grad():
        network(image)
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"cells of {c.unshuffle}")
@pytest.mark.parametrize("position", [(0, 0), (22, 29), (9, 14)], ids=str)
def test_maps_are_the_weights_of_the_operator(
    config: ResidualConfig, position: tuple[int, int]
) -> None:
    network, picture, r = random_residual(config), photo(config), config.unshuffle
    maps = explain(picture, position, 25, network)
    planes = planes_for(Image(picture), network)
    scores = correlations(network, network.input_for(planes, 25 / 255))
    assert maps.cell == r and maps.states == (1, 3) and len(scores) == 2
    rows, columns = (-(-side // r) for side in picture.shape[:2])
    row, column = position[0] // r, position[1] // r
    y, x = np.mgrid[row - 2 : row + 3, column - 2 : column + 3]
    inside = (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    for state, weights in zip(scores, maps.weights, strict=True):
        total = state[row, column].double().numpy().reshape(5, 5)
        expected = np.where(inside, np.exp(total - total[inside].max()), 0)
        np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"cells of {c.unshuffle}")
@pytest.mark.parametrize("position", [(0, 3), (22, 29), (11, 13)], ids=str)
def test_the_patch_is_what_the_image_shows_there(
    config: ResidualConfig, position: tuple[int, int]
) -> None:
    picture = photo(config)
    maps = explain(picture, position, 25, random_residual(config))
    top, left = maps.corner
    side = 5 * config.unshuffle
    assert maps.noisy.shape[:2] == maps.restored.shape[:2] == (side, side)
    assert top % config.unshuffle == left % config.unshuffle == 0
    for y in range(side):
        for x in range(side):
            inside = 0 <= top + y < 23 and 0 <= left + x < 30
            expected = picture[top + y, left + x] if inside else np.nan
            np.testing.assert_array_equal(maps.noisy[y, x], expected)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"cells of {c.unshuffle}")
@pytest.mark.parametrize("position", [(40, 51), (41, 50)], ids=str)
def test_a_part_with_the_whole_halo_is_exact(
    config: ResidualConfig, position: tuple[int, int]
) -> None:
    network, picture = random_residual(config), photo(config, 79, 190)
    planes = planes_for(Image(picture), network)
    whole = trace(network, planes, 25).maps(position)
    part = trace(network, planes, 25, around=position, halo=network.halo)
    assert part.noisy.shape[1:] != (79, 190) and part.halo(position) >= network.halo
    np.testing.assert_allclose(part.maps(position).weights, whole.weights, atol=1e-4)
    assert part.maps(position).halo == part.halo(position) and whole.halo is None
    with pytest.raises(ValueError, match="not in the part"):
        part.maps((40, 189))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"cells of {c.unshuffle}")
def test_half_precision_gives_nearly_the_same_maps(config: ResidualConfig) -> None:
    network = random_residual(config)
    planes = planes_for(Image(photo(config)), network)
    exact, half = (
        trace(network, planes, 25, around=(9, 14), dtype=dtype, device="cpu").maps((9, 14))
        for dtype in (torch.float32, torch.bfloat16)
    )
    np.testing.assert_allclose(half.weights, exact.weights, atol=5e-3)
    np.testing.assert_allclose(half.restored, exact.restored, atol=2e-2)


def test_the_figure_draws_cells_and_says_so() -> None:
    maps = explain(photo(COLOR), (9, 14), 25, random_residual(COLOR))
    drawn = figure(maps)
    assert drawn.dtype == np.uint8 and drawn.shape[2] == 3
    assert not np.array_equal(drawn[:40], figure(replace(maps, cell=1))[:40])  # the title


def test_a_color_image_is_explained_by_the_network_that_restores_it() -> None:
    maps = explain(photo(COLOR, 24, 20), (10, 10), 25)
    assert maps.cell == 2 and maps.noisy.shape[-1] == 3
