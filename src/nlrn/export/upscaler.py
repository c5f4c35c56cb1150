"""A network that enlarges, in ONNX, for one of its factors."""

from __future__ import annotations

import numpy as np

from nlrn.degrade import imresize_weights
from nlrn.export.graph import Graph
from nlrn.export.networks import write_cells
from nlrn.models import Network
from nlrn.models.bicubic import REACH


def write_upscaler(g: Graph, network: Network, image: str, dtype: np.dtype) -> str:
    """Writes a network for its factor, and names its result [B, C, scale H, scale W].

    Args:
        g: where it is written, in float32.
        network: one that enlarges.
        image: name of images [B, C, H, W].
        dtype: precision of the network; the bicubic image is made in float32.
    """
    inner = g.at(dtype)
    residual = inner.to_exact(write_cells(inner, network, inner.from_exact(image)))
    large = g("Add", _bicubic(g, image, network.in_channels, network.scale), residual)
    return g("DepthToSpace", large, blocksize=network.scale, mode="CRD")


def _bicubic(g: Graph, image: str, channels: int, scale: int) -> str:
    """`bicubic.enlarge` as cells [B, C scale scale, H, W]: a filter for each pixel of a cell."""
    for axis in (2, 3):
        image = g("Gather", image, _mirrored(g, g.size(image, axis)), axis=axis)
    one = imresize_weights(scale, REACH)  # scale 5
    filters = np.einsum("iy,jx->ijyx", one, one).reshape(scale**2, 1, *2 * one.shape[1:])
    return g("Conv", image, np.tile(filters, (channels, 1, 1, 1)), group=channels)


def _mirrored(g: Graph, side: str) -> str:
    """`bicubic._mirrored`: which pixels stand at -2, -1, 0, ... of a side, a list of one."""
    twice = g("Mul", side, 2)
    index = g("Mod", g("Sub", g.count(g("Add", side, 2 * REACH)), REACH), twice)
    return g("Min", index, g("Sub", g("Sub", twice, 1), index))
