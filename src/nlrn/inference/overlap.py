"""The authors' test protocol: overlapping patches, restored one by one and averaged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nlrn.hardware import choose_device, free_memory
from nlrn.inference.engine import check_input, flips, is_finite
from nlrn.inference.settings import Settings, check_settings
from nlrn.models import Network
from nlrn.progress import Progress

MOST_PATCHES = {"cpu": 16, "gpu": 256}  # restored at a time: more keeps no device busier


def restore_patches(
    network: Network,
    image: Tensor,
    settings: Settings | None = None,
    *,
    patch: int = 45,
    stride: int = 7,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Returns the restored image [B, C, H, W], float32, on the CPU, by the authors' test protocol.

    Patches at all multiples of the stride, and at the far edges, are restored one by one as in
    training, with the circular border, and averaged where they overlap. With the defaults that is
    about 36 times the work of the whole image; it is here for comparisons.

    Args:
        network: it is not changed.
        image: degraded image [B, C, H, W] in [0, 1].
        settings: views, precision and device; tiles and memory mean nothing here.
        patch: side of the patches; smaller where the image is.
        stride: from one patch to the next.
        batch: patches at a time; None for what suits the device and half of its free memory.
        progress: called with (done, total) in equal units of work.
    """
    settings = check_settings(settings)
    if patch < 1 or not 1 <= stride <= patch:
        raise ValueError(f"stride must be between 1 and the patch ({patch}), got {stride}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if network.scale != 1:
        raise ValueError("the protocol of patches is for results of the size of the image")
    network, device = network.with_border("circular"), choose_device(settings.device)
    check_input(network, image)
    image = image.detach().to("cpu", torch.float32)
    size = (min(patch, image.shape[-2]), min(patch, image.shape[-1]))
    corners = _corners(image.shape[-2:], size, stride, device)
    groups = corners.split(batch or _patches_at_once(network, size, settings.precision, device))
    total, done = len(image) * len(corners) * settings.views * network.steps, 0

    def count(patches: int) -> None:
        nonlocal done
        done += patches
        if progress is not None:
            progress(done, total)

    for dtype in (settings.precision, torch.float32):  # the second where the first overflows
        prepared = network.for_inference(dtype, device)
        means = [
            _mean_of_patches(
                prepared, network.out_channels, one, groups, size, settings.views, count
            )
            for one in image.to(device)
        ]
        result = torch.stack(means).cpu()
        if is_finite(result, image, dtype):
            break
        done = 0
    return result


def _mean_of_patches(
    prepared: nn.Module,
    channels: int,
    image: Tensor,
    groups: Sequence[Tensor],
    size: tuple[int, int],
    views: int,
    count: Callable[[int], None],
) -> Tensor:
    """Restores the patches of this size at the corners [n, 2] of one image [C, H, W]."""
    lines = [torch.arange(side, device=image.device) for side in size]
    total = image.new_zeros(channels, *image.shape[1:])
    hits = torch.zeros_like(image[0])
    for corners in groups:
        on_step = functools.partial(count, len(corners))
        y, x = (corners[:, axis, None] + lines[axis] for axis in (0, 1))
        place = (y[:, :, None], x[:, None, :])
        patches = image[:, *place].transpose(0, 1)  # n C h w
        results = [undo(prepared(do(patches), on_step)) for do, undo in flips(views)]
        mean = torch.stack(results).mean(0)
        for channel, values in zip(total, mean.unbind(1), strict=True):
            channel.index_put_(place, values, accumulate=True)
        hits.index_put_(place, torch.ones_like(mean[:, 0]), accumulate=True)
    return total / hits


def _patches_at_once(
    network: Network, size: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> int:
    """As many as half of the free memory holds, but no more than keep the device busy."""
    most = MOST_PATCHES["cpu" if device.type == "cpu" else "gpu"]
    return max(1, min(most, free_memory(device) // 2 // network.memory(*size, dtype, device)))


def _corners(
    image: torch.Size, patch: tuple[int, int], stride: int, device: torch.device
) -> Tensor:
    """Row and column of the first pixel of every patch [N, 2]; the last ones end at the edge."""
    starts = []
    for length, side in zip(image, patch, strict=True):
        last = length - side
        starts.append(torch.tensor([*range(0, last, stride), last], device=device))
    return torch.cartesian_prod(*starts)
