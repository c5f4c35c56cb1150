"""The networks of others: their sizes as printed, and slow readings of their papers' equations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_networks import acting, picture, rival
from torch import Tensor

from nlrn import models
from nlrn.models import ARCHITECTURES, Network
from nlrn.models.convolutional import NormReluConv
from nlrn.models.diffusion import InfluenceFunctions, cosine_basis, pad, pad_transposed
from nlrn.models.drcn import DRCN, DRCNConfig
from nlrn.models.lapsrn import LapSRN, LapSRNConfig
from nlrn.models.memnet import MemNet, MemNetConfig
from nlrn.models.nlnet import NLNet, NLNetConfig
from nlrn.models.tnrd import TNRD, TNRDConfig

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


def assert_same_with_gradients(
    network: Network, slow: Callable[[Tensor], Tensor], *shape: int, tolerance: float = 1e-8
) -> None:
    """Both give the same image, and the same gradients of image and parameters."""
    network.double().requires_grad_()
    found = []
    for restore in (network, slow):
        image = picture(*shape).double().requires_grad_()
        result = restore(image)
        wanted = [image, *(p for p in network.parameters() if p.requires_grad)]
        weight = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)
        found.append((result, torch.autograd.grad((result * weight).sum(), wanted)))
    (fast, fast_grads), (plain, plain_grads) = found
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    for one, other in zip(fast_grads, plain_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


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
    with pytest.raises(ValueError, match="this network enlarges by 2, 4, got 3"):
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


def test_the_cosines_are_orthonormal_and_without_mean() -> None:
    basis = cosine_basis(5, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(basis @ basis.T, torch.eye(24).double())
    torch.testing.assert_close(basis.sum(1), torch.zeros(24).double())


@pytest.mark.parametrize(("size", "margin"), [((1, 1), 3), ((2, 5), 3), ((6, 4), 2)], ids=str)
def test_borders_are_mirrored_as_numpy_does_it(size: tuple[int, int], margin: int) -> None:
    image = picture(2, 3, *size).double()
    wide = pad(image, margin)
    around = ((0, 0), (0, 0), (margin, margin), (margin, margin))
    assert np.array_equal(wide, np.pad(image.numpy(), around, mode="symmetric"))
    other = picture(*wide.shape).double()
    back = pad_transposed(other, margin)
    assert float((wide * other).sum()) == pytest.approx(float((image * back).sum()))


def gaussians(weights: Tensor, reach: float, z: Tensor) -> Tensor:
    """The influence functions [N, M] as the sums that papers print, for z [B, N, H, W]."""
    centers = torch.linspace(-reach, reach, weights.shape[1], dtype=z.dtype)
    gamma = centers[1] - centers[0]
    each = torch.exp(-(z.unsqueeze(-1) - centers).square() / (2 * gamma**2))
    return torch.einsum("bnhwm,nm->bnhw", each, weights)


def test_influence_functions_are_sums_of_gaussians() -> None:
    influence = InfluenceFunctions(3, 13, 60.0).double()
    torch.nn.init.normal_(influence.weights, generator=torch.Generator().manual_seed(0))
    z = torch.linspace(-300, 300, 3 * 7 * 10, dtype=torch.float64).view(1, 3, 7, 10)
    z = torch.cat([z, 0.3 * z]).requires_grad_()
    found = []
    for function in (influence, lambda z: gaussians(influence.weights, 60.0, z)):
        result = function(z)
        slopes = torch.autograd.grad(result.square().sum(), (z, influence.weights))
        found.append((result, *slopes))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-9)


def shifted(x: Tensor, dy: int, dx: int, margin: int) -> Tensor:
    """The image moved by up to the margin, its mirror image beyond the border."""
    height, width = x.shape[-2:]
    rows = np.pad(np.arange(height), margin, mode="symmetric")[margin + dy :][:height]
    columns = np.pad(np.arange(width), margin, mode="symmetric")[margin + dx :][:width]
    return x[..., torch.from_numpy(rows), :][..., torch.from_numpy(columns)]


def filters_of(stage: Any) -> Tensor:
    c, size = stage.filters.coefficients, stage.filters.size
    basis = cosine_basis(size, c.dtype, c.device)
    return (c / c.norm(dim=1, keepdim=True) @ basis).view(-1, size, size)


def act(network: Any) -> None:
    """Makes every part act, with influence functions of some gray levels."""
    acting(network)
    for stage in network.stages:
        torch.nn.init.normal_(stage.influence.weights, std=0.5)


@pytest.mark.parametrize("shape", [(1, 1, 6, 9), (2, 1, 1, 3)], ids=str)
def test_tnrd_is_the_diffusion_of_its_paper(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = TNRD(TNRDConfig(stages=2, size=5))
    act(network)
    stages: Any = network.stages

    def slow(image: Tensor) -> Tensor:
        f = u = 255 * image
        reach = range(-2, 3)
        for stage in stages:
            step = torch.zeros_like(u)
            for k, w in zip(filters_of(stage), stage.influence.weights, strict=True):
                response = sum(k[y + 2, x + 2] * shifted(u, y, x, 2) for y in reach for x in reach)
                flow = gaussians(w[None], 310.0, response)
                step = step + sum(
                    k[y + 2, x + 2] * shifted(flow, -y, -x, 2) for y in reach for x in reach
                )
            u = u - step - stage.fidelity * (u - f)
        return u / 255

    assert_same_with_gradients(network, slow, *shape, tolerance=1e-6)


@pytest.mark.parametrize("name", ["tnrd", "nlnet"])
def test_filters_without_mean_leave_a_single_pixel_as_it_is(name: str) -> None:
    network, pixel = rival(name), torch.full((2, 1, 1, 1), 0.4)
    torch.testing.assert_close(network(pixel), pixel, rtol=0, atol=1e-5)
    torch.testing.assert_close(network.for_inference()(pixel), pixel, rtol=0, atol=1e-5)


def brute_groups(image: Tensor, size: int, reach: int, neighbors: int) -> list[tuple[int, ...]]:
    """For every pixel of an image [H, W] the centers of its most similar patches."""
    margin, (height, width) = size // 2, image.shape
    wide = np.pad(image.numpy(), margin, mode="symmetric")
    found = []
    for y in range(height):
        for x in range(width):
            near = [(v, u) for v in range(max(0, y - reach), min(height, y + reach + 1))
                    for u in range(max(0, x - reach), min(width, x + reach + 1))]  # fmt: skip
            patch = wide[y : y + size, x : x + size]
            far = [((wide[v : v + size, u : u + size] - patch) ** 2).sum() for v, u in near]
            best = sorted(range(len(near)), key=far.__getitem__)[:neighbors]
            found.append(tuple(near[i][0] * width + near[i][1] for i in best))
    return found


# In a row of four the first pixel has fewer patches around it than a group takes.
@pytest.mark.parametrize("shape", [(1, 1, 6, 9), (2, 1, 1, 4)], ids=str)
def test_nlnet_groups_filters_and_goes_back(shape: tuple[int, ...]) -> None:
    """L as a matrix, built patch by patch; L^T is its transpose."""
    torch.manual_seed(0)
    network = NLNet(NLNetConfig(stages=2, size=3, neighbors=4, reach=2))
    act(network)
    stages: Any = network.stages
    height, width = shape[-2:]

    def matrix(stage: Any, groups: list[tuple[int, ...]]) -> Tensor:
        """L: one row for each filter and pixel, one column for each pixel."""
        place = np.pad(np.arange(height * width).reshape(height, width), 1, mode="symmetric")
        rows = []
        for k in filters_of(stage):
            own = []  # the filter at each pixel, as a row over all pixels
            for pixel in range(height * width):
                y, x = divmod(pixel, width)
                columns = torch.from_numpy(place[y : y + 3, x : x + 3].flatten())
                own.append(k.new_zeros(height * width).index_add(0, columns, k.flatten()))
            rows.append(torch.stack([
                sum((g * own[j] for g, j in zip(stage.weights, group, strict=False)),
                    k.new_zeros(height * width))
                for group in groups
            ]))  # fmt: skip
        return torch.stack(rows)

    def slow(images: Tensor) -> Tensor:
        restored = []
        for image in images[:, 0]:
            y = x = 255 * image.flatten()
            groups = brute_groups(255 * image.detach(), 3, 2, 4)
            for stage in stages:
                big = matrix(stage, groups)
                z = torch.einsum("npq,q->np", big, x).clamp(-100, 100)
                psi = gaussians(stage.influence.weights, 100.0, z[None, :, :, None])[0, :, :, 0]
                step = torch.einsum("npq,np->q", big, psi)
                x = (1 - stage.fidelity) * x + stage.fidelity * y - step
            restored.append(x.view_as(image) / 255)
        return torch.stack(restored)[:, None]

    assert_same_with_gradients(network, slow, *shape, tolerance=1e-6)
