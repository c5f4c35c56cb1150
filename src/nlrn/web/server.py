"""The server behind the page: images go up, jobs run one at a time, maps come at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import webbrowser
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as AnyHTTPException

from nlrn import __version__, images
from nlrn.attention_maps import COLORS
from nlrn.errors import one_line
from nlrn.noise import NoiseEstimate
from nlrn.web import schema
from nlrn.web.jobs import FINISHED, BusyError, Job, Worker
from nlrn.web.schema import ErrorResponse, JobResponse, UploadInfo
from nlrn.web.security import ANY_ADDRESS, UPLOAD_PATH, SecurityMiddleware
from nlrn.web.service import Options, Service
from nlrn.web.uploads import GONE, Upload

STATIC = Path(__file__).parent / "static"
UPLOAD_TIMEOUT = 120  # seconds for a file to arrive
MAX_UPLOADS_AT_ONCE = 2  # uploads that are received; others wait
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        403: "another site asks",
        404: "no such picture or job, or no longer",
        408: "the upload took too long",
        409: "there is no result yet, or there will be none",
        413: "too many bytes or pixels",
        415: "not a kind of file, or of request, that is known",
        421: "another host is asked",
        422: "a value or a file that makes no sense",
        429: "busy: try again later",
    }.items()
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
Noise = Annotated[float, Query(ge=0, le=255, allow_inf_nan=False)]


class PngResponse(Response):
    """An image for the page."""

    media_type = "image/png"


class FileResponse(Response):
    """A file to be kept, which no browser tries to show."""

    media_type = "application/octet-stream"


def create_app(options: Options) -> FastAPI:
    """The application; its temporary folder and its thread live from startup to shutdown."""
    service = Service(options)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with service:
            app.state.service = service
            app.state.upload_slots = asyncio.Semaphore(MAX_UPLOADS_AT_ONCE)
            yield

    # The interactive pages of FastAPI load scripts from elsewhere: the schema is enough.
    app = FastAPI(
        title="nlrn",
        version=__version__,
        summary="Restore pictures, and see where the network looks.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.include_router(router)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    app.add_exception_handler(AnyHTTPException, _as_error_response)
    app.add_exception_handler(RequestValidationError, _as_error_response)
    app.add_exception_handler(BusyError, _as_error_response)
    app.add_middleware(SecurityMiddleware, host=options.host, max_bytes=options.max_bytes)
    return app


router = APIRouter(prefix="/api", responses=ERRORS)


async def _as_error_response(request: Request, error: Exception) -> Response:
    """Errors as one line of JSON."""
    headers = None
    if isinstance(error, RequestValidationError):
        status, first = 422, error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        text = f"{place}: {first['msg']}" if place else str(first["msg"])
    elif isinstance(error, AnyHTTPException):
        status, text, headers = error.status_code, str(error.detail), error.headers
    else:
        status, text = 429, "busy: too many pictures are waiting, try again in a minute"
        headers = {"Retry-After": "30"}
    return JSONResponse({"error": text}, status, headers)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _upload(request: Request, identifier: str) -> Upload:
    found = _service(request).uploads.find(identifier)
    if found is None:
        raise HTTPException(404, GONE)
    return found


def _job(request: Request, identifier: str) -> Job:
    job = _service(request).worker.find(identifier)
    if job is None:
        raise HTTPException(404, "this job is not here any more")
    return job


@contextlib.contextmanager
def _value_errors_refused() -> Iterator[None]:
    """What the library refuses becomes an answer."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, one_line(error, 1000)) from error


@router.get("/health")
async def health(request: Request) -> schema.HealthResponse:
    """Whether the server is there, and how busy it is."""
    service = _service(request)
    return schema.HealthResponse(
        status="ok",
        version=__version__,
        device=str(service.device),
        waiting=service.worker.waiting(),
    )


@router.get("/models")
async def models(request: Request) -> schema.CatalogResponse:
    """Tasks, models and limits."""
    service = _service(request)
    limits = schema.Limits(
        bytes=service.max_bytes, pixels=service.max_pixels, suffixes=list(images.SUFFIXES)
    )
    return schema.CatalogResponse(
        tasks=service.catalog.tasks(),
        models=service.catalog.models(),
        limits=limits,
        colors=list(COLORS),
    )


