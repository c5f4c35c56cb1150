"""Doors for other people's code: torch.hub, Hugging Face's folders, napari, spandrel, priors."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import SMALL, picture, strong_network

import nlrn
from nlrn import models, weights
from nlrn.models import ModelCard
from nlrn.weights import WeightsError

ROOT = Path(__file__).parents[1]


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / name))


def test_torch_hub_finds_the_entry_points() -> None:
    denoiser = torch.hub.load(str(ROOT), "denoiser", "denoise-gray-s25", source="local")
    assert isinstance(denoiser, nlrn.Denoiser) and denoiser.model == "denoise-gray-s25"
    network = torch.hub.load(str(ROOT), "network", "denoise-rgb", source="local")
    assert network.card.name == "denoise-rgb"


HUB = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "nlrn" else find(name, *rest)
import torch
print(type(torch.hub.load(sys.argv[1], "upscaler", scale=3.0, source="local")).__name__)
import nlrn
print(nlrn.__file__)
"""


@pytest.mark.slow
def test_torch_hub_brings_the_package_along() -> None:
    command = [sys.executable, "-I", "-c", HUB, str(ROOT)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told == ["Upscaler", str(ROOT / "src" / "nlrn" / "__init__.py")]


def test_a_folder_as_hugging_face_has_them(tmp_path: Path) -> None:
    network, folder = strong_network(), tmp_path / "my-model"
    card = ModelCard(name="mine", task="denoise", sigma=25.0, license="MIT", psnr={"Set12": 30.5})
    network.save_pretrained(folder, card)
    assert sorted(f.name for f in folder.iterdir()) == [
        "README.md", "config.json", "model.safetensors"
    ]  # fmt: skip
    described = json.loads((folder / "config.json").read_text())
    assert described["model_type"] == "nlrn" and described["card"]["name"] == "mine"
    assert described["config"]["window"] == SMALL.window
    page = (folder / "README.md").read_text()
    assert page.startswith("---\nlibrary_name: nlrn\n") and "\nlicense: mit\n" in page
    assert "| Set12 | 30.50 |" in page
    image = picture(1, 1, 11, 14)
    for loaded in (nlrn.NLRN.from_pretrained(folder), models.load(str(folder))):
        assert loaded.card.name == "mine" and torch.equal(loaded(image), network(image))
    assert nlrn.Denoiser(folder).model == str(folder)
    network.save_pretrained(folder, card)  # again, into what is there
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"without model\.safetensors"):
        models.load(folder)


def test_a_file_stays_a_file(tmp_path: Path) -> None:
    network, path = strong_network(), tmp_path / "m.safetensors"
    network.save_pretrained(path)
    assert path.is_file() and models.load(path).config == network.config


