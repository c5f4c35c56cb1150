"""Compares an exported model with the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnxruntime
import torch

from nlrn.inference import Engine, Settings
from nlrn.models import Network
from nlrn.restoration import Denoiser

SIZES = ((48, 64), (33, 47), (70, 29))
SIGMA = 0.1
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2


def session(model: bytes, threads: int = 0) -> onnxruntime.InferenceSession:
    """The model, ready to run on the CPU; 0 threads is one for each core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # cores are shared
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(
    model: onnxruntime.InferenceSession, image: np.ndarray, sigma: float | np.ndarray | None = None
) -> np.ndarray:
    """Images [B, C, H, W] without their noise, or enlarged.

    Args:
        model: with one input or with two.
        image: [B, C, H, W] in [0, 1].
        sigma: noise level in the units of the image: a number, or a map [B, 1, H, W]; None for
            a model that enlarges.
    """
    if sigma is None:
        return model.run(None, {"image": image})[0]
    level = np.asarray(sigma, np.float32).reshape(np.shape(sigma) or (1, 1, 1, 1))
    if len(model.get_inputs()) == 2:
        return model.run(None, {"image": image, "sigma": level})[0]
    batch, _, height, width = image.shape
    both = [image, np.broadcast_to(level, (batch, 1, height, width))]
    return model.run(None, {"input": np.concatenate(both, 1)})[0]


def in_package(network: Network) -> Callable[..., torch.Tensor]:
    """What the package does with the network: called with image and sigma, or the image alone."""
    settings = Settings(device="cpu")
    if network.factors:
        return Engine(network, settings)
    return Denoiser(network, settings=settings)


def largest_difference(network: Network, model: bytes, *, fp16: bool = False) -> float:
    """Largest difference of results from the package's on three sizes; raises if it is too large.

    The last one is with a map of noise levels, where the network takes one.
    """
    exported, ours = session(model), in_package(network)
    worst = 0.0
    for image, level in _cases(network):
        expected = ours(image, *(() if level is None else (level,))).numpy()
        given = level.numpy() if isinstance(level, torch.Tensor) else level
        difference = np.abs(run(exported, image.numpy(), given) - expected).max()
        worst = max(worst, float(difference))
    if not worst <= (HALF_TOLERANCE if fp16 else TOLERANCE):
        raise ValueError(f"the exported model differs from the package by {worst:.2g}")
    return worst


def _cases(network: Network) -> Iterator[tuple[torch.Tensor, float | torch.Tensor | None]]:
    """Images, and their noise levels where noise is to be removed."""
    for height, width in SIZES:
        level: float | torch.Tensor | None = None if network.factors else SIGMA
        if network.takes_noise_map and (height, width) == SIZES[-1]:
            level = torch.linspace(0.02, 0.3, width).expand(1, 1, height, width).contiguous()
        yield _noisy(network.in_channels, height, width), level


def _noisy(channels: int, height: int, width: int) -> torch.Tensor:
    """A smooth image with noise, which is the same every time."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.linspace(0, 6, height)[:, None], torch.linspace(0, 9, width)
    smooth = 0.5 + 0.25 * torch.sin(rows) + 0.25 * torch.cos(columns)
    noise = torch.randn(1, channels, height, width, generator=generator)
    return smooth + SIGMA * noise