@router.post(
    UPLOAD_PATH.removeprefix("/api"),
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": BINARY, "image/*": BINARY},
        }
    },
)
async def upload(request: Request, name: Annotated[str, Query(max_length=255)]) -> UploadInfo:
    """Takes an image: the bytes of its file are the body, `name` is the file's name."""
    service, slots = _service(request), request.app.state.upload_slots
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream" and not kind.startswith("image/"):
        raise HTTPException(415, f"send the file itself, as image/*; got {kind[:60]!r}")
    try:
        path = service.uploads.new_file(name)
    except ValueError as error:
        raise HTTPException(415, str(error)) from error
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT), slots:
            with path.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
            added = await run_in_threadpool(service.uploads.add, path, name)
    except TimeoutError as error:
        raise HTTPException(408, f"the upload took over {UPLOAD_TIMEOUT} s") from error
    except ValueError as error:
        too_large = "the limit is" in str(error)
        raise HTTPException(413 if too_large else 422, str(error)) from error
    finally:
        service.uploads.discard_unless_known(path)
    return _upload_info(added, added.noises[0.0])


@router.get("/pictures/{identifier}")
def picture(request: Request, identifier: str, noise: Noise = 0.0) -> UploadInfo:
    """Facts about an upload, or about its version with white noise of that level added."""
    found = _upload(request, identifier)
    with _value_errors_refused():
        measured = _service(request).uploads.noise_in(found, noise)
    return _upload_info(found, measured)


def _upload_info(upload: Upload, noise: NoiseEstimate) -> UploadInfo:
    return UploadInfo(
        id=upload.id,
        name=f"{upload.stem}{upload.suffix}",
        width=upload.width,
        height=upload.height,
        channels=upload.channels,
        dtype=upload.dtype,
        alpha=upload.alpha,
        sigma=noise.level,
        correlated=noise.is_correlated,
    )


@router.get("/pictures/{identifier}/preview", response_class=PngResponse)
def picture_preview(request: Request, identifier: str, noise: Noise = 0.0) -> PngResponse:
    """The image, or its version with noise added, as an 8-bit PNG."""
    found = _upload(request, identifier)
    with _value_errors_refused():
        return PngResponse(_service(request).uploads.preview(found, noise))


@router.post("/jobs", status_code=202)
def restore(request: Request, body: schema.RestoreRequest) -> JobResponse:
    """Starts a restoration."""
    with _value_errors_refused():
        job = _service(request).start_restoration(_upload(request, body.picture), body)
    return _job_response(job)


@router.post("/traces", status_code=202)
def trace(request: Request, body: schema.TraceRequest) -> JobResponse:
    """Starts to trace a whole image, after which its maps are exact and come at once."""
    with _value_errors_refused():
        job = _service(request).start_trace(_upload(request, body.picture), body)
    return _job_response(job)


@router.get("/jobs/{identifier}")
async def job(request: Request, identifier: str) -> JobResponse:
    """How far a job is, and what came of it."""
    return _job_response(_job(request, identifier))


@router.get(
    "/jobs/{identifier}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "JobResponse, often"}},
)
async def events(request: Request, identifier: str) -> StreamingResponse:
    """The same as server-sent events, until the job is finished."""
    found, worker = _job(request, identifier), _service(request).worker
    return StreamingResponse(_events(found, worker), media_type="text/event-stream")


async def _events(job: Job, worker: Worker) -> AsyncIterator[str]:
    before, last = None, 0.0
    while not worker.stopping:
        now = (job.state, job.done)
        if now != before or time.monotonic() - last > 1:
            before, last = now, time.monotonic()
            yield f"data: {_job_response(job).model_dump_json()}\n\n"
        if now[0] in FINISHED:
            return
        await asyncio.sleep(0.05)


@router.delete("/jobs/{identifier}", status_code=202)
async def cancel(request: Request, identifier: str) -> JobResponse:
    """Stops a job, at once if it waits and after the present state of the network if it runs."""
    found = _job(request, identifier)
    _service(request).worker.cancel(found)
    return _job_response(found)


def _job_response(job: Job) -> JobResponse:
    return JobResponse(
        id=job.id,
        kind=job.kind,
        state=job.state,
        done=job.done,
        total=job.total,
        seconds=job.seconds(),
        seconds_left=job.seconds_left(),
        error=job.error,
        warnings=job.warnings,
        **job.facts,
    )


@router.get("/jobs/{identifier}/result", response_class=FileResponse)
def result(request: Request, identifier: str) -> FileResponse:
    """The restored image, in the format and depth in which it came."""
    content, name = _output(request, identifier, "result")
    # The name has been made harmless, but may have letters of any script.
    kept = f"attachment; filename*=utf-8''{quote(name)}"
    return FileResponse(content, headers={"Content-Disposition": kept})


@router.get("/jobs/{identifier}/preview", response_class=PngResponse)
def result_preview(request: Request, identifier: str) -> PngResponse:
    """The restored image as an 8-bit PNG."""
    return PngResponse(_output(request, identifier, "preview")[0])


def _output(request: Request, identifier: str, what: str) -> tuple[bytes, str]:
    """What a job has made, and the name for it."""
    found = _job(request, identifier)
    content = _service(request).output(found, what) if found.state == "done" else None
    if content is None:
        raise HTTPException(409, f"no result: the job is {found.state}")
    return content, found.facts["filename"]


@router.post("/maps")
async def maps(request: Request, body: schema.MapRequest) -> schema.MapsResponse:
    """The weights of a pixel's neighbors in every state; if the caller leaves, it is dropped."""
    service, found = _service(request), _upload(request, body.picture)
    with _value_errors_refused():
        maps = await run_in_threadpool(service.cached_maps, found, body)
        if maps is None:
            job, fresh = service.start_maps(found, body)
            done = asyncio.wrap_future(job.finished)
            while not (await asyncio.wait([done], timeout=0.1))[0]:
                if service.worker.stopping:
                    raise BusyError
                if await request.is_disconnected():
                    service.worker.cancel(job)
            if not fresh:
                raise ValueError(job.error or "not wanted any more")
            maps = fresh[0]
        return await run_in_threadpool(service.describe_maps, found, body, maps)


def serve(options: Options, port: int, *, browser: bool) -> None:
    """Runs the server until it is interrupted."""
    import uvicorn

    app = create_app(options)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listening = socket.create_server((options.host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot listen on {options.host} port {port}: {reason}") from error
    shown = "localhost" if options.host in ANY_ADDRESS else options.host
    shown = f"[{shown}]" if ":" in shown else shown
    address = f"http://{shown}:{listening.getsockname()[1]}"
    print(f"nlrn web is at {address} (Ctrl+C ends it)", flush=True)
    if options.host not in ("127.0.0.1", "localhost", "::1"):
        print("everyone who can reach this machine can use it", flush=True)
    if browser:
        webbrowser.open(address)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.service.worker.begin_to_stop()  # else requests wait for jobs, and we for them
            await super().shutdown(sockets)

    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        Server(config).run(sockets=[listening])
