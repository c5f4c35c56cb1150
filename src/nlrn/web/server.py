"""The server behind the page: pictures go up, jobs run one at a time, maps come at once."""

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
from nlrn.attention_maps import COLOURS
from nlrn.web import schema
from nlrn.web.guard import EVERYWHERE, UPLOADS, Guard
from nlrn.web.pictures import GONE, Picture
from nlrn.web.schema import JobFacts, Problem
from nlrn.web.studio import Options, Studio
from nlrn.web.work import FINISHED, BusyError, Job, Worker

STATIC = Path(__file__).parent / "static"
UPLOAD_SECONDS = 120  # for a file to arrive
AT_ONCE = 2  # uploads that are received; others wait
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
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


class Png(Response):
    """A picture for the page."""

    media_type = "image/png"


class File(Response):
    """A file to be kept, which no browser tries to show."""

    media_type = "application/octet-stream"


def create_app(options: Options) -> FastAPI:
    """The application; its temporary folder and its thread live from startup to shutdown."""
    studio = Studio(options)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with studio:
            app.state.studio = studio
            app.state.uploads = asyncio.Semaphore(AT_ONCE)
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
    app.add_exception_handler(AnyHTTPException, _as_problem)
    app.add_exception_handler(RequestValidationError, _as_problem)
    app.add_exception_handler(BusyError, _as_problem)
    app.add_middleware(Guard, host=options.host, max_bytes=options.max_bytes)
    return app


router = APIRouter(prefix="/api", responses=PROBLEMS)


async def _as_problem(request: Request, error: Exception) -> Response:
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


def _studio(request: Request) -> Studio:
    studio: Studio = request.app.state.studio
    return studio


def _picture(request: Request, identifier: str) -> Picture:
    picture = _studio(request).pictures.find(identifier)
    if picture is None:
        raise HTTPException(404, GONE)
    return picture


def _job(request: Request, identifier: str) -> Job:
    job = _studio(request).worker.find(identifier)
    if job is None:
        raise HTTPException(404, "this job is not here any more")
    return job


@contextlib.contextmanager
def _nonsense_refused() -> Iterator[None]:
    """What the library refuses becomes an answer."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, " ".join(str(error).split())) from error


@router.get("/health")
async def health(request: Request) -> schema.Health:
    """Whether the server is there, and how busy it is."""
    studio = _studio(request)
    return schema.Health(
        status="ok",
        version=__version__,
        device=str(studio.device),
        waiting=studio.worker.waiting(),
    )


@router.get("/models")
async def models(request: Request) -> schema.Offer:
    """Tasks, models and limits."""
    studio = _studio(request)
    limits = schema.Limits(
        bytes=studio.max_bytes, pixels=studio.max_pixels, suffixes=list(images.SUFFIXES)
    )
    return schema.Offer(
        tasks=[
            schema.TaskFacts(name=t.name, label=t.label, suffix=t.suffix, controls=list(t.controls))
            for t in studio.offers.tasks()
        ],
        models=[
            schema.ModelFacts(name=m.name, task=m.task, description=m.description)
            for m in studio.offers.models()
        ],
        limits=limits,
        colours=list(COLOURS),
    )


@router.post(
    UPLOADS.removeprefix("/api"),
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": BINARY, "image/*": BINARY},
        }
    },
)
async def upload(
    request: Request, name: Annotated[str, Query(max_length=255)]
) -> schema.PictureFacts:
    """Takes a picture: the bytes of its file are the body, `name` is the file's name."""
    studio, slots = _studio(request), request.app.state.uploads
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream" and not kind.startswith("image/"):
        raise HTTPException(415, f"send the file itself, as image/*; got {kind[:60]!r}")
    try:
        path = studio.pictures.new_file(name)
    except ValueError as error:
        raise HTTPException(415, str(error)) from error
    try:
        async with asyncio.timeout(UPLOAD_SECONDS), slots:
            with path.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
            picture = await run_in_threadpool(studio.pictures.add, path, name)
    except TimeoutError as error:
        raise HTTPException(408, f"the upload took over {UPLOAD_SECONDS} s") from error
    except ValueError as error:
        too_large = "the limit is" in str(error)
        raise HTTPException(413 if too_large else 422, str(error)) from error
    finally:
        studio.pictures.discard_unless_known(path)
    return _picture_facts(picture, picture.sigmas[0.0])


@router.get("/pictures/{identifier}")
def picture(request: Request, identifier: str, noise: Noise = 0.0) -> schema.PictureFacts:
    """Facts about a picture, or about its version with white noise of that level added."""
    found = _picture(request, identifier)
    with _nonsense_refused():
        sigma = _studio(request).pictures.sigma(found, noise)
    return _picture_facts(found, sigma)


def _picture_facts(picture: Picture, sigma: float) -> schema.PictureFacts:
    return schema.PictureFacts(
        id=picture.id,
        name=f"{picture.stem}{picture.suffix}",
        width=picture.width,
        height=picture.height,
        channels=picture.channels,
        dtype=picture.dtype,
        alpha=picture.alpha,
        sigma=sigma,
    )


