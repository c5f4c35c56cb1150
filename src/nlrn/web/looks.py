"""Where the network looks, answered at once: from a small part around the click, or from all.

A click traces the neighbourhood of its pixel with a small halo, in whichever precision is faster
here. Clicks nearby are answered from the same trace. A picture that was traced as a whole answers
every click from memory, and exactly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nlrn.attention_maps import Maps, Trace, trace
from nlrn.hardware import choose_device, free_memory
from nlrn.inference.tiles import network_memory
from nlrn.models.nlrn import NLRN
from nlrn.ops import AFFINITIES

# docs/web.md has what these cost and how far the maps differ from those of the whole picture.
HALO = {"cpu": 16, "gpu": 96}
NEAR = 3  # pixels from a click within which its trace is used again
KEPT = 4  # traces of parts
LARGEST_WHOLE = 3 * 2**29  # bytes of embeddings kept for a whole picture
Progress = Callable[[int, int], None]


class Subject(NamedTuple):
    """What is looked at: clicks on the same subject can share a trace."""

    picture: str
    noise: float
    sigma: float
    model: str
    channel: int


class Looks:
    """Keeps traces. What takes a `progress` is for the worker's thread, the rest for any.

    Args:
        device: where to compute.
        dtype: precision in which whole pictures are traced.
    """

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._device, self._dtype = choose_device(device), dtype
        self._halo = HALO["cpu" if self._device.type == "cpu" else "gpu"]
        self._parts: dict[tuple[Subject, tuple[int, int]], Trace] = {}
        self._whole: tuple[Subject, Trace] | None = None
        self._fast: torch.dtype | None = None
        self._seconds_per_pixel: dict[torch.dtype, float] = {}
        self._lock = threading.Lock()

    def warm_up(self, network: NLRN, progress: Progress) -> None:
        """Finds out, once, whether bfloat16 is quick on this processor."""
        if self._fast is not None:
            return
        side = network.config.window + 2 * self._halo
        sample = torch.rand(1, network.config.in_channels, side, side)
        middle = (side // 2, side // 2)
        for _ in range(2):  # the first time, libraries are loaded and set up
            for dtype in (torch.float32, torch.bfloat16):
                self._traced(network, sample, 25, dtype, middle, progress)
        self._fast = min(self._seconds_per_pixel, key=lambda d: self._seconds_per_pixel[d])

    def find(self, subject: Subject, position: tuple[int, int]) -> Maps | None:
        """The maps of a pixel if they are in what is kept."""
        with self._lock:
            kept = [part for (other, _), part in self._parts.items() if other == subject]
            if self._whole is not None and self._whole[0] == subject:
                kept = [self._whole[1]]
        for part in reversed(kept):
            if part.halo(position) >= self._halo - NEAR:
                return part.maps(position)
        return None

    def look(
        self,
        subject: Subject,
        image: Tensor,
        network: NLRN,
        position: tuple[int, int],
        progress: Progress,
    ) -> Maps:
        """The maps of a pixel of an image [1, C, H, W], with a trace of its own if need be."""
        if (found := self.find(subject, position)) is not None:
            return found
        self.warm_up(network, progress)
        assert self._fast is not None
        traced = self._traced(network, image, subject.sigma, self._fast, position, progress)
        maps = traced.maps(position)
        with self._lock:
            self._parts[subject, position] = traced
            for old in list(self._parts)[:-KEPT]:
                del self._parts[old]
        return maps

    def trace_all(
        self,
        subject: Subject,
        image: Tensor,
        network: NLRN,
        progress: Progress,
    ) -> None:
        """Traces the whole image [1, C, H, W]; one such trace is kept."""
        size = (image.shape[-2], image.shape[-1])
        if (reason := self.why_not_all(size, network)) is not None:
            raise ValueError(reason)
        with self._lock:
            self._whole = None  # before the next one needs the memory
        traced = self._traced(network, image, subject.sigma, self._dtype, None, progress)
        with self._lock:
            self._whole = (subject, traced)

    def why_not_all(self, size: tuple[int, int], network: NLRN) -> str | None:
        """Why a whole image of this height and width cannot be traced, or None if it can."""
        config = network.config
        height, width = size
        embedded = AFFINITIES[config.affinity].embedded != "none"
        channels = 2 * config.embed if embedded else config.channels
        states = sum(map(config.is_non_local, range(config.steps)))
        kept = height * width * states * channels * torch.int16.itemsize
        needed = network_memory(config, height, width, self._dtype, self._device)
        if kept > LARGEST_WHOLE or needed > free_memory(self._device) // 2:
            return f"{width} x {height} pixels are too many to keep all states in memory"
        return None

    def seconds_for_all(self, size: tuple[int, int]) -> float | None:
        """How long tracing a whole image might take, by what was traced so far."""
        rate = self._seconds_per_pixel.get(self._dtype)
        return None if rate is None else rate * size[0] * size[1]

    def forget(self, picture: str) -> None:
        """Drops all traces of a picture."""
        with self._lock:
            self._parts = {k: v for k, v in self._parts.items() if k[0].picture != picture}
            if self._whole is not None and self._whole[0].picture == picture:
                self._whole = None

    def _traced(
        self,
        network: NLRN,
        image: Tensor,
        sigma: float,
        dtype: torch.dtype,
        around: tuple[int, int] | None,
        progress: Progress | None,
    ) -> Trace:
        start = time.perf_counter()
        traced = trace(
            network,
            image,
            sigma,
            around=around,
            halo=self._halo,
            dtype=dtype,
            device=self._device,
            progress=progress,
        )
        pixels = traced.noisy.shape[-2] * traced.noisy.shape[-1]
        self._seconds_per_pixel[dtype] = (time.perf_counter() - start) / pixels
        return traced
