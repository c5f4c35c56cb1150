"""Everything that lives as long as the server: uploads, models, the worker, kept traces."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nlrn.attention_maps import AttentionMaps, planes_for
from nlrn.hardware import choose_device
from nlrn.inference import Settings
from nlrn.models import Network
from nlrn.restoration.choice import Choice
from nlrn.web.catalog import Catalog
from nlrn.web.estimates import Estimates
from nlrn.web.jobs import Job, Worker
from nlrn.web.map_cache import MapCache, TraceKey
from nlrn.web.results import Results
from nlrn.web.schema import (
    EstimateResponse,
    MapRequest,
    MapsResponse,
    RestoreRequest,
    TaskInfo,
    TraceRequest,
)
from nlrn.web.uploads import Upload, Uploads

MAX_WAITING = 4  # jobs in front of which nobody likes to wait anyway


@dataclass(frozen=True)
class Options:
    """What `nlrn web` was started with.

    Attributes:
        host: the address to listen on.
        device: where to compute.
        dtype: precision of the network, fp32 or bf16.
        models: weights of the user's own.
        max_bytes: largest upload.
        max_pixels: largest image.
    """

    host: str = "127.0.0.1"
    device: str = "auto"
    dtype: str = "fp32"
    models: tuple[Path, ...] = ()
    max_bytes: int = 50 * 2**20
    max_pixels: int = 25_000_000


class Service:
    """A context: on leaving, the worker has stopped and the temporary folder is gone."""

    def __init__(self, options: Options) -> None:
        settings = Settings(dtype=options.dtype, device=options.device)
        self.device = choose_device(options.device)
        self.catalog = Catalog(options.models, settings)
        self.estimates = Estimates(self.catalog)
        self.map_cache = MapCache(self.device, settings.precision)
        self.max_pixels, self.max_bytes = options.max_pixels, options.max_bytes
        self._planes: tuple[tuple[object, ...], Tensor] | None = None  # of the last click

    def __enter__(self) -> Service:
        self._temporary = tempfile.TemporaryDirectory(prefix="nlrn-web-")
        self.folder = Path(self._temporary.name)
        self.uploads = Uploads(self.folder, self.max_pixels, self._forget_upload)
        self.results = Results(self.folder, self.uploads)
        self.worker = Worker(MAX_WAITING, self.results.forget)
        self.worker.submit(Job("warm-up", self._warm_up))
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._temporary.cleanup()

    def start_restoration(self, upload: Upload, request: RestoreRequest) -> Job:
        """Queues a restoration; what makes no sense is refused at once."""
        task = self.catalog.task(request.task)
        self.catalog.choose_for(request, upload.channels)  # a wrong name
        if "scale" in task.controls and upload.size * request.scale**2 > self.max_pixels:
            limit = f"the limit is {self.max_pixels / 1e6:g} million pixels"
            raise ValueError(f"the result of scale {request.scale:g} would be too large: {limit}")
        return self.worker.submit(
            Job(task.name, lambda job: self._restore(job, upload, task, request))
        )

    def known_estimate(self, upload: Upload, request: RestoreRequest) -> EstimateResponse | None:
        """How long a restoration will take, if nothing has to be measured for that."""
        self.catalog.task(request.task)
        work = self._work(upload, request)
        seconds = self.estimates.known(*work)
        return None if seconds is None else EstimateResponse(seconds=seconds, model=work[1].model)

    def start_estimate(
        self, upload: Upload, request: RestoreRequest
    ) -> tuple[Job, list[EstimateResponse]]:
        """Queues the measurement, before restorations; the estimate is put into the list."""
        found: list[EstimateResponse] = []

        def run(job: Job) -> dict[str, Any]:
            work = self._work(upload, request)
            seconds = self.estimates.measure(*work)
            found.append(EstimateResponse(seconds=seconds, model=work[1].model))
            return {}

        return self.worker.submit(Job("estimate", run), first=True), found

    def start_trace(self, upload: Upload, request: TraceRequest) -> Job:
        """Queues the tracing of a whole image."""
        self.catalog.choose("denoise", request.model, request.quality)

        def run(job: Job) -> dict[str, Any]:
            key, image, network = self._trace_input(upload, request)
            self.map_cache.trace_whole(key, image, network, job.report)
            return {"sigma": key.sigma, "model": key.model}

        return self.worker.submit(Job("trace", run))

    def start_maps(self, upload: Upload, request: MapRequest) -> tuple[Job, list[AttentionMaps]]:
        """Queues a click, before restorations; its maps are put into the list."""
        found: list[AttentionMaps] = []

        def run(job: Job) -> dict[str, Any]:
            key, image, network = self._trace_input(upload, request)
            position = (request.row, request.column)
            found.append(self.map_cache.compute(key, image, network, position, job.report))
            return {}

        return self.worker.submit(Job("maps", run), first=True), found

    def cached_maps(self, upload: Upload, request: MapRequest) -> AttentionMaps | None:
        """The maps of a click if they are there already."""
        if request.row >= upload.height or request.column >= upload.width:
            size = f"{upload.height} rows and {upload.width} columns"
            raise ValueError(f"the pixel is outside: the picture has {size}")
        return self.map_cache.find(self._trace_key(upload, request), (request.row, request.column))

    def describe_maps(
        self, upload: Upload, request: MapRequest, maps: AttentionMaps
    ) -> MapsResponse:
        """The maps as the page gets them."""
        key, size = self._trace_key(upload, request), (upload.height, upload.width)
        seconds, network = self.map_cache.seconds_for_whole(size, key.model), self._network(key)
        if maps.halo is None or self.map_cache.why_not_whole(size, network) is not None:
            seconds = None
        return MapsResponse(
            row=maps.position[0],
            column=maps.position[1],
            window=maps.weights.shape[-1],
            cell=maps.cell,
            color=network.in_channels == 3,
            states=list(maps.states),
            weights=[[float(f"{w:.4g}") for w in map_.flat] for map_ in maps.weights],
            halo=maps.halo,
            model=key.model,
            sigma=key.sigma,
            seconds_for_whole=seconds,
        )

    def _work(
        self, upload: Upload, request: RestoreRequest
    ) -> tuple[tuple[int, int], Choice, RestoreRequest, float, int]:
        """What a time is estimated from: size, model, request, noise level, channels."""
        sigma = self._sigma(upload, request.sigma, request.noise)
        choice = self.catalog.choose_for(request, upload.channels)
        return (upload.height, upload.width), choice, request, sigma, upload.channels

    def _restore(
        self, job: Job, upload: Upload, task: TaskInfo, request: RestoreRequest
    ) -> dict[str, Any]:
        noise = request.noise if "noise" in task.controls else 0.0
        sigma = self._sigma(upload, request.sigma, noise)
        choice = self.catalog.choose_for(request, upload.channels)
        given = self.uploads.load(upload, noise)
        restored = self.estimates.restore(given, choice, request, sigma, job.report)
        name = f"{upload.stem}{task.suffix.format(scale=request.scale)}"
        self.results.keep(job.id, upload, noise, name, restored)
        return {
            "sigma": sigma if "sigma" in task.controls else None,
            "model": choice.model,
            "width": restored.image.width,
            "height": restored.image.height,
            "filename": f"{name}{upload.suffix}",
            "scores": self.results.scores(job.id),
        }

    def _warm_up(self, job: Job) -> dict[str, Any]:
        """Loads what the first click and the first image would otherwise wait for."""
        for model in self.catalog.models():
            if model.task == "denoise":
                network = self.catalog.denoiser(Choice(model.name)).engine_for().network
                with contextlib.suppress(ValueError):  # of some networks there are no maps
                    self.map_cache.warm_up(network, job.report)
                    break
        return {}

    def _trace_input(
        self, upload: Upload, request: TraceRequest
    ) -> tuple[TraceKey, Tensor, Network]:
        """What is traced, the planes [1, C, H, W] that the network gets of it, the network.

        For the worker's thread alone.
        """
        trace_key = self._trace_key(upload, request)
        network = self._network(trace_key)
        key = (upload.id, request.noise, request.channel, network.in_channels)
        if self._planes is None or self._planes[0] != key:
            image = self.uploads.load(upload, request.noise)
            self._planes = (key, planes_for(image, network, request.channel))
        return trace_key, self._planes[1], network

    def _trace_key(self, upload: Upload, request: TraceRequest) -> TraceKey:
        """What a click asks for: the network is the one that restores such a picture."""
        sigma = self._sigma(upload, request.sigma, request.noise)
        model, quality = request.model, request.quality
        choice = self.catalog.choose("denoise", model, quality, upload.channels)
        return TraceKey(upload.id, request.noise, sigma, choice.model, request.channel)

    def _network(self, key: TraceKey) -> Network:
        return self.catalog.denoiser(Choice(key.model)).engine_for().network

    def _sigma(self, upload: Upload, sigma: float | None, noise: float) -> float:
        return self.uploads.noise_in(upload, noise).level if sigma is None else sigma

    def _forget_upload(self, upload: str) -> None:
        self.map_cache.forget(upload)
        self._planes = None
        self.results.forget_upload(upload)
