"""Rows beside the paper's figures: means, rendered tables, README and docs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nlrn import datasets
from nlrn.bench import documents, methods, report
from nlrn.bench.run import Row
from nlrn.bench.tables import TABLES

ROOT = Path(__file__).parents[1]
DENOISE = TABLES["denoise-bsd400"]


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
    (line, *_) = [line for line in report.render(DENOISE, [mean]).lines if line[2] == "BM3D"]
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
    rendered = report.render(DENOISE, report.means(rows))
    lines = {line[2]: dict(zip(rendered.columns, line, strict=True)) for line in rendered.lines}
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
    worse = report.render(DENOISE, report.means(complete(29.9)))
    assert "▲" not in report.markdown(worse)


def test_part_of_a_set_is_not_compared() -> None:
    rendered = report.render(DENOISE, report.means([example()]))
    line = next(line for line in rendered.lines if line[2] == "BM3D")
    assert line[3] == "30.00 / 0.8500 (1 of 12)" and line[5] == ""


def test_misprints_are_marked() -> None:
    place = {"table": "denoise-bsd300", "set": "BSD200-half", "level": 30}
    rows = complete(28.2, "NLRN", **place)
    text = report.markdown(report.render(TABLES["denoise-bsd300"], report.means(rows)))
    assert "| 28.20 / 0.8500 | 28.15 / 0.8423 † | +0.05 ▲ |" in text  # its SSIM is not compared
    assert "†: BSD200-half, 30, NLRN: 0.8423 does not fit its neighbours" in text


def test_where_there_is_no_paper_peers_stand_beside_ours() -> None:
    table, place = TABLES["color"], {"table": "color", "set": "Kodak24"}
    rows = complete(32.1, "BM3D-package", **place) + complete(32.8, "denoise-rgb", **place)
    rendered = report.render(table, report.means(rows))
    assert rendered.columns == ("set", "sigma", "method", "ours", "others", "over BM3D", "s", "how")
    lines = {line[2]: dict(zip(rendered.columns, line, strict=True)) for line in rendered.lines}
    assert list(lines) == [
        "BM3D-package", "FFDNet, authors' weights", "GRL-T, published", "DRUNet, published",
        "denoise-rgb",
    ]  # fmt: skip
    assert lines["denoise-rgb"]["ours"] == "32.80 / 0.8500"
    assert lines["denoise-rgb"]["over BM3D"] == "+0.70"
    assert lines["DRUNet, published"]["others"] == "32.89"
    for shown in (report.text(rendered), report.markdown(rendered)):
        assert "paper" not in shown and "▲" not in shown
        assert "Others: PSNR as published, or measured by us with the authors' weights" in shown
        assert "Over BM3D: PSNR above that of BM3D-package with the same noise.\n" in shown


def test_without_peers_there_is_no_column_for_them() -> None:
    rows = [example(38.0, table="camera", set="PolyU", level=level) for level in (10, 0)]
    rendered = report.render(TABLES["camera"], report.means(rows))
    assert rendered.columns == ("set", "sigma", "method", "ours", "over BM3D", "s", "how")
    assert [line[1] for line in rendered.lines] == ["auto", "10"]
    assert rendered.lines[0][3] == "38.00 / 0.8500 (1 of 100)"
    assert rendered.remarks == [TABLES["camera"].protocol]


def test_the_complexity_table_has_sizes() -> None:
    table = TABLES["complexity"]
    rows = complete(27.5, "NLRN-400", table="complexity", level=50, version="denoise-gray-s25@0")
    rendered = report.render(table, report.means(rows))
    lines = {line[2]: dict(zip(rendered.columns, line, strict=True)) for line in rendered.lines}
    assert lines["RED"]["parameters"] == "4,131k" and lines["RED"]["views"] == "8"
    assert lines["NLRN-400"]["parameters"] == "330k" and lines["NLRN-400"]["depth"] == "38"
    assert lines["NLRN-400"]["shared"] == "yes" and lines["NLRN-400"]["trained on"] == "400"
    assert lines["NLRN-400"]["difference"] == "-0.14"


def test_the_documents_hold_what_the_rows_say() -> None:
    """README and docs are what `nlrn bench docs` makes of the rows in the repository."""
    rows = documents.stored_rows(ROOT)
    assert rows == documents.current_rows(rows), "rows of weights that are no longer in the package"
    for document in documents.DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        assert documents.fill(text, rows) == text, f"{document}: run nlrn bench docs"
        assert "<!-- bench" in text


def test_documents_are_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"README\.md: no such file; run this in the repository"):
        documents.write([], tmp_path)
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
    assert documents.stored_rows(tmp_path) == rows


def test_the_compact_form_says_whose_figures_they_are() -> None:
    place = {"table": "universal", "set": "Set12", "level": 50}
    rows = complete(14.77, "noisy", **place) + complete(26.71, "BM3D-package", **place)
    rows += complete(27.65, "NLRN", precision="fp32", **place)
    head, _, line, _ = documents.compact(TABLES["universal"], report.means(rows)).split("\n")
    assert head == (
        "| set | sigma | NLRN, ours | noisy, here | BM3D-package, here | DnCNN, authors' weights "
        "| FFDNet, authors' weights | ADNet, authors' weights | DRUNet, published "
        "| GRL-T, published | precision of ours |"
    )
    assert line == (
        "| Set12 | 50 | 27.65 / 0.8500 | 14.77 / 0.8500 | 26.71 / 0.8500 | 27.21 | 27.36 | 27.41 | "
        "27.90 | 27.78 | fp32 |"
    )


def test_the_compact_form_says_how_precise_ours_are() -> None:
    rows = complete(33.1, "NLRN", precision="fp32") + complete(33.2, "NLRN-MV", precision="bf16")
    line = documents.compact(DENOISE, report.means(rows)).split("\n")[2]
    assert line.endswith("| fp32, bf16 |")
    rows = complete(33.1, "NLRN", precision="fp32") + complete(33.2, "NLRN-MV", precision="fp32")
    assert documents.compact(DENOISE, report.means(rows)).endswith("| fp32 |\n")


def test_sets_that_the_paper_does_not_have_are_for_the_whole_table() -> None:
    label = methods.weight_label("denoise-gray-s30")
    rows = []
    for image_set in ("S14", "Set14"):
        place = {"table": "denoise-bsd300", "set": image_set, "level": 30}
        rows += complete(29.4, "NLRN", precision="fp32", version=label, **place)
    block = "<!-- bench denoise-bsd300 {} -->\n<!-- /bench -->"
    short, whole = (documents.fill(block.format(form), rows) for form in ("compact", "full"))
    assert "| S14 | 30 | **29.40 / 0.8500** | 29.37 / 0.8460 |" in short and "Set14" not in short
    assert "| Set14 | 30 | NLRN | 29.40 / 0.8500 | - |" in whole
