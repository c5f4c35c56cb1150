"""Removes noise: chooses the model or method, takes care of colour and of values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nlrn import classic, images, weights
from nlrn.classic.planes import LARGEST_SIGMA
from nlrn.hardware import choose_device, free_memory
from nlrn.images import Image, as_array, as_image
from nlrn.inference.engine import check_run, restore
from nlrn.inference.tiles import SMALLEST_TILE, cut, paste
from nlrn.models.nlrn import NLRN
from nlrn.noise import estimate_sigma
from nlrn.progress import part_of

# Methods that need no training; the network's name is "nlrn".
CLASSIC: dict[str, Callable[..., np.ndarray]] = {
    "nlm": classic.denoise_nlm,
    "bm3d": classic.denoise_bm3d,
    "wnnm": classic.denoise_wnnm,
    "lssc": classic.denoise_lssc,
}
# Bytes that they take for each pixel, the most of all noise levels (benchmarks/classic.py).
CLASSIC_MEMORY = {"nlm": 600, "bm3d": 3000, "wnnm": 6000, "lssc": 6000}
# Pixels that a tile of theirs reads around it: all that non-local means looks at by default; the
# groups of the others reach farther, but hardly any pixel depends on that.
CLASSIC_HALO = {"nlm": 24, "bm3d": 64, "wnnm": 96, "lssc": 96}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Contrast may shrink as much as it takes to bring strong noise down to the level a model knows: at
# sigma 60 the model of 15 is 0.1 dB below that of 50. It may hardly grow: values far outside [0, 1]
# are new to the network, and beyond 1.15 some images lose more than others gain. At sigma 22 the
# models of 15 (contrast x 0.68) and 25 (x 1.14) are equally good, hence three. Weaker noise is left
# to the network as it is, and what that takes away is limited: `no_more_than_noise`.
LARGEST_SCALE = 1.15
GROWTH_COUNTS = 3
MUCH_LIGHT = 16.0  # a float image with values beyond it is hardly on the [0, 1] scale
LITTLE_LIGHT = 4095  # what 12 bits can hold; a 16-bit image with no more probably comes from them
NEIGHBOURHOOD = 4.0  # pixels: standard deviation of the window for local means
WEAK_NOISE = 0.7  # of a model's level; below it BM3D is better (benchmarks/levels.py)


@dataclass(frozen=True)
class Settings:
    """How the network is run; the fields are those of `inference.restore`."""

    tile: int | None = None
    exact: bool = False
    views: int = 1
    dtype: str = "fp32"
    device: str = "auto"
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        check_run(self.tile, self.views)
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"memory must be a number of bytes, got {self.memory}")

    def restore(
        self, network: NLRN, image: Tensor, progress: Callable[[int, int], None] | None = None
    ) -> Tensor:
        """What the network makes of the image [B, C, H, W], run as these settings say."""
        fields = vars(self) | {"dtype": DTYPES[self.dtype]}
        return restore(network, image, progress=progress, **fields)


def denoise(
    image: np.ndarray | str | Path,
    sigma: float | None = None,
    *,
    strength: float = 1.0,
    method: str = "nlrn",
    model: NLRN | str | Path | None = None,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Returns the image without its noise, in the shape and type in which it came.

    All methods expect white Gaussian noise. The noise in a camera's JPEG is not white: results
    there are softer than they could be.

    Args:
        image: array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] (alpha is kept), uint8, uint16 or
            float in [0, 1]; or the path of an image file.
        sigma: standard deviation of the noise on the 0..255 scale; None estimates it.
        strength: 1 for the full effect, 0 for none.
        method: "nlrn" for the network, or a classic one: "nlm", "bm3d", "wnnm", "lssc".
        model: a network, the name of a weight in the package, or a file; None chooses by sigma.
        settings: tiles, views, precision, device; a classic method knows the device alone.
        progress: called with (done, total) in equal units of work.
    """
    settings = settings or Settings()
    check_method(method, model, settings)
    picture = as_image(image)
    level = check_sigma(sigma, picture)
    if method in CLASSIC:
        result = denoise_classic(picture, level, method, strength, settings.device, progress)
    else:
        network = load_model(model, level)
        result = denoise_image(picture, level, network, strength, settings, progress)
    return as_array(result, image)


