"""Weights that others have published, as files of this package: DnCNN's of MATLAB and PyTorch.

Nothing of a file is run: PyTorch's are read in its safe mode, which knows tensors and containers
only; MATLAB's hold nothing but numbers.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlrn import models
from nlrn.models import Network
from nlrn.weights import ModelCard

LARGEST = 2**26  # bytes; the authors' files have two to three million
EPSILON = 1e-5  # of PyTorch's batch norm; MATLAB's files have it in their moments
SUFFIXES = (".mat", ".pt", ".pth")


class Convolution(NamedTuple):
    """A layer: weight [O, I, k, k], bias [O]."""

    weight: Tensor
    bias: Tensor


class Norm(NamedTuple):
    """Batch norm with fixed statistics, each [C]."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    deviation: Tensor


def read_dncnn(path: str | Path, card: ModelCard) -> Network:
    """The DnCNN in a file of its authors, with batch norms folded into its convolutions.

    Args:
        path: MATLAB's (.mat, a SimpleNN network), or a state_dict of PyTorch's (.pt, .pth).
        card: what is known of the weights.

    Raises:
        ValueError: if it is no such file; in a line.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: weights to convert end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"{path}: {size} bytes, at most {LARGEST} are read")
    layers = _of_matlab(path) if path.suffix == ".mat" else _of_torch(path)
    return _network(path, _folded(path, layers), card)


def _of_torch(path: Path) -> list[Convolution | Norm]:
    """The layers of a state_dict, in its order."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle of another kind than its own
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = "holds more than tensors, or none: it is not loaded, it could run a program"
        raise ValueError(f"{path}: {reason}") from error
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: no file of PyTorch's, or a damaged one") from error
    for name in ("state_dict", "params"):
        content = content.get(name, content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ValueError(f"{path}: no state_dict, which has a tensor for each name")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in content.items():
        layer, dot, part = str(name).rpartition(".")
        if not dot:
            raise ValueError(f"{path}: {name!r} belongs to no layer, as 'model.0.weight' does")
        parts.setdefault(layer, {})[part] = tensor
    return [_torch_layer(path, name, part) for name, part in parts.items()]


def _torch_layer(path: Path, name: str, part: Mapping[str, Tensor]) -> Convolution | Norm:
    weight = part.get("weight")
    if weight is not None and weight.ndim == 4:
        return Convolution(weight, part.get("bias", torch.zeros(len(weight))))
    try:
        deviation = (part["running_var"] + EPSILON).sqrt()
        return Norm(part["weight"], part["bias"], part["running_mean"], deviation)
    except KeyError as error:
        raise ValueError(f"{path}: {name!r} is neither convolution nor batch norm") from error


def _of_matlab(path: Path) -> list[Convolution | Norm]:
    """The layers of a SimpleNN network, `net.layers`."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise ValueError(f"{path}: MATLAB's files need scipy: pip install scipy") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of variables that are no numbers
            content = loadmat(path, struct_as_record=False)
        layers = [cell.item() for cell in content["net"].item().layers.flat]
        kinds = [str(np.squeeze(layer.type)) for layer in layers]
        wanted = [(layer, kind) for layer, kind in zip(layers, kinds, strict=True)
                  if kind in ("conv", "bnorm")]  # fmt: skip
        return [_matlab_layer(kind, layer.weights.flat) for layer, kind in wanted]
    except NotImplementedError as error:  # HDF5
        raise ValueError(f"{path}: of MATLAB 7.3; save it there with -v7") from error
    except (MatReadError, LookupError, AttributeError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path}: no network of MatConvNet's SimpleNN (net.layers)") from error


def _matlab_layer(kind: str, weights: Iterable[np.ndarray]) -> Convolution | Norm:
    arrays = [torch.from_numpy(np.array(w, np.float32)) for w in weights]
    if kind == "conv":
        kernel, bias = arrays[0], arrays[1].flatten()
        kernel = kernel.reshape(*kernel.shape, *[1] * (4 - kernel.ndim))  # H W I O
        weight = kernel.permute(3, 2, 0, 1).contiguous()
        return Convolution(weight, bias if len(bias) else torch.zeros(len(weight)))
    scale, shift, moments = arrays
    return Norm(scale.flatten(), shift.flatten(), moments[:, 0], moments[:, 1])


def _folded(path: Path, layers: Iterable[Convolution | Norm]) -> list[Convolution]:
    """Convolutions alone, each with the norm that follows it."""
    found: list[Convolution] = []
    for layer in layers:
        if isinstance(layer, Convolution):
            found.append(layer)
        elif not found or len(layer.mean) != len(found[-1].weight):
            raise ValueError(f"{path}: a batch norm of {len(layer.mean)} channels fits no layer")
        else:
            weight, bias = found[-1]
            share = layer.scale / layer.deviation
            bias = (bias - layer.mean) * share + layer.shift
            found[-1] = Convolution(weight * share.view(-1, 1, 1, 1), bias)
    return found


def _network(path: Path, layers: list[Convolution], card: ModelCard) -> Network:
    """The network of these layers; raises unless they are a DnCNN's."""
    shapes = [tuple(layer.weight.shape) for layer in layers]
    if len(shapes) < 2:
        raise ValueError(f"{path}: a DnCNN has at least 2 convolutions, got {len(shapes)}")
    channels, image = shapes[0][0], shapes[0][1]
    config = {"layers": len(shapes), "channels": channels, "norm": False, "in_channels": image}
    network: Any = models.build("dncnn", config)
    convolutions = network.convolutions()
    for number, (layer, own) in enumerate(zip(layers, convolutions, strict=True), 1):
        wanted = tuple(own.weight.shape)
        if tuple(layer.weight.shape) != wanted or len(layer.bias) != wanted[0]:
            got = list(layer.weight.shape)
            raise ValueError(f"{path}: convolution {number} must be {list(wanted)}, got {got}")
        if not all(bool(values.isfinite().all()) for values in layer):
            raise ValueError(f"{path}: convolution {number} has NaN or infinite values")
        own.weight.data, own.bias.data = layer.weight.float(), layer.bias.float()
    network.card = replace(card, channels=image)
    return network.eval()
