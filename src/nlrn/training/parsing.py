"""Values of a config file: their types and ranges, and mistakes told in one line."""

from __future__ import annotations

import re
import typing
from typing import Any, TypeVar

Table = TypeVar("Table")


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


def table(kind: type[Table], values: Any, where: str) -> Table:
    """One table of the file as its dataclass, types checked by those of the fields."""
    if not isinstance(values, dict):
        raise TrainingError(f"{where}must be a table, got {values!r}")
    hints = typing.get_type_hints(kind)
    refuse_unknown(values, list(hints), where)
    converted = {
        name: _value(value, hints[name], where + repr(name)) for name, value in values.items()
    }
    try:
        return kind(**converted)
    except TrainingError as error:
        raise TrainingError(f"{where}{error}") from error


def _value(value: Any, wanted: Any, name: str) -> Any:
    """The value as the type of its field; an int does for a float, one name for several."""
    if typing.get_origin(wanted) is tuple:
        kind = typing.get_args(wanted)[0]
        items = [value] if kind is str and isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise TrainingError(f"{name} must be a list, got {value!r}")
        return tuple(_value(item, kind, f"{name}: every entry") for item in items)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise TrainingError(f"{name} must be {wanted.__name__}, got {value!r}")
    return value


def refuse_unknown(values: dict[str, Any], known: list[str], where: str) -> None:
    """Names the first key that is not among the known ones."""
    for name in values:
        if name not in known:
            raise TrainingError(f"{where}unknown key {name!r}; known keys: {', '.join(known)}")


def one_of(name: str, value: str, known: tuple[str, ...], other: str = "") -> None:
    """Refuses a value that is none of the known ones."""
    if value not in known:
        choices = ", ".join(known) + (f", or {other}" if other else "")
        raise TrainingError(f"{name} must be one of {choices}, got {value!r}")


def positive(table: Any, *names: str) -> None:
    """Refuses fields that are not above 0."""
    for name in names:
        if not getattr(table, name) > 0:
            raise TrainingError(f"{name} must be positive, got {getattr(table, name)}")


def in_unit_interval(table: Any, name: str) -> None:
    """Refuses a field that is not in [0, 1]."""
    if not 0 <= getattr(table, name) <= 1:
        raise TrainingError(f"{name} must be in [0, 1], got {getattr(table, name)}")