def denoise_image(
    picture: Image,
    sigma: float,
    network: NLRN,
    strength: float,
    settings: Settings,
    progress: Callable[[int, int], None] | None = None,
) -> Image:
    """The picture with its noise of level sigma (0..255) removed; alpha and metadata stay."""
    check_strength(strength)
    if strength == 0 or sigma == 0:
        return picture.with_pixels(picture.pixels.copy())
    pixels = images.to_float(picture.pixels)
    if not np.isfinite(pixels).all():
        raise ValueError("image has values that float32 cannot hold")
    noisy = to_planes(pixels, network.config.in_channels)
    warn_of_weak_noise(network, sigma)
    scale = scale_to_model(network, sigma)
    # Around mid-gray, so that the brightness the network was trained on stays where it was.
    clean = settings.restore(network, 0.5 + (noisy - 0.5) * scale, progress)
    removed = noisy - (0.5 + (clean - 0.5) / scale)
    if sigma * LARGEST_SCALE < trained_level(network):
        removed = no_more_than_noise(removed, sigma)
    result = from_planes(noisy - strength * removed, pixels.ndim)
    return picture.with_pixels(images.from_float(result, picture.pixels.dtype))


def denoise_classic(
    picture: Image,
    sigma: float,
    method: str,
    strength: float,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> Image:
    """The picture with its noise removed by a method of `CLASSIC`; alpha and metadata stay."""
    check_strength(strength)
    if strength == 0 or sigma == 0:
        return picture.with_pixels(picture.pixels.copy())
    noisy = images.to_float(picture.pixels)
    clean = _classic(noisy, sigma, method, choose_device(device), progress)
    result = strength * clean + (1 - strength) * noisy
    return picture.with_pixels(images.from_float(result, picture.pixels.dtype))


def _classic(
    noisy: np.ndarray,
    sigma: float,
    method: str,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> np.ndarray:
    """The result for pixels [H, W] or [H, W, 3]: at once, or in tiles where memory is short."""
    height, width = noisy.shape[:2]
    needed, budget = CLASSIC_MEMORY[method], free_memory(device) // 2
    if height * width * needed <= budget:
        return CLASSIC[method](noisy, sigma, device=device, progress=progress)
    halo = CLASSIC_HALO[method]
    side = math.isqrt(budget // needed) - 2 * halo
    if side < SMALLEST_TILE:
        least = needed * (SMALLEST_TILE + 2 * halo) ** 2 / 2**20
        free = budget / 2**20
        raise ValueError(f"{method} needs {least:.0f} MiB at least, it may take {free:.0f} MiB")
    tiles = cut((height, width), side, halo)
    result = torch.zeros(math.prod(noisy.shape[2:]), height, width)
    for number, tile in enumerate(tiles):
        tell = part_of(progress, number, len(tiles))
        part = CLASSIC[method](noisy[tile.seen], sigma, device=device, progress=tell)
        paste(result, torch.from_numpy(np.atleast_3d(part)).permute(2, 0, 1), tile)
    return result.permute(1, 2, 0).reshape(noisy.shape).numpy()


def check_strength(strength: float) -> None:
    """Raises unless it is a share of the effect."""
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be between 0 and 1, got {strength:g}")


def check_method(method: str, model: NLRN | str | Path | None, settings: Settings) -> None:
    """Raises if there is no such method, or it is a classic one and something is for networks."""
    if method == "nlrn":
        return
    if method not in CLASSIC:
        raise ValueError(f"method must be one of nlrn, {', '.join(CLASSIC)}, got {method!r}")
    if model is not None:
        raise ValueError(f"model is for method nlrn, not for {method}")
    usual = Settings(device=settings.device)
    for field in fields(Settings):
        if getattr(settings, field.name) != getattr(usual, field.name):
            raise ValueError(f"{field.name} is for method nlrn, not for {method}")


def to_planes(pixels: np.ndarray, channels: int) -> Tensor:
    """[H, W] or [H, W, 3] -> [B, C, H, W] for a network of that many input channels.

    A gray network takes the colour channels one by one; a colour network takes gray as colour.
    """
    if channels not in (1, 3):
        raise ValueError(f"a network of {channels} input channels takes no gray or RGB image")
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).reshape(*pixels.shape[:2], -1)
    planes = planes.permute(2, 0, 1)  # C H W
    return planes[:, None] if channels == 1 else planes.expand(3, -1, -1)[None]


def from_planes(planes: Tensor, dimensions: int) -> np.ndarray:
    """[B, C, H, W] -> [H, W] or [H, W, 3]."""
    flat = planes.reshape(-1, *planes.shape[-2:])
    if dimensions == 2:
        return flat.mean(0).numpy()
    return flat.permute(1, 2, 0).contiguous().numpy()


def check_sigma(sigma: float | None, picture: Image) -> float:
    """The given noise level if it makes sense, the estimated one if none is given."""
    if sigma is None:
        level = estimate_sigma(picture.pixels)
        if level > LARGEST_SIGMA:
            raise ValueError(f"noise of sigma {level:.0f} found: float values are to be in [0, 1]")
        if 1 in (picture.height, picture.width):
            warnings.warn("one row or column is too little to estimate noise", stacklevel=3)
    else:
        level = check_level(sigma)
    warn_of_range(picture)
    return level


def warn_of_range(picture: Image) -> None:
    """Warns if the values of a float or 16-bit picture are hardly on the scale of its type."""
    dtype, most = picture.pixels.dtype, np.abs(picture.pixels).max(initial=0)
    if dtype.kind == "f" and most > MUCH_LIGHT:
        warnings.warn("float values are to be in [0, 1]; these are far beyond it", stacklevel=4)
    if dtype == np.uint16 and 0 < most <= LITTLE_LIGHT:
        message = f"no value is above {most} of 65535: if white is there, scale the values first"
        warnings.warn(message, stacklevel=4)


def check_level(sigma: float) -> float:
    """The noise level as a float; raises unless it makes sense."""
    if not isinstance(sigma, Real) or isinstance(sigma, bool):
        raise ValueError(f"sigma must be a number, or None to estimate it, got {sigma!r}")
    if not 0 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma must be 0 or more, at most {LARGEST_SIGMA}, got {sigma:g}")
    return float(sigma)


def load_model(model: NLRN | str | Path | None, sigma: float) -> NLRN:
    """The network asked for, or the one of the package whose noise level is nearest."""
    if isinstance(model, NLRN):
        return model
    network = NLRN.from_pretrained(model if model is not None else choose_weight(sigma))
    if network.notes.get("task") == "sr":
        raise ValueError(f"{model}: a model for super-resolution, not for denoising")
    return network


def choose_weight(sigma: float) -> str:
    """Name of the denoising weight that was trained nearest to sigma, rather below than above.

    Of several for one level it is the first of the manifest.
    """
    levels = {e.name: e.sigma for e in weights.manifest().values() if e.task == "denoise"}
    trained = {name: level for name, level in levels.items() if level is not None}

    def distance(name: str) -> float:
        shrinks = math.log(max(sigma, 1e-3) / trained[name])
        return shrinks if shrinks >= 0 else -GROWTH_COUNTS * shrinks

    return min(trained, key=distance)


def warn_of_weak_noise(network: NLRN, sigma: float) -> None:
    """Warns if the noise is so weak that the network is not the best there is."""
    trained = trained_level(network)
    if sigma < WEAK_NOISE * trained:
        warnings.warn(
            f"noise of sigma {sigma:.3g} is weak for this model, made for {trained:g}: some is "
            "left, so that no detail is lost; BM3D (nlrn denoise --method bm3d) removes more",
            stacklevel=4,
        )


def scale_to_model(network: NLRN, sigma: float) -> float:
    """Factor on the contrast that brings the noise to the level the network was trained on."""
    trained = trained_level(network)
    return trained / sigma if 0 < trained <= LARGEST_SCALE * sigma else 1.0


def trained_level(network: NLRN) -> float:
    """The noise level that the network was made for, 0 if it is not known."""
    note = network.notes.get("sigma", "0")
    try:
        return float(note)
    except ValueError:
        raise ValueError(f"the model's note of its noise level is no number: {note!r}") from None


def no_more_than_noise(removed: Tensor, sigma: float) -> Tensor:
    """What a network made for stronger noise took away [B, C, H, W], where it is more than noise.

    If all of the noise n is in what was removed, r = n + detail, then the share of r that is best
    taken away is <n, r> / <r, r> = sigma^2 / mean r^2; the means are local.
    """
    reach = math.ceil(3 * NEIGHBOURHOOD)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / NEIGHBOURHOOD).square())
    kernel /= kernel.sum()
    limited = torch.empty_like(removed)
    for plane, result in zip(removed.flatten(0, 1), limited.flatten(0, 1), strict=True):
        energy = plane.square()[None]
        for dim, pad in ((2, (reach, reach, 0, 0)), (1, (0, 0, reach, reach))):
            # Not conv2d, which would copy every pixel once for each weight.
            padded, length = F.pad(energy, pad, mode="replicate"), energy.shape[dim]
            energy.zero_()
            for start, weight in enumerate(kernel.tolist()):
                energy.add_(padded.narrow(dim, start, length), alpha=weight)
        share = (sigma / 255) ** 2 / energy[0].clamp_(min=1e-12)
        torch.mul(plane, share.clamp_(max=1), out=result)
    return limited
