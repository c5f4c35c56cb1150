"""Removes noise with a network: chooses the model, takes care of color and of values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nlrn import models
from nlrn.errors import warn
from nlrn.hardware import choose_device, mind_fork
from nlrn.images import Image
from nlrn.inference import Engine, Settings
from nlrn.inference.settings import check_settings
from nlrn.models import Network
from nlrn.models.conditioning import Conditioned
from nlrn.noise import Tone
from nlrn.progress import Progress
from nlrn.restoration.base import (
    AUTO,
    MAP,
    Announce,
    Restored,
    Sigma,
    announce_time,
    at_strength,
    batch_levels,
    check_batch,
    check_level,
    check_map,
    check_strength,
    from_planes,
    in_color,
    is_flat,
    is_map,
    keep_hidden,
    map_for,
    model_name,
    noise_facts,
    noise_of,
    range_of,
    to_batch,
    to_planes,
    tone_for,
    without_hidden,
)
from nlrn.restoration.choice import Choice, check_quality, choose_denoiser

COPIES = 12  # of the image that exist at a time around the network
FLAT_REACH = 4  # pixels around one that have to be the same for it to be left alone
WEAK_NOISE = 0.7  # of a model's level; below it BM3D is better (benchmarks/levels.py)


class Denoiser(nn.Module):
    """A denoiser with a network, ready to run.

    Called with tensors it is `denoiser(x, sigma)`, sigma in the units of x; `restore` takes an
    `Image` and has sigma on the 0..255 scale. Networks are loaded and prepared once, on first use.
    It can be pickled: models of the package go by name.

    Args:
        model: a name of the package (see `nlrn.list_models`), a file, or a network; "auto" chooses
            by the channels.
        quality: of what "auto" chooses: "fast", "balanced", or "best", which is slow.
        sigma: standard deviation of the noise on the 0..255 scale, where a call gives none; None
            estimates it for each image, "map" for each pixel (for networks that take a map).
        strength: 1 for the full effect, 0 for none.
        settings: tiles, views, precision, device.
    """

    def __init__(
        self,
        model: str | Path | Network = AUTO,
        *,
        quality: str = "balanced",
        sigma: Sigma = None,
        strength: float = 1.0,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self.sigma: Sigma = sigma if sigma is None or is_map(sigma) else check_level(sigma)
        self.strength, self.settings = check_strength(strength), check_settings(settings)
        self.quality = check_quality(quality, beside_model=model != AUTO)
        choose_device(self.settings.device)  # one that is not there is refused before any work
        self.model = model_name(model)
        self._engines: dict[Choice, Engine] = {}
        self._given = isinstance(model, Network)
        if isinstance(model, Network):
            _check_task(model, self.model)
            self._engines[Choice(self.model)] = Engine(model, self.settings)
        elif self.model != AUTO:
            self.engine_for()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if self._given else {"_engines": {}})

    def choice_for(self, channels: int = 1) -> Choice:
        """The model for images of that many channels."""
        if self.model != AUTO:
            return Choice(self.model)
        return choose_denoiser(channels, self.quality)

    def engine_for(self, channels: int = 1) -> Engine:
        """The engine for images of that many channels."""
        mind_fork()
        choice = self.choice_for(channels)
        if choice not in self._engines:
            network = models.load(choice.model)
            _check_task(network, choice.model)
            views = max(choice.views, self.settings.views)
            self._engines[choice] = Engine(network, replace(self.settings, views=views))
        return self._engines[choice]

    def restore(
        self,
        image: Image,
        sigma: Sigma = None,
        *,
        strength: float | None = None,
        tone: Tone | Literal["auto"] | None = AUTO,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The image without its noise; alpha, metadata and what is transparent stay.

        Args:
            image: what to restore.
            sigma: noise level on the 0..255 scale, or "map"; None takes the denoiser's. Of a
                picture of one tone it is that of the strongest channel.
            tone: of a picture in color that has but one (`nlrn.noise.tone_of`), None for one that
                has several; "auto" looks. Gray that is stored as color is gray in any case.
            strength: 1 for the full effect, 0 for none; None takes the denoiser's.
            progress: called with (done, total) in equal units of work.
            announce: called before long work with the seconds it may take.
        """
        strength = self.strength if strength is None else check_strength(strength)
        asked = self.sigma if sigma is None else sigma
        by_map = is_map(asked)
        noise = noise_of(image, None if by_map else asked)
        tone = tone_for(image.pixels, tone)
        channels = 3 if image.pixels.ndim == 3 and tone is None else 1
        name = self.choice_for(channels).model
        facts: dict[str, Any] = {"method": "nlrn", "model": name}
        if strength == 0 or (noise.level == 0 and not by_map):
            return Restored(at_strength(image, None, strength), noise_facts(noise) | facts)
        engine, shape = self.engine_for(channels), image.pixels.shape
        planes = channels if engine.network.in_channels == 1 else 1
        if planes > 1:
            noise, facts["by_channel"] = noise.one_by_one, True
        level, facts = noise.level, noise_facts(noise) | facts
        if by_map:
            _check_takes_map(engine.network)
        announce_time(engine, (image.height, image.width), planes, announce)
        noisy = to_batch(without_hidden(image), engine.device_for(), COPIES)
        shown, axis, strongest = noisy, torch.ones(()), 1.0
        if tone is not None:
            axis = torch.from_numpy(tone.axis).to(noisy).reshape(1, 3, 1, 1)
            shown, strongest = (noisy * axis).mean(1, keepdim=True) + tone.offset, tone.strongest
        levels: float | Tensor = level / strongest
        if by_map:
            levels = map_for(shown)
            every = strongest * levels
            low, high = float(every.min()), float(every.max())
            facts |= {"sigma": round(float(every.mean()), 2), "sigma_range": [low, high]}
        _warn_of_level(engine.network, shown, levels, strongest)
        given = _given(engine.network, shown, levels)
        clean = noisy - axis * given.removed(engine(given.input, progress))
        full = clean[0].permute(1, 2, 0).reshape(shape).contiguous().cpu().numpy()
        keep_hidden(full, image)
        return Restored(at_strength(image, full, strength), facts, full)

    def seconds(self, size: tuple[int, int], sigma: float, channels: int = 1) -> float:
        """How long an image of (H, W) and that many channels will take here, roughly."""
        engine = self.engine_for(channels)
        return engine.seconds(size, channels if engine.network.in_channels == 1 else 1)

    def forward(self, x: Tensor, sigma: float | Tensor | np.ndarray | None = None) -> Tensor:
        """Images without their noise, on x's device and in its dtype; gradients flow to x.

        Args:
            x: gray or RGB images [B, C, H, W] in [0, 1]. RGB with equal channels is taken for gray;
                that others have one tone only `restore` looks for.
            sigma: noise level in the units of x (0.1 is 25.5 of 255): a number, [B], or a map
                [B, 1, H, W] where the model takes one, which leaves pixels of level 0 as they are;
                None takes the denoiser's own.
        """
        check_batch(x)
        if sigma is None and self.sigma == MAP:
            sigma = map_for(x).to(x.device) / 255
        if isinstance(sigma, Tensor | np.ndarray) and sigma.ndim == 4:
            levels_map = check_map(x, sigma)
            return self._clean(x, float(levels_map.max()), levels_map)
        if sigma is None and isinstance(self.sigma, float):
            sigma = self.sigma / 255
        levels = batch_levels(x, sigma)
        if len(set(levels)) == 1:
            return self._clean(x, levels[0])
        parts = [self._clean(x[i : i + 1], level) for i, level in enumerate(levels)]
        return torch.cat(parts)

    def _clean(self, x: Tensor, level: float, noise_map: Tensor | None = None) -> Tensor:
        """Images [B, C, H, W] without noise of one level, or of a map, on the 0..255 scale."""
        if self.strength == 0 or level == 0:
            return x.clone()
        if len(x) > 1 and range_of(x, level) != (0, 1):  # each by its own range
            maps = [None] * len(x) if noise_map is None else noise_map.split(1)
            parts = zip(x.split(1), maps, strict=True)
            return torch.cat([self._clean(image, level, levels) for image, levels in parts])
        if x.shape[1] == 3 and (is_gray := (x == x[:, :1]).flatten(1).all(1)).any():
            return self._clean_gray_in_color(x, is_gray, level, noise_map)
        engine = self.engine_for(x.shape[1])
        network = engine.network
        if noise_map is not None:
            _check_takes_map(network)
        run = engine.differentiable(x) if x.requires_grad and torch.is_grad_enabled() else engine
        given = _given(network, x, level if noise_map is None else noise_map)
        return (x - self.strength * given.removed(run(given.input))).to(x.dtype)

    def _clean_gray_in_color(
        self, x: Tensor, is_gray: Tensor, level: float, noise_map: Tensor | None
    ) -> Tensor:
        """`_clean` for a batch [B, 3, H, W] that holds gray images, by `is_gray` [B]."""
        places = is_gray.nonzero()[:, 0], (~is_gray).nonzero()[:, 0]
        parts = []
        for place, channels in zip(places, (1, 3), strict=True):
            if len(place) == 0:
                continue
            # Of gray the mean, so that gradients reach all channels.
            some = x[place] if channels == 3 else x[place].mean(1, keepdim=True)
            levels = None if noise_map is None else noise_map[place]
            parts.append(x[place] - (some - self._clean(some, level, levels)))
        return torch.cat(parts)[torch.cat(places).argsort()]

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        quality = f", quality={self.quality!r}" if self.model == AUTO else ""
        return f"model={self.model!r}{quality}, sigma={self.sigma}, strength={self.strength:g}"


