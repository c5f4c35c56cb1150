"""The server behind the page: images go up, jobs run one at a time, maps come at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import webbrowser
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from nlrn import __version__, images
from nlrn.attention_maps import COLORS
from nlrn.restoration.choice import QUALITIES
from nlrn.web import job_routes, picture_routes, schema
from nlrn.web.answers import ERRORS, as_error_response, service_of
from nlrn.web.jobs import BusyError
from nlrn.web.picture_routes import MAX_READ_AT_ONCE, MAX_UPLOADS_AT_ONCE
from nlrn.web.security import ANY_ADDRESS, SecurityMiddleware
from nlrn.web.service import Options, Service
from nlrn.web.uploads import MAX_UPLOADS

STATIC = Path(__file__).parent / "static"


def create_app(options: Options) -> FastAPI:
    """The application; its temporary folder and its thread live from startup to shutdown."""
    service = Service(options)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with service:
            app.state.service = service
            app.state.upload_slots = asyncio.Semaphore(MAX_UPLOADS_AT_ONCE)
            app.state.reading_slots = asyncio.Semaphore(MAX_READ_AT_ONCE)
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
    for routes in (router, picture_routes.router, job_routes.router):
        app.include_router(routes)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    for kind in (AnyHTTPException, RequestValidationError, BusyError, ClientDisconnect):
        app.add_exception_handler(kind, as_error_response)
    app.add_middleware(SecurityMiddleware, host=options.host, max_bytes=options.max_bytes)
    return app


router = APIRouter(prefix="/api", responses=ERRORS)


@router.get("/health")
async def health(request: Request) -> schema.HealthResponse:
    """Whether the server is there, and how busy it is."""
    service = service_of(request)
    return schema.HealthResponse(
        status="ok",
        version=__version__,
        device=str(service.device),
        waiting=service.worker.waiting(),
    )


@router.get("/models")
async def models(request: Request) -> schema.CatalogResponse:
    """Tasks, models and limits."""
    service = service_of(request)
    limits = schema.Limits(
        bytes=service.max_bytes,
        pixels=service.max_pixels,
        pictures=MAX_UPLOADS,
        suffixes=list(images.SUFFIXES),
    )
    return schema.CatalogResponse(
        tasks=service.catalog.tasks(),
        models=service.catalog.models(),
        qualities=list(QUALITIES),
        limits=limits,
        colors=list(COLORS),
    )


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
