"""What requests and answers of the server look like; the OpenAPI schema is made from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Level = Annotated[float, Field(ge=0, le=255, allow_inf_nan=False)]
Strength = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Quality = Literal["fast", "balanced", "best"]
Identifier = Annotated[str, Field(min_length=1, max_length=64)]
Name = Annotated[str, Field(max_length=200)]


class ErrorResponse(BaseModel):
    """Why something was not done, in one line."""

    error: str


class HealthResponse(BaseModel):
    """That the server is there, and how busy it is."""

    status: str
    version: str
    device: str
    waiting: int


class ModelInfo(BaseModel):
    """A model that can be chosen."""

    name: str
    task: str
    description: str


class TaskInfo(BaseModel):
    """A thing to do with an image, and the settings that mean something for it."""

    name: str
    label: str
    suffix: str
    controls: list[str]


class Limits(BaseModel):
    """What can be uploaded, and how many pictures are kept."""

    bytes: int
    pixels: int
    pictures: int
    suffixes: list[str]


class CatalogResponse(BaseModel):
    """Everything the page needs to know before there is an image."""

    tasks: list[TaskInfo]
    models: list[ModelInfo]
    qualities: list[str]
    limits: Limits
    colors: list[str] = Field(serialization_alias="colours")


class UploadInfo(BaseModel):
    """An uploaded image.

    `sigma` is the noise level found in it (0..255), `correlated` whether neighboring pixels have
    noise in common, as in a camera's JPEG. `notes` say what of the file is not kept, and
    `formats` are the suffixes of the files that a result can be had as.
    """

    id: str
    name: str
    width: int
    height: int
    channels: int
    dtype: str
    alpha: bool
    sigma: float
    correlated: bool
    notes: list[str]
    formats: list[str]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RestoreRequest(_Request):
    """What to do with an upload. `sigma`: null takes the estimate; `model`: null chooses.

    `method` "bm3d" removes noise without a network. Without a `model`, `quality` chooses one. With
    `noise` above 0, white Gaussian noise of that level is added first, and the answer has PSNR and
    SSIM of the noisy and the restored image.
    """

    picture: Identifier
    task: Name = "denoise"
    method: Literal["nlrn", "bm3d"] = "nlrn"
    quality: Quality = "balanced"
    sigma: Level | None = None
    scale: Annotated[float, Field(gt=1, le=4, allow_inf_nan=False)] = 2.0
    model: Name | None = None
    noise: Level = 0.0


class EstimateResponse(BaseModel):
    """How long a restoration will take, roughly, and what will do it; null if nobody knows."""

    seconds: float | None
    model: str | None


class TraceRequest(_Request):
    """An upload as a network sees it; `channel`, red being 0, is for gray networks."""

    picture: Identifier
    sigma: Level | None = None
    quality: Quality = "balanced"
    model: Name | None = None
    noise: Level = 0.0
    channel: Annotated[int, Field(ge=0, le=2)] = 1


class MapRequest(TraceRequest):
    """The pixel whose neighbors are asked for."""

    row: Annotated[int, Field(ge=0, le=2**31)]
    column: Annotated[int, Field(ge=0, le=2**31)]


class Scores(BaseModel):
    """How close an image is to the original; null where that cannot be said."""

    psnr: float | None
    ssim: float | None


class JobResponse(BaseModel):
    """A job: waiting, running, done, failed or cancelled; `seconds_left` is an estimate."""

    id: str
    kind: str
    state: str
    done: int
    total: int
    seconds: float
    seconds_left: float | None
    error: str
    warnings: list[str]
    sigma: float | None = None
    model: str | None = None
    width: int | None = None
    height: int | None = None
    filename: str | None = None
    scores: dict[str, Scores] | None = None


class ScoresResponse(BaseModel):
    """Scores of a result at some strength; null unless noise was added."""

    scores: dict[str, Scores] | None


class MapsResponse(BaseModel):
    """The weights of a pixel's neighbors, state by state.

    `weights`: for each state the window row by row, to four digits, 0 outside the image.
    `cell`: side in pixels of what a weight stands for: 2 where the network compares cells of 2 x 2.
    `color`: whether the network sees all colors at once, and not one channel.
    `halo`: pixels around the window that took part; null for the whole image, which is exact.
    `seconds_for_whole`: estimate for tracing the whole image; null where it cannot be done.
    """

    row: int
    column: int
    window: int
    cell: int
    color: bool
    states: list[int]
    weights: list[list[float]]
    halo: int | None
    model: str
    sigma: float
    seconds_for_whole: float | None
