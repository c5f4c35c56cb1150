"""Networks whose launches on a CUDA device are recorded, for sizes that come again.

A small image keeps a fast GPU busy for less time than its host needs to launch a few hundred
kernels. A CUDA graph launches all of them at once, for one size of the image.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nlrn.errors import one_line, warn

MOST_BYTES = 2**30  # that a recording may keep; larger images keep the device busy by themselves
MOST_RECORDINGS = 4
# A size is worth recording if it was among so many others before: eight views have two. Not more
# than are kept, or one would drive out the other.
RECENT = MOST_RECORDINGS
SAME = 1e-3  # how far a recording may be off what the network gives, for values in [0, 1]
Key = tuple[torch.Size, torch.dtype, int]


@dataclass(frozen=True)
class Recording:
    """What was launched for one size: `replay` computes `result` from what is in `image`."""

    image: Tensor
    result: Tensor
    replay: Callable[[], None]
    steps: int

    def __call__(self, image: Tensor) -> Tensor:
        self.image.copy_(image)
        self.replay()
        return self.result.clone()  # the next replay writes over it


class Recorded:
    """A prepared network that is called the same way, faster for sizes that come again.

    Args:
        network: what `Network.for_inference` gives, on a CUDA device. What it launches must depend
            on the size of the image alone.
        device: of the network; images that are elsewhere are not worth it.
        memory: bytes that the network needs for an image of (H, W).
    """

    def __init__(
        self, network: nn.Module, device: torch.device, memory: Callable[[int, int], int]
    ) -> None:
        self.network, self._device, self._memory = network, device, memory
        self._recordings: OrderedDict[Key, Recording] = OrderedDict()
        self._recent: deque[Key] = deque(maxlen=RECENT)
        self._can_record = True
        self._lock = threading.Lock()  # a recording has one place for its image

    @torch.inference_mode()
    def __call__(self, image: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """The restored image, as the network gives it.

        Args:
            image: what the network takes.
            on_step: called after every state; for a recording, when all have been launched.
        """
        with self._lock:
            recording = self._recording_for(image) if self._can_record else None
            if recording is not None:
                result = recording(image)
        if recording is None:
            restored: Tensor = self.network(image, on_step)
            return restored
        if on_step is not None:
            for _ in range(recording.steps):
                on_step()
        return result

    def forget(self) -> None:
        """Gives the memory of all recordings back."""
        with self._lock:
            self._recordings.clear()
            self._recent.clear()

    def _recording_for(self, image: Tensor) -> Recording | None:
        """The recording for an image of this size, made now if it is worth it; or None."""
        key = image.shape, image.dtype, _stream(image)
        if key in self._recordings:
            self._recordings.move_to_end(key)
            return self._recordings[key]
        is_there = image.device.type == self._device.type
        if not is_there or len(image) * self._memory(*image.shape[-2:]) > MOST_BYTES:
            return None
        if key not in self._recent:
            self._recent.append(key)  # this call compiles what has to be compiled
            return None
        self._recent.remove(key)  # driven out, it has to come twice again
        try:
            recording = record(self.network, image)
        except RuntimeError as error:
            self._give_up(one_line(error))
            return None
        difference = float((recording(image) - self.network(image)).abs().max())
        if not difference <= SAME:  # NaN neither
            self._give_up(f"the result differs by {difference:.2g}")
            return None
        self._recordings[key] = recording
        if len(self._recordings) > MOST_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording

    def _give_up(self, reason: str) -> None:
        warn(f"recording the network as a CUDA graph failed, going on without ({reason})")
        self._can_record = False
        self._recordings.clear()


def record(network: nn.Module, image: Tensor) -> Recording:
    """Records what the network launches for an image of a size that it has had before."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    graph, image = torch.cuda.CUDAGraph(), image.clone()
    how = "thread_local"  # other threads may use the device meanwhile
    with torch.cuda.device(image.device), torch.cuda.graph(graph, capture_error_mode=how):
        result = network(image, count)
    return Recording(image, result, graph.replay, steps)


def _stream(image: Tensor) -> int:
    """The stream that work on this image is queued in; a recording belongs to one."""
    return torch.cuda.current_stream(image.device).cuda_stream if image.is_cuda else 0
