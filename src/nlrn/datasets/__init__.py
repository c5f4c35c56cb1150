"""Image sets by name from a data root, checked against the published files, decoded once.

The root has one folder per set (`bsds500/train`, `t91`, `set12`, ...; docs/data.md has the table).
`published.json` beside this file holds the sha256 of every published image, `pixels.json` those of
the pixels, so that they may be stored in another lossless format:

- `image_files` lists exactly the published images of a set, for tables;
- `training_files` lists whatever images the folders hold, so that one can train on one's own;
- `read_image` refuses a file that has the name of a published image in its folder, but not its
  content; a file of another name is one's own and is read as it is.

Only images are read here: patches and noise are made where the network runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import numpy as np

from nlrn.datasets.reading import DataError as DataError
from nlrn.datasets.reading import Gray, Pixels, decode, in_threads
from nlrn.datasets.reading import center_crop as center_crop
from nlrn.datasets.reading import pixel_count as pixel_count
from nlrn.datasets.reading import rescaled as rescaled
from nlrn.degrade import luminance, rgb2gray

# The 32 images of BSDS500 val that are not in BSD68 (`same_as` in the data's MANIFEST.json), so
# that choices about bsd400 models can be made on them without looking at a test set.
VAL_NOT_IN_BSD68 = (
    "156065", "361010", "37073", "376043", "38082", "38092", "385039", "41033",
    "41069", "42012", "42049", "43074", "45096", "54082", "55073", "58060",
    "62096", "65033", "66053", "69015", "69020", "69040", "76053", "78004",
    "8023", "85048", "86000", "86016", "86068", "87046", "89072", "97033",
)  # fmt: skip

# name -> folders under the root whose images it holds
SETS: dict[str, tuple[str, ...]] = {
    "Set5": ("set5",),
    "Set12": ("set12",),
    "Set14": ("set14",),
    "S14": ("s14",),
    "BSD68": ("bsd68",),
    "CBSD68": ("bsds500/val",),
    "BSD100": ("bsds500/val",),
    "BSD200": ("bsds500/test",),
    "BSD200-half": ("bsds500/test",),
    "Urban100": ("urban100",),
    "Kodak24": ("kodak24",),
    "PolyU": ("polyu",),
    "bsd400": ("bsds500/train", "bsds500/test"),
    "bsd300": ("bsds500/train", "bsds500/val"),
    "sr291": ("t91", "bsds500/train"),
    "sr459": ("t91", "bsds500/train", "bsds500/test"),
    "cc0": ("cc0",),
    "bsd400-validation": ("bsds500/val",),
    "bsd300-validation": ("t91",),
    "sr-validation": ("bsds500/test",),
    "sr459-validation": ("bsds500/test",),
    "bsds500/train": ("bsds500/train",),
    "bsds500/test": ("bsds500/test",),
    "bsds500/val": ("bsds500/val",),
    "t91": ("t91",),
}
_PARTS = ("bsds500/train", "bsds500/test", "bsds500/val", "t91")  # folders that sets are made of
TEST_SETS = (
    "Set5", "Set12", "Set14", "S14", "BSD68", "CBSD68", "BSD100", "BSD200", "BSD200-half",
    "Urban100", "Kodak24", "PolyU",
)  # fmt: skip
# Test sets, and what may not choose or train a model, are refused by the training configs.
TRAINING_SETS = ("bsd400", "bsd300", "sr291", "sr459", "cc0", "bsds500/train", "t91")
VALIDATION_SETS = (
    "bsd400-validation", "bsd300-validation", "sr-validation", "sr459-validation", "bsds500/test",
    "t91",
)  # fmt: skip
# So many of bsds500/test, the first, are validated on where the others are trained on.
_HELD_OUT = 32
# Sets whose images are taken in gray at half size, as MemNet's tests take BSD200.
HALVED = ("BSD200-half",)
# Sets of pairs: how the names of a noisy image and of its reference end.
PAIRS = {"PolyU": ("_real", "_mean")}
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_LOSSLESS = (".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")  # which keep all pixels
_NOT_PUBLISHED = "sha256 differs from the manifest; the file is damaged or not the published one"


@cache
def manifest() -> dict[str, dict[str, str]]:
    """Folder -> file name -> sha256 of every published image."""
    text = files("nlrn.datasets").joinpath("published.json").read_text(encoding="utf-8")
    content: dict[str, dict[str, str]] = json.loads(text)
    return content


@cache
def _pixel_hashes() -> dict[str, dict[str, str]]:
    """Folder -> name without its ending -> sha256 of the pixels, where these are not of a JPEG."""
    text = files("nlrn.datasets").joinpath("pixels.json").read_text(encoding="utf-8")
    content: dict[str, dict[str, str]] = json.loads(text)
    return content


def find_root(given: str | Path | None = None) -> Path:
    """The folder of the image sets: the one given, or that of the variable NLRN_DATA."""
    name = given or os.environ.get("NLRN_DATA")
    if not name:
        raise DataError("no data root: name the folder of the image sets, or set NLRN_DATA")
    root = Path(name)
    if not root.is_dir():
        raise DataError(f"{root}: the data root is not a folder")
    if not any((root / folder).is_dir() for folder in manifest()):
        raise DataError(f"{root}: not a data root, it has none of {', '.join(manifest())}")
    return root


def set_name(name: str) -> str:
    """The name as `SETS` spells it; upper and lower case do not matter."""
    for known in SETS:
        if known.lower() == name.lower():
            return known
    raise DataError(f"unknown image set {name!r}; known sets: {', '.join(SETS)}")


def folders(name: str) -> tuple[str, ...]:
    """The folders under the root that hold the images of a set."""
    return SETS[set_name(name)]


def origins(name: str) -> frozenset[str]:
    """The folders whose pictures a set shows; sets without a common one have no known overlap.

    They are its `folders`, and for BSD68 `bsds500/val` too, of which it is a gray part. This is
    for comparing a test set with the training sets of a model. That Set5, Set12, Set14 and S14
    overlap each other is left out: nothing is trained on them.
    """
    own = frozenset(folders(name))
    return own | {"bsds500/val"} if "bsd68" in own else own


def published(name: str) -> list[tuple[str, str]]:
    """(folder, file name) of every published image of a set, sorted by folder and name."""
    name = set_name(name)
    found = [(folder, file) for folder in SETS[name] for file in sorted(manifest()[folder])]
    return [(folder, file) for folder, file in found if _is_of(name, file)]


def image_files(name: str, root: str | Path, *, shard: tuple[int, int] = (1, 1)) -> list[Path]:
    """The published image files of a set, sorted by folder and name.

    Other files in the folders are passed over. The content is checked by `read_image`: an image
    may be stored in another format that keeps its pixels.

    Args:
        name: of the set.
        root: the data root.
        shard: (k, n) for every n-th image from the k-th on; the others need not be there.

    Raises:
        DataError: if the name is unknown, or an image is missing.
    """
    name = set_name(name)
    first, every = shard
    if not 1 <= first <= every:
        raise DataError(f"shard must be one of 1/n to n/n, got {first}/{every}")
    chosen = published(name)[first - 1 :: every]
    found: list[Path] = []
    for folder in SETS[name]:
        path = Path(root) / folder
        wanted = [file for where, file in chosen if where == folder]
        there = {file: _find(path, folder, file) for file in wanted}
        if lacking := [file for file, place in there.items() if place is None]:
            raise DataError(f"{_missing(path, lacking)}; {name} needs {len(wanted)} images there")
        found += [place for place in there.values() if place is not None]
    return found


def _find(path: Path, folder: str, file: str) -> Path | None:
    """A published image under a path, perhaps in another format that keeps its pixels; or None."""
    stem = Path(file).stem
    others = _LOSSLESS if stem in _pixel_hashes().get(folder, {}) else ()
    places = (path / file, *(path / f"{stem}{suffix}" for suffix in others))
    return next((place for place in places if place.is_file()), None)


def image_pairs(name: str, root: str | Path) -> list[tuple[Path, Path]]:
    """(noisy image, its reference) for every pair of a set of `PAIRS`, sorted by name."""
    name = set_name(name)
    if name not in PAIRS:
        raise DataError(f"{name} is no set of pairs; those are {', '.join(PAIRS)}")
    noisy, clean = PAIRS[name]
    found = [file for file in image_files(name, root) if file.stem.endswith(noisy)]
    return [(f, f.with_stem(f.stem.removesuffix(noisy) + clean)) for f in found]


def _missing(folder: Path, files: Sequence[str]) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder"
    more = f"{files[0]} and {len(files) - 1} more are" if len(files) > 1 else f"{files[0]} is"
    return f"{folder}: {more} missing"


def training_files(name: str, root: str | Path) -> list[Path]:
    """The image files that lie in the folders of a set, published or not, in the same order.

    For training and validation, where images of one's own are as good as the published ones.
    """
    name = set_name(name)
    found: list[Path] = []
    for folder in SETS[name]:
        path = Path(root) / folder
        if not path.is_dir():
            count = sum(where == folder for where, _ in published(name))
            raise DataError(f"{path}: no such folder; {name} needs {count} images there")
        images = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
        known = {Path(file).stem for file in manifest()[folder]}
        found += [file for file in images if file.stem not in known or _is_of(name, file)]
    if not found:
        raise DataError(f"{Path(root)}: no images of {name} in {', '.join(SETS[name])}")
    return found


def _is_of(name: str, file: str | Path) -> bool:
    if name == "bsd400-validation":
        return Path(file).stem in VAL_NOT_IN_BSD68
    if name.startswith("sr459"):
        first = sorted(manifest()["bsds500/test"])[:_HELD_OUT]
        held_out = Path(file).stem in {Path(one).stem for one in first}
        return held_out == name.endswith("validation")
    return name != "CBSD68" or Path(file).stem not in VAL_NOT_IN_BSD68


def read_image(path: str | Path) -> Pixels:
    """The image as uint8, [H, W] when it is gray and [H, W, 3] otherwise.

    Raises:
        DataError: if it cannot be read, or is not the published image of its folder and name.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    folder = published_folder(path, any_format=path.suffix.lower() in _LOSSLESS)
    expected = _pixel_hashes().get(folder, {}).get(path.stem)
    known = manifest().get(folder, {}).get(path.name)
    if (known, expected) == (None, None) or _has_hash(content, known):
        return decode(content, path)
    with contextlib.suppress(DataError):  # damaged
        pixels = decode(content, path)
        if _has_pixels(pixels, expected):
            return pixels
    raise DataError(f"{path}: {_NOT_PUBLISHED}")


