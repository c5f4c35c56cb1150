"""Networks under one budget: configs, training, rows, tables."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from small_networks import RIVALS
from training_runs import make_root
from typer.testing import CliRunner

from nlrn import datasets, equal, models, training
from nlrn.bench import documents, report
from nlrn.bench import equal as tables
from nlrn.bench.equal import COMPARISONS, EqualRow, EqualRows, Trial
from nlrn.cli import app
from nlrn.inference import Settings
from nlrn.restoration import Denoiser, Upscaler
from nlrn.training.batches import PatchSampler
from nlrn.training.config import Config
from nlrn.training.config_tables import RuntimeConfig
from nlrn.training.report import read_metrics

FOLDER = Path(__file__).parents[1] / "configs" / "equal"
CONFIGS = {config.name: config for config in equal.load(FOLDER)}
SMALL = RIVALS | {"nlrn": {"steps": 2, "channels": 4, "embed": 2, "window": 5}}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small root of the training tests, with test sets and T91 of their own."""
    root = make_root(tmp_path_factory.mktemp("equal"))
    for number, folder in enumerate(("set12", "s14", "set5", "set14", "t91")):
        (root / folder).mkdir()
        random = np.random.default_rng(number)
        for name in ("a", "b"):
            coarse = random.integers(0, 256, (6, 8), dtype=np.uint8)
            Image.fromarray(coarse).resize((50, 37)).save(root / folder / f"{name}.png")
    return root


@pytest.fixture
def images(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    own = {
        folder: {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in (root / folder).iterdir()
        }
        for folder in ("set12", "s14", "set5", "set14")
    }
    published = datasets.manifest()
    monkeypatch.setattr(datasets, "manifest", lambda: published | own)
    yield root


def small(config: Config, **changes: Any) -> Config:
    """The run with a small network and small patches, on the CPU."""
    kind = models.ARCHITECTURES[config.architecture].config_class
    stages = tuple(
        replace(stage, batch=4, patch=16, warmup=2, **changes) for stage in config.stages
    )
    data = replace(config.data, crop=24, validation_images=2, scales=(1.0,))
    # Losses of single steps are up and down, as if the run diverged; those of minutes are of many.
    log_every = 10 if changes else 1
    runtime = RuntimeConfig(accelerator="cpu", log_every=log_every, tensorboard=False)
    model = kind.from_dict(SMALL[config.architecture])
    return replace(config, model=model, data=data, runtime=runtime, stages=stages)


def test_the_budget_is_the_same_for_all() -> None:
    for comparison in COMPARISONS.values():
        own = {c.architecture: c for c in CONFIGS.values() if c.data.task == comparison.task}
        assert set(comparison.networks) == set(own)
        assert len({equal.budget_key(c) for c in own.values()}) == 1
        for config in own.values():
            assert config.name == f"{comparison.task}-{config.architecture}"
            assert sum(stage.minutes for stage in config.stages) == pytest.approx(4)
            side = 20 if config.network().factors else 64  # of what the network gets
            assert {(s.batch, s.patch) for s in config.stages} == {(16, side)}
            assert not config.start_from and config.optimizer.method == "adam"
            assert config.model == models.ARCHITECTURES[config.architecture].config_class()
            has_norm = any(isinstance(m, torch.nn.BatchNorm2d) for m in config.network().modules())
            assert config.stages[-1].freeze_norm == has_norm
    assert CONFIGS["denoise-nlrn"].data.train == ("bsd300",)
    assert CONFIGS["sr-nlrn"].data.factors == (2, 3, 4)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_network_learns_within_20_steps(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = PatchSampler.batch  # always the first one: its losses can be compared
    monkeypatch.setattr(PatchSampler, "batch", lambda self, _, *how: batch(self, 0, *how))
    config = small(CONFIGS[name])
    stage = replace(config.stages[0], minutes=0.0, steps=20, lr=3e-3, non_local=True)
    config = replace(config, stages=(stage,), seed=1)
    folder = training.run(config, data_root=root, out=tmp_path / "run")
    losses = [e["loss"] for e in read_metrics(folder / "metrics.jsonl") if "loss" in e]
    assert len(losses) == 20 and losses[-1] < 0.99 * losses[0]
    weights = folder / "weights.safetensors"
    network = models.load(weights)
    assert network.architecture == config.architecture and network.card.task == config.data.task
    x = torch.rand(1, 1, 20, 33, generator=torch.Generator().manual_seed(0))
    whole, tiled = Settings(device="cpu"), Settings(device="cpu", tile=16, exact=True)
    results = []
    for settings in (whole, tiled):
        if config.data.task == "sr":
            results.append(Upscaler(2, weights, settings=settings)(x))
        else:
            results.append(Denoiser(weights, settings=settings)(x, 50 / 255))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)
    assert results[0].shape == ((1, 1, 40, 66) if config.data.task == "sr" else x.shape)


def test_networks_are_trained_measured_and_not_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal, "CPU_SIDE", 16)
    names = ("denoise-tnrd", "sr-vdsr")
    configs = [small(CONFIGS[name], minutes=0.002) for name in names]
    file = tmp_path / "rows" / "equal.json"

    def run(**more: Any) -> EqualRows:
        return equal.run(configs, file, root=images, out=tmp_path, dtype="fp32", **more)

    assert not run(time_budget_seconds=0.0).rows
    found = run()
    denoise, sr = found.rows
    assert (denoise.task, denoise.network, denoise.seed) == ("denoise", "tnrd", 0)
    assert set(denoise.psnr) == {"Set12 50", "S14 50"}
    assert set(sr.psnr) == {f"{s} {x}" for s in ("Set5", "Set14") for x in (2, 3, 4)}
    assert all(5 < psnr < 60 for row in found.rows for psnr in row.psnr.values())
    assert denoise.optimizer == "adam, lr 0.001" and denoise.gpu_milliseconds is None
    assert denoise.steps > 0 and denoise.cpu_seconds > 0 and denoise.device == "CPU"
    assert denoise.parameters == sum(p.numel() for p in configs[0].network().parameters())
    assert found.budgets[sr.budget] == equal.in_words(configs[1])
    assert tables.read([file]) == found
    monkeypatch.setattr(training, "run", lambda *_, **__: pytest.fail("trained again"))
    assert run() == found


