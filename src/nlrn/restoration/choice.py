"""Which model of the package an image gets."""

from __future__ import annotations

from typing import NamedTuple

from nlrn import weights

QUALITIES = ("fast", "balanced", "best")
ALL_VIEWS = 8
COLOR = 3  # channels


class Choice(NamedTuple):
    """A model's name, and how many views of the image are averaged."""

    model: str
    views: int = 1


def check_quality(quality: str, *, beside_model: bool = False) -> str:
    """The quality; raises unless there is such a one, or where a model is given that it is of."""
    if quality not in QUALITIES:
        raise ValueError(f"quality must be one of {', '.join(QUALITIES)}, got {quality!r}")
    if beside_model and quality != "balanced":
        raise ValueError("quality chooses a model: it means nothing beside one")
    return quality


def choose_denoiser(channels: int = 1, quality: str = "balanced") -> Choice:
    """The denoising model for images of that many channels: one for all noise levels.

    A fast one for "fast" alone, eight views of the other for "best". At the levels that the paper's
    networks were made for, those are as good as they are, and better elsewhere
    (benchmarks/levels.py).
    """
    cards = [card for card in weights.list_models() if card.task == "denoise"]
    universal = [c.name for c in cards if c.sigma_range is not None and c.channels == channels]
    return Choice(_of_speed(universal, quality), ALL_VIEWS if quality == "best" else 1)


def choose_upscaler(quality: str = "balanced") -> Choice:
    """The model for super-resolution: one that enlarges by itself, eight views of it for "best".

    Those measure better than the paper's network, and take a sixth of its time.
    """
    cards = [card for card in weights.list_models() if card.task == "sr"]
    enlarging = [card.name for card in cards if card.channels == COLOR]
    if not enlarging:
        return Choice(cards[0].name)
    return Choice(_of_speed(enlarging, quality), ALL_VIEWS if quality == "best" else 1)


def _of_speed(names: list[str], quality: str) -> str:
    """The first fast model for "fast", the first other one otherwise, if there are such."""
    wanted = [name for name in names if _is_fast(name) == (quality == "fast")]
    return (wanted or names)[0]


def _is_fast(name: str) -> bool:
    return name.endswith("-fast")
