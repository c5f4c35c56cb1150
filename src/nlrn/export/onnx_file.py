"""Models as files of ONNX: the whole graph, its inputs and outputs, and what is known about it."""

from __future__ import annotations

import json

import numpy as np
import onnx
from onnx import TensorProto, helper

from nlrn import __version__
from nlrn.export.denoiser import write_denoiser
from nlrn.export.graph import EXACT, HALF, IR_VERSION, OPSET, Graph
from nlrn.export.upscaler import write_upscaler
from nlrn.models import Network

Tensors = list[onnx.ValueInfoProto]


def build(network: Network, *, fp16: bool = False, one_input: bool = False) -> onnx.ModelProto:
    """The model of a network: a denoiser, or one that enlarges, for the factor that it has.

    Args:
        network: what is exported.
        fp16: whether weights and arithmetic are of half precision; inputs and output are not.
        one_input: image and noise map as the channels of one input [B, C + 1, H, W]; networks
            that enlarge have no more than the image anyway.
    """
    graph, dtype = Graph(EXACT), HALF if fp16 else EXACT
    if network.factors:
        inputs, output, result = _upscaler(graph, network, dtype)
    else:
        inputs, output, result = _denoiser(graph, network, dtype, one_input)
    graph.nodes.append(helper.make_node("Identity", [result], ["result"]))
    constants = list(graph.constants.values())
    inside = helper.make_graph(graph.nodes, "nlrn", inputs, [output], constants)
    model = helper.make_model(inside, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version, model.producer_name, model.producer_version = IR_VERSION, "nlrn", __version__
    helper.set_model_props(model, metadata(network))
    onnx.checker.check_model(model)
    return model


def _denoiser(
    graph: Graph, network: Network, dtype: np.dtype, one_input: bool
) -> tuple[Tensors, onnx.ValueInfoProto, str]:
    """Inputs, output, and the name of what the output is to hold."""
    channels = network.in_channels
    shown = "channels" if channels == 1 and not one_input else channels
    if one_input:
        inputs = [_tensor("input", "batch", channels + 1, "height", "width")]
        image = graph("Slice", "input", [0], [channels], [1])
        sigma = graph("Slice", "input", [channels], [channels + 1], [1])
        if not network.takes_noise_map:
            sigma = graph("ReduceMean", sigma, axes=[2, 3])
    else:
        sides = ("sigma_height", "sigma_width") if network.takes_noise_map else (1, 1)
        inputs = [_tensor("image", "batch", shown, "height", "width"),
                  _tensor("sigma", "sigma_batch", 1, *sides)]  # fmt: skip
        image, sigma = "image", "sigma"
    output = _tensor("result", "batch", shown, "height", "width")
    return inputs, output, write_denoiser(graph, network, image, sigma, dtype)


def _upscaler(
    graph: Graph, network: Network, dtype: np.dtype
) -> tuple[Tensors, onnx.ValueInfoProto, str]:
    """Input, output, and the name of what the output is to hold."""
    # The channels as a number: programs tell by it what kind of image is wanted.
    channels, scale = network.in_channels, network.scale
    image = _tensor("image", "batch", channels, "height", "width")
    output = _tensor("result", "batch", channels, f"{scale}*height", f"{scale}*width")
    return [image], output, write_upscaler(graph, network, "image", dtype)


def metadata(network: Network) -> dict[str, str]:
    """What a program has to know of the model, as text."""
    card = network.card
    return {
        "name": card.name,
        "license": card.license,
        "card": json.dumps(card.to_dict()),
        "halo": str(network.halo),
        "multiple": str(network.multiple),
        **(_about_upscaler(network) if network.factors else _about_denoiser(network)),
    }


def _about_denoiser(network: Network) -> dict[str, str]:
    sigma = "standard deviation of the noise in the units of the image, [1, 1, 1, 1]"
    if network.takes_noise_map:
        sigma += " or a map [batch, 1, height, width]"
    kind = "RGB [batch, 3" if network.in_channels == 3 else "gray or RGB [batch, 1 or 3"
    return {"image": f"{kind}, height, width] in [0, 1]", "sigma": sigma}


def _about_upscaler(network: Network) -> dict[str, str]:
    kind = "gray" if network.in_channels == 1 else "RGB"
    shape = f"[batch, {network.in_channels}, height, width]"
    return {"image": f"{kind} {shape} in [0, 1]", "scale": str(network.scale)}


def _tensor(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
