"""What the page can do with a picture: the list of tasks, and the models for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nlrn import images, metrics, weights
from nlrn.images import Image
from nlrn.models.nlrn import NLRN
from nlrn.restoration import denoise as tasks
from nlrn.restoration import upscale as upscaling
from nlrn.restoration.denoiser import Settings

Progress = Callable[[int, int], None]
LARGEST_SSIM = 2**23  # pixels and channels; beyond, its dozen maps in float64 take gigabytes


@dataclass(frozen=True)
class Wish:
    """What is to be done with a picture; no model leaves the choice to us."""

    task: str
    sigma: float
    strength: float = 1.0
    scale: float = 2.0
    model: str | None = None


@dataclass(frozen=True)
class Task:
    """One thing to do with a picture.

    Attributes:
        name: of the command that does it too.
        label: for the page.
        suffix: added to the name of results, as the command does, with the wish's values.
        controls: the settings of the page that mean something.
        trained_for: the word for it in the manifest of the weights.
        run: picture, wish, network, settings, progress -> result.
    """

    name: str
    label: str
    suffix: str
    controls: tuple[str, ...]
    trained_for: str
    run: Callable[[Image, Wish, NLRN, Settings, Progress], Image]


@dataclass(frozen=True)
class Model:
    """A network that can be chosen."""

    name: str
    task: str
    description: str


def _denoise(
    picture: Image, wish: Wish, network: NLRN, settings: Settings, progress: Progress
) -> Image:
    return tasks.denoise_image(picture, wish.sigma, network, wish.strength, settings, progress)


def _upscale(
    picture: Image, wish: Wish, network: NLRN, settings: Settings, progress: Progress
) -> Image:
    return upscaling.upscale_image(picture, wish.scale, network, settings, progress)


TASKS = (
    Task(
        name="denoise",
        label="Remove noise",
        suffix="_denoised",
        controls=("sigma", "strength", "noise", "explain"),
        trained_for="denoise",
        run=_denoise,
    ),
    Task(
        name="upscale",
        label="Enlarge",
        suffix="_x{scale:g}",
        controls=("scale",),
        trained_for="sr",
        run=_upscale,
    ),
)


class Offers:
    """The tasks for which there are models, and the models.

    Args:
        files: weights of the user's own; they come before the package's.
    """

    def __init__(self, files: list[Path]) -> None:
        self._networks = {file.stem: NLRN.from_pretrained(file) for file in files}
        self._own = {name: _task_for(n.notes.get("task")) for name, n in self._networks.items()}

    def models(self) -> list[Model]:
        """Every model that can be chosen, the user's own first."""
        own = [Model(name, task, "your own file") for name, task in self._own.items()]
        return own + [
            Model(entry.name, _task_for(entry.task), entry.description)
            for entry in weights.manifest().values()
            if entry.name not in self._own
        ]

    def tasks(self) -> list[Task]:
        """The tasks that can be done here and now."""
        with_models = {model.task for model in self.models()}
        return [task for task in TASKS if task.name in with_models]

    def task(self, name: str) -> Task:
        """The task of this name."""
        known = {task.name: task for task in self.tasks()}
        if name not in known:
            raise ValueError(f"task must be one of {', '.join(known)}, got {name[:40]!r}")
        return known[name]

    def network(self, wish: Wish) -> tuple[str, NLRN]:
        """The model that was asked for, or the best one for the wish, with its name."""
        names = [model.name for model in self.models() if model.task == wish.task]
        name = wish.model
        if name is None:
            by_level = wish.task == "denoise" and any(n not in self._own for n in names)
            name = tasks.choose_weight(wish.sigma) if by_level else names[0]
        if name not in names:  # a path, for one, is none of them
            raise ValueError(f"model must be one of {', '.join(names)}, got {name[:40]!r}")
        if name not in self._networks:
            self._networks[name] = NLRN.from_pretrained(name)
        return name, self._networks[name]


def _task_for(trained_for: str | None) -> str:
    """The task of a weight by the manifest's word for it."""
    return next((task.name for task in TASKS if task.trained_for == trained_for), "denoise")


def compare(result: Image, noisy: Image, clean: Image) -> dict[str, dict[str, float | None]]:
    """PSNR in dB and SSIM of both pictures against the clean one, on values rounded to 0..255."""
    truth = _tensor(clean)
    found = {}
    for name, picture in (("noisy", noisy), ("restored", result)):
        tensor = _tensor(picture)
        psnr = float(metrics.psnr(tensor, truth, border=0, quantize=True))
        fits = min(tensor.shape[2:]) >= metrics.WINDOW and tensor.numel() <= LARGEST_SSIM
        ssim = float(metrics.ssim(tensor, truth, border=0, quantize=True)) if fits else None
        found[name] = {"psnr": psnr if math.isfinite(psnr) else None, "ssim": ssim}
    return found


def _tensor(picture: Image) -> Tensor:
    """[1, C, H, W], float in [0, 1]."""
    return tasks.to_planes(images.to_float(picture.pixels), 1).transpose(0, 1)
