"""The image files of a run: from sets by name, or from folders with images of one's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nlrn import datasets
from nlrn.datasets import Pixels, own
from nlrn.training.config_tables import Data
from nlrn.training.parsing import TrainingError


class RunFiles(NamedTuple):
    """What a run reads.

    Attributes:
        train: images to learn from.
        validation: images to judge by, none of them among the others.
        training_sets: names of the sets that are trained on.
    """

    train: list[Path]
    validation: list[Path]
    training_sets: list[str]


def find(data: Data, data_root: str | Path | None = None) -> RunFiles:
    """The files that the config's sets and folders hold.

    Args:
        data: which ones.
        data_root: folder of the image sets, or the variable NLRN_DATA; not needed where the config
            names only folders.
    """
    validation: list[Path] = []
    if data.is_own:
        train = own.files(data.train[0])
        if not data.validation:
            train, validation = own.split(train, data.held_out)
    else:
        root = datasets.find_root(data_root)
        train = [file for name in data.train for file in datasets.training_files(name, root)]
        train = list(dict.fromkeys(train))  # sets may share folders
    if data.validation in datasets.VALIDATION_SETS:
        validation = datasets.training_files(data.validation, datasets.find_root(data_root))
    elif data.validation:
        validation = own.files(data.validation)
        train = [file for file in train if file not in set(validation)]
    return RunFiles(train, validation, _names(data, train))


def _names(data: Data, train: list[Path]) -> list[str]:
    """Sets by name and "own images": what the files are, whatever their folders are called."""
    place = functools.partial(datasets.published_folder, any_format=True)
    found = {place(file) or place(file.resolve()) for file in train}
    owned, known = [own.NAME] if "" in found else [], found - {""}
    if data.is_own:
        return owned + sorted(known)
    return [name for name in data.train if known & set(datasets.folders(name))] + owned


def check_memory(files: list[Path], data: Data, free: int) -> None:
    """Refuses images that would not fit into so many free bytes: photographs are large."""
    pixels = sum(datasets.in_threads(datasets.pixel_count, files))
    needed = pixels * data.channels * (1 + 2 * sum(scale**2 for scale in data.scales))
    if needed > free:
        got = f"{needed / 1e9:.1f} GB at the scales {list(data.scales)}, {free / 1e9:.1f} are free"
        raise TrainingError(f"the images take {got}: use smaller or fewer scales, or fewer images")


def reader(data: Data) -> Callable[[Path], Pixels]:
    """The function that reads an image as the task wants it."""
    if data.channels == 3:
        return datasets.read_rgb
    return datasets.read_luminance if data.task == "sr" else datasets.read_gray
