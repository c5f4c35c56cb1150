"""Pictures go up, are described and shown, and go again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool

from nlrn.noise import NoiseEstimate
from nlrn.web.answers import ERRORS, PngResponse, service_of, upload_of, value_errors_refused
from nlrn.web.results import formats_for
from nlrn.web.schema import UploadInfo
from nlrn.web.security import UPLOAD_PATH
from nlrn.web.uploads import Upload

UPLOAD_TIMEOUT = 120  # seconds for a file to arrive
UPLOAD_GRACE = 10  # seconds after which it has to keep up the rate below
SLOWEST_UPLOAD = 2**15  # bytes a second
MAX_UPLOADS_AT_ONCE = 8  # uploads that are received; others wait
MAX_READ_AT_ONCE = 2  # of those that are here: it takes memory
BINARY = {"schema": {"type": "string", "format": "binary"}}
Noise = Annotated[float, Query(ge=0, le=255, allow_inf_nan=False)]
router = APIRouter(prefix="/api", responses=ERRORS)


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
    service, slots = service_of(request), request.app.state.upload_slots
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream" and not kind.startswith("image/"):
        raise HTTPException(415, f"send the file itself, as image/*; got {kind[:60]!r}")
    try:
        path = service.uploads.new_file(name)
    except ValueError as error:
        raise HTTPException(415, str(error)) from error
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT):
            await slots.acquire()
        try:
            await _receive(request, path)
            async with request.app.state.reading_slots:
                added = await run_in_threadpool(service.uploads.add, path, name)
        finally:
            slots.release()
    except TimeoutError as error:
        raise HTTPException(408, "the upload was too slow") from error
    except ValueError as error:
        too_large = "the limit is" in str(error)
        raise HTTPException(413 if too_large else 422, str(error)) from error
    finally:
        service.uploads.discard_unless_known(path)
    return _upload_info(added, added.noises[0.0])


async def _receive(request: Request, path: Path) -> None:
    """Writes the body to a file; a sender that is slow for no reason does not keep its place."""
    start, received = asyncio.get_running_loop().time(), 0
    async with asyncio.timeout(UPLOAD_GRACE) as limit:
        with path.open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
                received += len(chunk)
                allowed = min(UPLOAD_TIMEOUT, UPLOAD_GRACE + received / SLOWEST_UPLOAD)
                limit.reschedule(start + allowed)


@router.get("/pictures/{identifier}")
def picture(request: Request, identifier: str, noise: Noise = 0.0) -> UploadInfo:
    """Facts about an upload, or about its version with white noise of that level added."""
    found = upload_of(request, identifier)
    with value_errors_refused():
        measured = service_of(request).uploads.noise_in(found, noise)
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
        notes=list(upload.notes),
        formats=formats_for(upload),
    )


@router.delete("/pictures/{identifier}", status_code=204)
def forget(request: Request, identifier: str) -> None:
    """Drops an upload and all that was made of it."""
    service_of(request).uploads.forget(upload_of(request, identifier).id)


@router.get("/pictures/{identifier}/preview", response_class=PngResponse)
def picture_preview(request: Request, identifier: str, noise: Noise = 0.0) -> PngResponse:
    """The image, or its version with noise added, as an 8-bit PNG."""
    found = upload_of(request, identifier)
    with value_errors_refused():
        return PngResponse(service_of(request).uploads.preview(found, noise))
