"""Everything that lives as long as the server: pictures, models, the worker, kept traces."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nlrn import images
from nlrn.attention_maps import Maps, planes_for
from nlrn.hardware import choose_device
from nlrn.images import Image
from nlrn.models.nlrn import NLRN
from nlrn.restoration.denoiser import DTYPES, Settings
from nlrn.web import offers
from nlrn.web.looks import Looks, Subject
from nlrn.web.offers import Offers, Task, Wish
from nlrn.web.pictures import Picture, Pictures, write_preview
from nlrn.web.schema import Look, Restoration, View
from nlrn.web.work import Job, Worker

MOST_WAITING = 4  # jobs in front of which nobody likes to wait anyway


@dataclass(frozen=True)
class Options:
    """What `nlrn web` was started with.

    Attributes:
        host: the address to listen on.
        device: where to compute.
        dtype: precision of the network, fp32 or bf16.
        models: weights of the user's own.
        max_bytes: largest upload.
        max_pixels: largest picture.
    """

    host: str = "127.0.0.1"
    device: str = "auto"
    dtype: str = "fp32"
    models: tuple[Path, ...] = ()
    max_bytes: int = 50 * 2**20
    max_pixels: int = 25_000_000


class Studio:
    """A context: on leaving, the worker has stopped and the temporary folder is gone."""

    def __init__(self, options: Options) -> None:
        self.settings = Settings(dtype=options.dtype, device=options.device)
        self.device = choose_device(options.device)
        self.offers = Offers(list(options.models))
        self.looks = Looks(options.device, DTYPES[options.dtype])
        self.max_pixels, self.max_bytes = options.max_pixels, options.max_bytes
        self._planes: tuple[tuple[object, ...], Tensor] | None = None  # of the last click

    def __enter__(self) -> Studio:
        self._temporary = tempfile.TemporaryDirectory(prefix="nlrn-web-")
        self._folder = Path(self._temporary.name)
        self.pictures = Pictures(self._folder, self.max_pixels, self._forget_looks)
        self.worker = Worker(MOST_WAITING, self._forget_results)
        self.worker.submit(Job("warm-up", self._warm_up))
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._temporary.cleanup()

    def start_restoration(self, picture: Picture, asked: Restoration) -> Job:
        """Queues a restoration; what makes no sense is refused at once."""
        task = self.offers.task(asked.task)
        wish = Wish(asked.task, 0.0, asked.strength, asked.scale, asked.model)
        self.offers.network(wish)  # a wrong name is refused before the job is made
        if "scale" in task.controls and picture.size * asked.scale**2 > self.max_pixels:
            limit = f"the limit is {self.max_pixels / 1e6:g} million pixels"
            raise ValueError(f"the result of scale {asked.scale:g} would be too large: {limit}")
        noise = asked.noise if "noise" in task.controls else 0.0

        def run(job: Job) -> dict[str, Any]:
            sigma = self._sigma(picture, asked.sigma, noise)
            precise = Wish(asked.task, sigma, asked.strength, asked.scale, asked.model)
            return self._restore(job, picture, task, precise, noise)

        return self.worker.submit(Job(task.name, run))

    def start_trace(self, picture: Picture, view: View) -> Job:
        """Queues the tracing of a whole picture."""
        self._network(view, 0.0)

        def run(job: Job) -> dict[str, Any]:
            subject, image, network = self._subject(picture, view)
            self.looks.trace_all(subject, image, network, job.report)
            return {"sigma": subject.sigma, "model": subject.model}

        return self.worker.submit(Job("trace", run))

    def start_look(self, picture: Picture, look: Look) -> tuple[Job, list[Maps]]:
        """Queues a click, before pictures; its maps are put into the list."""
        found: list[Maps] = []

        def run(job: Job) -> dict[str, Any]:
            subject, image, network = self._subject(picture, look)
            position = (look.row, look.column)
            found.append(self.looks.look(subject, image, network, position, job.report))
            return {}

        return self.worker.submit(Job("look", run), first=True), found

    def kept_maps(self, picture: Picture, look: Look) -> Maps | None:
        """The maps of a click if they are there already."""
        if look.row >= picture.height or look.column >= picture.width:
            size = f"{picture.height} rows and {picture.width} columns"
            raise ValueError(f"the pixel is outside: the picture has {size}")
        sigma = self._sigma(picture, look.sigma, look.noise)
        return self.looks.find(self._named(picture, look, sigma)[0], (look.row, look.column))

    def facts_of_maps(self, picture: Picture, look: Look, maps: Maps) -> dict[str, Any]:
        """The maps as the page gets them."""
        sigma = self._sigma(picture, look.sigma, look.noise)
        subject, network = self._named(picture, look, sigma)
        size = (picture.height, picture.width)
        seconds = self.looks.seconds_for_all(size)
        if maps.halo is None or self.looks.why_not_all(size, network) is not None:
            seconds = None
        return {
            "row": maps.position[0],
            "column": maps.position[1],
            "window": maps.weights.shape[-1],
            "states": list(maps.states),
            "weights": [[float(f"{w:.4g}") for w in map_.flat] for map_ in maps.weights],
            "halo": maps.halo,
            "model": subject.model,
            "sigma": subject.sigma,
            "seconds_for_whole": seconds,
        }

    def outcome(self, job: Job, what: str) -> bytes | None:
        """The "result" or the "preview" of a job, if it is still there."""
        try:
            return next(self._results(job.id).glob(f"{what}.*")).read_bytes()
        except (StopIteration, OSError):
            return None

    def _restore(
        self, job: Job, picture: Picture, task: Task, wish: Wish, noise: float
    ) -> dict[str, Any]:
        name, network = self.offers.network(wish)
        clean = self.pictures.load(picture)
        given = self.pictures.load(picture, noise)
        result = task.run(given, wish, network, self.settings, job.report)
        scores = offers.compare(result, given, clean) if noise else None
        if noise:  # in float until here, as nothing was rounded
            pixels = images.from_float(result.pixels, clean.pixels.dtype)
            result = Image(pixels, clean.alpha, clean.exif, clean.icc, clean.dpi)
        folder = self._results(job.id)
        folder.mkdir()
        images.write(folder / f"result{picture.suffix}", result)
        write_preview(folder / "preview.png", result)
        return {
            "sigma": wish.sigma if "sigma" in task.controls else None,
            "model": name,
            "width": result.width,
            "height": result.height,
            "filename": f"{picture.stem}{task.suffix.format(scale=wish.scale)}{picture.suffix}",
            "scores": scores,
        }

    def _warm_up(self, job: Job) -> dict[str, Any]:
        """Loads what the first click and the first picture would otherwise wait for."""
        for model in self.offers.models():
            if model.task == "denoise":
                _, network = self.offers.network(Wish("denoise", 25.0, model=model.name))
                self.looks.warm_up(network, job.report)
                break
        return {}

    def _subject(self, picture: Picture, view: View) -> tuple[Subject, Tensor, NLRN]:
        """What is looked at, the planes [1, C, H, W] that the network gets of it, the network.

        For the worker's thread alone.
        """
        sigma = self._sigma(picture, view.sigma, view.noise)
        subject, network = self._named(picture, view, sigma)
        key = (picture.id, view.noise, view.channel, network.config.in_channels)
        if self._planes is None or self._planes[0] != key:
            image = self.pictures.load(picture, view.noise)
            self._planes = (key, planes_for(image, network, view.channel))
        return subject, self._planes[1], network

    def _named(self, picture: Picture, view: View, sigma: float) -> tuple[Subject, NLRN]:
        name, network = self._network(view, sigma)
        return Subject(picture.id, view.noise, sigma, name, view.channel), network

    def _network(self, view: View, sigma: float) -> tuple[str, NLRN]:
        return self.offers.network(Wish("denoise", sigma, model=view.model))

    def _sigma(self, picture: Picture, sigma: float | None, noise: float) -> float:
        return self.pictures.sigma(picture, noise) if sigma is None else sigma

    def _results(self, identifier: str) -> Path:
        return self._folder / f"job-{identifier}"

    def _forget_looks(self, picture: str) -> None:
        self.looks.forget(picture)
        self._planes = None

    def _forget_results(self, identifier: str) -> None:
        shutil.rmtree(self._results(identifier), ignore_errors=True)
