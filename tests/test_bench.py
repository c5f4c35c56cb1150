"""Tables of the paper: what runs, what is kept, what is printed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from skimage.metrics import peak_signal_noise_ratio
from typer.testing import CliRunner

import nlrn
from nlrn import datasets, weights
from nlrn.bench import documents, methods, report, run, tables
from nlrn.bench.methods import Setting, UnavailableError
from nlrn.bench.run import Row
from nlrn.bench.tables import TABLES
from nlrn.cli import app
from nlrn.degrade import imresize
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.restoration import denoise as tasks

ROOT = Path(__file__).parents[1]
DATA = os.environ.get("NLRN_DATA")
needs_images = pytest.mark.skipif(DATA is None, reason="NLRN_DATA names no folder of images")
TINY = NLRNConfig(steps=2, channels=8, embed=4, window=7)
DENOISE, SR = TABLES["denoise-bsd400"], TABLES["sr"]


@pytest.fixture
def small_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root of small gray images for Set12 and colour ones for Set5, in the manifest."""
    root = tmp_path / "data"
    hashes: dict[str, dict[str, str]] = {}
    generator = np.random.default_rng(0)
    for folder, count, shape in (("set12", 3, (21, 26)), ("set5", 2, (29, 26, 3))):
        (root / folder).mkdir(parents=True)
        hashes[folder] = {}
        for number in range(count):
            pixels = generator.integers(0, 256, shape, np.uint8)
            file = root / folder / f"{number}.png"
            Picture.fromarray(pixels).save(file)
            hashes[folder][file.name] = _sha256(file)
    published = datasets.manifest()
    monkeypatch.setattr(datasets, "manifest", lambda: published | hashes)
    monkeypatch.setenv("NLRN_DATA", str(root))
    return root


def _sha256(file: Path) -> str:
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def without_time(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


# What a table is made of


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_name_sets_methods_and_figures_that_exist(table: tables.Table) -> None:
    assert set(table.sets) <= set(datasets.TEST_SETS)
    assert set(table.methods) <= set(methods.names(table))
    assert set(table.weights) <= set(methods.NETWORKS)
    for image_set in table.sets:
        for level in table.levels:
            figures = tables.printed(table.name, image_set, level)
            assert any(name in table.weights for name in figures)
            for figure in figures.values():
                assert figure.psnr is None or 15 < figure.psnr < 45
                assert figure.ssim is None or 0.5 < figure.ssim < 1


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_weight_has_seen_a_set_of_its_table(table: tables.Table) -> None:
    """Whatever is in the package, and the sets that the missing ones are going to be trained on."""
    for method, by_level in table.weights.items():
        assert set(by_level) == set(table.levels), method
        for name in by_level.values():
            entry = weights.manifest().get(name)
            default = {"sr-y": ("sr291",)}.get(name, ("bsd400",))
            if "bsd300" in name or name in ("denoise-gray-s30", "denoise-gray-s70"):
                default = ("bsd300",)
            seen = frozenset().union(*map(datasets.origins, entry.data if entry else default))
            for image_set in table.sets:
                assert seen.isdisjoint(datasets.origins(image_set)), f"{name} on {image_set}"


def test_the_papers_figures_and_misprints() -> None:
    assert tables.printed("denoise-bsd400", "Set12", 25)["NLRN"] == (30.80, 0.8689)
    assert tables.printed("denoise-bsd300", "Urban100", 70)["NLRN-MV"] == (25.71, 0.7724)
    assert tables.printed("sr", "Set5", 2)["NLRN"] == (38.00, 0.9603)
    assert tables.facts("complexity")["RED"]["parameters_k"] == 4131
    assert "0.806" in tables.misprint("denoise-bsd300", "BSD200", 30, "NLRN")
    assert not tables.misprint("denoise-bsd300", "BSD200", 70, "NLRN")
    assert tables.other_protocol("denoise-bsd300", "Set14")
    assert not tables.other_protocol("denoise-bsd300", "Urban100")


def test_a_weight_that_has_seen_the_test_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="denoise-gray-s25 was trained on bsds500/test: not for B"):
        methods.network("denoise-gray-s25", "BSD200", 1, "denoise", Setting())
    file = tmp_path / "mine.safetensors"
    random_network(TINY).save_pretrained(file, {"data": "bsd300"})
    with pytest.raises(ValueError, match="trained on bsds500/val: not for BSD68"):
        methods.refuse_seen(str(file), "BSD68")
    methods.refuse_seen(str(file), "Set12")
    random_network(TINY).save_pretrained(file, {"data": "holiday-pictures"})
    methods.refuse_seen(str(file), "Set12")