@router.get("/pictures/{identifier}/preview", response_class=Png)
def picture_preview(request: Request, identifier: str, noise: Noise = 0.0) -> Png:
    """The picture, or its version with noise added, as an 8-bit PNG."""
    found = _picture(request, identifier)
    with _nonsense_refused():
        return Png(_studio(request).pictures.preview(found, noise))


@router.post("/jobs", status_code=202)
def restore(request: Request, asked: schema.Restoration) -> JobFacts:
    """Starts a restoration."""
    with _nonsense_refused():
        job = _studio(request).start_restoration(_picture(request, asked.picture), asked)
    return _job_facts(job)


@router.post("/traces", status_code=202)
def trace(request: Request, view: schema.View) -> JobFacts:
    """Starts to trace a whole picture, after which its maps are exact and come at once."""
    with _nonsense_refused():
        job = _studio(request).start_trace(_picture(request, view.picture), view)
    return _job_facts(job)


@router.get("/jobs/{identifier}")
async def job(request: Request, identifier: str) -> JobFacts:
    """How far a job is, and what came of it."""
    return _job_facts(_job(request, identifier))


@router.get(
    "/jobs/{identifier}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "JobFacts, often"}},
)
async def events(request: Request, identifier: str) -> StreamingResponse:
    """The same as server-sent events, until the job is finished."""
    found, worker = _job(request, identifier), _studio(request).worker
    return StreamingResponse(_events(found, worker), media_type="text/event-stream")


async def _events(job: Job, worker: Worker) -> AsyncIterator[str]:
    before, last = None, 0.0
    while not worker.stopping:
        now = (job.state, job.done)
        if now != before or time.monotonic() - last > 1:
            before, last = now, time.monotonic()
            yield f"data: {_job_facts(job).model_dump_json()}\n\n"
        if now[0] in FINISHED:
            return
        await asyncio.sleep(0.05)


@router.delete("/jobs/{identifier}", status_code=202)
async def cancel(request: Request, identifier: str) -> JobFacts:
    """Stops a job, at once if it waits and after the present state of the network if it runs."""
    found = _job(request, identifier)
    _studio(request).worker.cancel(found)
    return _job_facts(found)


def _job_facts(job: Job) -> JobFacts:
    return JobFacts(
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


@router.get("/jobs/{identifier}/result", response_class=File)
def result(request: Request, identifier: str) -> File:
    """The restored picture, in the format and depth in which it came."""
    content, name = _outcome(request, identifier, "result")
    # The name has been made harmless, but may have letters of any script.
    kept = f"attachment; filename*=utf-8''{quote(name)}"
    return File(content, headers={"Content-Disposition": kept})


@router.get("/jobs/{identifier}/preview", response_class=Png)
def result_preview(request: Request, identifier: str) -> Png:
    """The restored picture as an 8-bit PNG."""
    return Png(_outcome(request, identifier, "preview")[0])


def _outcome(request: Request, identifier: str, what: str) -> tuple[bytes, str]:
    """What a job has made, and the name for it."""
    found = _job(request, identifier)
    content = _studio(request).outcome(found, what) if found.state == "done" else None
    if content is None:
        raise HTTPException(409, f"no result: the job is {found.state}")
    return content, found.facts["filename"]


@router.post("/maps")
async def maps(request: Request, look: schema.Look) -> schema.MapsFacts:
    """The weights of a pixel's neighbours in every state; if the caller leaves, it is dropped."""
    studio, found = _studio(request), _picture(request, look.picture)
    with _nonsense_refused():
        kept = await run_in_threadpool(studio.kept_maps, found, look)
        if kept is None:
            job, fresh = studio.start_look(found, look)
            done = asyncio.wrap_future(job.finished)
            while not (await asyncio.wait([done], timeout=0.1))[0]:
                if studio.worker.stopping:
                    raise BusyError
                if await request.is_disconnected():
                    studio.worker.cancel(job)
            if not fresh:
                raise ValueError(job.error or "not wanted any more")
            kept = fresh[0]
        facts = await run_in_threadpool(studio.facts_of_maps, found, look, kept)
    return schema.MapsFacts(**facts)


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
    shown = "localhost" if options.host in EVERYWHERE else options.host
    shown = f"[{shown}]" if ":" in shown else shown
    address = f"http://{shown}:{listening.getsockname()[1]}"
    print(f"nlrn web is at {address} (Ctrl+C ends it)", flush=True)
    if options.host not in ("127.0.0.1", "localhost", "::1"):
        print("everyone who can reach this machine can use it", flush=True)
    if browser:
        webbrowser.open(address)

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.studio.worker.begin_to_stop()  # else requests wait for jobs, and we for them
            await super().shutdown(sockets)

    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        Server(config).run(sockets=[listening])
