"""Enlarges images: networks that do it themselves, or luminance after bicubic interpolation."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from nlrn import images, models
from nlrn.degrade import imresize
from nlrn.hardware import choose_device, mind_fork
from nlrn.images import Image
from nlrn.inference import Engine, Settings
from nlrn.inference.settings import check_settings
from nlrn.models import Network
from nlrn.models.bicubic import enlarge
from nlrn.noise.tone import shows_gray
from nlrn.progress import Progress
from nlrn.restoration.base import (
    AUTO,
    Announce,
    Restored,
    announce_time,
    check_batch,
    check_image,
    check_range,
    is_flat,
    model_name,
    range_of,
    to_batch,
    to_pixels,
    to_planes,
)
from nlrn.restoration.choice import check_quality, choose_upscaler
from nlrn.restoration.denoiser import Denoiser
from nlrn.restoration.resize import continued, resized

SMALLEST_FACTOR, LARGEST_FACTOR = 2, 4  # by which super-resolution was trained
# MATLAB's rgb2ycbcr: luminance of RGB in [0, 1], and what a change of it is in R, G and B alike.
LUMINANCE = np.array([65.481, 128.553, 24.966], np.float32) / 255
LUMINANCE_OF_BLACK = np.float32(16 / 255)
RGB_OF_LUMINANCE = np.float32(255 / 219)
COPIES = 6  # of the result that exist at a time around the network
COLOR_REACH, VALUE_REACH = 2, 1  # pixels around one whose color and values bound the result's
BAND = 64  # rows of the image that are bounded at a time

Enlarged = tuple[Tensor, np.ndarray | None]  # pixels [H, W] or [H, W, 3] and opacity, float32


class Upscaler(nn.Module):
    """Enlarges images with a network, ready to run.

    Called with tensors it is `upscaler(x)`; `restore` takes an `Image`. The network is loaded and
    prepared once, on first use. It can be pickled: models of the package go by name.

    Args:
        scale: more than 1, at most 4; the models were trained with 2, 3 and 4.
        model: a name of the package (see `nlrn.list_models`), a file, or a network; "auto" takes
            the package's.
        quality: of what "auto" takes: "fast", "balanced", or "best", which is slow.
        denoise: whether noise is removed first, its level estimated: enlarged, it would stay.
        settings: tiles, views, precision, device.
    """

    def __init__(
        self,
        scale: float = 2,
        model: str | Path | Network = AUTO,
        *,
        quality: str = "balanced",
        denoise: bool = False,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.settings = check_scale(scale), check_settings(settings)
        choose_device(self.settings.device)  # one that is not there is refused before any work
        self.model, views = model_name(model), self.settings.views
        check_quality(quality, beside_model=model != AUTO)
        if model == AUTO:
            self.model, views = choose_upscaler(quality)
        self._run_with = replace(self.settings, views=max(views, self.settings.views))
        self.denoiser = Denoiser(quality=quality, settings=self.settings) if denoise else None
        self._given = isinstance(model, Network)
        self._engines: dict[int, Engine] = {}
        if isinstance(model, Network):
            self._add(_checked(model, self.model))
        elif model != AUTO:
            _ = self.engine  # a wrong name or file is refused here

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if self._given else {"_engines": {}})

    @property
    def engine(self) -> Engine:
        """What runs the network, for the smallest of its factors."""
        return self._by_factor()[min(self._engines)]

    def _by_factor(self) -> dict[int, Engine]:
        """The engine for each factor of the network; one alone for those that do not enlarge."""
        mind_fork()
        if not self._engines:
            self._add(_checked(models.load(self.model), self.model))
        return self._engines

    def _engine_for(self, scale: float) -> Engine:
        """That of the next larger factor that the network has, or of its largest."""
        engines = self._by_factor()
        return engines[min((factor for factor in engines if factor >= scale), default=max(engines))]

    def _add(self, network: Network) -> None:
        for factor in network.factors or (1,):
            self._engines[factor] = Engine(network.with_scale(factor), self._run_with)

    def restore(
        self,
        image: Image,
        scale: float | None = None,
        *,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The image enlarged; metadata stay.

        Networks that enlarge take the image as it is, to the next of their factors; the result is
        shrunk to the scale. For the others all channels are enlarged by bicubic interpolation; gray
        then goes through the network as it is, of color the luminance does, and what the network
        changes in it is added to all three; below a factor of 2, to which it would give too much,
        it is enlarged by 2 and shrunk.

        Where nothing varies nothing is changed: white stays white also at the edges, where the
        network alone is off by a level or two. Gray stays gray. Of networks that enlarge, what is
        near in the image bounds values and changes of color.

        Args:
            image: what to enlarge.
            scale: None takes the upscaler's.
            progress: called with (done, total) in equal units of work.
            announce: called before long work with the seconds it may take.
        """
        scale = self.scale if scale is None else check_scale(scale)
        facts = {"scale": scale, "model": self.model}
        check_image(image)
        if self.denoiser is None:
            check_range(image)
        else:  # which looks at it too
            cleaned = self.denoiser.restore(image, announce=announce)
            image, facts["sigma"] = cleaned.image, cleaned.facts["sigma"]
        enlarges = bool(self.engine.network.factors)
        run = self._directly if enlarges else self._by_luminance
        pixels, opacity = run(image, scale, progress, announce)
        size = (_enlarged(image.height, scale), _enlarged(image.width, scale))
        if pixels.shape[:2] != size:
            shrunk, opacity = resized(pixels.cpu().numpy(), opacity, size=size)
            pixels = torch.from_numpy(shrunk)
        alpha = None if opacity is None else images.from_float(opacity, image.pixels.dtype)
        return Restored(image.with_pixels(to_pixels(pixels, image.pixels.dtype), alpha), facts)

    def _directly(
        self, image: Image, scale: float, progress: Progress | None, announce: Announce | None
    ) -> Enlarged:
        """The image by a factor of the network that is at least the scale, if it has one."""
        engine, colors, opacity = self._engine_for(scale), image.pixels, None
        factor = engine.network.scale
        if image.alpha is not None:
            shown = images.to_float(image.alpha)
            colors = images.to_float(colors)
            colors = continued(colors, shown if colors.ndim == 2 else shown[..., None])
            opacity = imresize(shown, factor).astype(np.float32).clip(0, 1)
        batch = to_batch(colors, engine.device_for(), COPIES * factor**2).contiguous()
        is_gray = shows_gray(colors)
        planes = to_planes(batch[:, :1] if is_gray else batch, engine.network.in_channels)
        announce_time(engine, (image.height, image.width), len(planes), announce)
        low, high = range_of(planes, 0)
        inside = planes if (low, high) == (0, 1) else (planes - low) / (high - low)
        large = engine(inside, progress)
        if inside is not planes:
            large = low + (high - low) * large
        if is_gray:
            large, planes = large.mean(1, keepdim=True), planes[:, :1]
        # A network of one channel has taken red, green and blue as three images.
        large, planes = (x.reshape(1, -1, *x.shape[2:]) for x in (large, planes))
        large = _bound(large, planes, factor)[0].expand(len(batch[0]), -1, -1)
        size = (*large.shape[1:], *colors.shape[2:])
        return large.permute(1, 2, 0).reshape(size).contiguous(), opacity

    def _by_luminance(
        self, image: Image, scale: float, progress: Progress | None, announce: Announce | None
    ) -> Enlarged:
        """The image by the scale, at least by 2, through a network that does not enlarge."""
        factor = max(scale, SMALLEST_FACTOR)
        large, opacity = resized(images.to_float(image.pixels), image.alpha, factor)
        is_gray = large.ndim == 2
        luminance = large if is_gray else large @ LUMINANCE + LUMINANCE_OF_BLACK
        announce_time(self.engine, (large.shape[0], large.shape[1]), 1, announce)
        planes = torch.from_numpy(luminance)[None, None]
        restored = self.engine(planes, progress)
        result = torch.where(is_flat(planes, round(factor)), planes, restored)[0, 0].numpy()
        if not is_gray:
            change = (result - luminance) * RGB_OF_LUMINANCE
            result = np.add(large, change[..., None], out=large)
        return torch.from_numpy(result), opacity

    def seconds(self, size: tuple[int, int], scale: float | None = None) -> float:
        """How long an image of (H, W) will take here, roughly."""
        scale = self.scale if scale is None else check_scale(scale)
        if self.engine.network.factors:
            return self._engine_for(scale).seconds(size)
        factor = max(scale, SMALLEST_FACTOR)
        return self.engine.seconds((_enlarged(size[0], factor), _enlarged(size[1], factor)))

    def forward(self, x: Tensor) -> Tensor:
        """Gray or RGB images [B, C, H, W] in [0, 1], enlarged, on x's device and in its dtype.

        No gradients flow to x.
        """
        check_batch(x)
        results = []
        for one in x.detach().float().cpu():  # C H W
            array = np.ascontiguousarray(one[0] if len(one) == 1 else one.permute(1, 2, 0))
            large = torch.from_numpy(self.restore(Image(array)).image.pixels)
            results.append(torch.atleast_3d(large).permute(2, 0, 1))
        return torch.stack(results).to(x.device, x.dtype)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"scale={self.scale:g}, model={self.model!r}"


