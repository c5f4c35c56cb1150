"""A run that diverges goes back to where it was well, with a lower rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from training_runs import ON, make_root, write_config

from nlrn import training
from nlrn.training import rollback, state
from nlrn.training.config import load
from nlrn.training.config_tables import Stage
from nlrn.training.parsing import TrainingError
from nlrn.training.schedule import Progress, learning_rate
from nlrn.training.step import Step, StepMetrics

pytestmark = pytest.mark.usefixtures("one_thread")

MUON = "[optimizer]\nmethod = 'muon'\n"


def test_the_older_of_two_states_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "EVERY", 1)
    config = load(write_config(tmp_path / "c.toml", ON.format(steps=4), more=MUON))
    kept = state.make(config, torch.device("cpu"))
    guard = rollback.Rollback(kept)
    assert not guard.back()  # nothing was kept
    weight = dict(kept.model.named_parameters())["conv_in.weight"]
    memory = weight.data_ptr()
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            weight.fill_(value)
        assert not guard.is_needed(0.1 + value / 100)
    assert guard.is_needed(float("nan")) and guard.back()
    assert weight.unique().tolist() == [2.0] and weight.data_ptr() == memory


def test_a_loss_far_above_the_usual_one_is_a_divergence(tmp_path: Path) -> None:
    config = load(write_config(tmp_path / "c.toml", ON.format(steps=4)))
    guard = rollback.Rollback(state.make(config, torch.device("cpu")))
    assert not any(guard.is_needed(loss) for loss in (9.0, 0.1, 0.1, 0.1, 0.1))
    assert guard.is_needed(0.31) and not guard.is_needed(0.29)


def test_a_loss_that_creeps_up_is_one_too_and_leaves_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "EVERY", 1)
    config = load(write_config(tmp_path / "c.toml", ON.format(steps=4)))
    kept = state.make(config, torch.device("cpu"))
    guard = rollback.Rollback(kept)
    weight = dict(kept.model.named_parameters())["conv_in.weight"]
    needed = []
    for reading in range(60):  # well for 30 readings, then 2 % more each time
        with torch.no_grad():
            weight.fill_(reading)
        needed.append(guard.is_needed(0.1 * 1.02 ** max(0, reading - 29)))
        if needed[-1]:
            break
    assert needed[-1] and 40 < len(needed) < 58
    assert guard.back() and weight[0, 0, 0, 0] < 45  # when the median was still the usual one
    assert not guard.is_needed(0.1)  # what came before is forgotten


def test_the_rate_falls_with_each_time() -> None:
    stage = Stage(steps=10, lr=1.0, schedule="constant")
    assert learning_rate(stage, Progress(rollbacks=2)) == pytest.approx(0.49)
    progress = Progress(rollbacks=2)
    progress.next_stage()
    assert progress.rollbacks == 0


@pytest.mark.slow
@pytest.mark.parametrize("often", [False, True])
def test_a_run_recovers_or_says_that_it_cannot(
    often: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights are spoilt once in the middle, or all the time."""
    root = make_root(tmp_path / "data")
    config = write_config(tmp_path / "c.toml", ON.format(steps=40), more=MUON)
    pop, calls = Step.pop_metrics, []

    def spoilt(step: Step) -> StepMetrics:
        calls.append(step)
        metrics = pop(step)
        if len(calls) == 8 or (often and len(calls) > 8):
            with torch.no_grad():
                step.state.model.conv_in.weight.fill_(torch.nan)  # type: ignore[operator, union-attr]
            return metrics._replace(loss=float("nan"))
        return metrics

    monkeypatch.setattr(Step, "pop_metrics", spoilt)
    out = tmp_path / "run"
    if often:
        with pytest.raises(TrainingError, match=r"the loss is nan at step \d+, training stops"):
            training.run(config, data_root=root, out=out)
        return
    training.run(config, data_root=root, out=out)
    assert "step 16: loss nan, back to a good state" in capsys.readouterr().out
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["lr"] for line in lines if "lr" in line}
    assert rates[18] < 0.75 * rates[14]