def test_trials_choose_the_optimizer(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal, "CPU_SIDE", 16)
    monkeypatch.setattr(equal, "TRIAL_MINUTES", 0.002)
    config = small(CONFIGS["denoise-dncnn"], minutes=0.002)
    train, begun = training.run, []

    def diverging(config: Config, **options: Any) -> Path:
        begun.append(config.name)
        if config.name.endswith("muon-0.003"):
            raise training.TrainingError("the loss is nan")
        return train(config, **options)

    monkeypatch.setattr(training, "run", diverging)

    def run() -> EqualRows:
        file = tmp_path / "equal.json"
        return equal.run([config], file, root=images, out=tmp_path, dtype="fp32", trials=True)

    with pytest.warns(UserWarning, match="muon-0.003: the loss is nan"):
        found = run()
    tried = {(trial.method, trial.lr): trial.psnr for trial in found.trials}
    assert set(tried) == {("adam", 1e-3), ("adam", 3e-4), ("muon", 1e-3)}
    method, rate = max(tried, key=lambda key: tried[key])
    assert found.rows[0].optimizer == f"{method}, lr {rate:g}"
    assert len(begun) == 5 and begun[-1] == "denoise-dncnn-seed0"
    assert run() == found and len(begun) == 5


def test_trials_are_the_same_run_in_short() -> None:
    config = CONFIGS["denoise-nlrn"]
    trials = equal.trials_of(config)
    assert [(t.optimizer.method, t.stages[0].lr) for t in trials] == [
        ("adam", 1e-3), ("adam", 3e-4), ("muon", 3e-3), ("muon", 1e-3),
    ]  # fmt: skip
    for trial in trials:
        assert sum(stage.minutes for stage in trial.stages) == pytest.approx(0.5)
        shares = [stage.lr / trial.stages[0].lr for stage in trial.stages]
        assert shares == pytest.approx([1, 0.5, 1])
        assert (trial.optimizer.weight_decay > 0) == (trial.optimizer.method == "muon")
    assert {t.optimizer.method for t in equal.trials_of(CONFIGS["denoise-nlnet"])} == {"adam"}
    budget = equal.budget_key(config)
    found = EqualRows(
        trials=(
            Trial(config.name, budget, "adam", 1e-3, 26.0),
            Trial(config.name, budget, "muon", 1e-3, 26.5),
            Trial(config.name, "other", "adam", 3e-4, 30.0),
            Trial("else", budget, "adam", 3e-4, 30.0),
        )
    )
    best = equal.chosen(config, found)
    assert (best.optimizer.method, best.stages[0].lr) == ("muon", 1e-3)
    assert equal.budget_key(best) == budget and equal.chosen(config, EqualRows()) == config


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown network 'vdsr'; in .*: denoise-dncnn, "):
        equal.load(FOLDER, ["vdsr"])
    with pytest.raises(ValueError, match=r"unknown network 'x'; in .*: none"):
        equal.load(tmp_path, ["x"])
    for name in ("denoise-red", "denoise-tnrd"):
        text = (FOLDER / f"{name}.toml").read_text()
        (tmp_path / f"{name}.toml").write_text(
            text.replace("minutes = 4", f"minutes = {len(name)}")
        )
    with pytest.raises(ValueError, match="denoise-tnrd and denoise-red have other images, pat"):
        equal.load(tmp_path)
    text = (FOLDER / "denoise-tnrd.toml").read_text().replace("patch = 64", "patch = 80")
    (tmp_path / "denoise-tnrd.toml").write_text(text)
    (tmp_path / "denoise-red.toml").write_text((FOLDER / "denoise-red.toml").read_text())
    with pytest.raises(ValueError, match="denoise-tnrd and denoise-red have other images, pat"):
        equal.load(tmp_path)
    text = (FOLDER / "sr-vdsr.toml").read_text().replace("minutes = 4", "steps = 4")
    (tmp_path / "sr-vdsr.toml").write_text(text)
    with pytest.raises(ValueError, match="sr-vdsr: the stages of a budget must have minutes"):
        equal.load(tmp_path, ["sr-vdsr"])
    config = CONFIGS["sr-vdsr"]
    config = replace(config, stages=(replace(config.stages[0], minutes=0.0, steps=5),))
    with pytest.raises(ValueError, match="sr-vdsr: the stages of a budget must have minutes"):
        equal.run([config], tmp_path / "rows.json", root=tmp_path, out=tmp_path)
    (tmp_path / "bad.json").write_text('{"budgets": {}, "trials": [], "rows": [{"task": "sr"}]}')
    with pytest.raises(ValueError, match=r"bad\.json: no rows of equal budgets \(budgets, task, "):
        tables.read([tmp_path / "bad.json"])
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        tables.read([tmp_path / "none.json"])


