"""Removes noise with a network: chooses the model, takes care of color and of values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nlrn import images, models, weights
from nlrn.errors import warn
from nlrn.hardware import choose_device
from nlrn.images import Image
from nlrn.inference import Engine, Settings
from nlrn.models import Network
from nlrn.progress import Progress
from nlrn.restoration.base import (
    Announce,
    Restored,
    announce_time,
    batch_levels,
    check_batch,
    check_level,
    check_strength,
    from_planes,
    noise_level,
    to_planes,
)

AUTO = "auto"
# At sigma 22 the models of 15 (contrast x 0.68) and 25 (x 1.14) are equally good, hence three.
GROWTH_COUNTS = 3
WEAK_NOISE = 0.7  # of a model's level; below it BM3D is better (benchmarks/levels.py)


class Denoiser(nn.Module):
    """A denoiser with a network, ready to run.

    Called with tensors it is `denoiser(x, sigma)`, sigma in the units of x; `restore` takes an
    `Image` and has sigma on the 0..255 scale. Networks are loaded and prepared once, on first use.
    It can be pickled: models of the package go by name.

    Args:
        model: a name of the package (see `nlrn.list_models`), a file, or a network; "auto" chooses
            by the noise level.
        sigma: standard deviation of the noise on the 0..255 scale, where a call gives none; None
            estimates it for each image.
        strength: 1 for the full effect, 0 for none.
        settings: tiles, views, precision, device.
    """

    def __init__(
        self,
        model: str | Path | Network = AUTO,
        *,
        sigma: float | None = None,
        strength: float = 1.0,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self.sigma = None if sigma is None else check_level(sigma)
        self.strength, self.settings = check_strength(strength), settings or Settings()
        choose_device(self.settings.device)  # one that is not there is refused before any work
        self.model = (model.card.name or "unnamed") if isinstance(model, Network) else str(model)
        self._engines: dict[str, Engine] = {}
        if isinstance(model, Network):
            self._engines[self.model] = Engine(_checked(model, self.model), self.settings)
        elif self.model != AUTO:
            self.engine_for(0.0)
        self._given = isinstance(model, Network)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if self._given else {"_engines": {}})

    def engine_for(self, sigma: float) -> Engine:
        """The engine for a noise level on the 0..255 scale."""
        return self._engine(self.model_for(sigma))

    def model_for(self, sigma: float) -> str:
        """Name of the model for a noise level on the 0..255 scale."""
        return choose_model(sigma) if self.model == AUTO else self.model

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = Engine(_checked(models.load(name), name), self.settings)
        return self._engines[name]

    def restore(
        self,
        image: Image,
        sigma: float | None = None,
        *,
        strength: float | None = None,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The image without its noise; alpha and metadata stay.

        Args:
            image: what to restore.
            sigma: noise level on the 0..255 scale; None takes the denoiser's.
            strength: 1 for the full effect, 0 for none; None takes the denoiser's.
            progress: called with (done, total) in equal units of work.
            announce: called before long work with the seconds it may take.
        """
        strength = self.strength if strength is None else check_strength(strength)
        level = noise_level(image, self.sigma if sigma is None else sigma)
        name = self.model_for(level)
        facts = {"sigma": round(level, 2), "method": "nlrn", "model": name}
        if strength == 0 or level == 0:
            return Restored(image.with_pixels(image.pixels.copy()), facts)
        engine, pixels = self._engine(name), images.to_float(image.pixels)
        noisy = torch.from_numpy(pixels).reshape(1, *pixels.shape[:2], -1).permute(0, 3, 1, 2)
        planes = to_planes(noisy, engine.network.in_channels)
        warn_of_weak_noise(engine.network, level)
        announce_time(engine, (image.height, image.width), len(planes), announce)
        given = engine.network.condition(planes, level)
        removed = given.removed(engine(given.input, progress))
        clean = from_planes(planes - strength * removed, noisy)
        result = clean[0].permute(1, 2, 0).reshape(pixels.shape).contiguous().numpy()
        return Restored(image.with_pixels(images.from_float(result, image.pixels.dtype)), facts)

    def forward(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """Images without their noise, on x's device and in its dtype; gradients flow to x.

        Args:
            x: gray or RGB images [B, C, H, W] in [0, 1].
            sigma: noise level in the units of x (0.1 is 25.5 of 255): a number, [B], or a map
                [B, 1, H, W] where the model takes one; None takes the denoiser's own.
        """
        check_batch(x)
        if isinstance(sigma, Tensor) and sigma.dim() > 1:
            return self._clean(x, float(sigma.mean()) * 255, sigma * 255)
        if sigma is None and self.sigma is not None:
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
        engine = self.engine_for(level)
        network = engine.network
        if noise_map is not None and not network.takes_noise_map:
            raise ValueError(f"{self.model_for(level)} takes one noise level, not a map of them")
        run = engine.differentiable(x) if x.requires_grad and torch.is_grad_enabled() else engine
        planes = to_planes(x, network.in_channels)
        exact = torch.promote_types(x.dtype, torch.float32)
        given = network.condition(planes.to(exact), level if noise_map is None else noise_map)
        return from_planes(planes - self.strength * given.removed(run(given.input)), x)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"model={self.model!r}, sigma={self.sigma}, strength={self.strength:g}"


def choose_model(sigma: float) -> str:
    """Name of the denoising model that was trained nearest to sigma, rather below than above.

    Of several for one level it is the first of the manifest.
    """
    cards = [card for card in weights.list_models() if card.task == "denoise"]
    trained = {card.name: card.sigma for card in cards if card.sigma is not None}

    def distance(name: str) -> float:
        shrinks = math.log(max(sigma, 1e-3) / trained[name])
        return shrinks if shrinks >= 0 else -GROWTH_COUNTS * shrinks

    return min(trained, key=distance)


def warn_of_weak_noise(network: Network, sigma: float) -> None:
    """Warns if the noise is so weak that the network is not the best there is."""
    trained = network.card.sigma
    if trained is not None and not network.takes_noise_map and sigma < WEAK_NOISE * trained:
        warn(
            f"noise of sigma {sigma:.3g} is weak for this model, made for {trained:g}: some is "
            "left, so that no detail is lost; BM3D (method bm3d) removes more"
        )


def _checked(network: Network, name: str) -> Network:
    if network.card.task == "sr":
        raise ValueError(f"{name}: a model for super-resolution, not for denoising")
    return network
