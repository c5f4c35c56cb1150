"""What can stand in a table: callables (degraded image, level) -> restored image.

Images are float arrays [H, W] on the [0, 1] scale. For denoising the level is sigma on the 0..255
scale; for super-resolution it is the scale, and the degraded image is the small one.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nlrn import __version__, datasets, weights
from nlrn.bench.tables import Table
from nlrn.degrade import imresize

if TYPE_CHECKING:
    import torch

Restorer = Callable[[np.ndarray, int], np.ndarray]
PROTOCOLS = ("whole", "overlap")
PRECISIONS = ("fp32", "bf16")


class UnavailableError(ValueError):
    """A method that cannot run here; the message says what it lacks."""


def noisy(degraded: np.ndarray, level: int) -> np.ndarray:
    """The input as it is."""
    return degraded


def bicubic(degraded: np.ndarray, level: int) -> np.ndarray:
    """MATLAB's bicubic enlargement."""
    return imresize(degraded, level)


def bm3d_package(degraded: np.ndarray, level: int) -> np.ndarray:
    """The package of BM3D's authors, with its own settings."""
    import bm3d

    return np.asarray(bm3d.bm3d(degraded, level / 255))


def nlm_opencv(degraded: np.ndarray, level: int) -> np.ndarray:
    """OpenCV's non-local means; it takes 8 bits, so its input is clipped and rounded.

    Patch and strength are the best for scikit-image's photographs, here and below.
    """
    import cv2

    pixels = np.floor(degraded.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    cleaned = cv2.fastNlMeansDenoising(pixels, None, level, 5, 21)
    return np.asarray(cleaned, np.float64) / 255


def nlm_skimage(degraded: np.ndarray, level: int) -> np.ndarray:
    """scikit-image's non-local means in its fast mode, told the noise level."""
    from skimage.restoration import denoise_nl_means

    sigma = level / 255
    cleaned = denoise_nl_means(degraded, 7, 7, h=0.6 * sigma, sigma=sigma, fast_mode=True)
    return np.asarray(cleaned)


# name -> what it computes, for each task. `nlrn bench --methods` takes these, CLASSIC and NETWORKS.
BASELINES: dict[str, dict[str, Restorer]] = {
    "denoise": {
        "noisy": noisy,
        "NLM-OpenCV": nlm_opencv,
        "NLM-skimage": nlm_skimage,
        "BM3D-package": bm3d_package,
    },
    "sr": {"bicubic": bicubic},
}
# Our own, for denoising: name -> that of `nlrn.restoration.denoiser.CLASSIC`
CLASSIC = {"NLM": "nlm", "LSSC": "lssc", "BM3D": "bm3d", "WNNM": "wnnm"}
# name -> views that are averaged; which weight it runs with is the table's business
NETWORKS = {"NLRN": 1, "NLRN-MV": 8, "NLRN-400": 1, "NLRN-300": 1, "NLRN-300-MV": 8}
# Networks of the table of complexity under the name that they have elsewhere: with the same weight
# they are the same.
SAME_AS = {"NLRN-400": "NLRN", "NLRN-300": "NLRN", "NLRN-300-MV": "NLRN-MV"}
# method -> (module, distribution) that it needs besides the package's own dependencies
_NEEDS = {
    "BM3D-package": ("bm3d", "bm3d"),
    "NLM-OpenCV": ("cv2", "opencv-python-headless"),
    "NLM-skimage": ("skimage", "scikit-image"),
}


@dataclass(frozen=True)
class Setting:
    """How networks run; the classic methods take the device from it.

    Attributes:
        protocol: "whole" for the whole image at once (or its tiles), "overlap" for the authors'
            patches of 45 pixels at stride 7, averaged.
        dtype: "fp32" or "bf16".
        device: "auto" takes a GPU where there is one.
        weight: a file or a name to run networks with instead of the table's weights.
    """

    protocol: str = "whole"
    dtype: str = "fp32"
    device: str = "auto"
    weight: str | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be {' or '.join(PROTOCOLS)}, got {self.protocol!r}")
        if self.dtype not in PRECISIONS:
            raise ValueError(f"dtype must be {' or '.join(PRECISIONS)}, got {self.dtype!r}")


@dataclass(frozen=True)
class Bound:
    """A method with all it needs.

    Attributes:
        restore: (degraded, level) -> restored.
        version: what computed it: the weight and its sha256, or a package and its version.
        protocol: "whole", or "overlap" for a network that ran so.
        precision: of what runs in PyTorch; empty otherwise.
        device: where it runs.
    """

    restore: Restorer
    version: str
    protocol: str = "whole"
    precision: str = ""
    device: str = "CPU"


def names(table: Table) -> list[str]:
    """The methods that can stand in a table."""
    classic = CLASSIC if table.task == "denoise" else ()
    networks = (name for name in NETWORKS if name in table.weights)
    return [*BASELINES[table.task], *classic, *networks]


def weight_of(table: Table, method: str, level: int, setting: Setting) -> str:
    """The weight that a network runs with."""
    return setting.weight or table.weights[method][level]


def bind(table: Table, image_set: str, level: int, method: str, setting: Setting) -> Bound:
    """The method ready to run on a set at a level.

    Raises:
        UnavailableError: if a package or a weight is missing.
    """
    if method in BASELINES[table.task]:
        return Bound(BASELINES[table.task][method], _package_version(method))
    if method in CLASSIC:
        return classic_method(CLASSIC[method], setting.device)
    name = weight_of(table, method, level, setting)
    if name not in weights.manifest() and not setting.weight:
        raise UnavailableError(f"{method} at {table.level(level)}: no weight {name!r} yet")
    return network(name, image_set, NETWORKS[method], table.task, setting)


def _package_version(method: str) -> str:
    if method not in _NEEDS:
        return "nlrn"
    module, distribution = _NEEDS[method]
    if importlib.util.find_spec(module) is None:
        raise UnavailableError(f"{method}: needs {distribution}: pip install {distribution}")
    return f"{distribution} {metadata.version(distribution)}"


def classic_method(name: str, device: str) -> Bound:
    """A classic method of this package."""
    from nlrn.hardware import choose_device
    from nlrn.restoration import denoise as tasks

    where = choose_device(device)

    def run(degraded: np.ndarray, level: int) -> np.ndarray:
        return tasks.CLASSIC[name](degraded, level, device=where)

    version = f"nlrn {__version__}"
    return Bound(run, version, precision="fp32", device=_device_name(where))


def network(name: str, image_set: str, views: int, task: str, setting: Setting) -> Bound:
    """A trained network, refused on images that it has been trained on."""
    refuse_seen(name, image_set)
    import torch

    from nlrn.hardware import choose_device
    from nlrn.inference.engine import restore, restore_patches
    from nlrn.models.nlrn import NLRN
    from nlrn.restoration.denoiser import DTYPES

    model, device = NLRN.from_pretrained(name), choose_device(setting.device)
    dtype = DTYPES[setting.dtype]

    def run(degraded: np.ndarray, level: int) -> np.ndarray:
        image = degraded if task == "denoise" else imresize(degraded, level)
        given = torch.from_numpy(image)[None, None].float()
        if setting.protocol == "overlap":
            result = restore_patches(model, given, views=views, dtype=dtype, device=device)
        else:
            result = restore(model, given, views=views, dtype=dtype, device=device)
        return result[0, 0].double().numpy()

    where = _device_name(device)
    return Bound(run, weight_label(name), setting.protocol, setting.dtype, where)


def _device_name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def weight_label(name: str) -> str:
    """Name and sha256 of a weight, so that a row says what it was made with."""
    if name in weights.manifest():
        return f"{name}@{weights.manifest()[name].sha256[:12]}"
    if not Path(name).is_file():
        raise ValueError(f"{name}: neither a file nor a model of the package")
    return f"{Path(name).name}@{hashlib.sha256(Path(name).read_bytes()).hexdigest()[:12]}"


def refuse_seen(name: str, image_set: str) -> None:
    """Raises if the weight or one of its ancestors has been trained on the test set."""
    entry = weights.manifest().get(name)
    noted = weights.load(name).notes.get("data", "") if entry is None else ""
    sets = entry.data if entry else tuple(part for part in noted.split(",") if part.strip())
    seen = frozenset().union(*(_folders(part.strip()) for part in sets))
    if common := seen & datasets.origins(image_set):
        raise ValueError(f"{name} was trained on {', '.join(sorted(common))}: not for {image_set}")


def _folders(name: str) -> frozenset[str]:
    """Folders of a set; a name that is none of ours (someone's own data) has none."""
    try:
        return datasets.origins(name)
    except datasets.DataError:
        return frozenset()
