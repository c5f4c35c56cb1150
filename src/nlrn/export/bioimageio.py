"""A model as bioimage.io shares it: a zip of the weights, their description and test tensors."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from datetime import UTC, datetime
from typing import Any

import numpy as np

from nlrn.export.check import SIGMA, run, session
from nlrn.export.graph import OPSET
from nlrn.inference.tiles import HALO
from nlrn.models import Network

FORMAT_VERSION = "0.5.4"
SIDES = (64, 80)  # of the test tensors
PAPER = "Liu et al., Non-Local Recurrent Network for Image Restoration, NeurIPS 2018"
DOI = "10.48550/arXiv.1806.02919"
VALIDATION = "\n## Validation\n\nPSNR on images that the model has never seen:\n\n"
DENOISER = """\
`image` is {kind} in [0, 1], `sigma` the standard deviation of its noise in the
same units; all sizes are taken. White Gaussian noise is expected.
"""
UPSCALER = "`image` is in [0, 1]; all sizes are taken. It should be sharp and without noise.\n"


def package(network: Network, model: bytes) -> bytes:
    """The zip of a model of ONNX: a denoiser with two inputs, or a network that enlarges."""
    tensors = _test_inputs(network)
    tensors["result"] = run(session(model), tensors["image"], tensors.get("sigma"))
    files = {
        "model.onnx": model,
        **{f"{name}.npy": _npy(values) for name, values in tensors.items()},
        "README.md": _readme(network).encode(),
    }
    files["bioimageio.yaml"] = json.dumps(_description(network, files), indent=2).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _test_inputs(network: Network) -> dict[str, np.ndarray]:
    """A smooth image with noise and, to remove it, its level: a map where that is taken."""
    height, width = SIDES
    waves = np.sin(np.arange(height) / 9)[:, None] * np.cos(np.arange(width) / 7)
    shape = (1, network.in_channels, height, width)
    image = 0.5 + 0.4 * waves + SIGMA * np.random.default_rng(0).standard_normal(shape)
    tensors = {"image": image.astype(np.float32)}
    if not network.factors:
        sides = SIDES if network.takes_noise_map else (1, 1)
        tensors["sigma"] = np.full((1, 1, *sides), SIGMA, np.float32)
    return tensors


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _description(network: Network, files: dict[str, bytes]) -> dict[str, Any]:
    """What bioimageio.yaml says; JSON is YAML."""
    card, enlarges = network.card, bool(network.factors)
    author = {"name": "the nlrn authors"}
    channels = ["gray"] if network.in_channels == 1 else ["red", "green", "blue"]
    free = {"min": 16, "step": 1}
    like_image = [{"tensor_id": "image", "axis_id": axis} for axis in ("y", "x")]
    level = like_image if network.takes_noise_map else [1, 1]
    # Sizes follow from those of a pixel: of the image it is as many times that of the result.
    inputs = [_tensor(files, "image", channels, [free, free], "in [0, 1]", network.scale)]
    if not enlarges:
        meaning = "noise level in units of the image"
        inputs.append(_tensor(files, "sigma", ["sigma"], level, meaning))
    does, result = "Removes noise from images", "without noise"
    if enlarges:
        does, result = "Enlarges images", "enlarged"
    weights = _file(files, "model.onnx") | {"opset_version": OPSET, "authors": [author]}
    return {
        "type": "model",
        "format_version": FORMAT_VERSION,
        "name": f"nlrn {_name(network)}",
        "description": card.description or does,
        "authors": [author],
        "cite": [{"text": PAPER, "doi": DOI}],
        **({"license": card.license} if card.license else {}),
        "documentation": "README.md",
        "tags": ["super-resolution" if enlarges else "denoising", "image-restoration", "2d"],
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "inputs": inputs,
        "outputs": [_tensor(files, "result", channels, like_image, result)],
        "weights": {"onnx": weights},
        "config": {"nlrn": {"halo": network.halo, "multiple": network.multiple,
                            "scale": network.scale, "card": card.to_dict()}},
    }  # fmt: skip


def _name(network: Network) -> str:
    name = network.card.name or network.architecture
    return f"{name} x{network.scale}" if network.factors else name


def _tensor(
    files: dict[str, bytes],
    name: str,
    channels: list[str],
    sizes: list[Any],
    description: str,
    pixel: int = 1,
) -> dict[str, Any]:
    y, x = sizes
    return {
        "id": name,
        "description": description,
        "axes": [
            {"type": "batch"},
            {"type": "channel", "channel_names": channels},
            {"type": "space", "id": "y", "size": y, "scale": pixel},
            {"type": "space", "id": "x", "size": x, "scale": pixel},
        ],
        "data": {"type": "float32", "range": [None, None], "unit": "arbitrary unit"},
        "test_tensor": _file(files, f"{name}.npy"),
    }


def _file(files: dict[str, bytes], name: str) -> dict[str, str]:
    return {"source": name, "sha256": hashlib.sha256(files[name]).hexdigest()}


def _readme(network: Network) -> str:
    card, kind = network.card, "RGB" if network.in_channels == 3 else "gray or RGB"
    figures = "".join(f"- {name}: {value:.2f} dB\n" for name, value in card.psnr.items())
    return (
        f"# {_name(network)}\n\n{card.description}\n\n"
        f"{UPSCALER if network.factors else DENOISER.format(kind=kind)}"
        f"A pixel can change the result up to {network.halo} pixels away; tiles that overlap by\n"
        f"{min(HALO, network.halo)} hardly differ from the whole image.\n"
        f"{VALIDATION + figures if figures else ''}"
    )
