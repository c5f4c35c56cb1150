"""How long restorations will take: the estimate of the library, corrected by what was done."""

from __future__ import annotations

import time
from typing import NamedTuple

from nlrn.images import Image
from nlrn.progress import Progress
from nlrn.restoration import Restored
from nlrn.restoration.choice import Choice
from nlrn.web.catalog import Catalog
from nlrn.web.schema import RestoreRequest

WORTH_LEARNING = 0.5  # seconds; what is done faster says little about the rest


class _Kind(NamedTuple):
    """Work whose time grows with the pixels alone."""

    task: str
    method: str
    choice: Choice
    channels: int


class Estimates:
    """The times of a catalog's restorations. All but `known` is for the worker's thread."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._corrections: dict[_Kind, float] = {}

    def known(
        self,
        size: tuple[int, int],
        choice: Choice,
        request: RestoreRequest,
        sigma: float,
        channels: int,
    ) -> float | None:
        """The seconds for an image of (H, W); None if that has to be measured first."""
        correction = self._corrections.get(_kind(request, choice, channels))
        if correction is None:
            return None
        return correction * self._catalog.seconds(size, choice, request, sigma, channels)

    def measure(
        self,
        size: tuple[int, int],
        choice: Choice,
        request: RestoreRequest,
        sigma: float,
        channels: int,
    ) -> float:
        """The same, at once or after a short measurement."""
        seconds = self._catalog.seconds(size, choice, request, sigma, channels)
        return seconds * self._corrections.setdefault(_kind(request, choice, channels), 1.0)

    def restore(
        self,
        image: Image,
        choice: Choice,
        request: RestoreRequest,
        sigma: float,
        progress: Progress,
    ) -> Restored:
        """Restores an image, and learns from the time that it takes."""
        size, channels = (image.height, image.width), 1 if image.pixels.ndim == 2 else 3
        expected = self.known(size, choice, request, sigma, channels)
        start = time.monotonic()
        restored = self._catalog.restore(image, choice, request, progress)
        took = time.monotonic() - start
        if expected is not None and min(expected, took) > WORTH_LEARNING and sigma > 0:
            self._corrections[_kind(request, choice, channels)] *= took / expected
        return restored


def _kind(request: RestoreRequest, choice: Choice, channels: int) -> _Kind:
    return _Kind(request.task, request.method, choice, channels)