# Methods


def test_baselines_compute_what_they_say() -> None:
    generator = np.random.default_rng(1)
    small = generator.random((9, 7))
    assert methods.noisy(small, 25) is small
    np.testing.assert_array_equal(methods.bicubic(small, 3), imresize(small, 3))
    y, x = np.mgrid[:48, :40] / 48
    clean = 0.5 + 0.3 * np.sin(9 * x) * np.cos(5 * y)
    noisy = clean + 25 / 255 * generator.standard_normal(clean.shape)
    for name in ("NLM-OpenCV", "NLM-skimage", "BM3D-package", *methods.CLASSIC):
        restored = methods.bind(DENOISE, "Set12", 25, name, Setting()).restore(noisy, 25)
        assert restored.shape == clean.shape and restored.dtype == np.float64
        gained = peak_signal_noise_ratio(clean, restored, data_range=1)
        gained -= peak_signal_noise_ratio(clean, noisy, data_range=1)
        assert gained > 4, name


def test_a_missing_package_or_weight_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    with pytest.raises(UnavailableError, match="NLRN at x2: no weight 'sr-y' yet"):
        methods.bind(SR, "Set5", 2, "NLRN", Setting())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"BM3D-package: needs bm3d: pip install bm3d"):
        methods.bind(DENOISE, "Set12", 25, "BM3D-package", Setting())


def test_classic_methods_run_where_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.device] = []

    def spy(image: np.ndarray, sigma: float, *, device: torch.device) -> np.ndarray:
        seen.append(device)
        return image

    monkeypatch.setitem(tasks.CLASSIC, "bm3d", spy)
    for device in ("cpu", "meta"):
        bound = methods.bind(DENOISE, "Set12", 25, "BM3D", Setting(device=device))
        bound.restore(np.zeros((3, 4)), 25)
        assert bound.version == f"nlrn {nlrn.__version__}"
        assert (bound.precision, bound.device) == ("fp32", device.upper())
    assert [device.type for device in seen] == ["cpu", "meta"]
    assert "BM3D" not in methods.names(SR)


def test_a_network_runs_by_both_protocols_and_with_views(tmp_path: Path) -> None:
    from nlrn.inference.engine import restore, restore_patches

    file = tmp_path / "tiny.safetensors"
    model = random_network(TINY)
    model.save_pretrained(file)
    image = np.random.default_rng(2).random((50, 47))
    given = torch.from_numpy(image)[None, None].float()
    for protocol, views, expected in (
        ("whole", 1, restore(model, given, device="cpu")),
        ("whole", 8, restore(model, given, views=8, device="cpu")),
        ("overlap", 1, restore_patches(model, given, device="cpu")),
    ):
        setting = Setting(protocol=protocol, device="cpu")
        bound = methods.network(str(file), "Set12", views, "denoise", setting)
        np.testing.assert_allclose(bound.restore(image, 25), expected[0, 0].numpy(), atol=1e-5)
        assert bound.protocol == protocol and bound.version.startswith("tiny.safetensors@")
    enlarged = methods.network(str(file), "Set5", 1, "sr", Setting(device="cpu"))
    assert enlarged.restore(image, 2).shape == (100, 94)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="protocol must be whole or overlap"):
        Setting(protocol="half")
    with pytest.raises(ValueError, match="dtype must be fp32 or bf16"):
        Setting(dtype="fp8")


# Running