@torch.inference_mode()  # what a recorded network gave may be changed nowhere else
def _bound(large: Tensor, small: Tensor, factor: int) -> Tensor:
    """The result [1, C, sH, sW] for an image [1, C, H, W], with nothing that comes from nowhere.

    A pixel's value leaves the range of those next to it in the image by at most `factor` times
    their extent, as a thin line does; alone a network puts specks beside small text. Of color, the
    differences from the mean of red, green and blue, as much may change as there is within two
    pixels: alone it gives a tint to fine black lines on white.
    """
    reach = max(COLOR_REACH, VALUE_REACH)
    for top in range(0, small.shape[2], BAND):
        end = min(top + BAND, small.shape[2])
        first = max(0, top - 2 * reach)
        here, band = small[:, :, first : end + 2 * reach], slice(top - first, end - first)
        result = large[:, :, factor * top : factor * end]
        if small.shape[1] == 3:
            color = here.amax(1, keepdim=True) - here.amin(1, keepdim=True)
            most = interpolate(_largest(color, COLOR_REACH)[:, :, band], scale_factor=factor)
            smooth = enlarge(here, factor)[:, :, factor * band.start : factor * band.stop]
            change = result - smooth
            brightness = change.mean(1, keepdim=True)
            change -= brightness
            largest = change.abs().amax(1, keepdim=True)
            change *= torch.where(largest > most, most / largest, 1)
            result.copy_(smooth + brightness + change)
        high, low = (sign * _largest(sign * here, VALUE_REACH)[:, :, band] for sign in (1, -1))
        slack = factor * (high - low)
        bounds = (interpolate(x, scale_factor=factor) for x in (low - slack, high + slack))
        result.clamp_(*bounds)
    return large


def _largest(x: Tensor, reach: int) -> Tensor:
    """The largest value within so many pixels of each one."""
    return max_pool2d(x, 2 * reach + 1, stride=1, padding=reach)


def check_scale(scale: float) -> float:
    """The factor as a float; raises unless images can be enlarged by it."""
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise ValueError(f"scale must be a number, got {scale!r}")
    if not 1 < scale <= LARGEST_FACTOR:
        raise ValueError(f"scale must be more than 1 and at most {LARGEST_FACTOR}, got {scale:g}")
    return float(scale)


def _enlarged(side: int, scale: float) -> int:
    """The side of the result; 100 at 1.1 is 110, whatever is left of rounding."""
    return math.ceil(round(side * scale, 6))


def _checked(network: Network, name: str) -> Network:
    if network.card.task not in ("", "sr"):
        raise ValueError(f"{name}: a model for denoising, not for super-resolution")
    if network.in_channels != 1 and not network.factors:
        raise ValueError(f"a network of {network.in_channels} channels takes no luminance")
    return network
