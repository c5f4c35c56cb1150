"""What the page offers: tasks, models for each, and the restorations that run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nlrn import weights
from nlrn.images import Image
from nlrn.inference import Settings
from nlrn.progress import Progress
from nlrn.restoration import Denoiser, Upscaler
from nlrn.restoration.choice import choose_denoiser
from nlrn.web.schema import ModelInfo, RestoreRequest, TaskInfo
from nlrn.weights import ModelCard

# Named as the commands that do the same, whose suffixes the results get too.
TASKS = (
    TaskInfo(
        name="denoise",
        label="Remove noise",
        suffix="_denoised",
        controls=["sigma", "strength", "noise", "explain"],
    ),
    TaskInfo(name="upscale", label="Enlarge", suffix="_x{scale:g}", controls=["scale"]),
)


class Catalog:
    """The tasks for which there are models, the models, and one restoration for each of these.

    Args:
        files: weights of the user's own; they come before the package's.
        settings: how networks are run.
    """

    def __init__(self, files: Sequence[Path], settings: Settings) -> None:
        self._files = {file.stem: file for file in files}
        self._settings = settings
        self._denoisers: dict[str, Denoiser] = {}
        self._upscalers: dict[str, Upscaler] = {}
        cards = {name: weights.load(file).card for name, file in self._files.items()}
        self._own = [_info(name, card, "your own file") for name, card in cards.items()]
        for model in self._own:  # one that cannot be used is refused here
            (self.upscaler if model.task == "upscale" else self.denoiser)(model.name)

    def models(self) -> list[ModelInfo]:
        """Every model that can be chosen, the user's own first."""
        cards = [card for card in weights.list_models() if card.name not in self._files]
        return self._own + [_info(card.name, card, card.description) for card in cards]

    def tasks(self) -> list[TaskInfo]:
        """The tasks that can be done here and now."""
        with_models = {model.task for model in self.models()}
        return [task for task in TASKS if task.name in with_models]

    def task(self, name: str) -> TaskInfo:
        """The task of this name."""
        known = {task.name: task for task in self.tasks()}
        if name not in known:
            raise ValueError(f"task must be one of {', '.join(known)}, got {name[:40]!r}")
        return known[name]

    def choose(self, task: str, model: str | None, sigma: float = 0.0, channels: int = 1) -> str:
        """Name of the model that was asked for, or of one for the task, noise and channels."""
        names = [info.name for info in self.models() if info.task == task]
        if model is None:
            by_level = task == "denoise" and any(name not in self._files for name in names)
            model = choose_denoiser(sigma, channels).model if by_level else names[0]
        if model not in names:  # a path, for one, is none of them
            raise ValueError(f"model must be one of {', '.join(names)}, got {model[:40]!r}")
        return model

    def denoiser(self, model: str) -> Denoiser:
        """The denoiser with the model of this name, made at the first call."""
        if model not in self._denoisers:
            source = self._files.get(model, model)
            self._denoisers[model] = Denoiser(source, settings=self._settings)
        return self._denoisers[model]

    def upscaler(self, model: str) -> Upscaler:
        """The upscaler with the model of this name, made at the first call."""
        if model not in self._upscalers:
            source = self._files.get(model, model)
            self._upscalers[model] = Upscaler(model=source, settings=self._settings)
        return self._upscalers[model]

    def restore(
        self, image: Image, model: str, request: RestoreRequest, progress: Progress
    ) -> Image:
        """What the task of a request makes of an image, with the model of this name."""
        if request.task == "upscale":
            return self.upscaler(model).restore(image, request.scale, progress=progress).image
        denoiser, strength = self.denoiser(model), request.strength
        return denoiser.restore(image, request.sigma, strength=strength, progress=progress).image


def _info(name: str, card: ModelCard, description: str) -> ModelInfo:
    task = "upscale" if card.task == "sr" else "denoise"
    return ModelInfo(name=name, task=task, description=description)
