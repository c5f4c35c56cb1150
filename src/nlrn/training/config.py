"""What a training run is, as frozen dataclasses filled from a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nlrn import models
from nlrn.datasets import TRAINING_SETS, VALIDATION_SETS
from nlrn.models import Network
from nlrn.training import parsing
from nlrn.training.config_tables import OF_STAGE, Data, Optimizer, RuntimeConfig, Stage
from nlrn.training.parsing import TrainingError


def _default_model() -> Any:
    return models.ARCHITECTURES["nlrn"].config_class()


@dataclass(frozen=True)
class Config:
    """A training run."""

    name: str
    stages: tuple[Stage, ...]
    seed: int = 0
    start_from: str = ""  # a weight of the package or a file; empty for a fresh network
    architecture: str = "nlrn"  # a key of `nlrn.models.ARCHITECTURES`; in [model] of the file
    model: Any = field(default_factory=_default_model)  # that architecture's config
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The run with these values; a key that does not exist is an error naming it."""
        known = [entry.name for entry in dataclasses.fields(cls) if entry.name != "architecture"]
        parsing.refuse_unknown(values, known, "")
        for name in ("name", "stages"):
            if not values.get(name):
                raise TrainingError(f"the config has no {name!r}")
        values = dict(values)
        kinds: dict[str, type] = {"name": str, "stages": list, "seed": int, "start_from": str}
        for name, kind in kinds.items():
            if name in values and type(values[name]) is not kind:
                raise TrainingError(f"{name!r} must be {kind.__name__}, got {values[name]!r}")
        architecture, model = _model(values.pop("model", {}))
        stages = tuple(
            parsing.table(Stage, stage, f"stages {number}: ")
            for number, stage in enumerate(values.pop("stages"), 1)
        )
        config = cls(
            stages=stages,
            architecture=architecture,
            model=model,
            data=parsing.table(Data, values.pop("data", {}), "[data] "),
            optimizer=parsing.table(Optimizer, values.pop("optimizer", {}), "[optimizer] "),
            runtime=parsing.table(RuntimeConfig, values.pop("runtime", {}), "[runtime] "),
            **values,
        )
        _check_channels(config)
        for number, stage in enumerate(stages, 1):
            _check_images(config, stage, f"stages {number}: ")
        return config

    def data_of(self, stage: Stage) -> Data:
        """The data as a stage uses it."""
        own = {name: values for name in OF_STAGE if (values := getattr(stage, name))}
        return dataclasses.replace(self.data, **own)

    def to_dict(self) -> dict[str, Any]:
        """The resolved config, as `from_dict` takes it and JSON holds it."""
        values = dataclasses.asdict(self)
        architecture = {"architecture": values.pop("architecture")}
        return values | {"model": architecture | values["model"], "stages": list(values["stages"])}

    @property
    def enlarges(self) -> bool:
        """Whether the network's result is larger than what it gets."""
        with torch.device("meta"):
            return bool(self.network().factors)

    def network(self) -> Network:
        """A fresh network of this shape."""
        return models.build(self.architecture, dataclasses.asdict(self.model))


def _model(values: Any) -> tuple[str, Any]:
    """The table [model] as the name of an architecture and its config."""
    if not isinstance(values, dict):
        raise TrainingError(f"[model] must be a table, got {values!r}")
    values = dict(values)
    architecture = values.pop("architecture", "nlrn")
    try:
        parsing.one_of("architecture", architecture, tuple(models.ARCHITECTURES))
        return architecture, models.ARCHITECTURES[architecture].config_class.from_dict(values)
    except ValueError as error:
        raise TrainingError(f"[model] {error}") from error


def _check_channels(config: Config) -> None:
    """Refuses images that are not what the network takes and gives."""
    with torch.device("meta"):
        network = config.network()
    has, wanted = (network.in_channels, network.out_channels), config.data.channels
    if has != (wanted, wanted):
        given = f"takes {has[0]} channels and gives {has[1]}"
        raise TrainingError(f"[model] {given}, [data] channels is {wanted}")
    _check_factors(config.data, network.factors)


def _check_images(config: Config, stage: Stage, where: str) -> None:
    """Refuses a stage with images that the run does not have."""
    try:
        config.data_of(stage)
    except TrainingError as error:
        raise TrainingError(f"{where}{error}") from error
    if not set(stage.factors) <= set(config.data.factors if config.data.task == "sr" else ()):
        raise TrainingError(f"{where}factors must be among the data's, got {list(stage.factors)}")


def _check_factors(data: Data, factors: tuple[int, ...]) -> None:
    """Refuses images that are too large or too small for the network."""
    if not factors:
        if data.task == "sr" and data.channels != 1:
            raise TrainingError("[data] task 'sr' in color is for networks that enlarge")
        return
    if data.task != "sr":
        raise TrainingError(
            f"[data] task of a network that enlarges must be 'sr', got {data.task!r}"
        )
    if not set(data.factors) <= set(factors):
        got = f"{list(data.factors)}, the network has {list(factors)}"
        raise TrainingError(f"[data] factors must be the network's, got {got}")
    if data.full_range:
        raise TrainingError("[data] full_range is not for networks that enlarge")


def load(path: str | Path) -> Config:
    """The run that a TOML file describes."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        _find_folders(values.get("data", {}), path.parent)
        return Config.from_dict(values)
    except OSError as error:
        raise TrainingError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path}: not a TOML file ({error})") from error
    except TrainingError as error:
        raise TrainingError(f"{path}: {error}") from error


def _find_folders(data: Any, beside: Path) -> None:
    """Makes folders of images that lie beside the config file paths that lead there."""
    for key in ("train", "validation"):
        name = data.get(key) if isinstance(data, dict) else None
        is_set = name in (*TRAINING_SETS, *VALIDATION_SETS)
        if isinstance(name, str) and name and not is_set:
            found = beside / Path(name).expanduser()
            if found.is_dir():
                data[key] = str(found)
