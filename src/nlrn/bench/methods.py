"""What can stand in a table: callables (degraded image, level) -> restored image.

Images are float arrays [H, W] or [H, W, 3] on the [0, 1] scale. For denoising the level is sigma on
the 0..255 scale, or `AUTO` where it is to be estimated; for super-resolution it is the scale, and
the degraded image is the small one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from nlrn import __version__, datasets, weights
from nlrn.bench.tables import AUTO, Table
from nlrn.degrade import imresize
from nlrn.hardware import choose_device
from nlrn.images import Image
from nlrn.inference import Settings
from nlrn.inference.overlap import restore_patches
from nlrn.noise import estimate_noise
from nlrn.restoration import ClassicDenoiser, Denoiser, Upscaler
from nlrn.restoration.base import from_planes, to_planes

Restorer = Callable[[np.ndarray, float], np.ndarray]
PROTOCOLS = ("whole", "overlap")
COLOR = 3  # channels


class UnavailableError(ValueError):
    """A method that cannot or may not run here; the message says why."""


def noisy(degraded: np.ndarray, level: float) -> np.ndarray:
    """The input as it is."""
    return degraded


def bicubic(degraded: np.ndarray, level: float) -> np.ndarray:
    """MATLAB's bicubic enlargement."""
    return imresize(degraded, level)


def bm3d_package(degraded: np.ndarray, level: float) -> np.ndarray:
    """The package of BM3D's authors, with its own settings."""
    import bm3d

    run = bm3d.bm3d if degraded.ndim == 2 else bm3d.bm3d_rgb
    return np.asarray(run(degraded, level / 255))