def row(network: str, psnr: float, **changes: Any) -> EqualRow:
    figures = {"Set12 50": psnr, "S14 50": psnr - 0.5}
    made = EqualRow("denoise", network, 0, "k", "adam, lr 0.001", 9000, 4.1, "H200", "bf16", 26.0,
                    figures, 1_234_567, 2.5e6, 0.5, 1.25)  # fmt: skip
    return replace(made, **changes)


def rows(*found: EqualRow) -> EqualRows:
    return EqualRows({"k": "Each for 4 minutes."}, found)


def test_a_table_has_ours_and_the_papers() -> None:
    rendered = tables.render(COMPARISONS["equal-denoise"], rows(row("dncnn", 26.9)))
    lines = {(line[0], line[2]): dict(zip(rendered.columns, line, strict=True))
             for line in rendered.lines}  # fmt: skip
    ours = lines["Set12", "DnCNN"]
    assert (ours["ours"], ours["paper"], ours["parameters"]) == ("26.90", "27.18", "1,234,567")
    assert (ours["work"], ours["CPU s"], ours["GPU ms"]) == ("2.50", "0.50", "1.2")
    assert ours["how"] == "adam, lr 0.001, bf16, H200" and ours["minutes"] == "4.1"
    missing = lines["Set12", "NLRN"]
    assert (missing["ours"], missing["paper"], missing["CPU s"]) == ("-", "27.60", "")
    assert (missing["parameters"], missing["work"]) == ("340,099", "17.20")
    assert lines["S14", "MemNet"]["paper"] == "26.91" and lines["S14", "TNRD"]["paper"] == "-"
    assert rendered.remarks[0] == "Each for 4 minutes."
    assert "| DnCNN | 26.90 |" in report.markdown(rendered) and "DnCNN" in report.text(rendered)
    sr = tables.render(COMPARISONS["equal-sr"], rows(row("dncnn", 26.9)))
    assert sr.remarks[0] == "No rows of ours yet." and sr.lines[0][:5] == (
        "Set5", "x2", "SRCNN", "-", "36.66",
    )  # fmt: skip


def test_another_order_than_the_papers_is_said() -> None:
    names = list(COMPARISONS["equal-denoise"].networks)
    same = rows(*(row(name, 26 + 0.1 * place) for place, name in enumerate(names)))
    remarks = tables.render(COMPARISONS["equal-denoise"], same).remarks
    assert not any("best first" in remark for remark in remarks)
    swapped = same.joined(rows(row("dncnn", 26.9)))
    remarks = tables.render(COMPARISONS["equal-denoise"], swapped).remarks
    assert remarks[1] == (
        "Set12, 50: best first, ours DnCNN, NLRN, MemNet, RED, TNRD; "
        "the paper's NLRN, MemNet, RED, DnCNN, TNRD."
    )


