"""Models as files of ONNX: the whole graph, its inputs and outputs, and what is known about it."""

from __future__ import annotations

import json

import onnx
from onnx import TensorProto, helper

from nlrn import __version__
from nlrn.export.denoiser import write_denoiser
from nlrn.export.graph import EXACT, HALF, IR_VERSION, OPSET, Graph
from nlrn.models import Network


def build(network: Network, *, fp16: bool = False, one_input: bool = False) -> onnx.ModelProto:
    """The model of a denoising network.

    Args:
        network: what is exported.
        fp16: whether weights and arithmetic are of half precision; inputs and output are not.
        one_input: image and noise map as the channels of one input [B, C + 1, H, W].
    """
    graph = Graph(EXACT)
    channels = network.in_channels
    if one_input:
        inputs = [_tensor("input", "batch", channels + 1, "height", "width")]
        image = graph("Slice", "input", [0], [channels], [1])
        sigma = graph("Slice", "input", [channels], [channels + 1], [1])
        if not network.takes_noise_map:
            sigma = graph("ReduceMean", sigma, axes=[2, 3])
    else:
        sides = ("sigma_height", "sigma_width") if network.takes_noise_map else (1, 1)
        inputs = [_tensor("image", "batch", "channels", "height", "width"),
                  _tensor("sigma", "sigma_batch", 1, *sides)]  # fmt: skip
        image, sigma = "image", "sigma"
    result = write_denoiser(graph, network, image, sigma, HALF if fp16 else EXACT)
    graph.nodes.append(helper.make_node("Identity", [result], ["result"]))
    shown = channels if one_input else "channels"
    output = _tensor("result", "batch", shown, "height", "width")
    constants = list(graph.constants.values())
    inside = helper.make_graph(graph.nodes, "nlrn", inputs, [output], constants)
    model = helper.make_model(inside, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version, model.producer_name, model.producer_version = IR_VERSION, "nlrn", __version__
    helper.set_model_props(model, metadata(network))
    onnx.checker.check_model(model)
    return model


def metadata(network: Network) -> dict[str, str]:
    """What a program has to know of the model, as text."""
    card = network.card
    sigma = "standard deviation of the noise in the units of the image, [1, 1, 1, 1]"
    if network.takes_noise_map:
        sigma += " or a map [batch, 1, height, width]"
    return {
        "name": card.name,
        "license": card.license,
        "card": json.dumps(card.to_dict()),
        "halo": str(network.halo),
        "multiple": str(network.multiple),
        "image": "gray or RGB [batch, 1 or 3, height, width] in [0, 1]",
        "sigma": sigma,
    }


def _tensor(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