@pytest.mark.parametrize(
    ("shape", "rgb", "dtype"),
    [((18, 25), False, np.uint8), ((18, 25, 3), True, np.uint16), ((2, 13, 16), False, np.float32),
     ((2, 13, 16), False, np.int32)],
    ids=str,
)  # fmt: skip
def test_the_napari_widget(
    shape: tuple[int, ...], rgb: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nlrn import restoration
    from nlrn.napari import denoise_layer

    def halved(image: np.ndarray, sigma: float | None, **_: Any) -> np.ndarray:
        assert sigma == 20.0 and image.ndim == (3 if rgb else 2)
        assert image.dtype in (np.uint8, np.uint16) or image.max() <= 1
        return image // 2 if image.dtype.kind == "u" else image / 2

    monkeypatch.setattr(restoration, "denoise", halved)
    values = np.random.default_rng(0).integers(0, 250, shape)
    data = (values / 250 if dtype == np.float32 else values).astype(dtype)
    layer = SimpleNamespace(data=data, rgb=rgb, name="cells", scale=(1, 2), translate=(0, 0),
                            contrast_limits=(0, 250))  # fmt: skip
    result, how, kind = denoise_layer(layer, sigma=20.0)
    assert kind == "image" and how["name"] == "cells denoised" and how["scale"] == (1, 2)
    assert result.shape == shape and result.dtype == dtype
    assert np.abs(result - data / 2).max() <= 0.51


def test_the_napari_widget_denoises() -> None:
    from nlrn.napari import denoise_layer

    data = np.random.default_rng(0).integers(80, 180, (21, 30, 3), np.uint8)
    layer = SimpleNamespace(data=data, rgb=True, name="a", scale=(1, 1), translate=(0, 0),
                            contrast_limits=(0, 255))  # fmt: skip
    result, _, _ = denoise_layer(layer, sigma=30.0)
    assert result.std() < 0.7 * data.std()


def test_the_napari_manifest() -> None:
    npe2 = pytest.importorskip("npe2")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["napari.manifest"]["nlrn"]
    package, _, file = entry.partition(":")
    manifest = npe2.PluginManifest.from_file(ROOT / "src" / package / file)
    manifest.validate_imports()
    assert manifest.name == project["name"]
    (widget,) = manifest.contributions.widgets
    assert widget.autogenerate and widget.command == "nlrn.denoise"


def test_nothing_imports_napari() -> None:
    script = "import sys; sys.modules['napari'] = None; import nlrn.napari; print(len(sys.argv))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "1\n", found.stderr


@pytest.mark.parametrize("name", ["denoise-rgb", "denoise-gray-s50"])
def test_spandrel_knows_the_network_by_its_tensors(name: str) -> None:
    network_of = example("spandrel_models.py")["network_of"]
    network = models.load(name)
    found = network_of(network.state_dict())
    assert type(found) is type(network) and found.config == network.config
    image = picture(1, network.in_channels, 9, 12)
    given = network.input_for(image, 0.1)
    with torch.no_grad():
        assert torch.equal(found(given), network(given))


def test_spandrel_is_not_told_of_others() -> None:
    network_of = example("spandrel_models.py")["network_of"]
    assert network_of({"conv.weight": torch.zeros(3)}) is None
    assert network_of(strong_network().state_dict()) is None


def test_spandrel_gets_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that has what the example uses of spandrel."""
    added: list[Any] = []

    class Architecture:
        def __init__(self, *, id: str, detect: Any) -> None:
            self.id, self.detect = id, detect

    spandrel = SimpleNamespace(
        Architecture=Architecture,
        ArchSupport=SimpleNamespace(from_architecture=lambda architecture: architecture),
        ImageModelDescriptor=lambda model, tensors, **facts: SimpleNamespace(model=model, **facts),
        SizeRequirements=SimpleNamespace,
        MAIN_REGISTRY=SimpleNamespace(add=added.append),
    )
    monkeypatch.setitem(sys.modules, "spandrel", spandrel)
    example("spandrel_models.py")["register"](sigma=25.5)
    (architecture,) = added
    tensors = weights.load("denoise-rgb").tensors
    assert architecture.id == "NLRN" and architecture.detect(tensors)
    found = architecture.load(tensors)
    image = picture(1, 3, 12, 9)
    with torch.no_grad():
        result = found.call_fn(found.model, image)
        expected = found.model(found.model.input_for(image, 0.1))
    assert torch.equal(result, expected) and found.input_channels == 3


@pytest.mark.slow
def test_a_prior_for_plug_and_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = example("plug_and_play.py")["main"](tmp_path / "deblur.png", side=80)
    assert after > before + 3 and (tmp_path / "deblur.png").is_file()
    assert "sharpened" in capsys.readouterr().out


def test_a_loop_around_any_denoiser() -> None:
    made = example("plug_and_play.py")
    truth = picture(1, 1, 24, 31)
    transfer = made["gaussian"](24, 31)
    blurred = torch.fft.irfft2(transfer * torch.fft.rfft2(truth), (24, 31))
    levels: list[float] = []

    def denoiser(x: torch.Tensor, sigma: float) -> torch.Tensor:
        levels.append(sigma)
        return x

    found = made["deblur"](blurred, transfer, denoiser)
    assert levels == sorted(levels, reverse=True) and len(levels) == made["STEPS"]
    assert (found - truth).square().mean() < 0.9 * (blurred - truth).square().mean()
