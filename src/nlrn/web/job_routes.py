"""Jobs are estimated, started, followed and cancelled; their results are given out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from nlrn.web import schema
from nlrn.web.answers import (
    ERRORS,
    FileResponse,
    PngResponse,
    finished,
    job_of,
    service_of,
    upload_of,
    value_errors_refused,
)
from nlrn.web.jobs import FINISHED, BusyError, Job, Worker
from nlrn.web.schema import JobResponse, Strength

router = APIRouter(prefix="/api", responses=ERRORS)


@router.post("/jobs", status_code=202)
def restore(request: Request, body: schema.RestoreRequest) -> JobResponse:
    """Starts a restoration."""
    with value_errors_refused():
        job = service_of(request).start_restoration(upload_of(request, body.picture), body)
    return _job_response(job)


@router.post("/estimates")
async def estimate(request: Request, body: schema.RestoreRequest) -> schema.EstimateResponse:
    """How long a restoration will take; the first time for a model that is measured."""
    service, found = service_of(request), upload_of(request, body.picture)
    with value_errors_refused():
        known = await run_in_threadpool(service.known_estimate, found, body)
        if known is not None:
            return known
        try:
            job, fresh = service.start_estimate(found, body)
        except BusyError:
            return schema.EstimateResponse(seconds=None, model=None)
        await finished(request, job)
        return fresh[0] if fresh else schema.EstimateResponse(seconds=None, model=None)


@router.post("/traces", status_code=202)
def trace(request: Request, body: schema.TraceRequest) -> JobResponse:
    """Starts to trace a whole image, after which its maps are exact and come at once."""
    with value_errors_refused():
        job = service_of(request).start_trace(upload_of(request, body.picture), body)
    return _job_response(job)


@router.get("/jobs/{identifier}")
async def job(request: Request, identifier: str) -> JobResponse:
    """How far a job is, and what came of it."""
    return _job_response(job_of(request, identifier))


@router.get(
    "/jobs/{identifier}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "JobResponse, often"}},
)
async def events(request: Request, identifier: str) -> StreamingResponse:
    """The same as server-sent events, until the job is finished."""
    found, worker = job_of(request, identifier), service_of(request).worker
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
    found = job_of(request, identifier)
    service_of(request).worker.cancel(found)
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
def result(
    request: Request,
    identifier: str,
    strength: Annotated[Strength, Query()] = 1.0,
    format: Annotated[str | None, Query(max_length=10)] = None,
) -> FileResponse:
    """The restored image, in the format and depth in which it came, or in another format."""
    job = _done(request, identifier)
    with value_errors_refused():
        name, content = service_of(request).results.file(job.id, format, strength)
    # The name has been made harmless, but may have letters of any script.
    kept = f"attachment; filename*=utf-8''{quote(name)}"
    return FileResponse(content, headers={"Content-Disposition": kept})


@router.get("/jobs/{identifier}/preview", response_class=PngResponse)
def result_preview(request: Request, identifier: str) -> PngResponse:
    """The restored image at full strength as an 8-bit PNG."""
    job = _done(request, identifier)
    with value_errors_refused():
        return PngResponse(service_of(request).results.preview(job.id))


@router.get("/jobs/{identifier}/scores")
def result_scores(
    request: Request, identifier: str, strength: Annotated[Strength, Query()] = 1.0
) -> schema.ScoresResponse:
    """PSNR and SSIM of a result at some strength, where noise was added."""
    job = _done(request, identifier)
    with value_errors_refused():
        found: Any = service_of(request).results.scores(job.id, strength)
    return schema.ScoresResponse(scores=found)


def _done(request: Request, identifier: str) -> Job:
    """A job that has come to a result."""
    found = job_of(request, identifier)
    if found.state != "done" or "filename" not in found.facts:
        raise HTTPException(409, f"no result: the job is {found.state}")
    return found


@router.post("/maps")
async def maps(request: Request, body: schema.MapRequest) -> schema.MapsResponse:
    """The weights of a pixel's neighbors in every state; if the caller leaves, it is dropped."""
    service, found = service_of(request), upload_of(request, body.picture)
    with value_errors_refused():
        maps = await run_in_threadpool(service.cached_maps, found, body)
        if maps is None:
            job, fresh = service.start_maps(found, body)
            await finished(request, job)
            if not fresh:
                raise ValueError(job.error or "not wanted any more")
            maps = fresh[0]
        return await run_in_threadpool(service.describe_maps, found, body, maps)
