"""The networks in ONNX, with what states have of their own folded into shared weights.

The file holds a convolution once, however many states use it: scales are multiplied into it by the
graph, which ONNX Runtime does once, when it loads the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from nlrn.export.graph import EXACT, HALF, Graph
from nlrn.export.window import Window
from nlrn.models import Network
from nlrn.models.nlrn_inference import affine
from nlrn.models.non_local import NonLocal2d
from nlrn.models.pixel_grid import NOISE_SCALE
from nlrn.models.recurrence import EPSILON


def write_network(graph: Graph, network: Network, image: str, level: str) -> str:
    """Writes a network, and names its result [B, C, H, W].

    Args:
        graph: where it is written.
        network: one that does not enlarge, of an architecture of `WRITERS`.
        image: name of the input [B, C, H, W].
        level: name of the noise map [B, 1, H, W]; not looked at where the network takes none.
    """
    residual = write_cells(graph, network, _to_cells(graph, network, image, level))
    if network.multiple > 1:
        residual = graph("DepthToSpace", residual, blocksize=network.multiple, mode="CRD")
        size = graph.shape(graph.size(image, 2), graph.size(image, 3))
        residual = graph("Slice", residual, [0, 0], size, [2, 3])
    return graph("Add", graph("Slice", image, [0], [network.out_channels], [1]), residual)


def write_cells(graph: Graph, network: Network, cells: str) -> str:
    """Writes a network from the first convolution to the last, and names its result."""
    if network.architecture not in WRITERS:
        known = ", ".join(WRITERS)
        raise ValueError(f"{network.architecture} cannot be exported; {known} can")
    return WRITERS[network.architecture](graph, network, cells)


def _to_cells(g: Graph, network: Network, image: str, level: str) -> str:
    """`pixel_grid.to_grid`: the input of the first convolution [B, C', H/r, W/r]."""
    r = network.multiple
    parts = [image, level] if network.takes_noise_map else [image]
    if r > 1:
        parts = [_unshuffled(g, part, r) for part in _to_multiple(g, parts, r)]
    if not network.takes_noise_map:
        return parts[0]
    mean = g("ReduceMean", parts[1], axes=[1])
    return g("Concat", parts[0], g("Mul", mean, NOISE_SCALE), axis=1)


def _to_multiple(g: Graph, images: list[str], r: int) -> list[str]:
    """Images with rows and columns added by reflection until r divides both."""
    sides = [g.size(images[0], axis) for axis in (2, 3)]
    whole = [g("Mul", g("Div", g("Add", side, r - 1), r), r) for side in sides]
    # One side that is too small to be reflected: both are continued by their last value.
    added = [g("Sub", after, side) for after, side in zip(whole, sides, strict=True)]
    small = g("Or", *(g("GreaterOrEqual", a, s) for a, s in zip(added, sides, strict=True)))
    for axis, side, after in zip((2, 3), sides, whole, strict=True):
        index, last = g.count(after), g("Sub", side, 1)
        reflected = g("Sub", g("Mul", last, 2), index)
        index = g("Min", index, g("Where", small, last, reflected))
        images = [g("Gather", image, index, axis=axis) for image in images]
    return images


def _unshuffled(g: Graph, image: str, r: int) -> str:
    """[B, C, H, W] -> [B, C r r, H/r, W/r], in PyTorch's order of channels."""
    batch, channels, height, width = (g.size(image, axis) for axis in range(4))
    height, width = g("Div", height, r), g("Div", width, r)
    cells = g("Reshape", image, g.shape(batch, channels, height, r, width, r))
    cells = g("Transpose", cells, perm=[0, 1, 3, 5, 2, 4])
    return g("Reshape", cells, g.shape(batch, g("Mul", channels, r * r), height, width))


def _nlrn(g: Graph, network: Any, cells: str) -> str:
    """The paper's network; see `nlrn_inference` for what goes into what."""
    config = network.config
    scale, shift = _affine(network.norm_in)
    skip = _convolution(g, network.conv_in, g("Add", g("Mul", cells, _map(scale)), _map(shift)))
    scale, shift = _affine(network.norm(0).non_local)
    x = g("Relu", g("Add", g("Mul", skip, _map(scale)), _map(shift)))
    states = _States(g, config.attention, [config.is_non_local(t) for t in range(config.steps)])
    for t in range(config.steps):
        cell, norms = network.cell(t), network.norm(t)
        scale, shift = _affine(norms.conv1)
        after = network.norm_out if t == config.steps - 1 else network.norm(t + 1).non_local
        kept = g("Mul", x, _map(scale))
        if config.is_non_local(t):
            assert cell.non_local is not None
            query, key, value = states.embed(x, cell.non_local, scale, shift)
            if g.dtype == HALF:  # far from zero, scores would be too far apart
                key = _centered(g, key)
            attended = states.attend(t, query, key, value, propagate=config.propagate)
            x = g("Add", attended, kept)
        else:
            x = g("Add", kept, _map(shift))
        x = g("Relu", _convolution(g, cell.conv1, x, *_affine(norms.conv2)))
        scale, shift = _affine(after)
        x = _convolution(g, cell.conv2, x, scale, shift)
        x = g("Relu", g("Add", x, g("Mul", skip, _map(scale))))
    return _convolution(g, network.conv_out, x)


def _residual(g: Graph, network: Any, cells: str) -> str:
    """The everyday network."""
    channels = g.size(cells, 1)
    pixels = g("Slice", cells, [0], g("Sub", channels, 1), [1])
    level = g("Slice", cells, g("Sub", channels, 1), channels, [1])
    cells = g("Mul", g("Concat", g("Sub", pixels, 0.5), level, axis=1), 2.0)
    return _convolution(g, network.conv_out, _recurrence(g, network, cells))


def _super_resolution(g: Graph, network: Any, image: str) -> str:
    """What is added to the pixels of the larger image, as cells of the given one."""
    cells = g("Mul", g("Sub", image, 0.5), 2.0)
    return _convolution(g, network.tail, _recurrence(g, network, cells))


def _recurrence(g: Graph, network: Any, cells: str) -> str:
    """Its states and the ReLU behind them; see `residual_inference` for what goes into what."""
    config = network.config
    stream = _convolution(g, network.conv_in, cells)
    states = _States(g, config.attention, [config.is_non_local(t) for t in range(config.steps)])
    for t, own in enumerate(network.states.vectors.by_state()):
        cell = network.states.cell(t)
        scale, shift, scale1, scale2, shift2, gate = (_array(vector) for vector in own)
        x = g("Mul", _channel_norm(g, stream), _map(scale))
        x = g("Relu", g("Add", x, _map(shift)))
        if config.is_non_local(t):
            assert cell.non_local is not None
            query, key, value = states.embed(x, cell.non_local)
            if config.embed_limit:
                query, key = (_limited(g, part, config.embed_limit) for part in (query, key))
            x = g("Add", x, states.attend(t, query, _centered(g, key), value))
        x = g("Relu", _convolution(g, cell.conv1, x, scale2, shift2, before=scale1))
        stream = g("Add", stream, _convolution(g, cell.conv2, x, gate))
    return g("Relu", stream)


class _States:
    """The non-local modules of a network, and the correlation between them."""

    def __init__(self, graph: Graph, spec: Any, present: list[bool]) -> None:
        self.graph, self.spec = graph, spec
        self.last = max((t for t, is_there in enumerate(present) if is_there), default=-1)
        self.window: Window | None = None
        self.correlation: str | None = None
        self.channels = 0

    def embed(
        self,
        x: str,
        module: NonLocal2d,
        scale: np.ndarray | float = 1.0,
        shift: np.ndarray | float = 0.0,
    ) -> list[str]:
        """Query, key and value [B, W, H, C] of features [B, C, H, W]; g is scaled and shifted."""
        g, self.channels = self.graph, module.g.out_channels
        if self.window is None:
            self.window = Window(g, x, self.spec)
        columns = g("Transpose", x, perm=[0, 3, 2, 1])
        layers = [layer for layer in (module.theta, module.psi) if layer is not None]
        weight = np.concatenate([_array(layer.weight)[..., 0, 0] for layer in (*layers, module.g)])
        sizes = [layer.out_channels for layer in (*layers, module.g)]
        factor = np.ones(len(weight))
        factor[-self.channels :] *= scale
        biases = [_array(layer.bias) for layer in layers]
        biases.append(_array(module.g.bias) * scale + shift)
        rows = g("MatMul", columns, _scaled(g, weight.T, factor))
        rows = g("Add", rows, np.concatenate(biases))
        parts = g.several("Split", len(sizes), rows, sizes, axis=-1)
        if not layers:
            return [columns, columns, parts[-1]]
        return [parts[0], parts[-2], parts[-1]]

    def attend(self, step: int, query: str, key: str, value: str, propagate: bool = True) -> str:
        """Attended values [B, C, H, W]."""
        assert self.window is not None
        prior, keep = self.correlation, propagate and step < self.last
        out, kept = self.window.attend(query, key, value, prior, self.channels, keep)
        self.correlation = kept if propagate else None
        return out


def _convolution(
    g: Graph,
    layer: nn.Conv2d,
    x: str,
    scale: np.ndarray | None = None,
    shift: np.ndarray | float = 0.0,
    before: np.ndarray | None = None,
) -> str:
    """A 3 x 3 convolution, with a scale and a shift after it and a scale before it."""
    weight, bias = _array(layer.weight), _array(layer.bias)
    if scale is None:
        return g("Conv", x, weight, bias, pads=[1, 1, 1, 1])
    factor = scale[:, None, None, None] * (1.0 if before is None else before[:, None, None])
    return g("Conv", x, _scaled(g, weight, factor), bias * scale + shift, pads=[1, 1, 1, 1])


def _scaled(g: Graph, weight: np.ndarray, factor: np.ndarray) -> str:
    """A weight times a factor: float32, which ONNX Runtime can multiply when it loads the file."""
    exact = g.at(EXACT)
    return g.from_exact(exact("Mul", g.to_exact(g.constant(weight)), factor))


def _channel_norm(g: Graph, x: str) -> str:
    """`recurrence.channel_norm`, in float32."""
    exact, x = g.at(EXACT), g.to_exact(x)
    square = exact("ReduceMean", exact("Mul", x, x), axes=[1])
    factor = exact("Reciprocal", exact("Sqrt", exact("Add", square, EPSILON)))
    return g.from_exact(exact("Mul", x, factor))


def _limited(g: Graph, embedding: str, limit: float) -> str:
    """`non_local.limited` of embeddings [B, W, H, D]."""
    short = g("Mul", embedding, 1 / limit)
    square = g("ReduceSum", g("Mul", short, short), [3])
    return g("Mul", embedding, g("Reciprocal", g("Sqrt", g("Add", square, 1.0))))


def _centered(g: Graph, key: str) -> str:
    """`non_local.centered` of keys [B, W, H, D]."""
    return g("Sub", key, g("ReduceMean", key, axes=[1, 2]))


def _array(values: Tensor | None) -> np.ndarray:
    assert values is not None
    return values.detach().double().cpu().numpy()


def _affine(norm: nn.BatchNorm2d) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the shift [C] that a batch norm comes to."""
    scale, shift = affine(norm)
    return _array(scale), _array(shift)


def _map(values: np.ndarray) -> np.ndarray:
    """Values of the channels [C] -> [1, C, 1, 1]."""
    return values.reshape(1, -1, 1, 1)


# By architecture; what a writer takes is a network of that one.
WRITERS: dict[str, Callable[[Graph, Any, str], str]] = {
    "nlrn": _nlrn,
    "nlrn-residual": _residual,
    "nlrn-sr": _super_resolution,
}