def test_rows_are_right(small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against scikit-image, for noise and for super-resolution."""
    cells, notes = run.plan(DENOISE, small_root, Setting(), sets=["set12"], wanted=["NOISY"])
    assert not notes and [cell.level for cell in cells] == [15, 25, 50]
    rows = run.run(cells, tmp_path / "rows")
    assert len(rows) == 9
    clean = datasets.read_image(small_root / "set12" / "1.png")
    given = run.degraded_pair("denoise", clean, 25, 0, Path("1.png"))[1]
    rounded = np.floor(given.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    row = next(row for row in rows if (row.level, row.image) == (25, "1"))
    assert row.psnr == pytest.approx(peak_signal_noise_ratio(clean, rounded), abs=1e-4)
    assert (row.seed, row.protocol, row.version) == (0, "whole", "nlrn")

    monkeypatch.setattr(weights, "manifest", dict)
    cells, notes = run.plan(SR, small_root, Setting(), sets=["Set5"], levels=[3])
    assert notes == ["NLRN at x3: no weight 'sr-y' yet"]
    row = run.run(cells, tmp_path / "rows")[0]
    truth, small = run.degraded_pair(
        "sr", datasets.read_image(cells[0].files[0]), 3, 0, Path("0.png")
    )
    assert truth.shape == (27, 24) and small.shape == (9, 8)
    result = np.floor(imresize(small, 3).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    inside = slice(3, -3)
    expected = peak_signal_noise_ratio(truth[inside, inside], result[inside, inside])
    assert row.psnr == pytest.approx(expected, abs=1e-4)


def test_what_is_there_is_not_computed_again(small_root: Path, tmp_path: Path) -> None:
    cells, _ = run.plan(DENOISE, small_root, Setting(), sets=["Set12"], wanted=["noisy"], limit=2)
    seen: list[tuple[int, int]] = []
    first = run.run(cells, tmp_path, on_image=lambda cell, done, total: seen.append((done, total)))
    assert seen == [(n, 6) for n in range(6)]
    cells, _ = run.plan(DENOISE, small_root, Setting(), sets=["Set12"], wanted=["noisy"])
    seen.clear()
    second = run.run(cells, tmp_path, on_image=lambda cell, done, total: seen.append((done, total)))
    assert seen == [(n, 3) for n in range(3)]
    assert [row for row in second if row.image != "2"] == first  # their seconds too
    other = run.run(cells, tmp_path, seed=1)
    assert all(a.psnr != b.psnr for a, b in zip(second, other, strict=True))
    assert run.run(cells, tmp_path) == second  # both seeds are kept


def test_parts_make_up_the_whole(small_root: Path, tmp_path: Path) -> None:
    def rows(part: tuple[int, int], folder: str) -> list[run.Row]:
        cells, _ = run.plan(
            DENOISE, small_root, Setting(), sets=["Set12"], wanted=["noisy"], part=part
        )
        return run.run(cells, tmp_path / folder)

    first, second = rows((1, 2), "first"), rows((2, 2), "second")
    assert {row.image for row in first} == {"0", "2"}
    assert {row.image for row in second} == {"1"}
    whole = rows((1, 1), "whole")
    joined = run.read_rows([*tmp_path.glob("first/*.json"), *tmp_path.glob("second/*.json")])
    assert {row.key: row.psnr for row in joined} == {row.key: row.psnr for row in whole}
    (small_root / "set12" / "1.png").unlink()  # one machine need not have what the other has
    assert [row.psnr for row in rows((1, 2), "again")] == [row.psnr for row in first]
    with pytest.raises(datasets.DataError, match=r"1\.png is missing; Set12 needs 1 images there"):
        rows((2, 2), "again")


def test_tables_share_rows(small_root: Path, tmp_path: Path) -> None:
    cells, _ = run.plan(DENOISE, small_root, Setting(), sets=["Set12"], wanted=["noisy"])
    rows = run.run(cells, tmp_path)
    twin = dataclasses.replace(DENOISE, name="complexity")
    again = [dataclasses.replace(cell, table=twin) for cell in cells]
    shared = run.run(again, tmp_path, on_image=lambda *_: pytest.fail("computed again"))
    assert shared == [dataclasses.replace(row, table="complexity") for row in rows]


def test_the_same_network_under_another_name_shares_rows(small_root: Path, tmp_path: Path) -> None:
    cells, _ = run.plan(DENOISE, small_root, Setting(), sets=["Set12"], wanted=["noisy"])
    named = [dataclasses.replace(cell, method="NLRN") for cell in cells]
    rows = run.run(named, tmp_path)
    again = [dataclasses.replace(cell, method="NLRN-400") for cell in cells]
    shared = run.run(again, tmp_path, on_image=lambda *_: pytest.fail("computed again"))
    assert shared == [dataclasses.replace(row, method="NLRN-400") for row in rows]
    views = [dataclasses.replace(cell, method="NLRN-MV") for cell in cells]
    computed: list[int] = []
    run.run(views, tmp_path, on_image=lambda cell, done, total: computed.append(done))
    assert len(computed) == len(rows)


def test_an_error_loses_no_row(small_root: Path, tmp_path: Path) -> None:
    def fails_late(degraded: np.ndarray, level: int) -> np.ndarray:
        if level == 25:
            raise RuntimeError("no more\nmemory")
        return degraded

    cells, _ = run.plan(DENOISE, small_root, Setting(), sets=["Set12"], wanted=["noisy"])
    bound = dataclasses.replace(cells[0].bound, restore=fails_late)
    with pytest.raises(ValueError, match=r"noisy on Set12/0\.png: no more memory"):
        run.run([dataclasses.replace(cell, bound=bound) for cell in cells], tmp_path)
    assert len(run.read_rows(tmp_path.glob("*.json"))) == 3


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"rows": 3}', '[{"set": "Set12"}]', '{"means": []}']
)
def test_a_file_that_holds_no_rows(content: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(content)
    with pytest.raises(ValueError, match=r"rows\.json: no rows of nlrn bench"):
        run.read_rows([tmp_path / "rows.json"])


def test_choices_are_checked(small_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(**choices: object) -> None:
        run.plan(DENOISE, small_root, Setting(), **choices)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="denoise-bsd400 has no set 'Set5'; it has Set12, BSD68,"):
        plan(sets=["Set5"])
    with pytest.raises(ValueError, match="has no level 30; it has 15, 25, 50"):
        plan(levels=[30])
    with pytest.raises(ValueError, match="has no method 'magic'; it has noisy"):
        plan(wanted=["magic"])
    with pytest.raises(ValueError, match="limit must be 1 or more, got 0"):
        plan(limit=0)
    for part in ((0, 2), (3, 2), (-1, 1)):
        with pytest.raises(ValueError, match="part must be one of 1/n to n/n, got"):
            plan(part=part)
    with pytest.raises(ValueError, match="bsd68: no such folder; BSD68 needs"):
        plan(sets=["BSD68"])
    monkeypatch.setattr(weights, "manifest", dict)
    with pytest.raises(ValueError, match="no weight"):
        run.plan(SR, small_root, Setting(), sets=["Set5"], wanted=["NLRN"])


# Reports


def example(psnr: float = 30.0, **changes: object) -> Row:
    row = Row(
        "denoise-bsd400", "Set12", 25, "BM3D", "01", psnr, 0.85, 1.0, 0, "whole", "bm3d", "", "CPU"
    )  # fmt: skip
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def complete(psnr: float, method: str = "BM3D", **changes: Any) -> list[Row]:
    return [
        example(psnr, image=Path(file).stem, method=method, **changes)
        for _, file in datasets.published(changes.get("set", "Set12"))
    ]


def test_means_and_infinite_psnr() -> None:
    rows = [example(30.0), example(31.0, image="02"), example(math.inf, image="03", ssim=1.0)]
    (mean,) = report.means(rows)
    assert (mean.psnr, mean.images, mean.exact, mean.complete) == (30.5, 3, 1, False)
    assert mean.ssim == pytest.approx(0.9)
    (line, *_) = [line for line in report.shown(DENOISE, [mean]).lines if line[2] == "BM3D"]
    assert line[3] == "30.50 / 0.9000 (1 exact) (3 of 12)"
    (mean,) = report.means([example(math.inf)])
    assert mean.psnr == math.inf and report.pair(mean.psnr, mean.ssim) == "inf / 0.8500"
    strict = json.dumps(report.to_json([example(math.inf)]), allow_nan=False)
    assert json.loads(strict)["means"][0]["psnr"] == "inf"
    assert Row.from_json(json.loads(strict)["rows"][0]) == example(math.inf)


def test_rows_of_other_settings_are_not_mixed() -> None:
    rows = [example(), example(29.0, seed=1), example(28.0, version="bm3d 5")]
    assert sorted(mean.psnr for mean in report.means(rows)) == [28.0, 29.0, 30.0]


def test_a_table_shows_the_paper_the_difference_and_the_gain() -> None:
    rows = complete(30.0, "BM3D-package") + complete(30.01, version="nlrn")
    rows += complete(30.85, "NLRN", ssim=0.87, precision="bf16", version="w@1")
    shown = report.shown(DENOISE, report.means(rows))
    lines = {line[2]: dict(zip(shown.columns, line, strict=True)) for line in shown.lines}
    assert list(lines) == ["BM3D-package", "BM3D", "WNNM", "TNRD", "DnCNN", "NLRN"]
    assert lines["NLRN"]["ours"] == "30.85 / 0.8700"
    assert lines["NLRN"]["paper"] == "30.80 / 0.8689"
    assert lines["NLRN"]["difference"] == "+0.05 / +0.0011 ▲"
    assert lines["NLRN"]["over BM3D"] == "+0.85 (+0.83)"
    assert lines["NLRN"]["how"] == "whole, bf16, CPU, w@1"
    package = lines["BM3D-package"]  # compared with the paper's BM3D, as ours is
    assert package["difference"] == "+0.03 / -0.0004 ▲" and not package["over BM3D"]
    assert lines["BM3D"]["difference"] == "+0.04 / -0.0004 ▲"
    assert lines["BM3D"]["over BM3D"] == "+0.01"
    assert lines["DnCNN"]["ours"] == "-" and lines["DnCNN"]["paper"] == "30.44 / 0.8622"
    worse = report.shown(DENOISE, report.means(complete(29.9)))
    assert "▲" not in report.markdown(worse)


def test_part_of_a_set_is_not_compared() -> None:
    shown = report.shown(DENOISE, report.means([example()]))
    line = next(line for line in shown.lines if line[2] == "BM3D")
    assert line[3] == "30.00 / 0.8500 (1 of 12)" and line[5] == ""


def test_misprints_and_other_protocols_are_marked() -> None:
    table = TABLES["denoise-bsd300"]
    rows = [example(table="denoise-bsd300", set="BSD200", level=30, method="noisy")]
    text = report.markdown(report.shown(table, report.means(rows)))
    assert "| 28.15 / 0.8423 † ‡ |" in text
    assert "†: BSD200, 30, NLRN: 0.8423 does not fit its neighbours" in text
    assert "‡: BSD200, the paper's figures follow another protocol" in text


def test_the_complexity_table_has_sizes() -> None:
    table = TABLES["complexity"]
    rows = complete(27.5, "NLRN-400", table="complexity", level=50, version="denoise-gray-s25@0")
    shown = report.shown(table, report.means(rows))
    lines = {line[2]: dict(zip(shown.columns, line, strict=True)) for line in shown.lines}
    assert lines["RED"]["parameters"] == "4,131k" and lines["RED"]["views"] == "8"
    assert lines["NLRN-400"]["parameters"] == "330k" and lines["NLRN-400"]["depth"] == "38"
    assert lines["NLRN-400"]["shared"] == "yes" and lines["NLRN-400"]["trained on"] == "400"
    assert lines["NLRN-400"]["difference"] == "-0.14"


# Documents


def test_the_documents_hold_what_the_rows_say() -> None:
    """README and docs are what --write-docs makes of the rows in the repository."""
    rows = documents.stored(ROOT)
    assert rows == documents.current(rows), "rows of weights that are no longer in the package"
    for document in documents.DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        assert documents.filled(text, rows) == text, f"{document}: run nlrn bench --write-docs"
        assert "<!-- bench" in text


def test_documents_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("--write-docs")[0] == 2
    (tmp_path / "docs").mkdir()
    block = "<!-- bench denoise-bsd400 compact -->\n<!-- /bench -->"
    (tmp_path / "README.md").write_text(f"a\n{block}\nb")
    (tmp_path / "docs" / "results.md").write_text("<!-- bench sr full -->\nold\n<!-- /bench -->\n")
    label = methods.weight_label("denoise-gray-s25")
    rows = complete(30.81, "NLRN", precision="fp32", version=label) + complete(29.97)
    stale = complete(40.0, "NLRN", precision="fp32", version="denoise-gray-s25@older")
    assert len(documents.write(rows + stale, tmp_path)) == 3
    text = (tmp_path / "README.md").read_text()
    assert "| Set12 | 25 | **30.81 / 0.8500** | 30.80 / 0.8689 | 29.97 / 0.8500 |" in text
    assert text.startswith("a\n<!-- bench") and text.endswith("<!-- /bench -->\nb")
    assert documents.write([], tmp_path) == []  # nothing new, nothing lost
    assert invoke("--write-docs")[0] == 0


def test_where_the_protocol_is_unknown_the_gain_over_bm3d_counts() -> None:
    place = {"table": "denoise-bsd300", "set": "Set14", "level": 30}
    block = "<!-- bench denoise-bsd300 compact -->\n<!-- /bench -->"
    label = methods.weight_label("denoise-gray-s30")
    ours = complete(29.6, "NLRN", precision="fp32", version=label, **place)
    for bm3d, shown in ((28.72, "**29.60 / 0.8500 (+0.88)**"), (28.73, "29.60 / 0.8500 (+0.87)")):
        text = documents.filled(block, ours + complete(bm3d, "BM3D-package", **place))
        assert f"| Set14 | 30 | {shown} | 29.37 / 0.8460 (+0.88) | {bm3d} / 0.8500 |" in text
    alone = documents.filled(block, ours)
    assert "| Set14 | 30 | 29.60 / 0.8500 | 29.37 / 0.8460 (+0.88) |" in alone


# The command


def test_the_command(small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown, said = invoke("denoise-bsd400", "--sets", "set12", "--methods", "noisy",
                               "--json", "out.json", "--markdown", "out.md")  # fmt: skip
    assert code == 0 and "noisy" in shown and not said
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["rows"]) == 9 and len(content["means"]) == 3
    assert {"set", "level", "method", "psnr", "ssim"} <= set(content["means"][0])
    assert "| Set12 | 15 | noisy |" in (tmp_path / "out.md").read_text()
    files = sorted(map(str, Path("rows").glob("*.json")))
    assert len(files) == 3
    assert invoke("--merge", *files, "--json", "merged.json")[0] == 0
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert sorted(map(str, merged["rows"])) == sorted(map(str, content["rows"]))
    assert merged["means"] == content["means"]
    assert invoke("--merge", "out.json", *files, "--json", "again.json")[0] == 0
    assert json.loads((tmp_path / "again.json").read_text())["means"] == content["means"]


def test_a_table_without_any_weight_shows_the_papers_figures(
    small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    code, shown, said = invoke("complexity", "--rows", str(tmp_path))
    assert code == 0 and "left out: NLRN-400 at 50: no weight" in said
    assert "4,131k" in shown and "27.64" in shown


def test_a_weight_of_ones_own(small_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    random_network(TINY).save_pretrained(file)
    code, shown, _ = invoke("denoise-bsd400", "--sets", "Set12", "--levels", "15", "--methods",
                            "NLRN", "--weight", str(file), "--rows", str(tmp_path / "rows"),
                            "--device", "cpu")  # fmt: skip
    assert code == 0 and "mine.safetensors@" in shown


def test_a_table_without_its_weight_gets_one_line(
    small_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    code, shown, said = invoke("sr", "--sets", "Set5", "--methods", "NLRN")
    assert code == 2 and not shown
    assert said.count("\n") == 1 and "NLRN at x2: no weight 'sr-y' yet" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "unknown table 'nonsense'; tables: denoise-bsd400, denoise-bsd300, sr, co"),
        ([], "give one TABLE, or --merge FILES, or --write-docs"),
        (["sr", "complexity"], "give one TABLE"),
        (["sr", "--sets", "Set6"], "sr has no set 'Set6'"),
        (["sr", "--levels", "two"], "levels must be whole numbers such as 15,25, got 'two'"),
        (["sr", "--protocol", "half"], "protocol must be whole or overlap"),
        (["sr", "--part", "half"], "part must be such as 1/2, got 'half'"),
        (["sr", "--part", "3/2"], "part must be one of 1/n to n/n, got 3/2"),
        (["sr", "--data", "nowhere"], "nowhere: the data root is not a folder"),
        (["sr", "--json", "nowhere/x.json"], "nowhere/x.json: its folder does not exist"),
        (["--merge", "nowhere.json"], "nowhere.json: No such file or directory"),
        (
            ["denoise-bsd400", "--sets", "Set12", "--methods", "NLRN", "--weight", "no"],
            "no: neither a file nor a model of the package",
        ),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, small_root: Path) -> None:
    code, shown, said = invoke(*arguments)
    assert code == 2 and not shown
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said


def test_a_damaged_image_gets_one_line(small_root: Path, tmp_path: Path) -> None:
    file = small_root / "set12" / "1.png"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    code, _, said = invoke("denoise-bsd400", "--sets", "Set12", "--methods", "noisy",
                           "--rows", str(tmp_path / "rows"))  # fmt: skip
    assert code == 2 and said.count("\n") == 1
    assert f"{file}: sha256 differs from the manifest" in said


KILLED = """
import sys, time
from pathlib import Path
from nlrn.bench import methods, run
run.SAVE_SECONDS = 0.0
def slow(degraded, level):
    time.sleep(float(sys.argv[1]))
    return degraded
methods.BASELINES["denoise"]["noisy"] = slow
from nlrn.cli import app
app(sys.argv[2:], standalone_mode=False)
"""


@needs_images
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """SIGKILL in the middle; the JSON is that of a run that nobody stopped, but for its times."""

    def start(pause: float, folder: str) -> subprocess.Popen[bytes]:
        options = ["bench", "denoise-bsd400", "--sets", "Set12", "--methods", "noisy"]
        options += ["--rows", str(tmp_path / folder), "--json", str(tmp_path / f"{folder}.json")]
        script = [sys.executable, "-c", KILLED, str(pause), *options]
        return subprocess.Popen(script, stdout=subprocess.DEVNULL)

    process = start(0.2, "killed")
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = run.read_rows((tmp_path / "killed").glob("*.json"))
    assert 12 <= len(rows) < 36
    for folder in ("killed", "whole"):
        assert start(0, folder).wait(timeout=120) == 0
    killed, whole = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("killed", "whole"))
    assert without_time(killed["rows"]) == without_time(whole["rows"])
    assert without_time(killed["means"]) == without_time(whole["means"])
    kept = {(row.level, row.image): row.seconds for row in rows}
    again = {(row["level"], row["image"]): row["seconds"] for row in killed["rows"]}
    assert all(again[key] == seconds for key, seconds in kept.items())


@needs_images
def test_the_harness_itself_costs_nothing(tmp_path: Path) -> None:
    begun = time.process_time()
    cells, _ = run.plan(DENOISE, Path(str(DATA)), Setting(), sets=["Set12"], wanted=["noisy"])
    assert len(run.run(cells, tmp_path)) == 36
    assert time.process_time() - begun < 15  # about 2 s; other programs do not count


@needs_images
@pytest.mark.slow
def test_bm3d_on_set12_is_where_the_paper_has_it(tmp_path: Path) -> None:
    setting = Setting(device="cpu")
    cells, _ = run.plan(
        DENOISE, Path(str(DATA)), setting, sets=["Set12"], levels=[25], wanted=["BM3D"]
    )
    (mean,) = report.means(run.run(cells, tmp_path))
    assert mean.complete and abs(mean.psnr - 29.97) < 0.15


@needs_images
@pytest.mark.slow
def test_bicubic_on_set5_is_where_everyone_has_it(tmp_path: Path) -> None:
    cells, _ = run.plan(SR, Path(str(DATA)), Setting(), sets=["Set5"], wanted=["bicubic"])
    found = report.means(run.run(cells, tmp_path))
    assert [mean.psnr for mean in found] == pytest.approx([33.66, 30.39, 28.42], abs=0.02)
    assert [mean.ssim for mean in found] == pytest.approx([0.9299, 0.8682, 0.8104], abs=0.001)
