"""The everyday network: its recurrence against a slow reading, its bounds, its kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nlrn.models import TrainingMode, residual_inference
from nlrn.models.nlrn_residual import (
    ResidualConfig,
    ResidualNLRN,
    gray_weights,
    random_residual,
)
from nlrn.models.recurrence import EPSILON, FIRST_GATE
from nlrn.ops import neighborhood_attention

SMALL = ResidualConfig(steps=3, channels=6, embed=4, window=5, in_channels=3, non_local_every=2)


def image_of(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def by_the_equations(network: ResidualNLRN, image: Tensor, level: float) -> Tensor:
    """The network as its docstrings have it, one pixel of one state after the other."""
    config, r = network.config, network.config.unshuffle
    batch, channels, height, width = image.shape
    rows, columns = height // r, width // r
    cells = torch.zeros(batch, channels * r * r + 1, rows, columns, dtype=torch.float64)
    for c in range(channels):
        for dy in range(r):
            for dx in range(r):
                cells[:, c * r * r + dy * r + dx] = 2 * image[:, c, dy::r, dx::r] - 1
    cells[:, -1] = 2 * 2 * level
    stream, scores = network.conv_in(cells), None
    for t in range(config.steps):
        cell = network.states.cell(t)
        own = {
            name: p[t].view(1, -1, 1, 1) for name, p in network.states.vectors.named_parameters()
        }
        size = (stream.pow(2).mean(1, keepdim=True) + EPSILON).sqrt()
        x = (stream / size * own["norm_scale"] + own["norm_shift"]).clamp(min=0)
        if t % config.non_local_every == 0:
            module = cell.non_local
            assert module is not None and module.theta is not None and module.psi is not None
            query, key = module.theta(x), module.psi(x)
            if config.embed_limit:
                query, key = (
                    e / (1 + e.pow(2).sum(1, keepdim=True) / config.embed_limit**2).sqrt()
                    for e in (query, key)
                )
            out, scores = neighborhood_attention(
                query, key, module.g(x), config.window,
                prior_scores=scores, backend="reference",
            )  # fmt: skip
            x = x + out
        x = (cell.conv1(x * own["scale1"]) * own["scale2"] + own["shift2"]).clamp(min=0)
        stream = stream + cell.conv2(x) * own["gate"]
    residual = network.conv_out(stream.clamp(min=0))
    result = image.clone()
    for c in range(channels):
        for dy in range(r):
            for dx in range(r):
                result[:, c, dy::r, dx::r] += residual[:, c * r * r + dy * r + dx]
    return result


@pytest.mark.parametrize(
    "changes", [{}, {"cells": 3}, {"unshuffle": 4, "in_channels": 1}, {"embed_limit": 0.5}], ids=str
)
def test_the_network_is_what_its_equations_say(changes: dict[str, Any]) -> None:
    network = random_residual(replace(SMALL, **changes)).double()
    torch.nn.init.normal_(network.conv_out.weight, std=0.2)
    image = image_of(2, network.in_channels, 12, 16)
    with torch.no_grad():
        expected = by_the_equations(network, image, 0.1)
        result = network(network.input_for(image, 0.1))
    assert (expected - image).abs().max() > 0.1
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_gradients_are_those_of_the_equations(limit: float) -> None:
    network = random_residual(replace(SMALL, embed_limit=limit)).double()
    torch.nn.init.normal_(network.conv_out.weight, std=0.2)
    image = image_of(1, 3, 8, 10)
    grads = []
    for restored in (
        by_the_equations(network, image, 0.1),
        network.for_training(TrainingMode(dtype=torch.float64))(network.input_for(image, 0.1)),
    ):
        network.zero_grad()
        (restored - 0.5).square().sum().backward()
        grads.append({n: p.grad for n, p in network.named_parameters() if p.requires_grad})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=0, atol=1e-10, msg=name)


def test_training_begins_at_the_identity_and_with_weak_states() -> None:
    network = ResidualNLRN(SMALL)
    image = image_of(1, 3, 9, 7).float()
    assert torch.equal(network(network.input_for(image, 0.1)), image)
    assert (network.states.vectors.get_parameter("gate") == FIRST_GATE).all()


def test_no_input_makes_the_states_explode() -> None:
    """However large what comes in, what a state adds is bounded: the result grows no faster."""
    network = random_residual(replace(SMALL, steps=24, non_local_every=6)).double()
    for parameter in network.states.cells.parameters():
        parameter.data *= 3  # a recurrence that would explode: 24 rounds of a gain above 1
    image = image_of(1, 3, 16, 16)
    with torch.no_grad():
        features = network.conv_in(torch.randn(1, 13, 8, 8, dtype=torch.float64))
        spec = network.config.attention
        first = network.states(features, neighborhood_attention, spec)
        large = network.states(1e6 * features, neighborhood_attention, spec)
        assert network(network.input_for(image, 0.1)).isfinite().all()
    added = (large - 1e6 * features).abs().max()
    assert added < 3 * (first - features).abs().max()


@pytest.mark.filterwarnings("ignore")  # the compiler looks at gradients that are not there
def test_a_state_without_a_module_is_compiled_apart() -> None:
    """torch.compile once took the operator of the first state for that of all."""
    network = ResidualNLRN(SMALL)
    torch.nn.init.normal_(network.conv_out.weight, std=0.2)
    given = network.input_for(image_of(1, 3, 8, 8).float(), 0.1)
    forward = network.for_training(TrainingMode(dtype=torch.float32))
    expected = forward(given)
    for module in network.repeated_modules():
        module.compile(dynamic=False, backend="eager")
    torch.testing.assert_close(forward(given), expected)


@pytest.mark.parametrize("cells", [0, 2, 5])
def test_cells_must_share_the_states_out(cells: int) -> None:
    with pytest.raises(ValueError, match="cells must"):
        replace(SMALL, cells=cells)


def test_half_precision_tells_neighbors_apart_whatever_keys_have_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Features behind a ReLU have a mean: scores far from zero, and far apart in bfloat16."""
    network = random_residual(replace(SMALL, steps=6, channels=16, embed=8, non_local_every=1))
    torch.nn.init.normal_(network.conv_out.weight, std=0.2)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith(("psi.weight", "theta.weight")):
                weight.add_(4.0)  # what all keys then have in common
    given = network.input_for(image_of(1, 3, 24, 32).float(), 0.1)
    exact = network.double().for_inference(torch.float64)(given)
    network.float()

    def error() -> float:
        half = network.for_inference(torch.bfloat16)(given)
        return float((half - exact).abs().mean() / (exact - given[:, :3]).abs().mean())

    centered = error()
    monkeypatch.setattr(residual_inference, "_rough_mean", lambda rows: 0 * rows[0])
    assert 2 * centered < error()


def test_a_gray_network_can_begin_as_the_color_network_on_gray_images() -> None:
    color = random_residual(replace(SMALL, cells=3)).double()
    before = {name: tensor.clone() for name, tensor in color.state_dict().items()}
    gray = ResidualNLRN(replace(color.config, in_channels=1)).double()
    gray.load_state_dict(gray_weights(color))
    image, level = image_of(2, 1, 8, 10), 0.1
    expected = color(color.input_for(image.expand(-1, 3, -1, -1), level * 3**0.5)).mean(1, True)
    torch.testing.assert_close(gray(gray.input_for(image, level)), expected)
    assert not torch.allclose(expected, image, atol=1e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in color.state_dict().items())
