"""What requests and answers of the server look like; the OpenAPI schema is made from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Level = Annotated[float, Field(ge=0, le=255, allow_inf_nan=False)]
Identifier = Annotated[str, Field(min_length=1, max_length=64)]
Name = Annotated[str, Field(max_length=200)]


class Problem(BaseModel):
    """Why something was not done, in one line."""

    error: str


class Health(BaseModel):
    """That the server is there, and how busy it is."""

    status: str
    version: str
    device: str
    waiting: int


class ModelFacts(BaseModel):
    """A model that can be chosen."""

    name: str
    task: str
    description: str


class TaskFacts(BaseModel):
    """A thing to do with a picture, and the settings that mean something for it."""

    name: str
    label: str
    suffix: str
    controls: list[str]


class Limits(BaseModel):
    """What can be uploaded."""

    bytes: int
    pixels: int
    suffixes: list[str]


class Offer(BaseModel):
    """Everything the page needs to know before there is a picture."""

    tasks: list[TaskFacts]
    models: list[ModelFacts]
    limits: Limits
    colours: list[str]


class PictureFacts(BaseModel):
    """An uploaded picture; `sigma` is the noise level found in it (0..255)."""

    id: str
    name: str
    width: int
    height: int
    channels: int
    dtype: str
    alpha: bool
    sigma: float


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Restoration(_Request):
    """What to do with a picture. `sigma`: null takes the estimate; `model`: null chooses.

    With `noise` above 0, white Gaussian noise of that level is added first, and the answer has
    PSNR and SSIM of the noisy and the restored picture.
    """

    picture: Identifier
    task: Name = "denoise"
    sigma: Level | None = None
    strength: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    scale: Annotated[float, Field(gt=1, le=4, allow_inf_nan=False)] = 2.0
    model: Name | None = None
    noise: Level = 0.0


class View(_Request):
    """A picture as a network sees it; `channel`, red being 0, is for gray networks."""

    picture: Identifier
    sigma: Level | None = None
    model: Name | None = None
    noise: Level = 0.0
    channel: Annotated[int, Field(ge=0, le=2)] = 1


class Look(View):
    """The pixel whose neighbours are asked for."""

    row: Annotated[int, Field(ge=0, le=2**31)]
    column: Annotated[int, Field(ge=0, le=2**31)]


class Scores(BaseModel):
    """How close a picture is to the original; null where that cannot be said."""

    psnr: float | None
    ssim: float | None


class JobFacts(BaseModel):
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


class MapsFacts(BaseModel):
    """The weights of a pixel's neighbours, state by state.

    `weights`: for each state the window row by row, to four digits, 0 outside the picture.
    `halo`: pixels around the window that took part; null for the whole picture, which is exact.
    `seconds_for_whole`: estimate for tracing the whole picture; null where it cannot be done.
    """

    row: int
    column: int
    window: int
    states: list[int]
    weights: list[list[float]]
    halo: int | None
    model: str
    sigma: float
    seconds_for_whole: float | None