def test_rows_are_joined_and_the_last_budget_is_shown(tmp_path: Path) -> None:
    first, second = rows(row("red", 20.0, budget="old"), row("tnrd", 25.0)), rows(row("tnrd", 26.0))
    trial = EqualRows(trials=(Trial("a", "k", "adam", 1e-3, 25.0),))
    for name, content in (("a", first), ("b", second), ("c", trial)):
        tables.write(tmp_path / name, content)
        assert tables.is_file_of_rows(tmp_path / name)
    assert not tables.is_file_of_rows(tmp_path / "none")
    found = tables.read(tmp_path / name for name in "abc")
    assert found.trials == trial.trials
    shown = tables.rows_of(COMPARISONS["equal-denoise"], found)
    assert {name: r.psnr["Set12 50"] for name, r in shown.items()} == {"tnrd": 26.0}


def test_quality_over_work_is_a_sound_picture() -> None:
    found = rows(row("tnrd", 26.5, flop_per_pixel=5e4), row("red", 27.2, flop_per_pixel=8e6))
    picture = ElementTree.fromstring(tables.plot(COMPARISONS["equal-denoise"], found))
    space = "{http://www.w3.org/2000/svg}"
    places = [float(dot.get("cx", "")) for dot in picture.iter(f"{space}circle")]
    assert len(places) == 2 and places[0] < places[1]
    texts = {text.text for text in picture.iter(f"{space}text")}
    assert {"TNRD", "RED", "0.01", "10", "work for a pixel in MFLOP"} <= texts
    assert not tables.plot(COMPARISONS["equal-sr"], found)


def test_documents_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/results.md"):
        (tmp_path / name).write_text("none\n")
    page = tmp_path / "docs" / "rivals.md"
    page.write_text("<!-- bench equal-denoise full -->\n<!-- /bench -->\n")
    assert documents.write([], tmp_path) == [page]
    assert "No rows of ours yet." in page.read_text() and "svg" not in page.read_text()
    tables.write(tmp_path / "rows.json", rows(row("red", 27.2)))

    def invoke(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["bench", *arguments])
        return result.exit_code, result.stdout, result.stderr

    code, shown, _ = invoke("docs", "rows.json")
    names = ["docs/results/equal.json", "docs/images/equal-denoise.svg", "docs/rivals.md"]
    assert code == 0 and shown.split() == names
    assert "| RED | 27.20 | 27.33 |" in page.read_text()
    assert "(images/equal-denoise.svg)" in page.read_text()
    assert documents.write([], tmp_path) == []
    code, shown, said = invoke("equal-denoise")
    assert code == 0 and not said and "Each for 4 minutes." in shown
    code, shown, said = invoke("equal-sr")
    assert code == 0 and not said and "37.53" in shown
    code, _, said = invoke("equal", "nonsense", "--configs", str(FOLDER))
    assert code == 2 and said.startswith("error: unknown network 'nonsense'")
    assert invoke("equal-sr", "none.json")[::2] == (
        2, "error: none.json: No such file or directory\n",
    )  # fmt: skip


def test_budgets_are_told_apart() -> None:
    config = CONFIGS["denoise-red"]
    key = equal.budget_key(config)
    data = dataclasses.replace(config.data, sigma=25.0)
    assert equal.budget_key(replace(config, data=data)) != key
    larger = tuple(replace(s, patch=80) for s in config.stages)
    assert equal._pixels(replace(config, stages=larger)) == 16 * 80**2
    lapsrn = models.ARCHITECTURES["lapsrn"].config_class()
    pyramid = replace(
        CONFIGS["sr-vdsr"],
        architecture="lapsrn",
        model=lapsrn,
        data=replace(CONFIGS["sr-vdsr"].data, factors=(2, 4)),
        stages=tuple(replace(s, patch=20) for s in CONFIGS["sr-vdsr"].stages),
    )
    assert equal.budget_key(pyramid) == equal.budget_key(CONFIGS["sr-nlrn"])
    assert equal._pixels(pyramid) == 16 * 20**2 * (4 + 16) / 2  # of the results
    longer = tuple(replace(s, minutes=5.0) for s in config.stages)
    assert equal.budget_key(replace(config, stages=longer)) != key
    assert "4 minutes" in equal.in_words(config) and "sigma 50" in equal.in_words(config)
    assert "x2, x3, x4 in one model" in equal.in_words(CONFIGS["sr-drcn"])
