"""What the page offers: tasks, models for each, and the restorations that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nlrn import weights
from nlrn.images import Image
from nlrn.inference import Settings
from nlrn.progress import Progress
from nlrn.restoration import ClassicDenoiser, Denoiser, Restored, Upscaler
from nlrn.restoration.choice import Choice, check_quality, choose_denoiser, choose_upscaler
from nlrn.web.schema import ModelInfo, RestoreRequest, TaskInfo
from nlrn.weights import ModelCard

# Named as the commands that do the same, whose suffixes the results get too.
TASKS = (
    TaskInfo(
        name="denoise",
        label="Remove noise",
        suffix="_denoised",
        controls=["sigma", "strength", "noise", "explain", "compare"],
    ),
    TaskInfo(name="upscale", label="Enlarge", suffix="_x{scale:g}", controls=["scale"]),
)
BM3D = "bm3d"


class Catalog:
    """The tasks for which there are models, the models, and one restoration for each of these.

    Args:
        files: weights of the user's own; they come before the package's.
        settings: how networks are run.
    """

    def __init__(self, files: Sequence[Path], settings: Settings) -> None:
        self._files = {file.stem: file for file in files}
        self._settings = settings
        self._denoisers: dict[Choice, Denoiser] = {}
        self._upscalers: dict[Choice, Upscaler] = {}
        self._bm3d = ClassicDenoiser(BM3D, device=settings.device)
        cards = {name: weights.load(file).card for name, file in self._files.items()}
        self._own = [_info(name, card, "your own file") for name, card in cards.items()]
        for model in self._own:  # one that cannot be used is refused here
            if model.task == "upscale":
                self.upscaler(Choice(model.name))
            else:
                self.denoiser(Choice(model.name))

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

    def choose(
        self,
        task: str,
        model: str | None,
        quality: str = "balanced",
        channels: int = 1,
    ) -> Choice:
        """The model that was asked for, or one for the task, quality and channels."""
        names = [info.name for info in self.models() if info.task == task]
        if model is None:
            if task == "denoise" and any(name not in self._files for name in names):
                return choose_denoiser(channels, quality)
            return Choice(names[0]) if names[0] in self._files else choose_upscaler(quality)
        if model not in names:  # a path, for one, is none of them
            raise ValueError(f"model must be one of {', '.join(names)}, got {model[:40]!r}")
        check_quality(quality, beside_model=True)
        return Choice(model)

    def choose_for(self, request: RestoreRequest, channels: int) -> Choice:
        """What will do a request: a model, or BM3D."""
        if request.method != BM3D:
            return self.choose(request.task, request.model, request.quality, channels)
        if request.task != "denoise" or request.model is not None or request.quality != "balanced":
            raise ValueError("method bm3d is for task denoise, without model and quality")
        return Choice(BM3D)

    def denoiser(self, choice: Choice) -> Denoiser:
        """The denoiser for a choice, made at the first call."""
        if choice not in self._denoisers:
            source = self._files.get(choice.model, choice.model)
            settings = replace(self._settings, views=choice.views)
            self._denoisers[choice] = Denoiser(source, settings=settings)
        return self._denoisers[choice]

    def upscaler(self, choice: Choice) -> Upscaler:
        """The upscaler for a choice, made at the first call."""
        if choice not in self._upscalers:
            source = self._files.get(choice.model, choice.model)
            settings = replace(self._settings, views=choice.views)
            self._upscalers[choice] = Upscaler(model=source, settings=settings)
        return self._upscalers[choice]

    def restore(
        self,
        image: Image,
        choice: Choice,
        request: RestoreRequest,
        progress: Progress,
    ) -> Restored:
        """What the task of a request makes of an image at full strength."""
        if request.task == "upscale":
            return self.upscaler(choice).restore(image, request.scale, progress=progress)
        denoiser = self._denoiser_for(request, choice)
        return denoiser.restore(image, request.sigma, progress=progress)

    def seconds(
        self,
        size: tuple[int, int],
        choice: Choice,
        request: RestoreRequest,
        sigma: float,
        channels: int,
    ) -> float:
        """How long that will take, for an image of (H, W) and that many channels."""
        if request.task == "upscale":
            return self.upscaler(choice).seconds(size, request.scale)
        return self._denoiser_for(request, choice).seconds(size, sigma, channels)

    def _denoiser_for(self, request: RestoreRequest, choice: Choice) -> Denoiser | ClassicDenoiser:
        return self._bm3d if request.method == BM3D else self.denoiser(choice)


def _info(name: str, card: ModelCard, description: str) -> ModelInfo:
    task = "upscale" if card.task == "sr" else "denoise"
    return ModelInfo(name=name, task=task, description=description)
