"""Runs methods over the cells of a table, image by image; what is done is kept and not repeated.

Each cell (method, set, level) has a file of rows in a folder. A run that was killed finds its rows
there and computes the others, so its result is that of an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from nlrn import atomic, datasets, degrade, images, metrics
from nlrn.bench import methods
from nlrn.bench.methods import MethodOptions, PreparedMethod, UnavailableError
from nlrn.bench.tables import TABLES, Table
from nlrn.errors import one_line

SAVE_SECONDS = 2.0  # between two writes of a cell's file; a kill loses no more work than this
_Choice = TypeVar("_Choice", int, str)


@dataclass(frozen=True)
class Row:
    """One image restored by one method.

    Attributes:
        table, set, level, method, image: what was restored by what; the image's file name without
            its suffix, which the noise is seeded with; of a pair, that of the noisy one.
        psnr, ssim: of the result, by the table's protocol.
        seconds: that the method took.
        seed: of the table's noise.
        protocol: "whole", or "overlap" for a network on averaged patches.
        version: the weight and its fingerprint, or the package and its version.
        precision, device: of what ran in PyTorch.
    """

    table: str
    set: str
    level: int
    method: str
    image: str
    psnr: float
    ssim: float
    seconds: float
    seed: int
    protocol: str
    version: str
    precision: str
    device: str

    @property
    def cell(self) -> tuple[str, str, int, str]:
        """Where in the tables it belongs."""
        return self.table, self.set, self.level, self.method

    @property
    def key(self) -> tuple[Any, ...]:
        """All that decides its figures: not the device, and of the table only its task."""
        method = methods.SAME_AS.get(self.method, self.method)
        task = TABLES[self.table].task if self.table in TABLES else self.table
        return (
            task, self.set, self.level, method, self.image, self.seed, self.protocol,
            self.version, self.precision,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The row for JSON, which knows no infinity: the PSNR of an exact result is "inf"."""
        values = asdict(self)
        return values | {"psnr": values["psnr"] if math.isfinite(self.psnr) else str(self.psnr)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Row:
        """The row that `to_json` wrote."""
        return cls(**values | {"psnr": float(values["psnr"])})


@dataclass(frozen=True)
class Cell:
    """A method on a set at a level, and the images it is to run on; of pairs the noisy ones."""

    table: Table
    set: str
    level: int
    method: str
    prepared: PreparedMethod
    files: tuple[Path, ...]

    def file(self, folder: Path) -> Path:
        """Where its rows are kept."""
        name = f"{self.table.name}_{self.set}_{self.level}_{self.method}_{self.prepared.protocol}"
        return folder / f"{name}.json"


def plan(
    table: Table,
    root: Path,
    options: MethodOptions,
    *,
    sets: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    wanted: Sequence[str] | None = None,
    limit: int | None = None,
    shard: tuple[int, int] = (1, 1),
) -> tuple[list[Cell], list[str]]:
    """The cells to run, and a line for each method that cannot run here.

    Args:
        table: which table.
        root: the data root.
        options: how methods run.
        sets: some of the table's sets; None for all.
        levels: some of its levels.
        wanted: methods; None for those that the table names.
        limit: the first images of each set only, or of its shard.
        shard: (k, n) for every n-th image of each set from the k-th on, as one of n machines.

    Raises:
        ValueError: if a choice is not in the table, or no method that was asked for can run.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, got {limit}")
    if not 1 <= shard[0] <= shard[1]:
        raise ValueError(f"shard must be one of 1/n to n/n, got {shard[0]}/{shard[1]}")
    known = methods.names(table)
    chosen = _choose("method", wanted, known, table) if wanted is not None else table.methods
    cells, notes = [], []
    for image_set in _choose("set", sets, table.sets, table):
        files = _files(image_set, root, shard)[:limit]
        for level in _choose("level", levels, table.levels, table):
            for method in chosen:
                try:
                    prepared = methods.prepare(table, image_set, level, method, options)
                except UnavailableError as error:
                    notes.append(str(error))
                    continue
                cells.append(Cell(table, image_set, level, method, prepared, files))
    notes = list(dict.fromkeys(notes))
    if not cells and wanted is not None:
        raise ValueError("; ".join(notes))
    return cells, notes


def _files(image_set: str, root: Path, shard: tuple[int, int]) -> tuple[Path, ...]:
    if image_set not in datasets.PAIRS:
        return tuple(datasets.image_files(image_set, root, shard=shard))
    first, every = shard
    pairs = datasets.image_pairs(image_set, root)[first - 1 :: every]
    return tuple(noisy for noisy, _ in pairs)


def image_count(image_set: str) -> int:
    """Number of images of a set; of a set of pairs, of the pairs."""
    ending, _ = datasets.PAIRS.get(image_set, ("", ""))
    return sum(Path(file).stem.endswith(ending) for _, file in datasets.published(image_set))


def parse_shard(text: str) -> tuple[int, int]:
    """The shard (k, n) that "k/n" names."""
    first, _, every = text.partition("/")
    try:
        return int(first), int(every)
    except ValueError:
        raise ValueError(f"shard must be such as 1/2, got {text!r}") from None


def _choose(
    what: str, wanted: Sequence[_Choice] | None, known: Sequence[_Choice], table: Table
) -> list[_Choice]:
    """The choices as the table spells them, in its order; upper and lower case do not matter."""
    if wanted is None:
        return list(known)
    spelling = {str(name).lower(): name for name in known}
    for name in wanted:
        if str(name).lower() not in spelling:
            names = ", ".join(n if isinstance(n, str) else table.level(n) for n in known)
            asked_for = repr(name) if isinstance(name, str) else table.level(name)
            raise ValueError(f"{table.name} has no {what} {asked_for}; it has {names}")
    asked = {str(name).lower() for name in wanted}
    return [name for name in known if str(name).lower() in asked]


def run(
    cells: Sequence[Cell],
    folder: Path,
    *,
    seed: int = 0,
    on_image: Callable[[Cell, int, int], None] | None = None,
) -> list[Row]:
    """The rows of all cells in order, computed where the folder does not hold them yet.

    Args:
        cells: from `plan`.
        folder: where rows are kept, one file for each cell.
        seed: of the noise.
        on_image: called before each image that is computed with (cell, done, total).

    Raises:
        DataError: if an image is damaged.
        ValueError: if a method fails on an image, or a file of rows cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Tables share sets and levels: a row counts for every table of its task that has its cell.
    kept = {row.key: row for file in sorted(folder.glob("*.json")) for row in read_rows([file])}
    todo = [(cell, file) for cell in cells for file in cell.files
            if _key(cell, file, seed) not in kept]  # fmt: skip
    done, result = 0, []
    for cell in cells:
        own = {row.key: row for row in read_rows([cell.file(folder)], missing_ok=True)}
        saved, saved_at = len(own), time.monotonic()
        try:
            for file in cell.files:
                key = _key(cell, file, seed)
                if key not in kept:
                    if on_image is not None:
                        on_image(cell, done, len(todo))
                    kept[key] = _measure(cell, file, seed)
                    done += 1
                row = Row(**asdict(kept[key]) | {"table": cell.table.name, "method": cell.method})
                own[key] = row
                result.append(row)
                if time.monotonic() - saved_at > SAVE_SECONDS and len(own) > saved:
                    write_json(cell.file(folder), [row.to_json() for row in own.values()])
                    saved, saved_at = len(own), time.monotonic()
        finally:  # an error or Ctrl-C loses nothing
            if len(own) > saved:
                write_json(cell.file(folder), [row.to_json() for row in own.values()])
    return result


def _key(cell: Cell, file: Path, seed: int) -> tuple[Any, ...]:
    return _row(cell, file, seed, 0, 0, 0).key


def _row(cell: Cell, file: Path, seed: int, psnr: float, ssim: float, seconds: float) -> Row:
    prepared = cell.prepared
    return Row(
        cell.table.name, cell.set, cell.level, cell.method, file.stem, psnr, ssim, seconds, seed,
        prepared.protocol, prepared.version, prepared.precision, prepared.device,
    )  # fmt: skip


def _measure(cell: Cell, file: Path, seed: int) -> Row:
    """Degrades an image, restores it and compares."""
    image = read_image(cell.set, file)
    if cell.set in datasets.PAIRS:
        clean, degraded = datasets.read_image(_reference(cell.set, file)), image / 255
    else:
        task = "sr-color" if cell.prepared.in_color else cell.table.task
        clean, degraded = degraded_pair(task, image, cell.level, seed, file)
    begun = time.perf_counter()
    try:
        restored = cell.prepared.restore(degraded, cell.level)
    except Exception as error:
        where = f"{cell.method} on {cell.set}/{file.name}"
        raise ValueError(f"{where}: {one_line(error)}") from error
    seconds = time.perf_counter() - begun
    if cell.prepared.in_color and cell.table.task == "sr":
        clean, restored = luminance(clean), luminance(images.from_float(restored, np.uint8))
    psnr, ssim = score(restored, clean, border=cell.level if cell.table.is_sr else 0)
    return _row(cell, file, seed, round(psnr, 4), round(ssim, 6), round(seconds, 4))


def read_image(image_set: str, file: Path) -> np.ndarray:
    """An image of a set, uint8, as tables take it: whole, or in gray at half size."""
    if image_set not in datasets.HALVED:
        return datasets.read_image(file)
    return degrade.imresize(datasets.read_gray(file), 0.5)


def _reference(image_set: str, file: Path) -> Path:
    """The clean image of a pair."""
    noisy, clean = datasets.PAIRS[image_set]
    return file.with_stem(file.stem.removesuffix(noisy) + clean)


def score(restored: np.ndarray, clean: np.ndarray, *, border: int) -> tuple[float, float]:
    """PSNR in dB and SSIM of an image [H, W] or [H, W, 3], rounded to 0..255, without a border."""
    planes = [np.moveaxis(np.atleast_3d(x), 2, 0) for x in (restored, clean)]  # C H W
    images = [torch.from_numpy(np.ascontiguousarray(x))[None] for x in planes]
    psnr, ssim = (m(*images, border=border, quantize=True) for m in (metrics.psnr, metrics.ssim))
    return float(psnr), float(ssim)


def degraded_pair(
    task: str, image: np.ndarray, level: int, seed: int, file: Path
) -> tuple[np.ndarray, np.ndarray]:
    """The clean image, uint8, and what a method is given, float on the [0, 1] scale.

    Both are [H, W, 3] for "color" and "sr-color" if the image is, and [H, W] otherwise.
    """
    if task == "color":
        return image, degrade.add_noise(image, level, seed, file.stem)
    if task == "denoise":
        gray = image if image.ndim == 2 else degrade.rgb2gray(image)
        return gray, degrade.add_noise(gray, level, seed, file.stem)
    image = degrade.mod_crop(image, level)
    if task == "sr-color":
        return image, degrade.imresize(image, 1 / level) / 255
    gray = luminance(image)
    return gray, degrade.imresize(gray / 255, 1 / level)


def luminance(image: np.ndarray) -> np.ndarray:
    """Luminance of an 8-bit image; a gray one as it is."""
    return image if image.ndim == 2 else degrade.luminance(image)


def read_rows(files: Iterable[str | Path], *, missing_ok: bool = False) -> list[Row]:
    """Rows from files that `run` or `nlrn bench` wrote; of equal ones the last counts."""
    found: dict[Any, Row] = {}
    for file in map(Path, files):
        if missing_ok and not file.exists():
            continue
        for row in _rows_of(file):
            found[row.table, row.key] = row
    return list(found.values())


def _rows_of(file: Path) -> Iterator[Row]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = content["rows"] if isinstance(content, dict) else content
        yield from [Row.from_json(row) for row in rows]
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        names = ", ".join(field.name for field in fields(Row))
        raise ValueError(f"{file}: no rows of nlrn bench (a list of {names})") from error


def write_json(path: Path, content: Any) -> None:
    """Writes JSON, whole or not at all; each row on a line of its own."""
    atomic.write_text(path, _lines(content))


def _lines(content: Any) -> str:
    if isinstance(content, dict):
        parts = [f"{json.dumps(key)}: {_lines(value).strip()}" for key, value in content.items()]
        return "{\n" + ",\n".join(parts) + "\n}\n"
    if isinstance(content, list) and content:
        return "[\n" + ",\n".join(json.dumps(row) for row in content) + "\n]\n"
    return json.dumps(content) + "\n"
