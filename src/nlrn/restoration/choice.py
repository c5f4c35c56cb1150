"""Which model of the package an image gets."""

from __future__ import annotations

import math
from typing import NamedTuple

from nlrn import weights
from nlrn.weights import ModelCard

QUALITIES = ("fast", "balanced", "best")
# At sigma 22 the models of 15 (contrast x 0.68) and 25 (x 1.14) are equally good, hence three.
GROWTH_COUNTS = 3
# Up to a third above its level, or a tenth below, the paper's network is as good as eight views of
# denoise-gray or better (benchmarks/levels.py).
NEAR = math.log(4 / 3)
ALL_VIEWS = 8
COLOR = 3  # channels


class Choice(NamedTuple):
    """A model's name, and how many views of the image are averaged."""

    model: str
    views: int = 1


def check_quality(quality: str) -> str:
    """The quality; raises unless there is such a one."""
    if quality not in QUALITIES:
        raise ValueError(f"quality must be one of {', '.join(QUALITIES)}, got {quality!r}")
    return quality


def choose_denoiser(sigma: float, channels: int = 1, quality: str = "balanced") -> Choice:
    """The denoising model for a noise level (0..255) and images of that many channels.

    A model for all levels comes first, a fast one for "fast" alone; "best" is eight views of it, or
    for gray the paper's network where one was trained near the level.
    """
    cards = [card for card in weights.list_models() if card.task == "denoise"]
    universal = [c.name for c in cards if c.sigma_range is not None and c.channels == channels]
    only_fast = all(_is_fast(name) for name in universal)
    nearest, distance = nearest_level(cards, sigma)
    if not universal or (quality != "fast" and only_fast):
        return Choice(nearest)
    if quality == "best" and channels == 1 and distance <= NEAR:
        return Choice(nearest)
    return Choice(_of_speed(universal, quality), ALL_VIEWS if quality == "best" else 1)


def nearest_level(cards: list[ModelCard], sigma: float) -> tuple[str, float]:
    """Name of the model that was trained nearest to sigma, rather below than above; how near.

    Of several for one level it is the first of the manifest. The distance is that of logarithms.
    """
    trained = {card.name: card.sigma for card in cards if card.sigma is not None}

    def distance(name: str) -> float:
        shrinks = math.log(max(sigma, 1e-3) / trained[name])
        return shrinks if shrinks >= 0 else -GROWTH_COUNTS * shrinks

    nearest = min(trained, key=distance)
    return nearest, distance(nearest)


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
