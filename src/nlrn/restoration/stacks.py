"""Restores the pages of a stack one by one, with one noise level for each channel."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nlrn.images import Image
from nlrn.noise import Tone, estimate_noise, tone_of
from nlrn.noise.tone import GRAY
from nlrn.progress import Progress
from nlrn.restoration.base import Announce, Restoration, Restored
from nlrn.restoration.classic import ClassicDenoiser
from nlrn.restoration.denoiser import Denoiser
from nlrn.stacks import Stack

SAMPLED = 5  # pages of each channel whose noise is measured
UNITS = 1000  # of progress in a page


class ChannelNoise(NamedTuple):
    """What the pages of a channel have in common: the level of their noise, and their tone."""

    level: float
    tone: Tone | None


def restore_pages(
    stack: Stack,
    restoration: Restoration,
    *,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Iterator[Restored]:
    """The pages of a stack in order, restored; one is in memory at a time.

    A denoiser is told for each channel whether its pages have but one tone and, if it has no level
    of its own, the level, as `channel_noise` finds them: looked for page by page they would make
    neighbors differ in what is taken for noise.

    Args:
        stack: what to restore.
        restoration: a denoiser or an upscaler.
        progress: called with (done, total) in equal units of work.
        announce: called before long work with the seconds that all pages may take.
    """
    denoiser = restoration if isinstance(restoration, Denoiser | ClassicDenoiser) else None
    noises = channel_noise(stack) if denoiser is not None else {}
    for number in range(len(stack)):
        tell = _part(progress, number, len(stack))
        said = _for_all(announce, len(stack)) if number == 0 else None
        page = stack.page(number)
        if denoiser is not None:
            noise = noises[stack.channel(number)]
            level = noise.level if denoiser.sigma is None else denoiser.sigma
            yield denoiser.restore(page, level, tone=noise.tone, progress=tell, announce=said)
        else:
            yield restoration.restore(page, progress=tell, announce=said)
        tell(1, 1)


def restore_stack(
    stack: Stack,
    path: str | os.PathLike[str],
    restoration: Restoration,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    announce: Announce | None = None,
    on_page: Progress | None = None,
) -> dict[str, Any]:
    """Restores a stack into a file, page by page, and returns what was done, for a report.

    Args:
        stack: what to restore.
        path: the result, of the same kind as the stack; it is there whole or not at all.
        restoration: a denoiser or an upscaler.
        overwrite: whether an existing file is replaced.
        progress: called with (done, total) in equal units of work.
        announce: called before long work with the seconds that all pages may take.
        on_page: called before each page with (its number from 0, number of pages).

    Raises:
        ImageError: if a page is broken, or the file cannot be written.
    """
    heard = _Heard()
    facts: dict[int, dict[str, Any]] = {}
    with stack.writer(path, overwrite=overwrite) as out, heard.warnings():
        pages = restore_pages(stack, restoration, progress=progress, announce=announce)
        for number in range(len(stack)):
            if on_page is not None:
                on_page(number, len(stack))
            restored = next(pages)
            out.add(restored.image)
            heard.page(number, restored.image)
            facts.setdefault(stack.channel(number), restored.facts)
    return {
        "width": restored.image.width,
        "height": restored.image.height,
        "pages": len(stack),
        "axes": stack.axes,
        "channels": [stack.channels[channel] for channel in facts],
        **_together(list(facts.values())),
        "warnings": [*stack.notes(path), *heard.notes(len(stack))],
    }


def channel_noise(stack: Stack) -> dict[int, ChannelNoise]:
    """The noise of each channel on the 0..255 scale, by its number in `stack.channels`.

    The level is the median over up to five of the channel's pages, spread evenly; those in which no
    noise is found, black ones for example, do not count. The pages have one tone if each of these
    has, those aside that are gray.
    """
    pages: dict[int, list[int]] = {}
    for number in range(len(stack)):
        pages.setdefault(stack.channel(number), []).append(number)
    return {channel: _noise(stack, numbers) for channel, numbers in pages.items()}


def _noise(stack: Stack, numbers: list[int]) -> ChannelNoise:
    """The noise of a channel that has these pages."""
    places = np.linspace(0, len(numbers) - 1, min(SAMPLED, len(numbers))).round().astype(int)
    levels, tones = [], []
    for place in places:
        pixels = stack.page(numbers[place]).pixels
        levels.append(estimate_noise(pixels).level)
        tones.append(tone_of(pixels))
    level = float(np.median([level for level in levels if level > 0] or [0.0]))
    of_color = [tone for tone in tones if tone is not GRAY]
    return ChannelNoise(level, of_color[0] if None not in of_color and of_color else None)


def _part(progress: Progress | None, number: int, count: int) -> Progress:
    """Progress of one of several pages, which may differ in size, told as that of all."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(number * UNITS + done * UNITS // max(total, 1), count * UNITS)

    return tell


def _for_all(announce: Announce | None, count: int) -> Announce | None:
    if announce is None:
        return None
    return lambda seconds: announce(seconds * count)


class _Heard:
    """What is to be known about pages, each thing once."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[int, str]]] = {}
        self._caught: list[warnings.WarningMessage] = []

    @contextlib.contextmanager
    def warnings(self) -> Iterator[None]:
        """Collects warnings."""
        with warnings.catch_warnings(record=True) as self._caught:
            warnings.simplefilter("always", UserWarning)
            yield

    def page(self, number: int, image: Image) -> None:
        """Takes what was said since the last page as said of this one."""
        texts = [*image.notes, *(str(warning.message) for warning in self._caught)]
        self._caught.clear()
        for text in texts:
            self._found.setdefault(re.sub(r"[\d.]+", "", text), []).append((number + 1, text))

    def notes(self, count: int) -> list[str]:
        """One line for each thing, with the pages it was said of unless it was all of them."""
        notes = []
        for said in self._found.values():
            page, text = said[0]
            more = f" and {len(said) - 1} more" if len(said) > 1 else ""
            notes.append(text if len(said) == count else f"{text} (page {page}{more})")
        return notes


def _together(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """What was done to the channels: a value where it is the same for all, else one for each."""
    together = {}
    for name, value in facts[0].items():
        values = [one.get(name) for one in facts]
        together[name] = value if all(other == value for other in values) else values
    return together
