"""What a training run is, as frozen dataclasses filled from a TOML file."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nlrn.datasets import TRAINING_SETS, VALIDATION_SETS
from nlrn.models.nlrn import NLRNConfig
from nlrn.ops import BORDERS

SCHEDULES = ("cosine", "halved", "constant")
ACCELERATORS = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
ATTENTIONS = ("auto", "dense")
TASKS = ("denoise", "sr")
OPTIMIZERS = ("adam", "muon")
_Table = TypeVar("_Table", "Data", "Optimizer", "Machine", "Stage")


class TrainingError(ValueError):
    """A run that cannot start or go on; the message is one line."""


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Seconds of a duration such as 90, 45s, 8m or 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    found = float(match[1]) * _SECONDS[match[2]] if match is not None else 0.0
    if found <= 0:
        raise TrainingError(f"a duration is something like 90s, 8m or 1.5h, got {text!r}")
    return found


@dataclass(frozen=True)
class Data:
    """Where images come from and what is done to them.

    Attributes:
        train: image set to train on, a name of `nlrn.datasets.TRAINING_SETS`.
        validation: image set to validate on, never a test set.
        task: "denoise" for gray images with noise, or "sr" for luminance that was shrunk by each of
            the factors and enlarged again.
        sigma: standard deviation of the noise on the 0..255 scale. For "sr" there is no noise: it
            is the unit of the loss alone, about the error of the enlarged image.
        factors: by which images are shrunk for "sr".
        full_range: share of the patches for "sr" whose luminance, 16..235, is stretched to 0..255,
            the range of the gray images that users have.
        scales: sizes at which every training image is used.
        repeating: share of the patches that are, of eight drawn at random, the one that repeats
            itself most: what only a non-local module can make use of is rare in photographs.
        crop: side of the centre crops that validation restores.
        validation_images: how many images validation takes, the first ones that are large enough.
    """

    train: str = "bsd400"
    validation: str = "bsd400-validation"
    task: str = "denoise"
    sigma: float = 25.0
    factors: tuple[int, ...] = (2, 3, 4)
    full_range: float = 0.0
    scales: tuple[float, ...] = (1.0, 0.9, 0.8, 0.7)
    repeating: float = 0.0
    crop: int = 128
    validation_images: int = 32

    def __post_init__(self) -> None:
        _one_of("train", self.train, TRAINING_SETS)
        _one_of("validation", self.validation, VALIDATION_SETS)
        _one_of("task", self.task, TASKS)
        _positive(self, "sigma", "crop", "validation_images")
        if not self.factors or not all(factor in range(2, 9) for factor in self.factors):
            raise TrainingError(f"factors must be whole numbers of 2..8, got {list(self.factors)}")
        if not 0 <= self.full_range <= 1:
            raise TrainingError(f"full_range must be in [0, 1], got {self.full_range}")
        if not 0 <= self.repeating <= 1:
            raise TrainingError(f"repeating must be in [0, 1], got {self.repeating}")
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise TrainingError(f"scales must be in (0, 1], got {list(self.scales)}")


@dataclass(frozen=True)
class Optimizer:
    """How gradients change the weights, and the moving average of the weights.

    Attributes:
        method: "adam", the paper's, or "muon", which makes the updates of matrices orthogonal and
            leaves the other weights to Adam.
        clip_norm: gradients are scaled down to this global norm; 0 leaves them alone. The loss is
            measured in units of the noise, so one value suits all noise levels.
        momentum: weight of the old direction in Muon's steps; near 1 where gradients are mostly
            noise, which the orthogonal update would take for a direction.
        weight_decay: share of Muon's matrices that a step takes away, times the learning rate;
            Adam's weights are left alone.
        ema_decay: weight of the old average at each step; it grows from 0.1 to this at first.
        balance: patches count less the farther the degraded one is off: the loss of a patch is
            divided by its mean squared error before, to this power. 0, the paper's, counts every
            squared error alike, so that what is enlarged most outweighs the rest.
    """

    method: str = "adam"
    clip_norm: float = 1.0
    momentum: float = 0.95
    weight_decay: float = 0.0
    ema_decay: float = 0.999
    balance: float = 0.0

    def __post_init__(self) -> None:
        _one_of("method", self.method, OPTIMIZERS)
        for name in ("clip_norm", "weight_decay"):
            if getattr(self, name) < 0:
                raise TrainingError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.weight_decay and self.method != "muon":
            raise TrainingError(f"weight_decay is for method muon, got {self.method!r}")
        for name in ("momentum", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise TrainingError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not 0 <= self.balance <= 1:
            raise TrainingError(f"balance must be in [0, 1], got {self.balance}")


@dataclass(frozen=True)
class Machine:
    """How the run uses the machine, and how often it reports.

    Attributes:
        accelerator: "cpu", "cuda" or "auto", which takes a GPU when there is one.
        precision: "32-true", "bf16-mixed" or "auto", which takes bf16 on a GPU.
        compile: compiles the recurrent cell, on a GPU.
        cuda_graph: records a whole step once and replays it, on one GPU.
        attention: "auto" for the operator of `nlrn.ops`, "dense" for plain matrix products over
            all pairs of pixels of a patch.
        log_every: steps between two readings of the loss; the clock of stages that last minutes
            and the intervals below move at these steps only.
        save_minutes: between two checkpoints.
        validate_minutes: between two validations.
        tensorboard: writes its files too, when it is installed.
    """

    accelerator: str = "auto"
    precision: str = "auto"
    compile: bool = True
    cuda_graph: bool = True
    attention: str = "auto"
    log_every: int = 50
    save_minutes: float = 2.0
    validate_minutes: float = 2.0
    tensorboard: bool = True

    def __post_init__(self) -> None:
        _one_of("accelerator", self.accelerator, ACCELERATORS)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("attention", self.attention, ATTENTIONS)
        _positive(self, "log_every")


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum; either `steps` or `minutes` says how long.

    Attributes:
        steps: how many steps it lasts.
        minutes: how long its steps may take, summed over interruptions, without validation,
            saving and compilation.
        lr: learning rate at the start.
        lr_end: where the cosine ends.
        schedule: "cosine"; "halved", the paper's, five times at 2/10, 4/10, 6/10, 8/10 and 9/10 of
            the stage; or "constant".
        warmup: steps in which the rate rises to its value.
        batch: patches of a step, over all processes.
        patch: side of a patch.
        border: what neighbourhoods do at the edge of a patch.
        non_local: whether the non-local modules take part.
        freeze_norm: whether batch norm keeps its statistics (its scale and shift are trained).
    """

    steps: int = 0
    minutes: float = 0.0
    lr: float = 1e-3
    lr_end: float = 1e-5
    schedule: str = "cosine"
    warmup: int = 0
    batch: int = 16
    patch: int = 45
    border: str = "mask"
    non_local: bool = True
    freeze_norm: bool = False

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.minutes > 0):
            got = f"steps {self.steps} and minutes {self.minutes}"
            raise TrainingError(f"a stage must have either steps or minutes, got {got}")
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("border", self.border, BORDERS)
        _positive(self, "lr", "batch", "patch")
        if self.lr_end < 0 or self.warmup < 0:
            got = f"{self.lr_end} and {self.warmup}"
            raise TrainingError(f"lr_end and warmup must not be negative, got {got}")


