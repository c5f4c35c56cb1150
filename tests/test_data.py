"""Image sets by name: what is listed, what is refused, what `nlrn data check` says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from training_runs import make_root
from typer.testing import CliRunner, Result

from nlrn import cli, datasets, weights
from nlrn.cli import research
from nlrn.datasets import DataError

REAL = Path(os.environ.get("NLRN_DATA", "/nowhere"))
with_real_data = pytest.mark.skipif(not REAL.is_dir(), reason="NLRN_DATA names no data root")
COUNTS = {
    "Set5": 5, "Set12": 12, "Set14": 14, "S14": 14, "BSD68": 68, "CBSD68": 68, "BSD100": 100,
    "BSD200": 200, "BSD200-half": 200, "Urban100": 100, "Kodak24": 24, "PolyU": 200, "bsd400": 400,
    "bsd300": 300, "sr291": 291, "sr459": 459, "cc0": 68,
    "bsd400-validation": 32, "bsd300-validation": 91, "sr-validation": 200,
    "sr459-validation": 32,
}  # fmt: skip
# training set -> the validation and test sets of its models
TASKS = {
    "bsd400": ("bsd400-validation", ("Set12", "BSD68", "CBSD68", "Urban100", "Kodak24", "PolyU")),
    "cc0": ("bsd400-validation", ("Set12", "S14", "BSD68", "CBSD68", "Kodak24", "PolyU")),
    "bsd300": ("bsd300-validation", ("S14", "BSD200-half", "Urban100", "Set14")),
    "sr291": ("sr-validation", ("Set5", "Set14", "BSD100", "Urban100")),
    "sr459": ("sr459-validation", ("Set5", "Set14", "BSD100", "Urban100")),
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with three small images per folder, and a manifest of just these."""
    rng = np.random.default_rng(0)
    manifest: dict[str, dict[str, str]] = {folder: {} for folder in datasets.manifest()}
    for folder, files in manifest.items():
        (tmp_path / folder).mkdir(parents=True)
        for stem in ("a", "b", datasets.VAL_NOT_IN_BSD68[0]):
            file = tmp_path / folder / f"{stem}.png"
            Image.fromarray(rng.integers(0, 256, (3, 5), dtype=np.uint8)).save(file)
            files[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(datasets, "manifest", lambda: manifest)
    monkeypatch.delenv("NLRN_DATA", raising=False)
    return tmp_path


def nlrn_check(root: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.app, ["data", "check", "--data", str(root), *more])


def test_counts_of_the_published_sets() -> None:
    assert {name: len(datasets.published(name)) for name in COUNTS} == COUNTS
    single_folders = {"bsds500/train", "bsds500/test", "bsds500/val", "t91"}
    assert set(COUNTS) == set(datasets.SETS) - single_folders
    assert set(datasets.TEST_SETS) < set(COUNTS)
    hashes = [sha256 for files in datasets.manifest().values() for sha256 in files.values()]
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in hashes)


@pytest.mark.parametrize("name", ["Set12", "set12", "SET12"])
def test_upper_and_lower_case_do_not_matter(name: str, root: Path) -> None:
    assert datasets.set_name(name) == "Set12" and datasets.folders(name) == ("set12",)
    assert len(datasets.image_files(name, root)) == 3


