"""The networks of others: their sizes as printed, and slow readings of their papers' equations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_networks import acting, assert_same_with_gradients, picture, rival
from torch import Tensor
from typer.testing import CliRunner

from nlrn import models
from nlrn.cli import app
from nlrn.models import ARCHITECTURES, Network
from nlrn.models.convolutional import NormReluConv
from nlrn.models.drcn import DRCN, DRCNConfig
from nlrn.models.lapsrn import LapSRN, LapSRNConfig
from nlrn.models.memnet import MemNet, MemNetConfig

pytestmark = pytest.mark.usefixtures("one_thread")


def full_size(name: str) -> Network:
    with torch.device("meta"):
        return models.build(name, {})


@pytest.mark.parametrize(
    ("name", "weights", "printed", "depth", "field"),
    [
        ("dncnn", 554_112, 554, 17, 35),
        ("red", 4_131_072, 4131, 30, 61),
        ("memnet", 676_992, 677, 80, 149),
        ("srcnn", 57_184, 57, 3, 17),
        ("vdsr", 664_704, 665, 20, 41),
        ("drcn", 1_774_080, 1774, 20, 41),
        ("lapsrn", 812_768, 813, 27, 37),
        ("drrn", 297_216, 297, 20, 41),
    ],
)
def test_weights_depth_and_receptive_field_are_as_printed(
    name: str, weights: int, printed: int, depth: int, field: int
) -> None:
    network = full_size(name)
    counts = network.counts()
    assert counts["convolution_weights"] == weights and round(weights / 1000) == printed
    assert counts["effective_depth"] == depth
    assert 2 * network.halo + 1 == field
    others = counts["parameters"] - weights  # biases, norms and weights of sums
    assert 0 < others < 0.03 * weights


@pytest.mark.parametrize(
    ("name", "parameters", "field"),
    [("tnrd", 5 * (48 * 48 + 48 * 63 + 1), 61), ("nlnet", 5 * (48 * 48 + 8 + 48 * 51 + 1), 361)],
)
def test_parameters_of_learned_diffusion(name: str, parameters: int, field: int) -> None:
    network = full_size(name)
    assert network.counts()["parameters"] == parameters
    assert 2 * network.halo + 1 == field


@pytest.mark.parametrize(
    ("name", "mega"),
    [("dncnn", 1.108), ("srcnn", 0.1144), ("vdsr", 1.329), ("drrn", 1152 * 4e-6 + 18 * 0.294912)],
)
def test_work_counts_every_use_of_a_weight(name: str, mega: float) -> None:
    assert full_size(name).flop_per_pixel / 1e6 == pytest.approx(mega, rel=1e-3)


@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if not n.startswith("nlrn")])
def test_configs_are_checked_and_papers_are_named(name: str) -> None:
    assert ARCHITECTURES[name].paper[-4:].isdigit()
    with pytest.raises(ValueError, match="unknown config key 'nonsense'"):
        models.build(name, {"nonsense": 1})
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        models.build(name, {"in_channels": 0})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("dncnn", {"layers": 1}, "layers must be at least 2, got 1"),
        ("vdsr", {"layers": 1}, "layers must be at least 2, got 1"),
        ("red", {"layers": 7}, "layers must be even, got 7"),
        ("tnrd", {"size": 4}, "size must be odd and at least 3, got 4"),
        ("tnrd", {"in_channels": 3}, "in_channels must be 1, got 3"),
        ("nlnet", {"size": 1}, "size must be odd and at least 3, got 1"),
        ("nlnet", {"in_channels": 3}, "in_channels must be 1, got 3"),
        ("nlnet", {"reach": 1, "neighbors": 10}, "neighbors must be at most 9, got 10"),
    ],
)
def test_impossible_shapes_are_refused(name: str, values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, values)


@pytest.mark.parametrize("name", ["dncnn", "red", "memnet", "vdsr", "drcn", "drrn"])
def test_training_begins_at_the_identity(name: str) -> None:
    image = picture(2, 1, 9, 14)
    small = {"memnet": "blocks", "drcn": "recursions", "drrn": "units"}.get(name, "layers")
    network = models.build(name, {small: 4, "channels": 4})
    torch.testing.assert_close(network(image), image)


def by_pixel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A convolution as its sum: weight [O, I, k, k], zeros around the image [B, I, H, W]."""
    size, (height, width) = weight.shape[-1], x.shape[-2:]
    padded, result = F.pad(x, [size // 2] * 4), bias.view(-1, 1, 1)
    for dy in range(size):
        for dx in range(size):
            part = padded[..., dy : dy + height, dx : dx + width]
            result = result + torch.einsum("oi,bihw->bohw", weight[..., dy, dx], part)
    return result


def normed(norm: Any, x: Tensor) -> Tensor:
    """ReLU(batch norm) in evaluation mode."""
    mean, var, scale, shift = (
        t.view(-1, 1, 1) for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return ((x - mean) / (var + norm.eps).sqrt() * scale + shift).clamp(min=0)


def norm_relu_conv(layer: NormReluConv, x: Tensor) -> Tensor:
    assert layer.conv.bias is not None
    return by_pixel(normed(layer.norm, x), layer.conv.weight, layer.conv.bias)


@pytest.mark.parametrize("shape", [(1, 1, 5, 8), (2, 1, 1, 3)], ids=str)
def test_drcn_is_the_weighted_sum_of_all_recursions(shape: tuple[int, ...]) -> None:
    network = DRCN(DRCNConfig(recursions=3, channels=4))
    acting(network)

    def slow(x: Tensor) -> Tensor:
        def layer(conv: Any, value: Tensor) -> Tensor:
            return by_pixel(value, conv.weight, conv.bias)

        h = [layer(network.embed2, layer(network.embed1, x).relu()).relu()]
        for _ in range(3):
            h.append(layer(network.recursion, h[-1]).relu())
        y = [x + layer(network.reconstruct2, layer(network.reconstruct1, h_d).relu())
             for h_d in h[1:]]  # fmt: skip
        return sum((w * y_d for w, y_d in zip(network.weights, y, strict=True)), torch.zeros(()))

    assert_same_with_gradients(network, slow, *shape)


@pytest.mark.parametrize("shape", [(1, 1, 5, 8), (2, 1, 1, 3)], ids=str)
def test_the_gates_of_memnet_weigh_short_and_long_memory(shape: tuple[int, ...]) -> None:
    network = MemNet(MemNetConfig(blocks=3, recursions=2, channels=4))
    acting(network)
    blocks: Any = network.blocks

    def slow(x: Tensor) -> Tensor:
        long = [norm_relu_conv(network.extract, x)]
        total: Tensor | int = 0
        for block, weight in zip(blocks, network.weights, strict=True):
            unit, short, h = block.unit, [], long[-1]
            for r in range(2):
                inner = by_pixel(normed(unit.norms1[r], h), unit.conv1.weight, unit.conv1.bias)
                inner = by_pixel(normed(unit.norms2[r], inner), unit.conv2.weight, unit.conv2.bias)
                h = inner + h
                short.append(h)
            gate, kept = block.gate.conv, normed(block.gate.norm, torch.cat([*long, *short], 1))
            # A gate is a sum over all memories of channels, the same for every pixel.
            long.append(torch.einsum("oi,bihw->bohw", gate.weight[..., 0, 0], kept)
                        + gate.bias.view(-1, 1, 1))  # fmt: skip
            total = total + weight * (x + norm_relu_conv(network.reconstruct, long[-1]))
        assert isinstance(total, Tensor)
        return total

    assert_same_with_gradients(network, slow, *shape)
    assert [b.gate.conv.in_channels for b in blocks] == [12, 16, 20]  # (R + m) channels


def test_red_adds_every_second_layer_to_its_mirror() -> None:
    network = models.build("red", {"layers": 12, "channels": 4})
    acting(network)
    layers: Any = network

    def slow(x: Tensor) -> Tensor:
        e = [x]
        for conv in layers.encoder:
            e.append(by_pixel(e[-1], conv.weight, conv.bias).relu())
        d = e[6]
        for k, deconv in enumerate(layers.decoder, 1):
            weight = deconv.weight.transpose(0, 1).flip(-1, -2)
            d = by_pixel(d, weight, deconv.bias)
            if k in (2, 4):  # 4 and 2 layers in; the image itself comes last
                d = d + e[6 - k]
            d = d.relu() if k < 6 else d + x
        return d

    assert_same_with_gradients(network, slow, 2, 1, 5, 8)


@pytest.mark.parametrize("scale", [2, 4])
def test_lapsrn_doubles_level_by_level(scale: int) -> None:
    made = LapSRN(LapSRNConfig(layers=2, channels=3))
    acting(made)
    network = made.with_scale(scale)
    levels: Any = network.used_levels
    assert made.factors == (2, 4) and made.scale == 4 and len(levels) == scale // 2

    def leaky(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.2 * x)

    def slow(image: Tensor) -> Tensor:
        features, result = leaky(by_pixel(image, made.extract.weight, bias_of(made.extract))), image
        for level in levels:
            for layer in level.layers:
                features = leaky(by_pixel(features, layer.weight, layer.bias))
            grown = transposed(features, level.enlarge.weight, first=0)
            features = leaky(grown + level.enlarge.bias.view(-1, 1, 1))
            detail = by_pixel(features, level.detail.weight, level.detail.bias)
            result = transposed(result, level.enlarge_image.weight, first=1) + detail
        return result

    network.double()
    for shape in ((2, 1, 4, 7), (1, 1, 1, 1)):
        image = picture(*shape).double()
        with torch.no_grad():
            found = network(image)
            assert found.shape == (*shape[:2], scale * shape[2], scale * shape[3])
            torch.testing.assert_close(found, slow(image), rtol=0, atol=1e-10)
            prepared = network.for_inference(torch.float64)(image)
            torch.testing.assert_close(prepared, found, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="lapsrn enlarges by 2, 4, got 3"):
        made.with_scale(3)


def bias_of(layer: Any) -> Tensor:
    bias: Tensor = layer.bias
    return bias


def transposed(x: Tensor, weight: Tensor, *, first: int) -> Tensor:
    """Every pixel [B, I, H, W] paints its weight [I, O, k, k] at stride 2; from `first` on."""
    (batch, _, height, width), (_, outputs, size, _) = x.shape, weight.shape
    painted = x.new_zeros(batch, outputs, 2 * height + size, 2 * width + size)
    for row in range(height):
        for column in range(width):
            part = torch.einsum("bi,iokl->bokl", x[..., row, column], weight)
            painted[..., 2 * row : 2 * row + size, 2 * column : 2 * column + size] += part
    end = first + 2 * height, first + 2 * width
    return painted[..., first : end[0], first : end[1]]


def test_lapsrn_learns_looks_no_farther_than_its_halo_and_is_stored(tmp_path: Path) -> None:
    made = LapSRN(LapSRNConfig(layers=2, channels=3)).double()
    flat = torch.full((1, 1, 5, 6), 0.25).double()
    with torch.no_grad():  # untrained it is bilinear: what is flat stays so inside
        torch.testing.assert_close(made(flat)[..., 4:-4, 4:-4], flat.new_full((1, 1, 12, 16), 0.25))
    acting(made)
    for scale in made.factors:
        network = made.with_scale(scale)
        image = picture(1, 1, 1, network.halo + 9).double()
        other = image.clone()
        other[..., network.halo + 1 :] += 0.5
        with torch.no_grad():
            moved = (network(other) - network(image))[..., :scale]
        torch.testing.assert_close(moved, torch.zeros_like(moved), rtol=0, atol=1e-13)
        network(image).sum().backward()
    assert all(p.grad is not None for p in made.parameters())
    assert 0 < made.with_scale(2).flop_per_pixel < made.flop_per_pixel / 3
    made.save_pretrained(tmp_path / "n.safetensors")
    again = models.load(tmp_path / "n.safetensors")
    assert again.factors == (2, 4)
    torch.testing.assert_close(again(image), made(image))


@pytest.mark.parametrize("name", ["tnrd", "nlnet", "srcnn"])
def test_what_is_too_fine_for_bfloat16_is_not_computed_in_it(name: str) -> None:
    network, image = rival(name), picture(1, 1, 9, 14)
    expected = network(image)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(network(image), expected)
    prepared = network.for_inference(torch.bfloat16)(image)
    torch.testing.assert_close(prepared, expected, rtol=0, atol=1e-5)


def test_bfloat16_leaves_the_image_as_it_is() -> None:
    image = torch.tensor(np.linspace(0, 1, 40), dtype=torch.float32).view(1, 1, 5, 8)
    prepared = models.build("dncnn", {"layers": 3}).for_inference(torch.bfloat16)
    assert torch.equal(prepared(image), image)


def test_the_command_line_lists_networks_and_their_papers() -> None:
    shown = CliRunner().invoke(app, ["models", "--architectures"]).stdout.splitlines()
    assert len(shown) == len(ARCHITECTURES)
    line = next(line for line in shown if line.startswith("drcn "))
    assert "1,775,121 parameters" in line and "39.01 MFLOP/pixel" in line
    assert line.endswith(ARCHITECTURES["drcn"].paper)
    found = json.loads(CliRunner().invoke(app, ["models", "--architectures", "--json"]).stdout)
    assert [entry["name"] for entry in found] == list(ARCHITECTURES)
    info = CliRunner().invoke(app, ["info", "dncnn"]).stdout
    assert "554,112" in info and "architecture, without weights" in info
