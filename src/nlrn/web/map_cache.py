"""Attention maps, answered at once: from a small part around the click, or from the whole image.

A click traces the neighborhood of its pixel with a small halo, in whichever precision is faster
here. Clicks nearby are answered from the same trace. An image that was traced as a whole answers
every click from memory, and exactly.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import torch
from torch import Tensor

from nlrn.attention_maps import AttentionMaps, Trace, trace
from nlrn.attention_maps.trace import layout_of
from nlrn.hardware import free_memory
from nlrn.models import Network
from nlrn.progress import Progress

# docs/web.md has what these cost and how far the maps differ from those of the whole image. Both
# are in cells, which are pixels for networks that compare pixels.
HALO = {"cpu": 16, "gpu": 96}
REUSE_RADIUS = 3  # from a click within which its trace is used again
MAX_PARTS = 4  # traces of parts that are kept
MAX_WHOLE_BYTES = 3 * 2**29  # of embeddings kept for a whole image


class TraceKey(NamedTuple):
    """What is traced: clicks with the same key can share a trace."""

    upload: str
    noise: float
    sigma: float
    model: str
    channel: int


class MapCache:
    """Keeps traces. What takes a `progress` is for the worker's thread, the rest for any.

    Args:
        device: where to compute.
        dtype: precision in which whole images are traced.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._halo = HALO["cpu" if device.type == "cpu" else "gpu"]
        self._parts: dict[tuple[TraceKey, tuple[int, int]], Trace] = {}
        self._whole: tuple[TraceKey, Trace] | None = None
        self._fast: torch.dtype | None = None
        self._slowdown = 1.0  # of whole images, which are traced in another precision
        self._rates: dict[tuple[str, torch.dtype], float] = {}  # seconds for a pixel, by model
        self._lock = threading.Lock()

    @property
    def is_warm(self) -> bool:
        """Whether the quicker precision is known."""
        return self._fast is not None

    def warm_up(self, network: Network, progress: Progress) -> None:
        """Finds out, once, whether bfloat16 is quick on this processor."""
        if self.is_warm:
            return
        side = (layout_of(network).spec.window + 2 * self._halo) * network.multiple
        sample = torch.rand(1, network.in_channels, side, side)
        key, middle = TraceKey("", 0.0, 25.0, "", 0), (side // 2, side // 2)
        types = (torch.float32, torch.bfloat16)
        for _ in range(2):  # the first time, libraries are loaded and set up
            for dtype in types:
                self._trace(key, network, sample, dtype, middle, progress)
        fast = min(types, key=lambda dtype: self._rates["", dtype])
        self._slowdown = self._rates["", self._dtype] / self._rates["", fast]
        self._fast = fast

    def find(self, key: TraceKey, position: tuple[int, int]) -> AttentionMaps | None:
        """The maps of a pixel if they are in what is kept."""
        with self._lock:
            kept = [part for (other, _), part in self._parts.items() if other == key]
            if self._whole is not None and self._whole[0] == key:
                kept = [self._whole[1]]
        for part in reversed(kept):
            if part.halo(position) >= (self._halo - REUSE_RADIUS) * part.cell:
                return part.maps(position)
        return None

    def compute(
        self,
        key: TraceKey,
        image: Tensor,
        network: Network,
        position: tuple[int, int],
        progress: Progress,
    ) -> AttentionMaps:
        """The maps of a pixel of an image [1, C, H, W], with a trace of its own if need be."""
        if (found := self.find(key, position)) is not None:
            return found
        self.warm_up(network, progress)
        traced = self._trace(key, network, image, self._quick(network), position, progress)
        maps = traced.maps(position)
        with self._lock:
            self._parts[key, position] = traced
            for old in list(self._parts)[:-MAX_PARTS]:
                del self._parts[old]
        return maps

    def trace_whole(
        self, key: TraceKey, image: Tensor, network: Network, progress: Progress
    ) -> None:
        """Traces the whole image [1, C, H, W]; one such trace is kept."""
        size = (image.shape[-2], image.shape[-1])
        if (reason := self.why_not_whole(size, network)) is not None:
            raise ValueError(reason)
        with self._lock:
            self._whole = None  # before the next one needs the memory
        traced = self._trace(key, network, image, self._dtype, None, progress)
        with self._lock:
            self._whole = (key, traced)

    def why_not_whole(self, size: tuple[int, int], network: Network) -> str | None:
        """Why a whole image of this height and width cannot be traced, or None if it can."""
        height, width = size
        layout, r = layout_of(network), network.multiple
        cells = -(-height // r) * -(-width // r)
        kept = cells * len(layout.states) * layout.channels * torch.int16.itemsize
        needed = network.memory(height, width, self._dtype, self._device)
        if kept > MAX_WHOLE_BYTES or needed > free_memory(self._device) // 2:
            return f"{width} x {height} pixels are too many to keep all states in memory"
        return None

    def seconds_for_whole(self, size: tuple[int, int], model: str) -> float | None:
        """How long tracing a whole image might take, by what the model was traced on so far."""
        rate = self._rates.get((model, self._dtype))
        if rate is None and self._fast is not None and (model, self._fast) in self._rates:
            rate = self._rates[model, self._fast] * self._slowdown
        return None if rate is None else rate * size[0] * size[1]

    def _quick(self, network: Network) -> torch.dtype:
        """The precision for clicks; with cells, half of it puts a tenth of the weight elsewhere."""
        return self._fast if self._fast is not None and network.multiple == 1 else torch.float32

    def forget(self, upload: str) -> None:
        """Drops all traces of an upload."""
        with self._lock:
            self._parts = {k: v for k, v in self._parts.items() if k[0].upload != upload}
            if self._whole is not None and self._whole[0].upload == upload:
                self._whole = None

    def _trace(
        self,
        key: TraceKey,
        network: Network,
        image: Tensor,
        dtype: torch.dtype,
        around: tuple[int, int] | None,
        progress: Progress,
    ) -> Trace:
        start = time.perf_counter()
        traced = trace(
            network,
            image,
            key.sigma,
            around=around,
            halo=self._halo * network.multiple,
            dtype=dtype,
            device=self._device,
            progress=progress,
        )
        pixels = traced.noisy.shape[-2] * traced.noisy.shape[-1]
        self._rates[key.model, dtype] = (time.perf_counter() - start) / pixels
        return traced