@pytest.mark.parametrize("suffix", [".bmp", ".webp", ".tif", ".pgm"])
def test_the_same_pixels_in_another_format_will_do(
    suffix: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = {f.stem: np.array(Image.open(f)) for f in (root / "set12").iterdir()}
    hashes = {stem: hashlib.sha256(array.tobytes()).hexdigest() for stem, array in pixels.items()}
    monkeypatch.setattr(datasets, "_pixel_hashes", lambda: {"set12": hashes})
    for stem in pixels:
        file = root / "set12" / f"{stem}.png"
        Image.open(file).save(file.with_suffix(suffix), lossless=True)  # WebP asks for it
        file.unlink()
    files = datasets.image_files("Set12", root)
    assert [file.suffix for file in files] == [suffix] * 3
    for file in files:
        assert (datasets.read_gray(file) == pixels[file.stem]).all()
    assert datasets.check(root, ["Set12"])[0].state == "ok"
    Image.fromarray(pixels["a"] ^ 1).save(root / "set12" / f"a{suffix}", lossless=True)
    with pytest.raises(DataError, match="not the published one"):
        datasets.read_gray(root / "set12" / f"a{suffix}")
    assert datasets.check(root, ["Set12"])[0].state == "1 damaged"


@with_real_data
def test_hashes_of_pixels_are_those_of_the_published_files() -> None:
    for folder, hashes in datasets._pixel_hashes().items():
        names = {Path(name).stem: name for name in datasets.manifest()[folder]}
        assert set(names) == set(hashes)
        stem = min(hashes)
        pixels = datasets.read_image(REAL / folder / names[stem])
        assert hashlib.sha256(pixels.tobytes()).hexdigest() == hashes[stem]


def test_every_folder_is_a_set() -> None:
    assert all(datasets.folders(folder) == (folder,) for folder in datasets.manifest())


def test_an_unknown_set_is_one_line() -> None:
    with pytest.raises(DataError, match="unknown image set 'bsd500'; known sets: Set5, Set12, "):
        datasets.image_files("bsd500", "")


@pytest.mark.parametrize("train", TASKS)
def test_nothing_is_trained_validated_and_tested_on(train: str) -> None:
    validation, tests = TASKS[train]
    chosen_on = set(datasets.published(validation))
    assert chosen_on.isdisjoint(datasets.published(train))
    for test in tests:
        assert datasets.origins(train).isdisjoint(datasets.origins(test))
        assert chosen_on.isdisjoint(datasets.published(test))
    # BSD68 has other files of pictures in bsds500/val: see the test on the real manifest below.


def test_bsd68_is_known_to_come_from_val() -> None:
    assert not datasets.origins("BSD68").isdisjoint(datasets.origins("bsd300"))
    assert datasets.origins("bsd68").isdisjoint(datasets.origins("bsd400"))
    assert not datasets.origins("CBSD68").isdisjoint(datasets.origins("bsd300"))
    assert not datasets.origins("CBSD68").isdisjoint(datasets.origins("BSD68"))


def test_color_bsd68_is_what_validation_leaves() -> None:
    tested, chosen_on = (set(datasets.published(n)) for n in ("CBSD68", "bsd400-validation"))
    assert tested.isdisjoint(chosen_on)
    assert tested | chosen_on == set(datasets.published("bsds500/val"))


def test_no_test_set_is_offered_for_training() -> None:
    test_folders = {f for name in datasets.TEST_SETS for f in datasets.folders(name)}
    assert test_folders >= {"s14", "kodak24", "polyu"} and "cc0" not in test_folders
    assert set(datasets.TRAINING_SETS).isdisjoint(datasets.TEST_SETS)


@pytest.mark.parametrize("name", weights.manifest())
def test_no_weight_is_reported_on_what_it_has_seen(name: str) -> None:
    card = weights.manifest()[name].card
    seen = frozenset().union(*[datasets.origins(part) for part in card.training_sets])
    tests = {test.split()[0] for test in card.psnr}  # a scale may follow: Set5 x2
    assert seen and tests and all(seen.isdisjoint(datasets.origins(test)) for test in tests)


def test_images_are_those_of_the_manifest_in_order(root: Path) -> None:
    shutil.copy(root / "bsds500/test/a.png", root / "bsds500/test/0.png")  # not of the set
    name = datasets.VAL_NOT_IN_BSD68[0]
    files = [file.relative_to(root).as_posix() for file in datasets.image_files("bsd400", root)]
    stems = [name, "a", "b"]
    assert files == [f"bsds500/{s}/{stem}.png" for s in ("train", "test") for stem in stems]
    assert [file.stem for file in datasets.image_files("bsd400-validation", root)] == [name]


def test_a_missing_image_is_one_line(root: Path) -> None:
    (root / "set12/b.png").unlink()
    with pytest.raises(DataError, match=r"set12: b\.png is missing; Set12 needs 3 images there$"):
        datasets.image_files("set12", root)
    (root / "set12/a.png").unlink()
    with pytest.raises(DataError, match=r"set12: a\.png and 1 more are missing; Set12 needs 3"):
        datasets.image_files("set12", root)
    shutil.rmtree(root / "bsds500/test")
    with pytest.raises(DataError, match=r"test: no such folder; bsd400 needs 3 images there$"):
        datasets.image_files("bsd400", root)


def test_a_damaged_image_is_refused_and_ones_own_is_read(root: Path) -> None:
    file = root / "bsds500/train/a.png"
    shutil.copy(root / "set12/a.png", file)  # a good image, but another
    with pytest.raises(
        DataError, match=r"train/a\.png: sha256 differs from the manifest; the file"
    ):
        datasets.read_image(file)
    with pytest.raises(DataError, match="sha256 differs"):
        datasets.read_all(datasets.training_files("bsd400", root))
    assert datasets.read_image(shutil.move(file, file.with_name("mine.png"))).shape == (3, 5)
    with pytest.raises(DataError, match=r"none\.png: No such file"):
        datasets.read_image(root / "none.png")


def test_training_takes_the_images_that_are_there(tmp_path: Path) -> None:
    own = make_root(tmp_path)  # its images are not the published ones
    stems = ["100075", "100080", "100007"]
    assert [file.stem for file in datasets.training_files("bsd400", own)] == stems
    bsd300 = [file.stem for file in datasets.training_files("bsd300", own)]
    assert bsd300[:2] == stems[:2] and "101085" in bsd300
    validation = {file.stem for file in datasets.training_files("bsd400-validation", own)}
    assert validation == set(datasets.VAL_NOT_IN_BSD68[:3])  # 101085 is in BSD68
    with pytest.raises(DataError, match=r"t91: no such folder; sr291 needs 91 images there$"):
        datasets.training_files("sr291", own)
    (own / "t91").mkdir()
    with pytest.raises(DataError, match="no images of t91 in t91"):
        datasets.training_files("t91", own)


def test_a_wrong_root_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NLRN_DATA", raising=False)
    with pytest.raises(DataError, match="name the folder of the image sets, or set NLRN_DATA"):
        datasets.find_root(None)
    with pytest.raises(DataError, match="none: the data root is not a folder"):
        datasets.find_root(tmp_path / "none")
    with pytest.raises(DataError, match="not a data root, it has none of set5, set12"):
        datasets.find_root(tmp_path)
    monkeypatch.setenv("NLRN_DATA", str(tmp_path))
    (tmp_path / "t91").mkdir()
    assert datasets.find_root() == tmp_path


def test_check_of_a_complete_root(root: Path) -> None:
    result = nlrn_check(root)
    assert result.exit_code == 0 and not result.stderr, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + len(COUNTS)
    assert lines[2].split() == ["Set12", "set12", "3/3", "ok"]


def test_check_names_what_is_wrong(root: Path) -> None:
    content = bytearray((root / "set5/a.png").read_bytes())
    content[-1] ^= 1
    (root / "set5/a.png").write_bytes(content)
    (root / "set5/b.png").unlink()
    (root / "t91/a.png").unlink()
    (root / "t91/a.png").mkdir()
    shutil.rmtree(root / "set14")
    result = nlrn_check(root, "--sets", ",".join(COUNTS))
    assert result.exit_code == 1
    states = {line.split()[0]: line.split("  ")[-1] for line in result.stdout.splitlines()}
    assert states["Set5"] == "1 damaged, 1 missing" and states["Set14"] == "missing"
    assert states["sr291"] == "1 unreadable" and states["bsd400"] == "ok"
    damaged, unreadable, file, folder = result.stderr.splitlines()  # each once, not once per set
    assert damaged.startswith(f"error: {root / 'set5/a.png'}: sha256 differs from the manifest")
    assert unreadable == f"error: {root / 't91/a.png'}: cannot be read"
    assert file == f"error: {root / 'set5'}: b.png is missing; 3 images expected"
    assert folder == f"error: {root / 'set14'}: no such folder; 3 images expected"


def test_check_takes_sets_that_are_not_there_as_not_needed(root: Path) -> None:
    for folder in ("set14", "urban100"):
        shutil.rmtree(root / folder)
    result = nlrn_check(root)
    assert result.exit_code == 0 and not result.stderr
    assert "Set14" in result.stdout and "missing" in result.stdout
    result = nlrn_check(root, "--sets", "set12,Set14")
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["set", "Set12", "Set14"]
    assert result.stderr == f"error: {root / 'set14'}: no such folder; 3 images expected\n"
    assert nlrn_check(root, "--sets", "Set12").exit_code == 0
    result = nlrn_check(root, "--sets", "Set13")
    assert result.exit_code == 2 and "unknown image set 'Set13'" in result.stderr


def test_check_as_json(root: Path) -> None:
    (root / "bsd68/a.png").unlink()
    result = nlrn_check(root, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["root"] == str(root)
    sets = {entry["name"]: entry for entry in report["sets"]}
    assert list(sets) == list(COUNTS)
    assert sets["BSD68"] == {
        "name": "BSD68", "folders": ["bsd68"], "expected": 3, "found": 2,
        "state": "1 missing", "problems": {"bsd68/a.png": "missing"},
    }  # fmt: skip


def test_check_shows_a_few_lines(root: Path) -> None:
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    lines = nlrn_check(root).stderr.splitlines()
    assert len(lines) == research.SHOWN_PROBLEMS + 1
    assert lines[-1] == f"error: and {39 - research.SHOWN_PROBLEMS} more (see --json)"


def test_check_of_a_wrong_root_is_one_line(tmp_path: Path) -> None:
    for root, words in ((tmp_path / "none", "not a folder"), (tmp_path, "not a data root")):
        result = nlrn_check(root)
        assert result.exit_code == 2 and not result.stdout
        assert len(result.stderr.splitlines()) == 1 and words in result.stderr


# --- images of one's own ------------------------------------------------------------------------


def published_manifest() -> dict[str, list[dict[str, str]]]:
    """Folder -> files, from the manifest that lies beside the images."""
    entries = json.loads((REAL / "MANIFEST.json").read_text())["datasets"]
    return {entry["name"]: entry["files"] for entry in entries}


@with_real_data
def test_real_sets_are_complete_and_intact() -> None:
    assert {state.name: (state.found, state.state) for state in datasets.check(REAL)} == {
        name: (count, "ok") for name, count in COUNTS.items()
    }
    for name, count in COUNTS.items():
        assert len(datasets.image_files(name, REAL)) == count
    assert nlrn_check(REAL).exit_code == 0


@with_real_data
def test_a_flipped_bit_in_set5_is_found(tmp_path: Path) -> None:
    shutil.copytree(REAL / "set5", tmp_path / "set5", copy_function=shutil.copyfile)
    (tmp_path / "set5").chmod(0o755)
    file = tmp_path / "set5" / "baby_GT.png"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    first, *others = datasets.image_files("Set5", tmp_path)
    with pytest.raises(DataError, match="sha256 differs"):
        datasets.read_image(first)
    assert all(datasets.read_image(other).shape[2] == 3 for other in others)
    assert datasets.check(tmp_path)[0].state == "1 damaged"


@with_real_data
@pytest.mark.parametrize("folder", ["set5", "set12", "set14", "urban100", "t91", "s14", "kodak24"])
def test_pixels_are_those_of_the_source(folder: str) -> None:
    for entry in published_manifest()[folder][:5]:
        pixels = datasets.read_image(REAL / folder / entry["file"])
        assert hashlib.sha256(pixels.tobytes()).hexdigest() == entry["pixel_sha256"]


@with_real_data
def test_validation_images_are_those_the_manifest_does_not_list_in_bsd68() -> None:
    sets = published_manifest()
    tested = {file["same_as"] for file in sets["bsd68"]}
    rest = {file["file"] for file in sets["bsds500/val"]} - {Path(name).name for name in tested}
    assert {Path(name).stem for name in rest} == set(datasets.VAL_NOT_IN_BSD68)


@with_real_data
def test_every_noisy_image_has_its_reference() -> None:
    pairs = datasets.image_pairs("polyu", REAL)
    assert len(pairs) == 100
    kinds = {file["file"]: file["kind"] for file in published_manifest()["polyu"]}
    assert {kinds[clean.name] for _, clean in pairs} == {"reference"}
    assert all(noisy.is_file() and clean.is_file() for noisy, clean in pairs)
    with pytest.raises(DataError, match="Set12 is no set of pairs; those are PolyU"):
        datasets.image_pairs("Set12", REAL)


@with_real_data
def test_gray_of_val_images_is_bsd68() -> None:
    for file in published_manifest()["bsd68"][:3]:
        gray = datasets.read_gray(REAL / "bsd68" / file["file"])
        difference = datasets.read_gray(REAL / file["same_as"]).astype(int) - gray
        assert abs(difference).max() <= 1  # JPEG decoders differ by a level
