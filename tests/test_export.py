"""Exported denoisers give what the package gives."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_networks import NETWORKS, SMALL, network

import nlrn
from nlrn import models, weights
from nlrn.models import Network
from nlrn.models.nlrn import NLRNConfig, random_network

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from nlrn.export import export  # noqa: E402
from nlrn.export.check import run, session  # noqa: E402
from nlrn.export.onnx_file import build  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "examples"


def noisy(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(shape, generator=generator)


def denoised(model: Network, image: torch.Tensor, sigma: float | torch.Tensor) -> np.ndarray:
    return nlrn.Denoiser(model, settings=nlrn.Settings(device="cpu"))(image, sigma).numpy()


def difference(
    model: Network, image: torch.Tensor, sigma: float | torch.Tensor, **how: bool
) -> float:
    """Largest difference between the exported model and the package."""
    exported = session(build(model, **how).SerializeToString())
    level = sigma if isinstance(sigma, float) else sigma.numpy()
    if isinstance(level, np.ndarray) and level.ndim == 1:
        level = level[:, None, None, None]
    found = run(exported, image.numpy(), level)
    expected = denoised(model, image, sigma)
    assert found.shape == expected.shape and found.dtype == np.float32
    assert np.abs(expected - image.numpy()).max() > 5e-4, "the network does nothing"
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_one_file_for_all_sizes(name: str) -> None:
    model = network(name)
    exported = session(build(model).SerializeToString())
    for height, width, batch in ((24, 16, 1), (9, 21, 2), (3, 40, 1), (1, 7, 1)):
        image = noisy(batch, model.in_channels, height, width)
        found = run(exported, image.numpy(), 0.1)
        assert np.abs(found - denoised(model, image, 0.1)).max() < 1e-5, (height, width)


@pytest.mark.parametrize("name", ["grid", "grid-4", "map", "residual", "residual-rgb"])
def test_a_level_for_each_pixel_or_image(name: str) -> None:
    model = network(name)
    image = noisy(2, model.in_channels, 17, 22)
    levels = torch.linspace(0.02, 0.25, 22).expand(2, 1, 17, 22).contiguous()
    assert difference(model, image, levels) < 1e-5
    assert difference(model, image, torch.tensor([0.05, 0.2])) < 1e-5
    levels[1] *= 4  # beyond the training, in one of the two
    levels[..., :7] = 0
    assert difference(model, image, levels) < 1e-5


@pytest.mark.parametrize("sigma", [2.0, 10.0, 21.0, 23.0, 25.0, 60.0])
def test_contrast_brings_noise_to_the_level_of_the_training(sigma: float) -> None:
    assert difference(network("paper"), noisy(1, 1, 20, 31), sigma / 255) < 1e-5


@pytest.mark.parametrize("name", ["paper", "residual"])
def test_a_network_of_which_little_is_known(name: str) -> None:
    model = network(name, sigma=None, sigma_range=None)
    assert difference(model, noisy(1, 1, 20, 31), 0.1) < 1e-5


def test_levels_beyond_the_training() -> None:
    assert difference(network(), noisy(1, 3, 19, 26), 0.6) < 1e-5


@pytest.mark.parametrize("name", ["residual", "paper"])
def test_color_through_a_gray_network(name: str) -> None:
    assert difference(network(name), noisy(2, 3, 14, 25), 0.1) < 1e-5


def test_a_color_network_takes_no_gray() -> None:
    exported = session(build(network("residual-rgb")).SerializeToString())
    with pytest.raises(Exception, match="Got: 1 Expected: 3"):
        run(exported, noisy(1, 1, 14, 25).numpy(), 0.1)


@pytest.mark.parametrize("name", ["paper", "residual"])
def test_nothing_is_done_without_noise(name: str) -> None:
    image = noisy(1, 1, 12, 15).numpy()
    exported = session(build(network(name)).SerializeToString())
    assert (run(exported, image, 0.0) == image).all()


def test_flat_parts_stay_as_they_are() -> None:
    image = noisy(1, 3, 40, 30)
    image[..., :20, :] = 0.25
    exported = session(build(network()).SerializeToString())
    found = run(exported, image.numpy(), 0.1)
    assert (found[..., :16, :] == 0.25).all()
    assert np.abs(found - denoised(network(), image, 0.1)).max() < 1e-5


def test_a_network_of_one_level_refuses_a_map() -> None:
    exported = session(build(network("paper")).SerializeToString())
    levels = np.full((1, 1, 12, 15), 0.1, np.float32)
    with pytest.raises(Exception, match="sigma"):
        run(exported, noisy(1, 1, 12, 15).numpy(), levels)


@pytest.mark.parametrize("name", ["paper", "residual-rgb"])
def test_half_precision(name: str) -> None:
    model = network(name)
    image = noisy(1, model.in_channels, 21, 30)
    assert 1e-6 < difference(model, image, 0.1, fp16=True) < 5e-3
    whole, half = build(model), build(model, fp16=True)
    sizes = [sum(len(t.raw_data) for t in m.graph.initializer) for m in (whole, half)]
    assert sizes[1] < 0.8 * sizes[0]


@pytest.mark.parametrize("name", ["paper", "residual-rgb"])
def test_one_input_for_vsmlrt(name: str) -> None:
    model = network(name)
    assert difference(model, noisy(1, model.in_channels, 21, 30), 0.1, one_input=True) < 1e-5
    built = build(model, one_input=True)
    (given,), (result,) = built.graph.input, built.graph.output
    sides = [d.dim_value or d.dim_param for d in given.type.tensor_type.shape.dim]
    assert sides == ["batch", model.in_channels + 1, "height", "width"]
    # What vs-mlrt does before it runs a network: one size for all, then the types of everything.
    for axis, side in ((0, 1), (2, 48), (3, 64)):
        given.type.tensor_type.shape.dim[axis].dim_value = side
        if axis:
            result.type.tensor_type.shape.dim[axis].Clear()
    onnx.shape_inference.infer_shapes(built, strict_mode=True)


def test_what_the_file_says() -> None:
    built = build(network("residual-rgb", name="mine", license="MIT"))
    facts = {prop.key: prop.value for prop in built.metadata_props}
    assert facts["name"] == "mine" and facts["license"] == "MIT"
    assert int(facts["halo"]) == network().halo and facts["multiple"] == "2"
    assert json.loads(facts["card"])["sigma_range"] == [0.0, 75.0]
    assert built.opset_import[0].version >= 17
    assert [i.name for i in built.graph.input] == ["image", "sigma"]


@pytest.mark.parametrize(
    "name", [card.name for card in weights.list_models() if card.task == "denoise"]
)
def test_a_file_holds_the_weights_once(name: str) -> None:
    """States that share a cell share its weights in the file: the graph around them is small."""
    model = models.load(name)
    weighs = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
    assert len(build(model).SerializeToString()) < weighs + 1.2e6


@pytest.mark.slow
def test_a_model_of_the_package() -> None:
    model = models.load("denoise-rgb")
    exported = session(build(model).SerializeToString())
    noise_map = torch.linspace(0.02, 0.25, 130).expand(1, 1, 97, 130).contiguous()
    for size, sigma in (((64, 64), 0.1), ((97, 130), noise_map)):
        image = noisy(1, 3, *size)
        level = sigma if isinstance(sigma, float) else sigma.numpy()
        found = run(exported, image.numpy(), level)
        assert np.abs(found - denoised(model, image, sigma)).max() < 1e-4


def test_the_check_notices_another_network(tmp_path: Path) -> None:
    from nlrn.export.check import largest_difference

    with pytest.raises(ValueError, match="differs from the package by"):
        largest_difference(network(), build(network("grid-4")).SerializeToString())


@pytest.mark.parametrize(
    ("name", "card", "message"),
    [
        ("paper", {"task": "sr"}, "takes luminance that is enlarged already; networks"),
        ("paper", {"name": "x"}, None),
    ],
)
def test_what_can_be_exported(
    name: str, card: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    model, path = network(name), tmp_path / "m.onnx"
    model.card = dataclasses.replace(model.card, **card)
    if message is None:
        done = export(model, path)
        assert done.size == path.stat().st_size and done.difference < 1e-4
    else:
        with pytest.raises(ValueError, match=message):
            export(model, path)
        assert not path.exists()


@pytest.mark.parametrize("affinity", ["euclidean", "dot"])
def test_affinities_that_are_not_there(affinity: str, tmp_path: Path) -> None:
    model = random_network(NLRNConfig(**SMALL, affinity=affinity))
    with pytest.raises(ValueError, match=f"affinity '{affinity}' cannot be exported"):
        export(model, tmp_path / "m.onnx")


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("mine")
    with pytest.raises(ValueError, match="exists; overwrite=True"):
        export(network(), path)
    assert path.read_text() == "mine"
    with pytest.raises(ValueError, match="does not exist"):
        export(network(), tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(ValueError, match="is a folder"):
        export(network(), tmp_path)
    with pytest.raises(ValueError, match=r"m\.zip: a file of this format ends in \.onnx"):
        export(network(), tmp_path / "m.zip")
    with pytest.raises(ValueError, match=r"format must be one of onnx, .* got 'gguf'"):
        export(network(), path, file_format="gguf", overwrite=True)


ALONE = """
import sys
sys.modules["torch"] = sys.modules["nlrn"] = None  # importing them raises
import runpy
sys.argv = ["onnx_denoise.py", *sys.argv[2:]]
runpy.run_path({script!r})
"""


@pytest.mark.parametrize(
    ("channels", "name"), [(1, "residual"), (3, "residual"), (1, "residual-rgb")]
)
def test_the_example_needs_no_torch(channels: int, name: str, tmp_path: Path) -> None:
    from PIL import Image

    model, source, target = (tmp_path / n for n in ("m.onnx", "in.png", "out.png"))
    export(network(name), model)
    pixels = (noisy(19, 26, channels).numpy() * 255).astype(np.uint8)
    Image.fromarray(pixels.squeeze()).save(source)
    script = ALONE.format(script=str(EXAMPLES / "onnx_denoise.py"))
    command = [sys.executable, "-c", script, "-", model, source, target, "20"]
    subprocess.run([str(c) for c in command], check=True, capture_output=True)
    given = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    if name == "residual-rgb":
        assert np.asarray(Image.open(target)).shape == (19, 26, 3)
        return
    expected = denoised(network(name), given, 20 / 255)[0].clip(0, 1).transpose(1, 2, 0) * 255
    found = np.asarray(Image.open(target)).reshape(expected.shape)
    assert np.abs(found - expected).max() < 0.51