def nlm_opencv(degraded: np.ndarray, level: float) -> np.ndarray:
    """OpenCV's non-local means; it takes 8 bits, so its input is clipped and rounded.

    Patch and strength are the best for scikit-image's photographs, here and below.
    """
    import cv2

    pixels = np.floor(degraded.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    cleaned = cv2.fastNlMeansDenoising(pixels, None, level, 5, 21)
    return np.asarray(cleaned, np.float64) / 255


def nlm_skimage(degraded: np.ndarray, level: float) -> np.ndarray:
    """scikit-image's non-local means in its fast mode, told the noise level."""
    from skimage.restoration import denoise_nl_means

    sigma = level / 255
    patch, strength, axis = (7, 0.6, None) if degraded.ndim == 2 else (5, 0.5, -1)
    cleaned = denoise_nl_means(
        degraded, patch, 7, h=strength * sigma, sigma=sigma, fast_mode=True, channel_axis=axis
    )
    return np.asarray(cleaned)


def bilateral_skimage(degraded: np.ndarray, level: float) -> np.ndarray:
    """scikit-image's bilateral filter."""
    from skimage.restoration import denoise_bilateral

    # It takes a third of a color's distance, and miscounts where values are negative.
    tolerance, axis = (2.0, None) if degraded.ndim == 2 else (0.7, -1)
    low = min(float(degraded.min()), 0.0)
    cleaned = denoise_bilateral(
        degraded - low, sigma_color=tolerance * level / 255, sigma_spatial=2, mode="symmetric",
        channel_axis=axis,
    )  # fmt: skip
    return np.asarray(cleaned) + low


_COLOR: dict[str, Restorer] = {
    "noisy": noisy,
    "NLM-skimage": nlm_skimage,
    "bilateral-skimage": bilateral_skimage,
    "BM3D-package": bm3d_package,
}
# Task -> name -> what it computes. `nlrn bench run --methods` takes these, CLASSIC and NETWORKS.
BASELINES: dict[str, dict[str, Restorer]] = {
    "denoise": {"noisy": noisy, "NLM-OpenCV": nlm_opencv} | _COLOR,
    "color": _COLOR,
    "camera": _COLOR,
    "sr": {"bicubic": bicubic},
    "sr-color": {"bicubic": bicubic},
}
# Our own, for denoising: name -> that of `ClassicDenoiser`
CLASSIC = {"NLM": "nlm", "LSSC": "lssc", "BM3D": "bm3d", "WNNM": "wnnm"}
# name -> views that are averaged; which weight it runs with is the table's business
NETWORKS = {
    "NLRN-by-channel": 1, "denoise-gray-fast": 1, "denoise-gray": 1, "denoise-gray-MV": 8,
    "denoise-rgb-fast": 1, "denoise-rgb": 1, "denoise-rgb-MV": 8,
    "sr-rgb-fast": 1, "sr-rgb": 1,
    "NLRN": 1, "NLRN-MV": 8, "NLRN-400": 1, "NLRN-300": 1, "NLRN-300-MV": 8,
}  # fmt: skip
# Networks of the table of complexity under the name that they have elsewhere: with the same weight
# they are the same.
SAME_AS = {"NLRN-400": "NLRN", "NLRN-300": "NLRN", "NLRN-300-MV": "NLRN-MV"}
# method -> (module, distribution) that it needs besides the package's own dependencies
_NEEDS = {
    "BM3D-package": ("bm3d", "bm3d"),
    "NLM-OpenCV": ("cv2", "opencv-python-headless"),
    "NLM-skimage": ("skimage", "scikit-image"),
    "bilateral-skimage": ("skimage", "scikit-image"),
}


@dataclass(frozen=True)
class MethodOptions:
    """How methods run.

    Attributes:
        protocol: "whole" for what users get, "overlap" for the authors' patches of 45 pixels at
            stride 7, averaged; networks alone know it.
        weight: a file or a name to run networks with instead of the table's weights.
        settings: how networks run, but for the views, which a method's name says; the classic
            methods take the device from it.
    """

    protocol: str = "whole"
    weight: str | None = None
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be {' or '.join(PROTOCOLS)}, got {self.protocol!r}")


@dataclass(frozen=True)
class PreparedMethod:
    """A method with all it needs.

    Attributes:
        restore: (degraded, level) -> restored.
        version: what computes it: the weight and its fingerprint, or a package and its version.
        protocol: "whole", or "overlap" for a network that runs so.
        precision: of what runs in PyTorch; empty otherwise.
        device: where it runs.
        in_color: whether it wants color where the table is about luminance.
    """

    restore: Restorer
    version: str
    protocol: str = "whole"
    precision: str = ""
    device: str = "CPU"
    in_color: bool = False


def names(table: Table) -> list[str]:
    """The methods that can stand in a table."""
    classic = () if table.is_sr else CLASSIC
    networks = (name for name in NETWORKS if name in table.weights)
    return [*BASELINES[table.task], *classic, *networks]


def prepare(
    table: Table, image_set: str, level: int, method: str, options: MethodOptions
) -> PreparedMethod:
    """The method ready to run on a set at a level.

    Raises:
        UnavailableError: if a package or a weight is missing, or the weight has seen the set.
    """
    if method in BASELINES[table.task]:
        restore = _estimating(BASELINES[table.task][method])
        return PreparedMethod(restore, _package_version(method))
    if method in CLASSIC:
        return prepare_classic(CLASSIC[method], options.settings.device)
    name, where = options.weight or table.weights[method].get(level), table.level(level)
    if name is None:
        known = ", ".join(map(table.level, table.weights[method]))
        raise UnavailableError(f"{method} at {where}: it is for {known} only")
    if name not in weights.manifest() and not options.weight:
        raise UnavailableError(f"{method} at {where}: no weight {name!r} yet")
    return prepare_network(name, image_set, NETWORKS[method], table.task, options)


def _package_version(method: str) -> str:
    if method not in _NEEDS:
        return "nlrn"
    module, distribution = _NEEDS[method]
    if importlib.util.find_spec(module) is None:
        raise UnavailableError(f"{method}: needs {distribution}: pip install {distribution}")
    return f"{distribution} {metadata.version(distribution)}"


def prepare_classic(name: str, device: str) -> PreparedMethod:
    """A classic method of this package, ready to run."""
    run = _whole(ClassicDenoiser(name, device=device))
    return PreparedMethod(run, f"nlrn {__version__}", precision="fp32", device=_device_name(device))


def prepare_network(
    name: str, image_set: str, views: int, task: str, options: MethodOptions
) -> PreparedMethod:
    """A trained network, ready to run; refused on images that it has been trained on."""
    label, settings = weight_label(name), replace(options.settings, views=views)
    check_no_leakage(name, image_set)
    is_whole = options.protocol == "whole"
    in_color = False
    if not task.startswith("sr"):
        denoiser = Denoiser(name, settings=settings)
        run = _whole(denoiser) if is_whole else _estimating(_denoised_patches(denoiser))
    else:
        upscaler = Upscaler(model=name, settings=settings)
        in_color = upscaler.engine.network.in_channels == COLOR
        run = _whole(upscaler) if is_whole else _upscaled_patches(upscaler)
    device = _device_name(settings.device)
    return PreparedMethod(run, label, options.protocol, settings.dtype, device, in_color)


def _whole(restoration: Denoiser | ClassicDenoiser | Upscaler) -> Restorer:
    """What users get: float pixels, so that nothing is rounded before it is measured."""

    def run(degraded: np.ndarray, level: float) -> np.ndarray:
        return restoration.restore(Image(degraded), None if level == AUTO else level).image.pixels

    return run


def _estimating(restore: Restorer) -> Restorer:
    """The same, told an estimated level where none is given, as the restorations do it."""

    def run(degraded: np.ndarray, level: float) -> np.ndarray:
        sigma = estimate_noise(degraded).level if level == AUTO else level
        return restore(degraded, sigma) if sigma else degraded

    return run


def _denoised_patches(denoiser: Denoiser) -> Restorer:
    def run(degraded: np.ndarray, level: float) -> np.ndarray:
        network, noisy = denoiser.engine_for().network, _batch(degraded)
        planes = to_planes(noisy, network.in_channels)
        given = network.condition(planes, level)
        removed = given.removed(restore_patches(network, given.input, denoiser.settings))
        return _pixels(from_planes(planes - removed, noisy), degraded)

    return run


def _upscaled_patches(upscaler: Upscaler) -> Restorer:
    def run(degraded: np.ndarray, level: float) -> np.ndarray:
        large = imresize(degraded, level)
        network, settings = upscaler.engine.network, upscaler.settings
        return _pixels(restore_patches(network, _batch(large), settings), large)

    return run


def _batch(image: np.ndarray) -> torch.Tensor:
    """The image [H, W] or [H, W, C] as a batch [1, C, H, W], float32."""
    return torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1)[None].float().contiguous()


def _pixels(batch: torch.Tensor, like: np.ndarray) -> np.ndarray:
    """The image of a batch [1, C, H, W] as float64 in the shape of `like`."""
    return batch[0].permute(1, 2, 0).reshape(like.shape).double().contiguous().numpy()


def _device_name(asked: str) -> str:
    device = choose_device(asked)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def weight_label(name: str) -> str:
    """Name and fingerprint of a weight, so that a row says what it was made with."""
    return f"{Path(name).name}@{weights.fingerprint(name)}"


def check_no_leakage(name: str, image_set: str) -> None:
    """Raises if the weight or one of its ancestors has been trained on the test set."""
    seen = frozenset().union(*map(_folders, weights.load(name).card.training_sets))
    if common := seen & datasets.origins(image_set):
        sets = ", ".join(sorted(common))
        raise UnavailableError(f"{name} was trained on {sets}: not for {image_set}")


def _folders(name: str) -> frozenset[str]:
    """Folders of a set; a name that is none of ours (someone's own data) has none."""
    try:
        return datasets.origins(name)
    except datasets.DataError:
        return frozenset()
