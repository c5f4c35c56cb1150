"""Small networks that act visibly, and short ways to run them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nlrn import models
from nlrn.inference import Engine, Settings, overlap
from nlrn.models import Network
from nlrn.models.nlrn import CONFIGS, NLRN, NLRNConfig, random_network
from nlrn.progress import Progress

SMALL = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=3, channels=8, embed=4)


def restore(network: NLRN, image: Tensor, progress: Progress | None = None, **how: Any) -> Tensor:
    return Engine(network, Settings(**how))(image, progress)


def restore_patches(
    network: NLRN, image: Tensor, views: int = 1, device: str = "auto", **how: Any
) -> Tensor:
    return overlap.restore_patches(network, image, Settings(views=views, device=device), **how)


def strong_network(config: NLRNConfig = SMALL) -> NLRN:
    """A network whose result depends visibly on far pixels."""
    model = random_network(config)
    torch.nn.init.normal_(
        model.conv_out.weight, std=0.2, generator=torch.Generator().manual_seed(0)
    )
    return model


# The networks of others: architecture -> a small shape of it
RIVALS: dict[str, dict[str, int]] = {
    "dncnn": {"layers": 4, "channels": 6},
    "red": {"layers": 10, "channels": 6},
    "memnet": {"blocks": 2, "recursions": 2, "channels": 6},
    "tnrd": {"stages": 2, "size": 3},
    "nlnet": {"stages": 2, "size": 3, "neighbors": 4, "reach": 2},
    "srcnn": {"channels": 6, "channels2": 4},
    "vdsr": {"layers": 4, "channels": 6},
    "drcn": {"recursions": 3, "channels": 6},
    "lapsrn": {"layers": 2, "channels": 6},
    "drrn": {"units": 2, "channels": 6},
}


def rival(name: str) -> Network:
    """A small network of others in which every part acts."""
    torch.manual_seed(0)
    return acting(models.build(name, RIVALS[name]))


def acting(network: Network, seed: int = 0) -> Network:
    """The network with random numbers where it begins with zeros or ones, so that all parts act."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator)
                is_last = tensor.ndim > 1 and not tensor.any()
                tensor += noise.abs() * 0.1 if name.endswith("var") else noise * 0.05
                tensor *= 0.5 if is_last else 1.0
    return network.eval()


def picture(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def assert_same_with_gradients(
    network: Network, slow: Callable[[Tensor], Tensor], *shape: int, tolerance: float = 1e-8
) -> None:
    """Both give the same image, and the same gradients of image and parameters."""
    network.double().requires_grad_()
    found = []
    for restore in (network, slow):
        image = picture(*shape).double().requires_grad_()
        result = restore(image)
        wanted = [image, *(p for p in network.parameters() if p.requires_grad)]
        weight = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)
        found.append((result, torch.autograd.grad((result * weight).sum(), wanted)))
    (fast, fast_grads), (plain, plain_grads) = found
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    for one, other in zip(fast_grads, plain_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