def _has_hash(content: bytes, expected: str | None) -> bool:
    return hashlib.sha256(content).hexdigest() == expected


def _has_pixels(pixels: Pixels, expected: str | None) -> bool:
    """Whether these are the published pixels; gray may be stored as color."""
    is_gray = pixels.ndim == 3 and bool((pixels == pixels[..., :1]).all())
    shown = (pixels, pixels[..., 0]) if is_gray else (pixels,)
    return any(_has_hash(array.tobytes(), expected) for array in shown)


def published_folder(path: Path, *, any_format: bool = False) -> str:
    """The folder of `manifest` in which a file of this folder and name is; empty for none.

    Args:
        path: the file.
        any_format: whether the ending of the name may be another one.
    """
    for depth in (1, 2):  # set12, bsds500/train
        folder = "/".join(path.parts[-1 - depth : -1])
        published = manifest().get(folder, {})
        stems = {Path(name).stem for name in published} if any_format else set()
        if path.name in published or path.stem in stems:
            return folder
    return ""


def read_gray(path: str | Path) -> Gray:
    """The image as uint8 gray [H, W]; colour by MATLAB's rgb2gray. Checked as by `read_image`."""
    image = read_image(path)
    return image if image.ndim == 2 else rgb2gray(image)


def read_luminance(path: str | Path) -> Gray:
    """The luminance [H, W], 16..235, of a colour image by MATLAB's rgb2ycbcr; gray as it is."""
    image = read_image(path)
    return image if image.ndim == 2 else luminance(image)


