"""Restores images of any size: whole where memory allows, else in tiles; views, precision."""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from numbers import Integral

import torch
from torch import Tensor

from nlrn.hardware import choose_device, free_memory, is_out_of_memory, keep_freed_memory
from nlrn.inference.tiles import FADE, Tile, network_memory, paste, plan
from nlrn.models.nlrn import NLRN, NLRNConfig
from nlrn.models.nlrn_inference import FoldedNLRN

MOST_PATCHES = {"cpu": 16, "gpu": 256}  # restored at a time: more keeps no device busier
Progress = Callable[[int, int], None]


def restore(
    model: NLRN,
    image: Tensor,
    *,
    tile: int | None = None,
    exact: bool = False,
    views: int = 1,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    memory: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Returns the restored image [B, C, H, W], float32, on the CPU.

    Args:
        model: the network; it runs in eval mode and is not changed.
        image: degraded image [B, C, H, W] in [0, 1].
        tile: side of the tiles; 0 for the whole image at once; None to decide by `memory`.
        exact: tiles read so far around them that the result equals that of the whole image.
        views: 1, or up to 8 to average the results for flipped and rotated images.
        dtype: precision of the network: float32 or bfloat16.
        device: "auto" takes a GPU where there is one.
        memory: bytes that the network may take; None for half of what is free.
        progress: called with (done, total) in equal units of work.
    """
    check_run(tile, views)
    _check(model, image)
    device = choose_device(device)
    image = image.detach().to("cpu", torch.float32)
    network = FoldedNLRN(model, dtype, device)
    budget = memory if memory is not None else free_memory(device) // 2
    while True:
        tiles = plan(model.config, image.shape[-2:], tile, exact, dtype, budget, device)
        try:
            result = _run(network, image, tiles, views, progress)
            break
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if tile is not None or budget < 2**20:
                size = f"{image.shape[-1]} x {image.shape[-2]}"
                how = "" if tile is None else f" with tile {tile}"
                raise ValueError(f"not enough memory for {size} pixels{how}") from error
            budget //= 2
    if _is_good(result, image, dtype):
        return result
    return restore(
        model, image, tile=tile, exact=exact, views=views, device=device, memory=memory,
        progress=progress,
    )  # fmt: skip


def restore_patches(
    model: NLRN,
    image: Tensor,
    *,
    patch: int = 45,
    stride: int = 7,
    views: int = 1,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    batch: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Returns the restored image [B, C, H, W], float32, on the CPU, by the authors' test protocol.

    Patches at all multiples of the stride, and at the far edges, are restored one by one as in
    training, with the circular border, and averaged where they overlap. With the defaults that is
    about 36 times the work of `restore`; it is here for comparisons.

    Args:
        model: the network; it runs in eval mode and is not changed.
        image: degraded image [B, C, H, W] in [0, 1].
        patch: side of the patches; smaller where the image is.
        stride: from one patch to the next.
        views: 1, or up to 8 to average the results for flipped and rotated patches.
        dtype: precision of the network: float32 or bfloat16.
        device: "auto" takes a GPU where there is one.
        batch: patches at a time; None for what suits the device and half of its free memory.
        progress: called with (done, total) in equal units of work.
    """
    check_run(None, views)
    _check(model, image)
    if patch < 1 or not 1 <= stride <= patch:
        raise ValueError(f"stride must be between 1 and the patch ({patch}), got {stride}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    device = choose_device(device)
    image = image.detach().to("cpu", torch.float32)
    size = (min(patch, image.shape[-2]), min(patch, image.shape[-1]))
    corners = _corners(image.shape[-2:], size, stride, device)
    at_once = batch or _patches_at_once(model.config, size, dtype, device)
    network = FoldedNLRN(model, dtype, device, border="circular")
    total, done = len(image) * len(corners) * views * model.config.steps, 0

    def count(patches: int) -> None:
        nonlocal done
        done += patches
        if progress is not None:
            progress(done, total)

    groups = corners.split(at_once)
    means = [_mean_of_patches(network, one, groups, size, views, count) for one in image.to(device)]
    result = torch.stack(means).cpu()
    if _is_good(result, image, dtype):
        return result
    return restore_patches(
        model, image, patch=patch, stride=stride, views=views, device=device, batch=batch,
        progress=progress,
    )  # fmt: skip


def _mean_of_patches(
    network: FoldedNLRN,
    image: Tensor,
    groups: Sequence[Tensor],
    size: tuple[int, int],
    views: int,
    count: Callable[[int], None],
) -> Tensor:
    """Restores the patches of this size at the corners [n, 2] of one image [C, H, W]."""
    lines = [torch.arange(side, device=image.device) for side in size]
    total = image.new_zeros(network.config.out_channels, *image.shape[1:])
    hits = torch.zeros_like(image[0])
    for corners in groups:
        on_step = functools.partial(count, len(corners))
        y, x = (corners[:, axis, None] + lines[axis] for axis in (0, 1))
        place = (y[:, :, None], x[:, None, :])
        patches = image[:, *place].transpose(0, 1)  # n C h w
        results = [undo(network(do(patches), on_step)) for do, undo in _views(views)]
        mean = torch.stack(results).mean(0)
        for channel, values in zip(total, mean.unbind(1), strict=True):
            channel.index_put_(place, values, accumulate=True)
        hits.index_put_(place, torch.ones_like(mean[:, 0]), accumulate=True)
    return total / hits


def _patches_at_once(
    config: NLRNConfig, size: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> int:
    """As many as half of the free memory holds, but no more than keep the device busy."""
    each = network_memory(dataclasses.replace(config, border="circular"), *size, dtype, device)
    most = MOST_PATCHES["cpu" if device.type == "cpu" else "gpu"]
    return max(1, min(most, free_memory(device) // 2 // each))


def _corners(
    image: torch.Size, patch: tuple[int, int], stride: int, device: torch.device
) -> Tensor:
    """Row and column of the first pixel of every patch [N, 2]; the last ones end at the edge."""
    starts = []
    for length, side in zip(image, patch, strict=True):
        last = length - side
        starts.append(torch.tensor([*range(0, last, stride), last], device=device))
    return torch.cartesian_prod(*starts)


def check_run(tile: int | None, views: int) -> None:
    """Raises unless tiles can have that side and so many views can be averaged."""
    for name, value in (("tile", tile), ("views", views)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
    if tile is not None and tile != 0 and tile < 2 * FADE:
        raise ValueError(f"tile must be 0 or at least {2 * FADE}, got {tile}")
    if not 1 <= views <= 8:
        raise ValueError(f"views must be between 1 and 8, got {views}")


def _check(model: NLRN, image: Tensor) -> None:
    if image.dim() != 4 or image.shape[1] != model.config.in_channels or 0 in image.shape:
        expected = f"[B, {model.config.in_channels}, H, W]"
        raise ValueError(f"image must be {expected}, got {tuple(image.shape)}")
    if not image.is_floating_point():
        raise ValueError(f"image must be floating point in [0, 1], got {image.dtype}")


def _is_good(result: Tensor, image: Tensor, dtype: torch.dtype) -> bool:
    """Whether the result can stand; if not, float32 may do better, unless that was it."""
    if result.isfinite().all() or not image.isfinite().all():
        return True
    if dtype == torch.float32:
        raise ValueError("the result is not finite: values of the image are far outside [0, 1]")
    warnings.warn(f"the result in {dtype} was not finite; computing in float32", stacklevel=3)
    return False


def _run(
    network: FoldedNLRN,
    image: Tensor,
    tiles: list[Tile],
    views: int,
    progress: Progress | None,
) -> Tensor:
    """Averages the views, image by image and tile by tile."""
    total, done = image.shape[0] * views * len(tiles) * network.config.steps, 0

    def on_step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    batch, _, height, width = image.shape
    result = torch.zeros(batch, network.config.out_channels, height, width)
    for one, out in zip(image, result, strict=True):
        for tile in tiles:
            # To the device once, and back once: in between nothing waits for it.
            part = one[:, tile.seen[0], tile.seen[1]][None].to(network.device)
            with keep_freed_memory() if network.device.type == "cpu" else nullcontext():
                results = [undo(network(do(part), on_step)) for do, undo in _views(views)]
            paste(out, torch.stack(results).mean(0)[0].cpu(), tile)
    return result


def _views(count: int) -> Iterator[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]:
    """The first `count` of the eight flips and rotations, each with its inverse."""
    for view in range(count):
        turns, flipped = view % 4, view >= 4

        def do(x: Tensor, turns: int = turns, flipped: bool = flipped) -> Tensor:
            return torch.rot90(x.flip(-1) if flipped else x, turns, (-2, -1))

        def undo(x: Tensor, turns: int = turns, flipped: bool = flipped) -> Tensor:
            x = torch.rot90(x, -turns, (-2, -1))
            return x.flip(-1) if flipped else x

        yield do, undo


def planned_pixels(
    config: NLRNConfig,
    size: tuple[int, int],
    *,
    tile: int | None = None,
    exact: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    memory: int | None = None,
) -> int:
    """How many pixels `restore` will put through the network for one view of one plane."""
    device = choose_device(device)
    budget = memory if memory is not None else free_memory(device) // 2
    tiles = plan(config, size, tile, exact, dtype, budget, device)
    return sum((y.stop - y.start) * (x.stop - x.start) for y, x in (t.seen for t in tiles))


def seconds_per_pixel(
    model: NLRN, dtype: torch.dtype = torch.float32, device: str | torch.device = "auto"
) -> float:
    """Time of the network on this machine, measured on one small tile."""
    device = choose_device(device)
    side = 256 if device.type == "cuda" else 72  # enough to keep the device busy
    network = FoldedNLRN(model, dtype, device)
    sample = torch.rand(1, model.config.in_channels, side, side)
    if device.type != "cpu":
        network(sample)  # the first call compiles and loads
    start = time.perf_counter()
    network(sample)
    return (time.perf_counter() - start) / side**2
