from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from training_runs import OFF, ON, assert_same, start, tensors_of, write_config

from nlrn import datasets, training
from nlrn.models.nlrn import NLRN, NLRNConfig
from nlrn.training import checkpoint, clock, loop
from nlrn.training.config_tables import OPTIMIZERS
from nlrn.training.parsing import TrainingError
from nlrn.training.report import read_metrics
from nlrn.training.step import Step, StepMetrics
from nlrn.weights import ModelCard

pytestmark = pytest.mark.usefixtures("one_thread")


def losses_of(folder: Path) -> list[float]:
    return [entry["loss"] for entry in read_metrics(folder / "metrics.jsonl") if "loss" in entry]


def test_a_run_leaves_weights_metrics_and_a_picture(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", OFF.format(steps=6), ON.format(steps=4))
    folder = training.run(config, data_root=root, out=tmp_path / "out")
    model = NLRN.from_pretrained(folder / "weights.safetensors")
    assert model.config.non_local_every == 1  # though the first stage had it off
    assert model.state_dict()["cells.0.non_local.g.weight"].abs().max() > 0
    with Image.open(folder / "validation.png") as picture:
        assert picture.size == (3 * 24, 2 * 24)  # noisy, restored, clean
    entries = read_metrics(folder / "metrics.jsonl")
    assert [e["step"] for e in entries if "loss" in e] == [2, 4, 6, 8, 10]
    assert [e["step"] for e in entries if "loss" not in e] == [6, 10]
    assert all(0 < e["psnr"] < 60 for e in entries if "loss" not in e)


def test_the_best_weights_outlive_a_run_that_goes_wrong(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ON.format(steps=6).replace("lr = 1e-3", "lr = 5.0")
    config = write_config(tmp_path / "c.toml", OFF.format(steps=6), wrong)
    folder = training.run(config, data_root=root, out=tmp_path / "out")
    reached = [e["psnr"] for e in read_metrics(folder / "metrics.jsonl") if "loss" not in e]
    assert reached[0] > reached[-1] + 1
    last, best = (NLRN.from_pretrained(folder / f"{n}.safetensors") for n in ("weights", "best"))
    assert (last.card.steps, best.card.steps) == (12, 6)
    assert best.card.validation_psnr == round(reached[0], 3)
    assert f"{reached[0]:.3f} dB before: {folder / 'best.safetensors'}" in capsys.readouterr().out

    more = write_config(tmp_path / "c.toml", OFF.format(steps=6), wrong, ON.format(steps=2))
    training.run(more, data_root=root, out=folder, resume=True)
    kept = NLRN.from_pretrained(folder / "best.safetensors")
    assert kept.card.steps == 6  # a run that goes on does not forget it
    (folder / "best.safetensors").unlink()
    end = write_config(tmp_path / "c.toml", OFF.format(steps=6), wrong, *[ON.format(steps=2)] * 2)
    training.run(end, data_root=root, out=folder, resume=True)
    found = NLRN.from_pretrained(folder / "best.safetensors")
    assert found.card.steps == 16  # the best of those that are left


def test_the_first_stage_leaves_the_modules_and_the_second_the_statistics_alone(
    root: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.toml", OFF.format(steps=4), ON.format(steps=4), log_every=4)
    training.run(config, data_root=root, out=tmp_path / "out")
    first, _ = checkpoint.read(tmp_path / "out" / checkpoint.PREVIOUS)
    second = tensors_of(tmp_path / "out")
    statistics = [name for name in second if name.startswith("ema_model.") and "running_" in name]
    assert statistics
    for name in statistics:  # frozen where the average was
        assert torch.equal(first[name], second[name.replace("ema_model.", "model.")]), name
    assert not torch.equal(first["model.conv_out.weight"], second["model.conv_out.weight"])


def test_training_makes_the_loss_smaller(root: Path, tmp_path: Path) -> None:
    stage = "steps = 120\nlr = 1e-2\nbatch = 8\npatch = 16\nnon_local = false"
    config = write_config(tmp_path / "c.toml", stage, log_every=20)
    losses = losses_of(training.run(config, data_root=root, out=tmp_path / "out"))
    assert losses[0] < 0.6  # the noisy image itself has 0.5
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIMIZERS)
def test_a_killed_run_resumes_to_the_same_bits(method: str, root: Path, tmp_path: Path) -> None:
    stages = OFF.format(steps=150), ON.format(steps=150)
    more = f"[optimizer]\nmethod = '{method}'\n"
    config = write_config(tmp_path / "c.toml", *stages, log_every=10, save=0.0, more=more)
    whole = training.run(config, data_root=root, out=tmp_path / "whole")

    process = start(config, "--data", root, "--out", tmp_path / "killed")
    metrics = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not any(entry["step"] >= 20 for entry in read_metrics(metrics)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.kill()  # SIGKILL
    process.communicate()
    _, metadata = checkpoint.read(tmp_path / "killed" / checkpoint.NAME)
    assert 0 < json.loads(metadata["progress"])["step"] < 300

    killed = training.run(config, data_root=root, out=tmp_path / "killed", resume=True)
    assert_same(tensors_of(killed), tensors_of(whole))
    assert losses_of(killed) == losses_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_loses_nothing(number: int, root: Path, tmp_path: Path) -> None:
    # The first line of metrics, and the first checkpoint, would be an hour away.
    stage = OFF + "\nschedule = 'constant'"
    config = write_config(tmp_path / "c.toml", stage.format(steps=10**7), log_every=10**7)
    process = start(config, "--data", root, "--out", tmp_path / "out")
    assert process.stdout is not None
    while "stage 1" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted, can be resumed" in said
    assert errors == "stopping after this step; once more stops at once, without saving\n"
    stopped_at = read_metrics(tmp_path / "out" / "metrics.jsonl")[-1]["step"]
    _, metadata = checkpoint.read(tmp_path / "out" / checkpoint.NAME)
    assert json.loads(metadata["progress"])["step"] == stopped_at > 0

    write_config(tmp_path / "c.toml", stage.format(steps=stopped_at + 7), log_every=10**7)
    whole = training.run(tmp_path / "c.toml", data_root=root, out=tmp_path / "whole")
    resumed = training.run(tmp_path / "c.toml", data_root=root, out=tmp_path / "out", resume=True)
    assert_same(tensors_of(resumed), tensors_of(whole))


def test_a_stage_by_time_resumes_where_its_clock_stood(root: Path, tmp_path: Path) -> None:
    stage = "minutes = 0.02\nlr = 1e-3\nlr_end = 0.0\nbatch = 4\npatch = 16\nnon_local = false"
    config = write_config(tmp_path / "c.toml", stage, log_every=5)
    folder = tmp_path / "out"
    loop._fabric_class()  # whose import would take all of the time, if this test is the first
    training.run(config, data_root=root, out=folder, time_budget_seconds=0.9)
    _, metadata = checkpoint.read(folder / checkpoint.NAME)
    first = json.loads(metadata["progress"])
    training.run(config, data_root=root, out=folder, resume=True)
    _, metadata = checkpoint.read(folder / checkpoint.NAME)
    assert json.loads(metadata["progress"])["stage"] == 1
    entries = [e for e in read_metrics(folder / "metrics.jsonl") if "loss" in e]
    rates = [entry["lr"] for entry in entries]
    assert rates == sorted(rates, reverse=True)  # the cosine goes on, it does not begin again
    assert rates[-1] < 0.1e-3
    assert first["stage"] == 0 or first["step"] == entries[-1]["step"]


def test_steps_that_take_long_do_not_outlast_the_time(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "LONG", 0.01)
    stage = "minutes = 0.003\nlr = 1e-3\nbatch = 4\npatch = 16\nnon_local = false"
    config = write_config(tmp_path / "c.toml", stage, log_every=5000)
    training.run(config, data_root=root, out=tmp_path / "out")
    _, metadata = checkpoint.read(tmp_path / "out" / checkpoint.NAME)
    progress = json.loads(metadata["progress"])
    assert progress["stage"] == 1 and 0 < progress["step"] < 5000


@pytest.mark.slow
def test_two_processes_learn_what_one_does(root: Path, tmp_path: Path) -> None:
    stage = "steps = 12\nlr = 2e-3\nbatch = 4\npatch = 12\nfreeze_norm = true"
    config = write_config(tmp_path / "c.toml", stage, log_every=1)
    process = start(config, "--data", root, "--out", tmp_path / "two", "--devices", "2")
    one = training.run(config, data_root=root, out=tmp_path / "one")
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    np.testing.assert_allclose(losses_of(tmp_path / "two"), losses_of(one), rtol=0, atol=1e-4)
    for name, tensor in tensors_of(one).items():
        if name.startswith("ema_model."):
            torch.testing.assert_close(tensors_of(tmp_path / "two")[name], tensor)


def test_a_stage_can_have_images_of_another_size(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a run that goes on with another second stage than it had been told of."""
    made: list[tuple[float, ...]] = []
    rescale = datasets.rescaled

    def rescaled(images: Any, scales: tuple[float, ...]) -> Any:
        made.append(scales)
        return rescale(images, scales)

    monkeypatch.setattr(datasets, "rescaled", rescaled)
    first = OFF.format(steps=2)
    config = write_config(tmp_path / "c.toml", first, first, f"{first}\nscales = [1.0]")
    folder = training.run(config, data_root=root, out=tmp_path / "out")
    assert made == [(1.0, 0.7), (1.0,)]  # the first two stages share theirs
    write_config(config, first, first, f"{first}\nscales = [1]", f"{first}\nscales = [0.8]")
    assert training.run(config, data_root=root, out=folder, resume=True) == folder
    assert made[2:] == [(0.8,)]


def test_start_from_takes_over_the_weights(root: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    parent = NLRN(NLRNConfig(steps=2, channels=4, embed=2, window=5, border="circular"))
    parent.card = ModelCard(training_sets=("sr291",))
    parent.save_pretrained(tmp_path / "parent.safetensors")
    stage = "steps = 1\nlr = 1e-12\nbatch = 2\npatch = 12\nfreeze_norm = true"
    config = write_config(tmp_path / "c.toml", stage)
    start_from = str(tmp_path / "parent.safetensors")
    training.run(config, data_root=root, out=tmp_path / "out", start_from=start_from)
    found = NLRN.from_pretrained(tmp_path / "out" / "weights.safetensors")
    torch.testing.assert_close(found.conv_in.weight, parent.conv_in.weight)
    assert found.config.border == "mask"
    assert found.card.training_sets == ("bsd400", "sr291")  # the parent's are not forgotten


def test_a_resumed_run_knows_where_it_came_from(root: Path, tmp_path: Path) -> None:
    """Without the parent's file, and without being told again: its images stay on the card."""
    config = write_config(tmp_path / "c.toml", OFF.format(steps=2))
    parent = training.run(config, data_root=root, out=tmp_path / "parent") / "weights.safetensors"
    text = config.read_text().replace("[data]", "[data]\ntrain = 'bsd300'")
    longer = tmp_path / "longer.toml"
    longer.write_text(text)
    training.run(longer, data_root=root, out=tmp_path / "out", start_from=str(parent))
    longer.write_text(f"{text}[[stages]]\n{OFF.format(steps=2)}\n")
    parent.unlink()
    folder = training.run(longer, data_root=root, out=tmp_path / "out", resume=True)
    card = NLRN.from_pretrained(folder / "weights.safetensors").card
    assert (card.training_sets, card.start_from) == (("bsd300", "bsd400"), str(parent))
    assert card.steps == 4


def test_start_from_another_shape_is_refused(root: Path, tmp_path: Path) -> None:
    NLRN(NLRNConfig(steps=2, channels=5, embed=2, window=5)).save_pretrained(tmp_path / "p.st")
    config = write_config(
        tmp_path / "c.toml", ON.format(steps=1), top=f"start_from = '{tmp_path}/p.st'"
    )
    with pytest.raises(TrainingError, match="does not fit the model"):
        training.run(config, data_root=root, out=tmp_path / "out")


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "c.toml", OFF.format(steps=20), save=0.0)
    pop_metrics = Step.pop_metrics

    def spoil(self: Step) -> StepMetrics:
        metrics = pop_metrics(self)
        return metrics._replace(loss=math.nan) if self.done > 6 else metrics

    monkeypatch.setattr("nlrn.training.loop.MOST", 0)  # no way back
    monkeypatch.setattr(Step, "pop_metrics", spoil)
    with pytest.raises(TrainingError, match=r"loss is nan at step 8.*last good checkpoint is kept"):
        training.run(config, data_root=root, out=tmp_path / "out")
    _, metadata = checkpoint.read(tmp_path / "out" / checkpoint.NAME)
    assert json.loads(metadata["progress"])["step"] == 6


def test_spoilt_weights_are_not_saved(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "c.toml", OFF.format(steps=4))

    def spoil(self: Step) -> StepMetrics:
        next(self.state.model.parameters()).data[0] = float("nan")
        return StepMetrics(0.1, 0.1, 0)

    monkeypatch.setattr(Step, "pop_metrics", spoil)
    with pytest.raises(TrainingError, match="training stops"):
        training.run(config, data_root=root, out=tmp_path / "out")
    assert not (tmp_path / "out" / checkpoint.NAME).exists()


def test_tensorboard_gets_the_curves_when_it_is_installed(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = write_config(tmp_path / "c.toml", OFF.format(steps=2), tensorboard=True)
    training.run(config, data_root=root, out=tmp_path / "out")
    assert list((tmp_path / "out" / "tensorboard").iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_clear_line(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", OFF.format(steps=2))
    config.write_text(config.read_text().replace("'cpu'", "'cuda'"))
    with pytest.raises(TrainingError, match="asks for a GPU"):
        training.run(config, data_root=root, out=tmp_path / "out")


def test_a_disk_that_fills_up_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    config = write_config(tmp_path / "c.toml", OFF.format(steps=2))
    monkeypatch.setattr("nlrn.training.validate.Validation.save_picture", full)
    with pytest.raises(TrainingError, match=r"out: cannot be written \(No space left on device\)"):
        training.run(config, data_root=root, out=tmp_path / "out")


def test_a_new_run_does_not_overwrite_an_old_one(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", OFF.format(steps=2))
    training.run(config, data_root=root, out=tmp_path / "out")
    with pytest.raises(TrainingError, match="holds a run already; resume it, or use another"):
        training.run(config, data_root=root, out=tmp_path / "out")


def test_a_batch_must_divide_among_the_processes(root: Path, tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "c.toml", OFF.format(steps=2).replace("batch = 4", "batch = 3")
    )
    with pytest.raises(TrainingError, match="must divide evenly, got batch 3 on 2 processes"):
        training.run(config, data_root=root, out=tmp_path / "out", devices=2)


@pytest.mark.slow
def test_the_command_prints_one_line_for_known_errors(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", "stepz = 2")
    process = start(config, "--data", root, "--out", tmp_path / "out")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("error: ") and errors.count("\n") == 1 and "'stepz'" in errors


def test_every_process_takes_its_share_of_a_batch() -> None:
    class Process:
        def __init__(self, rank: int) -> None:
            self.world_size, self.global_rank = 3, rank

    parts = [list(range(12))[loop._share(12, Process(rank))] for rank in range(3)]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
