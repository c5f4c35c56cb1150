"""The paper's ablations: variants trained and measured, their rows, tables and curves."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from training_runs import OFF, ON, write_config
from typer.testing import CliRunner

from nlrn import ablate, datasets, models, training
from nlrn.bench import ablations, curves, documents, report
from nlrn.bench.ablations import ABLATIONS, VARIANTS, AblationRow, AblationRows
from nlrn.cli import app
from nlrn.models.nlrn import NLRN
from nlrn.ops import AFFINITIES
from nlrn.training import config as configuration
from nlrn.training.config import Config

ROOT = Path(__file__).parents[1]
SCHEDULE = ROOT / "configs" / "ablation-s25.toml"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small root with two images of Set12 of their own."""
    folder, names = root / "set12", {}
    folder.mkdir(exist_ok=True)
    for number in range(2):
        file = folder / f"{number}.png"
        pixels = np.random.default_rng(number).integers(0, 256, (17, 22), dtype=np.uint8)
        Image.fromarray(pixels).save(file)
        names[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    published = datasets.manifest()
    monkeypatch.setattr(datasets, "manifest", lambda: published | {"set12": names})
    return root


def schedule(folder: Path, *, steps: int = 2, log_every: int = 1) -> Path:
    stages = OFF.format(steps=2), ON.format(steps=steps)
    return write_config(folder / "schedule.toml", *stages, log_every=log_every)


def row(variant: str, psnr: float, seed: int = 0, key: str = "k") -> AblationRow:
    return AblationRow(variant, seed, key, 100, 2.0, "CPU", "fp32", psnr - 2, psnr)


def rows(*found: AblationRow) -> AblationRows:
    return AblationRows({"k": "All trained alike."}, found)


def test_variants_are_the_papers() -> None:
    base = configuration.load(SCHEDULE)
    made = {name: ablate.config_for(base, name, 0).model for name in VARIANTS}
    metrics = {made[name].affinity for name in ABLATIONS["ablation-metric"].labels}
    assert metrics == set(AFFINITIES)
    assert [made[name].window for name in ABLATIONS["window"].labels] == [*range(5, 66, 10), 89]
    assert [made[name].steps for name in ABLATIONS["steps"].labels] == [*range(2, 17, 2)]
    assert NLRN(made["rnn"]).convolution_parameters == 330_886
    assert {made[f"every-{k}"].non_local_every for k in (2, 3)} == {2, 3}
    assert not made["untied"].tied and not made["no-propagation"].propagate
    for ablation in ABLATIONS.values():
        assert ablations.BASE in ablation.labels
        assert set(ablation.labels) <= set(VARIANTS)
    used = [name for ablation in ABLATIONS.values() for name in ablation.labels]
    assert set(used) == set(VARIANTS)
    patch = base.stages[-1].patch
    assert 2 * patch - 1 == ablations.WHOLE  # from one corner to the other
    assert base.model == models.ARCHITECTURES["nlrn"].config_class()


def test_variants_differ_in_the_model_alone() -> None:
    base = configuration.load(SCHEDULE)
    for variant in VARIANTS:
        config = ablate.config_for(base, variant, 3)
        same = dataclasses.replace(config, model=base.model, runtime=base.runtime, name=base.name)
        assert same == dataclasses.replace(base, seed=3)
        without_kernel = not config.model.attention.kind.softmax
        assert config.runtime.attention == "dense" or not without_kernel


def test_the_key_is_that_of_the_schedule(tmp_path: Path) -> None:
    base = configuration.load(schedule(tmp_path))
    key = ablate.schedule_key(base)
    same = dataclasses.replace(
        base, name="other", seed=4, runtime=dataclasses.replace(base.runtime, log_every=9)
    )
    assert ablate.schedule_key(same) == key
    assert ablate.schedule_key(configuration.load(schedule(tmp_path, steps=3))) != key


def test_the_schedule_in_words() -> None:
    words = ablate.in_words(configuration.load(SCHEDULE))
    assert "trained alike on bsd400 at sigma 25" in words and "with muon" in words
    assert "4,000 steps without the module, batch-norm statistics learned" in words
    assert "9,000 steps with the module (mask border), batch-norm statistics frozen" in words
    assert "16 patches of 45 x 45" in words and "\n" not in words


@pytest.mark.parametrize("variant", ["base", "dot", "rnn", "untied", "every-2", "T4", "q15"])
def test_a_variant_is_trained_and_measured(variant: str, images: Path, tmp_path: Path) -> None:
    base = configuration.load(schedule(tmp_path))
    found = ablate.ablate(
        base, [variant], tmp_path / "rows.json", root=images, out=tmp_path / "runs"
    )
    (made,) = found.rows
    assert made.precision == "fp32"
    assert (made.variant, made.seed, made.steps, made.device) == (variant, 0, 4, "CPU")
    assert made.schedule == ablate.schedule_key(base)
    assert list(found.schedules.values()) == [ablate.in_words(base)]
    assert 5 < made.test_psnr < 40 and 5 < made.validation_psnr < 40
    file = tmp_path / "runs" / f"{variant}-seed0" / "weights.safetensors"
    config = models.load(file).config
    assert config == ablate.config_for(base, variant, 0).model
    assert ablations.read([tmp_path / "rows.json"]) == found


def test_what_has_a_row_is_not_trained_again_and_what_was_stopped_goes_on(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, file = configuration.load(schedule(tmp_path, steps=3)), tmp_path / "rows.json"
    calls, run = [], training.run

    def stopped_once(config: Config, **options: Any) -> Path:
        calls.append((config.name, options["resume"]))
        stages = config.stages[:1] if len(calls) == 1 else config.stages
        return run(dataclasses.replace(config, stages=stages), **options)

    monkeypatch.setattr(training, "run", stopped_once)
    train = functools.partial(ablate.ablate, base, root=images, out=tmp_path / "runs", file=file)
    assert not train(["base"]).rows and not file.exists()
    assert [r.steps for r in train(["base"]).rows] == [5]
    found = train(["base", "T2"])
    assert [r.variant for r in found.rows] == ["base", "T2"]
    assert calls == [("base-seed0", False), ("base-seed0", True), ("T2-seed0", False)]
    again = train(["base"], seed=1)
    assert [r.seed for r in again.rows] == [0, 0, 1]
    assert again.rows[0].test_psnr != again.rows[2].test_psnr


def test_what_wants_exact_scores_is_measured_with_them(images: Path, tmp_path: Path) -> None:
    base, file = configuration.load(schedule(tmp_path)), tmp_path / "rows.json"
    found = ablate.ablate(
        base, ["T2", "gaussian"], file, root=images, out=tmp_path / "runs", dtype="bf16"
    )
    assert [(r.variant, r.precision) for r in found.rows] == [("T2", "bf16"), ("gaussian", "fp32")]


def test_the_time_is_for_all_variants_together(images: Path, tmp_path: Path) -> None:
    base, out = configuration.load(schedule(tmp_path)), tmp_path / "runs"
    found = ablate.ablate(
        base, ["base", "T2"], tmp_path / "r.json", root=images, out=out, time_budget_seconds=1e-3
    )
    assert not found.rows
    assert not (out / "T2-seed0").exists()  # none was left for the other


def test_a_run_that_cannot_go_on_leaves_the_others_alone(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training.run

    def diverges(config: Config, **options: Any) -> Path:
        if "q5" in config.name:
            raise training.TrainingError("the loss is nan")
        return run(config, **options)

    monkeypatch.setattr(training, "run", diverges)
    base, file = configuration.load(schedule(tmp_path)), tmp_path / "rows.json"
    with pytest.raises(ValueError, match="q5-seed0: the loss is nan"):
        ablate.ablate(base, ["q5", "T2"], file, root=images, out=tmp_path / "runs")
    assert [r.variant for r in ablations.read([file]).rows] == ["T2"]


def test_mistakes_are_named(tmp_path: Path, images: Path) -> None:
    base, file = configuration.load(schedule(tmp_path)), tmp_path / "rows.json"
    with pytest.raises(ValueError, match="unknown variant 'q6'; variants: base, euclidean"):
        ablate.ablate(base, ["q6"], file, root=images, out=tmp_path)
    minutes = dataclasses.replace(base.stages[0], steps=0, minutes=1.0)
    timed = dataclasses.replace(base, stages=(minutes,))
    with pytest.raises(ValueError, match="must have steps, got minutes"):
        ablate.ablate(timed, ["base"], file, root=images, out=tmp_path)
    file.write_text('{"schedules": {}, "rows": [{"variant": "base"}]}')
    with pytest.raises(ValueError, match=r"rows\.json: no rows of ablations \(schedules, and var"):
        ablations.read([file])
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        ablations.read([tmp_path / "none.json"])


def test_rows_of_several_machines_are_joined(tmp_path: Path) -> None:
    first, second = rows(row("base", 30.5), row("dot", 30.1)), rows(row("dot", 30.2))
    other = AblationRows({"z": "Otherwise."}, (row("base", 29.0, key="z"),))
    for name, content in (("a", first), ("b", second), ("c", other)):
        ablations.write(tmp_path / name, content)
    found = ablations.read(tmp_path / name for name in "abc")
    assert [r.test_psnr for r in found.rows] == [30.5, 30.2, 29.0]
    assert found.schedules == {"k": "All trained alike.", "z": "Otherwise."}


def test_a_table_has_ours_the_papers_and_the_spread() -> None:
    found = rows(row("base", 30.5), row("base", 30.54, seed=1), row("every-2", 30.49))
    rendered = ablations.render(ABLATIONS["ablation-variant"], found)
    lines = {line[2]: dict(zip(rendered.columns, line, strict=True)) for line in rendered.lines}
    base, other = lines["NLRN"], lines["non-local module in every other state"]
    assert (base["ours"], base["spread"], base["to base"]) == (
        "30.520",
        "0.040 (2 seeds)",
        "+0.000",
    )
    assert (base["paper"], base["to base, paper"], base["minutes"]) == ("30.80", "+0.00", "2.0")
    assert (other["ours"], other["spread"], other["to base"]) == ("30.490", "", "-0.030")
    assert (other["paper"], other["to base, paper"]) == ("30.76", "-0.04")
    assert lines["without parameter sharing"]["ours"] == "-"
    assert rendered.remarks[0] == "All trained alike."
    assert "NLRN" in report.text(rendered) and "| 30.520 |" in report.markdown(rendered)


def test_a_whole_table_says_whose_order_is_what() -> None:
    names = list(ABLATIONS["ablation-metric"].labels)
    found = rows(*(row(name, 30 + 0.01 * place) for place, name in enumerate(names)))
    order = ablations.render(ABLATIONS["ablation-metric"], found).remarks[1]
    assert order.startswith("Best first, ours: embedded Gaussian, symmetric embedded Gaussian, Gau")
    assert order.endswith("Euclidean distance, Gaussian, dot product.")
    names = list(ABLATIONS["window"].labels)
    found = rows(*(row(name, 30 + 0.01 * place) for place, name in enumerate(names)))
    said = ablations.render(ABLATIONS["window"], found).remarks[1]
    assert said.startswith("Highest here at q = whole patch. The paper") and "q = 45" in said


def test_only_rows_of_the_last_schedule_are_shown() -> None:
    old = AblationRows({"old": "Before."}, (row("base", 20.0, key="old"), row("dot", 20.0)))
    rendered = ablations.render(ABLATIONS["ablation-metric"], old.joined(rows(row("base", 30.5))))
    assert [line[3] for line in rendered.lines] == ["-", "20.000", "-", "-", "-", "30.500"]
    assert rendered.remarks[0] == "All trained alike."


def test_a_curve_is_a_sound_picture() -> None:
    found = rows(row("q5", 30.1), row("base", 30.5), row("base", 30.6, seed=1), row("whole", 30.4))
    picture = ElementTree.fromstring(ablations.curve(ABLATIONS["window"], found))
    space = "{http://www.w3.org/2000/svg}"
    places = [float(dot.get("cx", "")) for dot in picture.iter(f"{space}circle")]
    heights = [float(dot.get("cy", "")) for dot in picture.iter(f"{space}circle")]
    assert len(places) == 3 and places == sorted(places)
    assert heights[0] > heights[2] > heights[1]  # y grows downwards
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert {"5", "45", "whole patch", "q"} <= set(texts)
    assert not ablations.curve(ABLATIONS["window"], AblationRows())
    assert not ablations.curve(ABLATIONS["ablation-metric"], found)  # a table


def test_ticks_are_round_and_hold_the_ends() -> None:
    for low, high in ((29.93, 30.61), (0, 16000), (30.5, 30.5), (-3, 4.2), (0.001, 0.0011)):
        found = curves.ticks(low, high)
        assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 9
    assert curves.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    with pytest.raises(ValueError, match="a curve needs points, 'nothing' has none"):
        curves.svg("nothing", {"a": []}, x_label="x")
    both = curves.svg("two", {"a & b": [(0, 1)], "c": [(1, 2)]}, x_label="x")
    assert "a &amp; b" in both and ElementTree.fromstring(both) is not None


def test_documents_have_tables_and_curves(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("none\n")
    page = tmp_path / "docs" / "results.md"
    page.write_text("<!-- bench steps full -->\n<!-- /bench -->\n")
    assert documents.write([], tmp_path) == [page]
    assert "No rows of ours yet." in page.read_text() and "svg" not in page.read_text()
    changed = documents.write([], tmp_path, rows(row("base", 30.5), row("T6", 30.3)))
    names = ["docs/results/ablation.json", "docs/images/steps.svg", "docs/results.md"]
    assert [
        str(path.relative_to(tmp_path)) for path in changed if "window" not in path.name
    ] == names
    assert "| T = 6 | 30.300 |" in page.read_text() and "(images/steps.svg)" in page.read_text()
    assert documents.write([], tmp_path) == []


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_commands(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, ablation in ABLATIONS.items():
        code, shown, said = invoke(name)
        assert code == 0 and not said and ablation.title in shown and "30.80" in shown
    file = str(schedule(tmp_path))
    code, shown, said = invoke("ablate", "base", "T2", "--schedule", file, "--data", str(images))
    assert code == 0 and not said and "base            seed 0  Set12" in shown
    code, shown, _ = invoke("steps", "runs/ablation.json")
    assert code == 0 and "All trained alike on bsd400 at sigma 25" in shown
    code, shown, said = invoke("ablate", "q6", "--schedule", file, "--data", str(images))
    assert code == 2 and "unknown variant 'q6'" in said and said.count("\n") == 1
    assert invoke("window", "none.json")[::2] == (
        2,
        "error: none.json: No such file or directory\n",
    )
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/results.md"):
        (tmp_path / page).write_text("<!-- bench steps full -->\n<!-- /bench -->\n")
    code, shown, _ = invoke("docs", "runs/ablation.json")
    assert code == 0 and "docs/results/ablation.json\n" in shown
    assert invoke("steps")[1] == invoke("steps", "runs/ablation.json")[1]
