"""Exported networks that enlarge give what the package gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from export_networks import network, upscaler
from small_networks import picture, rival

from nlrn import models
from nlrn.degrade import imresize

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from nlrn.export import FORMATS, export  # noqa: E402
from nlrn.export.check import run, session  # noqa: E402
from nlrn.export.onnx_file import build  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_upscale.py"
SIZES = ((24, 16, 1), (9, 21, 2), (3, 40, 1), (1, 7, 1))


def enlarged(model: models.Network, image: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(image).numpy()


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_one_file_for_all_sizes(scale: int) -> None:
    model = upscaler(scale, embed_limit=2.0)
    exported = session(build(model).SerializeToString())
    for height, width, batch in SIZES:
        image = picture(batch, 3, height, width)
        found, expected = run(exported, image.numpy()), enlarged(model, image)
        assert found.shape == (batch, 3, scale * height, scale * width)
        assert np.abs(found - expected).max() < 1e-5, (height, width)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_it_starts_from_matlabs_bicubic_image(scale: int) -> None:
    model = upscaler(scale)
    torch.nn.init.zeros_(model.tail.weight)
    exported = session(build(model).SerializeToString())
    for height, width in ((13, 10), (2, 9), (1, 1)):
        image = picture(1, 3, height, width)
        found = run(exported, image.numpy())[0].transpose(1, 2, 0)
        expected = imresize(image[0].permute(1, 2, 0).double().numpy(), scale)
        assert np.abs(found - expected).max() < 1e-5, (height, width)


def test_gray_networks_and_cells() -> None:
    model = upscaler(3, in_channels=1, steps=4, cells=2, non_local_every=2)
    image = picture(2, 1, 11, 18)
    found = run(session(build(model).SerializeToString()), image.numpy())
    assert np.abs(found - enlarged(model, image)).max() < 1e-5


def test_half_precision() -> None:
    model, image = upscaler(4), picture(1, 3, 21, 30)
    found = run(session(build(model, fp16=True).SerializeToString()), image.numpy())
    assert found.dtype == np.float32
    assert 1e-6 < np.abs(found - enlarged(model, image)).max() < 5e-3


def test_vsmlrt_finds_the_ratio() -> None:
    built = build(upscaler(3), one_input=True)
    (given,), (result,) = built.graph.input, built.graph.output
    sides = [d.dim_value or d.dim_param for d in given.type.tensor_type.shape.dim]
    assert sides == ["batch", 3, "height", "width"]
    # What vs-mlrt does before it runs a network: one size for all, then the types of everything.
    for axis, side in ((0, 1), (2, 48), (3, 64)):
        given.type.tensor_type.shape.dim[axis].dim_value = side
    result.type.tensor_type.shape.dim[0].dim_value = 1
    shown = onnx.shape_inference.infer_shapes(built, strict_mode=True)
    assert session(shown.SerializeToString()).get_outputs()[0].shape == [1, 3, 144, 192]


def test_what_the_file_says() -> None:
    built = build(models.load("sr-rgb-fast").with_scale(4))
    facts = {prop.key: prop.value for prop in built.metadata_props}
    assert facts["name"] == "sr-rgb-fast" and facts["scale"] == "4" and "sigma" not in facts
    assert json.loads(facts["card"])["factors"] == [2, 3, 4]
    assert [i.name for i in built.graph.input] == ["image"]
    assert len(built.SerializeToString()) < 5e6


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_factor_is_written(file_format: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    done = export(upscaler(2), path, scale=3, file_format=file_format)
    assert done.size == path.stat().st_size and done.difference < 1e-5
    if file_format != "bioimageio":
        assert run(session(path.read_bytes()), picture(1, 3, 5, 8).numpy()).shape[2:] == (15, 24)


@pytest.mark.parametrize(
    ("model", "scale", "message"),
    [
        (upscaler(), None, "nlrn-sr: enlarges by 2, 3, 4; scale must be one of them"),
        (upscaler(), 5, "nlrn-sr: scale must be one of 2, 3, 4, got 5"),
        (network(), 2, "nlrn-residual: does not enlarge, so scale must be left out, got 2"),
        (rival("lapsrn"), 2, "lapsrn cannot be exported; nlrn, nlrn-residual, nlrn-sr can"),
    ],
)
def test_what_cannot_be_exported(
    model: models.Network, scale: int | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "m.onnx", scale=scale)
    assert not list(tmp_path.iterdir())


def test_the_example_needs_no_torch(tmp_path: Path) -> None:
    from PIL import Image

    model, source, target = (tmp_path / n for n in ("m.onnx", "in.png", "out.png"))
    export(upscaler(), model, scale=2)
    pixels = (picture(19, 26, 3).numpy() * 255).astype(np.uint8)
    Image.fromarray(pixels).save(source)
    alone = "import sys, runpy; sys.modules['torch'] = sys.modules['nlrn'] = None; del sys.argv[0]"
    files = map(str, (EXAMPLE, model, source, target))
    command = [sys.executable, "-c", f"{alone}; runpy.run_path(sys.argv[0])", *files]
    subprocess.run(command, check=True, capture_output=True)
    given = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    expected = enlarged(upscaler(), given)[0].clip(0, 1).transpose(1, 2, 0) * 255
    assert np.abs(np.asarray(Image.open(target)) - expected).max() < 0.51
