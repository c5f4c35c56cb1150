"""A denoiser in ONNX: what `nlrn.Denoiser` does with a batch, with one network.

But for RGB with equal channels, which it does not take for gray, and for values beyond [0, 1].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nlrn.export.graph import Graph
from nlrn.export.networks import write_network
from nlrn.models import Network
from nlrn.models.conditioning import LARGEST_SCALE, LARGEST_SHARE, REACH, SMOOTHING
from nlrn.restoration.base import SAME
from nlrn.restoration.denoiser import FLAT_REACH


class Scaled(NamedTuple):
    """Images and levels for a network, and the contrast that they were given; names."""

    image: str
    level: str
    scale: str


def write_denoiser(g: Graph, network: Network, image: str, sigma: str, dtype: np.dtype) -> str:
    """Writes a denoiser, and names its result, images like `image`.

    Args:
        g: where it is written, in float32.
        network: of one or three channels.
        image: name of images [B, C, H, W]: RGB, or gray too if the network is gray.
        sigma: name of noise levels in units of the image that can be expanded to [B, 1, H, W].
        dtype: precision of the network.
    """
    planes, level = _to_planes(g, network, image, sigma)
    condition = _for_all_levels if network.takes_noise_map else _for_one_level
    given = condition(g, network, planes, level)
    inner = g.at(dtype)
    inputs = (inner.from_exact(name) for name in (given.image, given.level))
    restored = inner.to_exact(write_network(inner, network, *inputs))
    clean = g("Add", g("Div", g("Sub", restored, 0.5), given.scale), 0.5)
    removed = g("Sub", planes, clean)
    limited = _limited_to_noise if network.takes_noise_map else _limited
    removed = limited(g, network, removed, level)
    alone = g("Or", _flat(g, planes), g("Equal", level, 0.0))
    removed = g("Where", alone, 0.0, removed)
    return _from_planes(g, network, g("Sub", planes, removed), image)


def _to_planes(g: Graph, network: Network, image: str, sigma: str) -> tuple[str, str]:
    """Images and levels as the network takes them: see `restoration.base.to_planes`."""
    if network.in_channels == 3:
        return image, _level_of(g, network, image, sigma, 1)
    channels, height, width = (g.size(image, axis) for axis in (1, 2, 3))
    level = _level_of(g, network, image, sigma, channels)
    shape = g.shape(-1, 1, height, width)
    if not network.takes_noise_map:
        return g("Reshape", image, shape), g("Reshape", level, [-1, 1, 1, 1])
    return g("Reshape", image, shape), g("Reshape", level, shape)


def _level_of(g: Graph, network: Network, image: str, sigma: str, channels: str | int) -> str:
    """The noise level of every pixel, or of every image, of so many planes."""
    batch, height, width = (g.size(image, axis) for axis in (0, 2, 3))
    size = (height, width) if network.takes_noise_map else (1, 1)
    return g("Expand", sigma, g.shape(batch, channels, *size))


def _from_planes(g: Graph, network: Network, planes: str, image: str) -> str:
    """What became of the planes, in the shape of the image."""
    return g("Reshape", planes, g("Shape", image)) if network.in_channels == 1 else planes


def _for_all_levels(g: Graph, network: Network, image: str, level: str) -> Scaled:
    """Contrast lowered where the level is beyond what the network was trained for."""
    most = network.card.sigma_range
    if most is None:
        return Scaled(image, level, g.constant(1.0))
    highest = g("ReduceMax", level, axes=[1, 2, 3])
    scale = g("Min", g("Div", most[1] / 255, g("Max", highest, 1e-9)), 1.0)
    return Scaled(_contrast(g, image, scale), g("Mul", level, scale), scale)


def _for_one_level(g: Graph, network: Network, image: str, level: str) -> Scaled:
    """`conditioning.for_one_level`."""
    trained = (network.card.sigma or 0.0) / 255
    may = g("LessOrEqual", trained, g("Mul", level, LARGEST_SCALE))
    scale = g("Where", may, g("Div", trained, level), 1.0) if trained else g.constant(1.0)
    return Scaled(_contrast(g, image, scale), level, scale)


def _contrast(g: Graph, image: str, scale: str) -> str:
    return g("Add", g("Mul", g("Sub", image, 0.5), scale), 0.5)


def _limited(g: Graph, network: Network, removed: str, level: str) -> str:
    """`conditioning.limit_to_noise_variance` where the noise is weak for the network."""
    trained, reach = (network.card.sigma or 0.0) / 255, math.ceil(3 * SMOOTHING)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / SMOOTHING) ** 2)
    kernel /= kernel.sum()
    energy = g("Pad", g("Mul", removed, removed), [0, 0, reach, reach] * 2, mode="edge")
    for shape in ((1, 1, 1, -1), (1, 1, -1, 1)):
        energy = g("Conv", energy, kernel.reshape(shape))
    share = g("Div", g("Mul", level, level), g("Max", energy, 1e-12))
    limited = g("Mul", removed, g("Min", share, 1.0))
    return g("Where", g("Less", g("Mul", level, LARGEST_SCALE), trained), limited, removed)


def _limited_to_noise(g: Graph, network: Network, removed: str, level: str) -> str:
    """`conditioning.limit_to_noise`."""
    energy = g("ReduceMean", g("Mul", removed, removed), axes=[1])
    sides = {"kernel_shape": [2 * REACH + 1] * 2, "pads": [REACH] * 4}
    energy = g("Max", g("AveragePool", energy, **sides), 1e-12)
    share = g("Div", g("Mul", g("Mul", level, level), LARGEST_SHARE), energy)
    return g("Mul", removed, g("Min", share, 1.0))


def _flat(g: Graph, planes: str) -> str:
    """Where nothing varies [B, 1, H, W]: see `restoration.base.is_flat`."""
    highest, lowest = planes, g("Neg", planes)
    for along in ((0, FLAT_REACH), (FLAT_REACH, 0)):
        sides = {"kernel_shape": [2 * reach + 1 for reach in along], "pads": [*along, *along]}
        highest, lowest = (g("MaxPool", part, **sides) for part in (highest, lowest))
    varies = g("ReduceMax", g("Add", highest, lowest), axes=[1])
    return g("Less", varies, SAME)
