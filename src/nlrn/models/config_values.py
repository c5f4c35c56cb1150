"""Configs of networks from plain values: every key known, every type right."""

from __future__ import annotations

import dataclasses
from typing import Any, Self, TypeVar

Config = TypeVar("Config")


def config_from_dict(kind: type[Config], values: dict[str, Any]) -> Config:
    """The config with these fields; a field that does not exist is an error naming it."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    known = {field.name: type(field.default) for field in fields}
    given = dict(values)
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown config key {name!r}; known keys: {', '.join(known)}")
        if known[name] is tuple and type(value) is list:  # files have no tuples
            given[name] = value = tuple(value)
        whole_as_float = known[name] is float and type(value) is int
        if type(value) is not known[name] and not whole_as_float:
            wanted = known[name].__name__
            raise ValueError(f"config key {name!r} must be {wanted}, got {value!r}")
    return kind(**given)


class ConfigFromDict:
    """Gives a config the classmethod that files and the command line make it by."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config with these fields; a field that does not exist is an error naming it."""
        return config_from_dict(cls, values)


def check_positive(config: Any, *names: str) -> None:
    """Refuses fields below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(config, name)}")


def check_unshuffle(r: int) -> None:
    """Refuses cells that no network has."""
    if r not in UNSHUFFLES:
        known = ", ".join(map(str, UNSHUFFLES))
        raise ValueError(f"unshuffle must be one of {known}, got {r}")


UNSHUFFLES = (1, 2, 4)
