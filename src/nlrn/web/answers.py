"""What all routes of the server share: who is asked, and how errors are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from nlrn.errors import one_line
from nlrn.web.jobs import BusyError, Job
from nlrn.web.results import GoneError
from nlrn.web.schema import ErrorResponse
from nlrn.web.service import Service
from nlrn.web.uploads import GONE, Upload

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "the sender has left",
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


class PngResponse(Response):
    """An image for the page."""

    media_type = "image/png"


class FileResponse(Response):
    """A file to be kept, which no browser tries to show."""

    media_type = "application/octet-stream"


async def as_error_response(request: Request, error: Exception) -> Response:
    """Errors as one line of JSON."""
    headers = None
    if isinstance(error, RequestValidationError):
        status, first = 422, error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        text = f"{place}: {first['msg']}" if place else str(first["msg"])
    elif isinstance(error, AnyHTTPException):
        status, text, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, ClientDisconnect):  # nobody reads it
        status, text = 400, "the sender has left"
    else:
        status, text = 429, "busy: too many pictures are waiting, try again in a minute"
        headers = {"Retry-After": "30"}
    return JSONResponse({"error": text}, status, headers)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def upload_of(request: Request, identifier: str) -> Upload:
    found = service_of(request).uploads.find(identifier)
    if found is None:
        raise HTTPException(404, GONE)
    return found


def job_of(request: Request, identifier: str) -> Job:
    job = service_of(request).worker.find(identifier)
    if job is None:
        raise HTTPException(404, "this job is not here any more")
    return job


@contextlib.contextmanager
def value_errors_refused() -> Iterator[None]:
    """What the library refuses becomes an answer."""
    try:
        yield
    except GoneError as error:
        raise HTTPException(404, str(error)) from error
    except ValueError as error:
        raise HTTPException(422, one_line(error, 1000)) from error


async def finished(request: Request, job: Job) -> None:
    """Waits for a job as long as somebody wants it."""
    worker, done = service_of(request).worker, asyncio.wrap_future(job.finished)
    while not (await asyncio.wait([done], timeout=0.1))[0]:
        if worker.stopping:
            raise BusyError
        if await request.is_disconnected():
            worker.cancel(job)