def _given(network: Network, x: Tensor, level: float | Tensor) -> Conditioned:
    """What a network gets of images [B, C, H, W] with noise of a level on the 0..255 scale.

    What is then to be taken away from them is in float32 or better.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    low, high = range_of(exact, float(level.max()) if isinstance(level, Tensor) else level)
    extent = high - low
    if (low, high) != (0, 1):  # networks know what is in [0, 1] alone
        exact, level = (exact - low) / extent, level / extent
    planes = to_planes(exact, network.in_channels)
    if isinstance(level, Tensor):  # channel by channel the map is that of all three
        level = level.to(exact).repeat_interleave(len(planes) // len(x), 0)
    is_gray_in_color = planes.shape[1] > x.shape[1]
    given = network.condition(*(in_color(planes, level) if is_gray_in_color else (planes, level)))

    def removed(clean: Tensor) -> Tensor:
        return extent * from_planes(_but_flat(planes, given.removed(clean)), exact)

    return Conditioned(given.input, removed)


def _but_flat(planes: Tensor, removed: Tensor) -> Tensor:
    """What was removed, but nothing where nothing varies: black bars, white paper, clipped light.

    A network that is told of noise finds some there too, and is off by a level or two.
    """
    flat = is_flat(planes.detach(), FLAT_REACH).all(1, keepdim=True)
    return removed.masked_fill(flat, 0.0)


def _warn_of_level(network: Network, x: Tensor, level: float | Tensor, strongest: float) -> None:
    """Warns if the noise is weaker or stronger than what the network is good at.

    Args:
        network: what is to remove it.
        x: [B, C, H, W], with noise of that level on the 0..255 scale.
        level: one, or [B, 1, H, W].
        strongest: how many times as much the picture has that x is the gray one of.
    """
    trained, levels = network.card.sigma, network.card.sigma_range
    most = float(level.max()) if isinstance(level, Tensor) else level
    low, high = range_of(x, most)
    told = most / (high - low)
    if network.in_channels > x.shape[1]:
        told *= math.sqrt(3)  # see `in_color`
    sigma = strongest * most
    if levels is not None and told > levels[1]:
        warn(
            f"noise of sigma {sigma:.3g} is more than this model was trained for, up to "
            f"{levels[1]:g}: little detail will be left"
        )
    elif trained and not network.takes_noise_map and told < WEAK_NOISE * trained:
        warn(
            f"noise of sigma {sigma:.3g} is weak for this model, made for {trained:g}: some is "
            "left, so that no detail is lost; denoise-gray, for all levels, removes more"
        )


def _check_takes_map(network: Network) -> None:
    if not network.takes_noise_map:
        name = network.card.name or "this model"
        raise ValueError(f"{name} takes one noise level, not a map of them (denoise-gray does)")


def _check_task(network: Network, name: str) -> None:
    if network.card.task == "sr":
        raise ValueError(f"{name}: a model for super-resolution, not for denoising")
