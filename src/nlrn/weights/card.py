"""The description of a trained model: one card, in the manifest and in the weight's own file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

TASKS = ("denoise", "sr")


@dataclass(frozen=True)
class ModelCard:
    """What is known about a trained model, and all that is.

    Attributes:
        name: of the model; `nlrn.Denoiser` and the command line take it.
        architecture: key of `nlrn.models.ARCHITECTURES`.
        task: "denoise" or "sr" (super-resolution); empty if nobody said.
        channels: of the images: 1 for gray or luminance, 3 for RGB.
        sigma: noise level (0..255) that it was trained for, where that is one.
        sigma_range: lowest and highest level, where it was trained for all between them.
        factors: by which it enlarges, for "sr".
        training_sets: image sets that it, or a model that it was started from, was trained on.
        start_from: the model whose weights it began with; empty for none.
        steps: of training; of a published model with those of its ancestors.
        gpu_minutes: of training, likewise.
        validation_psnr: in dB, on images that are in no test set.
        license: of the weights.
        description: one line for people.
        psnr: test set -> mean in dB, whole images.
    """

    name: str = ""
    architecture: str = "nlrn"
    task: str = ""
    channels: int = 1
    sigma: float | None = None
    sigma_range: tuple[float, float] | None = None
    factors: tuple[float, ...] = ()
    training_sets: tuple[str, ...] = ()
    start_from: str = ""
    steps: int = 0
    gpu_minutes: float = 0.0
    validation_psnr: float | None = None
    license: str = ""
    description: str = ""
    psnr: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something, as TOML and JSON hold them."""
        empty = asdict(ModelCard())
        values = asdict(self)
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if key in ("architecture", "channels") or value != empty[key]
        }

    def readme(self) -> str:
        """The model's page on Hugging Face: a header for programs, then words."""
        name = self.name or self.architecture
        header = {"library_name": "nlrn", "pipeline_tag": "image-to-image"}
        if self.license:
            header["license"] = self.license.lower()
        lines = "".join(f"{key}: {value}\n" for key, value in header.items())
        figures = "".join(f"| {test} | {value:.2f} |\n" for test, value in self.psnr.items())
        table = f"\n| test set | PSNR in dB |\n|---|---|\n{figures}" if figures else ""
        use = "`nlrn.Denoiser(folder)` or `nlrn denoise --model folder`"
        return f"---\n{lines}---\n\n# {name}\n\n{self.description}\n\nTo be used by {use}.\n{table}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelCard:
        """The card with these fields; a field that does not exist is an error naming it."""
        known = {entry.name for entry in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"unknown field {name!r} of a model card")
        task = values.get("task", "")
        if task not in ("", *TASKS):
            raise ValueError(f"task of a model card must be {' or '.join(TASKS)}, got {task!r}")
        lists = ("sigma_range", "factors", "training_sets")
        given: dict[str, Any] = {
            k: tuple(v) if k in lists and v is not None else v for k, v in values.items()
        }
        return cls(**given)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> ModelCard:
        """The card in a file's metadata, or what files from before there were cards say."""
        if "card" in metadata:
            content = json.loads(metadata["card"])
            if not isinstance(content, dict):
                raise ValueError("the model card is no table of names and values")
            return cls.from_dict(content)
        number = _Numbers(metadata)
        return cls(
            name=metadata.get("name", ""),
            task=metadata.get("task", "") if metadata.get("task") in TASKS else "",
            sigma=number("sigma"),
            factors=tuple(float(part) for part in _parts(metadata.get("factors", ""))),
            training_sets=tuple(_parts(metadata.get("data", ""))),
            start_from=metadata.get("start_from", ""),
            steps=int(number("steps") or 0),
            gpu_minutes=number("training_minutes") or 0.0,
            validation_psnr=number("validation_psnr"),
        )


class _Numbers:
    """The numbers among the metadata, which are all text."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._metadata = metadata

    def __call__(self, name: str) -> float | None:
        text = self._metadata.get(name, "")
        try:
            return float(text) if text else None
        except ValueError:
            raise ValueError(f"{name} in the model's metadata is no number: {text!r}") from None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
