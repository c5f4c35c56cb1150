"""Runs a network on images of any size: whole where memory allows, else in tiles."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from nlrn.errors import warn
from nlrn.hardware import (
    CPU,
    Fallback,
    choose_device,
    free_memory,
    give_back_memory,
    is_out_of_memory,
    keep_freed_memory,
    mind_fork,
)
from nlrn.inference.recorded import Recorded
from nlrn.inference.settings import Settings, check_settings
from nlrn.inference.tiles import Tile, largest_input, paste, plan
from nlrn.models import Network
from nlrn.progress import Progress
from nlrn.threads import beside_others

ENOUGH_LESS = 0.9  # of the largest tile's pixels: what is worth trying again after one failed


class Engine:
    """A network that is ready to run: `engine(input)` gives the restored image.

    The network is prepared once for each device and precision, on first use; changes of its
    weights after that are not seen. A pickled engine prepares it again where it is unpickled.

    Args:
        network: it is not changed.
        settings: tiles, views, precision, device, memory.
    """

    def __init__(self, network: Network, settings: Settings | None = None) -> None:
        if not isinstance(network, Network):
            got = type(network).__name__
            raise ValueError(f"network must be one of nlrn.models (load gives one), got {got}")
        self.network, self.settings = network, check_settings(settings)
        self._prepared: dict[tuple[torch.device, torch.dtype], nn.Module | Recorded] = {}
        self._plain: dict[tuple[torch.device, torch.dtype], nn.Module] = {}
        self._plans: dict[tuple[torch.Size, torch.device], list[Tile]] = {}
        self._rates: dict[torch.device, float] = {}  # seconds for a pixel
        self._fallback = Fallback()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": {}, "_plain": {}, "_plans": {}, "_rates": {}}

    def __call__(self, image: Tensor, progress: Progress | None = None) -> Tensor:
        """The restored image, float32, on the image's device: [B, C, H, W] times the scale.

        Args:
            image: what `network.condition` gives [B, C', H, W], in [0, 1].
            progress: called with (done, total) in equal units of work.
        """
        check_input(self.network, image)
        mind_fork()
        settings, device = self.settings, self.device_for(image)
        image = image.detach().float()
        prepared = self.prepare(device, settings.precision)
        key = (image.shape[-2:], device)
        budget = free_memory(device) // 2 if settings.memory is None else settings.memory
        tiles = self._plans.get(key) or self._plan(key[0], device, budget)
        while True:
            try:
                result = self._run(prepared, image, tiles, device, progress)
                break
            except (RuntimeError, MemoryError, TypeError) as error:
                if self._fallback.takes(error, device):
                    return self(image, progress)
                if not is_out_of_memory(error):
                    raise
                if device.type != "cpu":
                    if isinstance(prepared, Recorded):
                        prepared.forget()
                    give_back_memory(device)
                    self._plans.pop(key, None)
                smaller = self._smaller_plan(tiles, key[0], device, budget)
                if smaller is None:
                    size = f"{image.shape[-1]} x {image.shape[-2]}"
                    how = "" if settings.tile is None else f" with tile {settings.tile}"
                    raise ValueError(f"not enough memory for {size} pixels{how}") from error
                tiles = smaller
        if device.type == "cuda":  # there, too little memory is noticed; asking takes a while
            self._plans[key] = tiles
        if is_finite(result, image, settings.precision):
            return result
        exact = Engine(self.network, dataclasses.replace(settings, dtype="fp32"))
        return exact(image, progress)

    def prepare(self, device: torch.device, dtype: torch.dtype) -> nn.Module | Recorded:
        """The network for inference, made at the first call."""
        if (device, dtype) not in self._prepared:
            prepared = self.network.for_inference(dtype, device)
            self._prepared[device, dtype] = prepared
            if device.type == "cuda" and getattr(prepared, "can_be_recorded", False):
                memory = functools.partial(self.network.memory, dtype=dtype, device=device)
                self._prepared[device, dtype] = Recorded(prepared, device, memory)
        return self._prepared[device, dtype]

    def differentiable(self, image: Tensor) -> Callable[[Tensor], Tensor]:
        """The network as it is, on the image's device, through which gradients reach the image."""
        dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
        key = (image.device, dtype)
        if key not in self._plain:
            plain = copy.deepcopy(self.network).requires_grad_(False).eval()
            self._plain[key] = plain.to(*key)
        return self._plain[key]

    def device_for(self, image: Tensor | None = None) -> torch.device:
        """Where an image is computed."""
        asked = self.settings.device
        if asked == "auto" and image is not None and image.device.type != "cpu":
            return self._fallback.device(image.device)
        return self._fallback.device(choose_device(asked))

    def planned_pixels(self, size: tuple[int, int]) -> int:
        """How many pixels go through the network for an image of (H, W), in all of its views."""
        device, budget = self.device_for(), self.settings.memory
        tiles = self._plan(size, device, free_memory(device) // 2 if budget is None else budget)
        pixels = sum((y.stop - y.start) * (x.stop - x.start) for y, x in (t.input for t in tiles))
        return pixels * self.settings.views

    def seconds(self, size: tuple[int, int], images: int = 1) -> float:
        """How long images of (H, W) will take here, by the time of one small tile."""
        device = self.device_for()
        if device not in self._rates:
            self._rates[device] = self._seconds_per_pixel(device)
        return self._rates[device] * self.planned_pixels(size) * images

    def _seconds_per_pixel(self, device: torch.device) -> float:
        side = 256 if device.type == "cuda" else 72  # enough to keep the device busy
        prepared = self.prepare(device, self.settings.precision)
        channels = self.network.in_channels + self.network.takes_noise_map
        sample = torch.rand(1, channels, side, side)
        try:
            if device != CPU:
                prepared(sample)  # the first call compiles and loads
        except (NotImplementedError, TypeError) as error:
            if not self._fallback.takes(error, device):
                raise
            return self._seconds_per_pixel(CPU)
        with beside_others():
            start = time.perf_counter()
            prepared(sample)
            return (time.perf_counter() - start) / side**2

    def _plan(
        self, size: torch.Size | tuple[int, int], device: torch.device, budget: int
    ) -> list[Tile]:
        settings = self.settings
        return plan(
            self.network, size, settings.tile, settings.exact, settings.precision, budget, device
        )

    def _smaller_plan(
        self, tiles: list[Tile], size: torch.Size, device: torch.device, budget: int
    ) -> list[Tile] | None:
        """Tiles for less memory than those that failed; None if they would not be smaller."""
        if self.settings.tile is not None:
            return None
        while budget >= 2**20:
            budget //= 2
            smaller = self._plan(size, device, budget)
            if largest_input(smaller) <= ENOUGH_LESS * largest_input(tiles):
                return smaller
        return None

    def _run(
        self,
        prepared: nn.Module | Recorded,
        image: Tensor,
        tiles: list[Tile],
        device: torch.device,
        progress: Progress | None,
    ) -> Tensor:
        """Averages the views, image by image and tile by tile."""
        batch, scale = len(image), self.network.scale
        height, width = (side * scale for side in image.shape[-2:])
        views, done = self.settings.views, 0
        total = batch * views * len(tiles) * self.network.steps

        def on_step() -> None:
            nonlocal done
            done += 1
            look_again()
            if progress is not None:
                progress(done, total)

        result = image.new_zeros(batch, self.network.out_channels, height, width)
        with beside_others() as look_again:
            for one, out in zip(image, result, strict=True):
                for tile in tiles:
                    # To the device once, and back once: in between nothing waits for it.
                    part = one[:, tile.input[0], tile.input[1]][None].to(device)
                    results = []
                    with keep_freed_memory() if device.type == "cpu" else nullcontext():
                        for do, undo in flips(views):
                            results.append(undo(prepared(do(part), on_step)))
                    mean = results[0] if views == 1 else torch.stack(results).mean(0)
                    if len(tiles) == 1:
                        out.copy_(mean[0])
                    else:
                        paste(out, mean[0].to(out.device), tile.scaled(scale))
        return result


def check_input(network: Network, image: Tensor) -> None:
    """Raises unless the image is a batch that the network can take."""
    channels = network.in_channels + network.takes_noise_map
    if image.dim() != 4 or image.shape[1] != channels or 0 in image.shape:
        raise ValueError(f"image must be [B, {channels}, H, W], got {tuple(image.shape)}")
    if not image.is_floating_point():
        raise ValueError(f"image must be floating point in [0, 1], got {image.dtype}")


def is_finite(result: Tensor, image: Tensor, dtype: torch.dtype) -> bool:
    """Whether the result can stand; if not, float32 may do better, unless that was it."""
    if result.isfinite().all() or not image.isfinite().all():
        return True
    if dtype == torch.float32:
        raise ValueError("the result is not finite: values of the image are far outside [0, 1]")
    warn(f"the result in {dtype} was not finite; computing in float32")
    return False


def flips(count: int) -> Iterator[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]:
    """The first `count` of the eight flips and rotations, each with its inverse."""
    for view in range(count):
        turns, flipped = view % 4, view >= 4

        def do(x: Tensor, turns: int = turns, flipped: bool = flipped) -> Tensor:
            x = x.flip(-1) if flipped else x
            return torch.rot90(x, turns, (-2, -1)) if turns else x  # no turn would be a copy

        def undo(x: Tensor, turns: int = turns, flipped: bool = flipped) -> Tensor:
            x = torch.rot90(x, -turns, (-2, -1)) if turns else x
            return x.flip(-1) if flipped else x

        yield do, undo