@dataclass(frozen=True)
class Config:
    """A training run."""

    name: str
    stages: tuple[Stage, ...]
    seed: int = 0
    start_from: str = ""  # a weight of the package or a file; empty for a fresh network
    model: NLRNConfig = field(default_factory=NLRNConfig)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    machine: Machine = field(default_factory=Machine)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The run with these values; a key that does not exist is an error naming it."""
        known = [entry.name for entry in dataclasses.fields(cls)]
        _refuse_unknown(values, known, "")
        for name in ("name", "stages"):
            if not values.get(name):
                raise TrainingError(f"the config has no {name!r}")
        values = dict(values)
        kinds: dict[str, type] = {"name": str, "stages": list, "seed": int, "start_from": str}
        for name, kind in kinds.items():
            if name in values and type(values[name]) is not kind:
                raise TrainingError(f"{name!r} must be {kind.__name__}, got {values[name]!r}")
        try:
            model = NLRNConfig.from_dict(values.pop("model", {}))
        except ValueError as error:
            raise TrainingError(f"[model] {error}") from error
        if (model.in_channels, model.out_channels) != (1, 1):
            got = f"{model.in_channels} and {model.out_channels}"
            raise TrainingError(f"[model] training is for one channel in and one out, got {got}")
        stages = tuple(
            _table(Stage, stage, f"stages {number}: ")
            for number, stage in enumerate(values.pop("stages"), 1)
        )
        return cls(
            stages=stages,
            model=model,
            data=_table(Data, values.pop("data", {}), "[data] "),
            optimizer=_table(Optimizer, values.pop("optimizer", {}), "[optimizer] "),
            machine=_table(Machine, values.pop("machine", {}), "[machine] "),
            **values,
        )

    def to_dict(self) -> dict[str, Any]:
        """The resolved config, as `from_dict` takes it and JSON holds it."""
        return dataclasses.asdict(self) | {"stages": [dataclasses.asdict(s) for s in self.stages]}


def load(path: str | Path) -> Config:
    """The run that a TOML file describes."""
    path = Path(path)
    try:
        return Config.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise TrainingError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path}: not a TOML file ({error})") from error
    except TrainingError as error:
        raise TrainingError(f"{path}: {error}") from error


def _table(kind: type[_Table], values: Any, where: str) -> _Table:
    """One table of the file as its dataclass, types checked by those of the defaults."""
    if not isinstance(values, dict):
        raise TrainingError(f"{where}must be a table, got {values!r}")
    defaults = {entry.name: entry.default for entry in dataclasses.fields(kind)}
    _refuse_unknown(values, list(defaults), where)
    converted: dict[str, Any] = {}
    for name, value in values.items():
        wanted: type = type(defaults[name])
        if wanted is float and type(value) is int:
            value = float(value)
        elif wanted is tuple and isinstance(value, (list, tuple)):
            value = tuple(float(v) if type(v) in (int, float) else -1.0 for v in value)
        if type(value) is not wanted:
            raise TrainingError(f"{where}{name!r} must be {wanted.__name__}, got {value!r}")
        converted[name] = value
    try:
        return kind(**converted)
    except TrainingError as error:
        raise TrainingError(f"{where}{error}") from error


def _refuse_unknown(values: dict[str, Any], known: list[str], where: str) -> None:
    for name in values:
        if name not in known:
            raise TrainingError(f"{where}unknown key {name!r}; known keys: {', '.join(known)}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise TrainingError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _positive(table: Any, *names: str) -> None:
    for name in names:
        if not getattr(table, name) > 0:
            raise TrainingError(f"{name} must be positive, got {getattr(table, name)}")