def read_rgb(path: str | Path) -> Pixels:
    """The image as uint8 RGB [H, W, 3]; a gray one three times. Checked as by `read_image`."""
    image = read_image(path)
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)


def read_all(files: Iterable[Path], read: Callable[[Path], Pixels] = read_gray) -> list[Pixels]:
    """All images, decoded by several threads; as gray, or by another function of these."""
    return in_threads(read, list(files))


@dataclass(frozen=True)
class SetState:
    """What is there of a set.

    Attributes:
        name: of the set.
        folders: under the data root.
        expected: number of published images.
        problems: file under the root -> "missing", "damaged" or "unreadable".
    """

    name: str
    folders: tuple[str, ...]
    expected: int
    problems: dict[str, str]

    @property
    def found(self) -> int:
        """Images that are there, damaged or not."""
        return self.expected - list(self.problems.values()).count("missing")

    @property
    def state(self) -> str:
        """In words: "ok", "missing", or how many images are what."""
        if not self.found:
            return "missing"
        counts = Counter(self.problems.values())
        return ", ".join(f"{count} {problem}" for problem, count in counts.items()) or "ok"


def check(root: str | Path, names: Sequence[str] | None = None) -> list[SetState]:
    """The state of these sets, or of every one; all of their images are read and hashed."""
    chosen = [n for n in SETS if n not in _PARTS] if names is None else [*map(set_name, names)]
    every = list(dict.fromkeys(key for name in chosen for key in published(name)))
    states = in_threads(partial(_file_state, Path(root)), every)
    problems = {key: state for key, state in zip(every, states, strict=True) if state != "ok"}
    found = []
    for name in chosen:
        wanted = published(name)
        bad = {"/".join(key): problems[key] for key in wanted if key in problems}
        found.append(SetState(name, SETS[name], len(wanted), bad))
    return found


def _file_state(root: Path, key: tuple[str, str]) -> str:
    folder, file = key
    place = _find(root / folder, folder, file) or root / folder / file
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "unreadable"
    if _has_hash(content, manifest()[folder][file]):
        return "ok"
    try:
        read_image(place)
    except DataError:
        return "damaged"
    return "ok"


def complaints(root: str | Path, states: Iterable[SetState], *, all_needed: bool) -> list[str]:
    """A line for every damaged file, then one for every folder that lacks images.

    Args:
        root: the data root.
        states: what is there.
        all_needed: whether a folder that is not there at all is a problem; nobody needs all sets.
    """
    root, states = Path(root), list(states)
    problems = {file: problem for state in states for file, problem in state.problems.items()}
    texts = {"damaged": _NOT_PUBLISHED, "unreadable": "cannot be read"}
    lines = [f"{root / file}: {texts[p]}" for file, p in problems.items() if p in texts]
    for folder in dict.fromkeys(folder for state in states for folder in state.folders):
        names = manifest()[folder]
        lacking = [file for file in names if problems.get(f"{folder}/{file}") == "missing"]
        if lacking and (all_needed or (root / folder).is_dir()):
            lines.append(f"{_missing(root / folder, lacking)}; {len(names)} images expected")
    return lines
