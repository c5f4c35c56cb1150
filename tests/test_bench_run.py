"""Tables image by image: what is measured, what is kept, what is not done twice."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio

from nlrn import datasets, degrade, weights
from nlrn.bench import report, run
from nlrn.bench.methods import MethodOptions
from nlrn.bench.tables import AUTO, TABLES
from nlrn.degrade import imresize, rgb2gray
from nlrn.images import Image
from nlrn.inference import Settings
from nlrn.models.nlrn_sr import SuperResolutionConfig, random_super_resolution
from nlrn.restoration import Upscaler
from nlrn.weights import ModelCard

DATA = os.environ.get("NLRN_DATA")
needs_images = pytest.mark.skipif(DATA is None, reason="NLRN_DATA names no folder of images")
DENOISE, SR = TABLES["denoise-bsd400"], TABLES["sr"]
COLOR, CAMERA = TABLES["color"], TABLES["camera"]


def test_rows_are_right(small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against scikit-image, for noise and for super-resolution."""
    cells, notes = run.plan(DENOISE, small_root, MethodOptions(), sets=["set12"], wanted=["NOISY"])
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
    cells, notes = run.plan(SR, small_root, MethodOptions(), sets=["Set5"], levels=[3])
    missing = {"NLRN": "sr-y", "sr-rgb-fast": "sr-rgb-fast", "sr-rgb": "sr-rgb"}
    assert notes == [f"{method} at x3: no weight {name!r} yet" for method, name in missing.items()]
    row = run.run(cells, tmp_path / "rows")[0]
    truth, small = run.degraded_pair(
        "sr", datasets.read_image(cells[0].files[0]), 3, 0, Path("0.png")
    )
    assert truth.shape == (27, 24) and small.shape == (9, 8)
    result = np.floor(imresize(small, 3).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    inside = slice(3, -3)
    expected = peak_signal_noise_ratio(truth[inside, inside], result[inside, inside])
    assert row.psnr == pytest.approx(expected, abs=1e-4)


def test_images_at_half_size(small_root: Path, tmp_path: Path) -> None:
    """Gray first, then MATLAB's imresize of 8 bits, then the noise."""
    table = TABLES["denoise-bsd300"]
    cells, _ = run.plan(
        table, small_root, MethodOptions(), sets=["bsd200-HALF", "BSD200"], wanted=["noisy"]
    )
    file = small_root / "bsds500" / "test" / "1.png"
    clean = run.read_image("BSD200-half", file)
    assert clean.dtype == np.uint8 and clean.shape == (14, 17)
    assert np.array_equal(clean, imresize(rgb2gray(datasets.read_image(file)), 0.5))
    noisy = run.degraded_pair("denoise", clean, 50, 0, file)[1]
    rounded = np.floor(noisy.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    rows = {(r.set, r.level, r.image): r.psnr for r in run.run(cells, tmp_path / "rows")}
    expected = peak_signal_noise_ratio(clean, rounded)
    assert rows["BSD200-half", 50, "1"] == pytest.approx(expected, abs=1e-4)
    assert rows["BSD200", 50, "1"] != rows["BSD200-half", 50, "1"]


def test_color_is_measured_over_the_three_channels(small_root: Path, tmp_path: Path) -> None:
    """Noise and figures against plain computations."""
    cells, notes = run.plan(COLOR, small_root, MethodOptions(), sets=["Kodak24"], wanted=["noisy"])
    assert not notes and [cell.level for cell in cells] == [5, 15, 25, 50, 75]
    row = next(r for r in run.run(cells, tmp_path) if (r.level, r.image) == (25, "1"))
    clean = datasets.read_image(small_root / "kodak24" / "1.png")
    digest = hashlib.sha256(b"0:1").digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    noisy = clean + 25 * generator.standard_normal(clean.shape)  # neither clipped nor rounded
    given = run.degraded_pair("color", clean, 25, 0, Path("1.png"))[1]
    np.testing.assert_allclose(given * 255, noisy, atol=1e-9)
    rounded = np.floor(noisy.clip(0, 255) + 0.5).astype(np.uint8)
    error = np.square(rounded.astype(float) - clean).mean()
    assert row.psnr == pytest.approx(10 * np.log10(255**2 / error), abs=1e-4)
    by_channel = [run.score(rounded[..., c], clean[..., c], border=0)[1] for c in range(3)]
    assert row.ssim == pytest.approx(np.mean(by_channel), abs=1e-6)


def test_pairs_are_measured_as_they_are(small_root: Path, tmp_path: Path) -> None:
    cells, _ = run.plan(CAMERA, small_root, MethodOptions(), wanted=["noisy"])
    assert [cell.level for cell in cells] == [AUTO, 5, 10, 15]
    rows = run.run(cells, tmp_path)
    assert [row.image for row in rows[:3]] == ["0_real", "1_real", "2_real"]
    noisy, clean = (datasets.read_image(small_root / f"polyu/1_{n}.png") for n in ("real", "mean"))
    expected = peak_signal_noise_ratio(clean, noisy)
    assert [row.psnr for row in rows[1::3]] == pytest.approx([expected] * 4, abs=1e-4)
    assert run.image_count("PolyU") == 3 and all(mean.complete for mean in report.means(rows))

    def images(**choices: Any) -> list[str]:
        cells, _ = run.plan(CAMERA, small_root, MethodOptions(), wanted=["noisy"], **choices)
        return [file.stem for file in cells[0].files]

    assert images(limit=1) == ["0_real"]
    assert images(shard=(1, 2)) == ["0_real", "2_real"] and images(shard=(2, 2)) == ["1_real"]
    with pytest.raises(ValueError, match="shard must be one of 1/n to n/n, got 0/2"):
        images(shard=(0, 2))
    with pytest.raises(ValueError, match="camera has no level 7; it has auto, 5, 10, 15"):
        images(levels=[7])


def test_what_is_there_is_not_computed_again(small_root: Path, tmp_path: Path) -> None:
    cells, _ = run.plan(
        DENOISE, small_root, MethodOptions(), sets=["Set12"], wanted=["noisy"], limit=2
    )
    seen: list[tuple[int, int]] = []
    first = run.run(cells, tmp_path, on_image=lambda cell, done, total: seen.append((done, total)))
    assert seen == [(n, 6) for n in range(6)]
    cells, _ = run.plan(DENOISE, small_root, MethodOptions(), sets=["Set12"], wanted=["noisy"])
    seen.clear()
    second = run.run(cells, tmp_path, on_image=lambda cell, done, total: seen.append((done, total)))
    assert seen == [(n, 3) for n in range(3)]
    assert [row for row in second if row.image != "2"] == first  # their seconds too
    other = run.run(cells, tmp_path, seed=1)
    assert all(a.psnr != b.psnr for a, b in zip(second, other, strict=True))
    assert run.run(cells, tmp_path) == second  # both seeds are kept


def test_shards_make_up_the_whole(small_root: Path, tmp_path: Path) -> None:
    def rows(shard: tuple[int, int], folder: str) -> list[run.Row]:
        cells, _ = run.plan(
            DENOISE, small_root, MethodOptions(), sets=["Set12"], wanted=["noisy"], shard=shard
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
    cells, _ = run.plan(DENOISE, small_root, MethodOptions(), sets=["Set12"], wanted=["noisy"])
    rows = run.run(cells, tmp_path)
    twin = dataclasses.replace(DENOISE, name="complexity")
    again = [dataclasses.replace(cell, table=twin) for cell in cells]
    shared = run.run(again, tmp_path, on_image=lambda *_: pytest.fail("computed again"))
    assert shared == [dataclasses.replace(row, table="complexity") for row in rows]


def test_the_same_network_under_another_name_shares_rows(small_root: Path, tmp_path: Path) -> None:
    cells, _ = run.plan(DENOISE, small_root, MethodOptions(), sets=["Set12"], wanted=["noisy"])
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
    def fails_late(degraded: np.ndarray, level: float) -> np.ndarray:
        if level == 25:
            raise RuntimeError("no more\nmemory")
        return degraded

    cells, _ = run.plan(DENOISE, small_root, MethodOptions(), sets=["Set12"], wanted=["noisy"])
    prepared = dataclasses.replace(cells[0].prepared, restore=fails_late)
    with pytest.raises(ValueError, match=r"noisy on Set12/0\.png: no more memory"):
        run.run([dataclasses.replace(cell, prepared=prepared) for cell in cells], tmp_path)
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
        run.plan(DENOISE, small_root, MethodOptions(), **choices)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="denoise-bsd400 has no set 'Set5'; it has Set12, BSD68,"):
        plan(sets=["Set5"])
    with pytest.raises(ValueError, match="has no level 30; it has 15, 25, 50"):
        plan(levels=[30])
    with pytest.raises(ValueError, match="has no level auto; it has 15, 25, 50"):
        plan(levels=[AUTO])
    with pytest.raises(ValueError, match="has no method 'magic'; it has noisy"):
        plan(wanted=["magic"])
    with pytest.raises(ValueError, match="limit must be 1 or more, got 0"):
        plan(limit=0)
    for shard in ((0, 2), (3, 2), (-1, 1)):
        with pytest.raises(ValueError, match="shard must be one of 1/n to n/n, got"):
            plan(shard=shard)
    with pytest.raises(ValueError, match="bsd68: no such folder; BSD68 needs"):
        plan(sets=["BSD68"])
    monkeypatch.setattr(weights, "manifest", dict)
    with pytest.raises(ValueError, match="no weight"):
        run.plan(SR, small_root, MethodOptions(), sets=["Set5"], wanted=["NLRN"])


@needs_images
def test_the_harness_itself_costs_nothing(tmp_path: Path) -> None:
    begun = time.process_time()
    cells, _ = run.plan(DENOISE, Path(str(DATA)), MethodOptions(), sets=["Set12"], wanted=["noisy"])
    assert len(run.run(cells, tmp_path)) == 36
    assert time.process_time() - begun < 15  # about 2 s; other programs do not count


@needs_images
@pytest.mark.slow
def test_bm3d_on_set12_is_where_the_paper_has_it(tmp_path: Path) -> None:
    options = MethodOptions(settings=Settings(device="cpu"))
    cells, _ = run.plan(
        DENOISE, Path(str(DATA)), options, sets=["Set12"], levels=[25], wanted=["BM3D"]
    )
    (mean,) = report.means(run.run(cells, tmp_path))
    assert mean.complete and abs(mean.psnr - 29.97) < 0.15


@needs_images
@pytest.mark.slow
def test_bicubic_on_set5_is_where_everyone_has_it(tmp_path: Path) -> None:
    cells, _ = run.plan(SR, Path(str(DATA)), MethodOptions(), sets=["Set5"], wanted=["bicubic"])
    found = report.means(run.run(cells, tmp_path))
    assert [mean.psnr for mean in found] == pytest.approx([33.66, 30.39, 28.42], abs=0.02)
    assert [mean.ssim for mean in found] == pytest.approx([0.9299, 0.8682, 0.8104], abs=0.001)


@pytest.fixture
def enlarging(tmp_path: Path) -> str:
    file = tmp_path / "sr.safetensors"
    config = SuperResolutionConfig(steps=2, channels=4, embed=2, window=5)
    random_super_resolution(config).save_pretrained(file, ModelCard("sr", "nlrn-sr", "sr", 3))
    return str(file)


def test_models_for_color_get_color_and_are_judged_by_luminance(
    enlarging: str, small_root: Path, tmp_path: Path
) -> None:
    options = MethodOptions(weight=enlarging, settings=Settings(device="cpu"))
    rows = {}
    for name in ("sr", "sr-color"):
        table = TABLES[name]
        cells, _ = run.plan(
            table, small_root, options, sets=["Set5"], levels=[2], wanted=["sr-rgb"]
        )
        rows[name] = run.run(cells, tmp_path)[0]
    cell = cells[0]
    image = degrade.mod_crop(datasets.read_image(cell.files[0]), 2)
    small = degrade.imresize(image, 0.5)
    result = Upscaler(2, enlarging).restore(Image(small)).image.pixels
    expected = run.score(result / 255, image, border=2)
    assert rows["sr-color"].psnr == pytest.approx(expected[0], abs=0.05)
    gray = [degrade.luminance(x) for x in (result, image)]
    assert rows["sr"].psnr == pytest.approx(
        run.score(gray[0] / 255, gray[1], border=2)[0], abs=0.05
    )
    assert rows["sr"].psnr != rows["sr-color"].psnr
