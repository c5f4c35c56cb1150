from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from training_runs import OFF, ON, assert_same, tensors_of, write_config

from nlrn import models, training
from nlrn.training import checkpoint
from nlrn.training.parsing import TrainingError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("run")
    stages = OFF.format(steps=2), OFF.format(steps=2)
    config = write_config(folder / "c.toml", *stages)
    return config, training.run(config, data_root=root, out=folder / "out")


@pytest.fixture
def copy(finished: tuple[Path, Path], tmp_path: Path) -> Path:
    for name in (checkpoint.NAME, checkpoint.PREVIOUS, "metrics.jsonl"):
        (tmp_path / name).write_bytes((finished[1] / name).read_bytes())
    return tmp_path


def test_checkpoint_holds_only_tensors_and_json(finished: tuple[Path, Path]) -> None:
    tensors, metadata = checkpoint.read(finished[1] / checkpoint.NAME)
    assert json.loads(metadata["config"])["name"] == "test"
    assert json.loads(metadata["progress"])["step"] == 4
    parts = {name.split(".")[0] for name in tensors}
    assert parts == {"model", "ema_model", "adam", "grad_norms", "random"}
    assert not [file for file in finished[1].iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "foreign", "gone"])
def test_checkpoint_damaged_means_the_previous_one(
    damage: str,
    finished: tuple[Path, Path],
    copy: Path,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = copy / checkpoint.NAME
    content = path.read_bytes()
    if damage == "foreign":
        save_file({"x": torch.ones(2)}, path)
    elif damage == "gone":
        path.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes({"torn": content[:-9], "flipped": flipped, "empty": b""}[damage])
    training.run(finished[0], data_root=root, out=copy, resume=True)
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and checkpoint.PREVIOUS in warning
    assert_same(tensors_of(copy), tensors_of(finished[1]))


def test_checkpoint_nothing_to_resume_is_one_line(
    finished: tuple[Path, Path], root: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="nothing to resume"):
        training.run(finished[0], data_root=root, out=tmp_path / "new", resume=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("channels = 4", "channels = 5", r"\[model\]"),
        ("[data]", "[optimizer]\nmethod = 'muon'\n[data]", r"\[optimizer\] method"),
        ("[data]", "[data]\nself_similar_fraction = 0.5", r"\[data\] self_similar_fraction"),
        ("[data]", "[data]\nsigma_range = [0, 50]", r"\[data\] sigma_range; use another output"),
    ],
)
def test_checkpoint_of_another_model_optimizer_or_data_is_refused(
    old: str,
    new: str,
    what: str,
    finished: tuple[Path, Path],
    copy: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(finished[0].read_text().replace(old, new))
    with pytest.raises(TrainingError, match=f"another {what}"):
        training.run(other, data_root=root, out=copy, resume=True)


def test_checkpoint_a_full_disk_is_one_line_and_leaves_the_old_one(
    finished: tuple[Path, Path],
    copy: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longer = copy / "longer.toml"
    longer.write_text(finished[0].read_text() + "[[stages]]\n" + OFF.format(steps=2))
    before = (copy / checkpoint.NAME).read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TrainingError, match=r"cannot be \w+ \(No space left on device\)"):
        training.run(longer, data_root=root, out=copy, resume=True)
    assert (copy / checkpoint.NAME).read_bytes() == before
    assert not [file for file in copy.iterdir() if file.name.startswith(".")]


def in_older_words(path: Path) -> None:
    """Rewrites a checkpoint as it was written before tables and tensors had their present names."""
    tensors, metadata = checkpoint.read(path)
    older = {name.replace("ema_model.", "average."): t for name, t in tensors.items()}
    del older["grad_norms"]
    config, progress = json.loads(metadata["config"]), json.loads(metadata["progress"])
    config["machine"] = config.pop("runtime")
    config["optimizer"]["balance"] = config["optimizer"].pop("loss_balance")
    del config["optimizer"]["skip_above"]
    data = config["data"]
    for key in ("channels", "sigma_range", "validation_sigmas", "by_area", "held_out"):
        del data[key]
    data["repeating"] = data.pop("self_similar_fraction")
    (data["train"],) = data["train"]
    data["factors"] = [float(factor) for factor in data["factors"]]
    for key in ("architecture", "unshuffle", "noise_map"):
        del config["model"][key]
    progress["seen"] = progress.pop("training_sets")
    metadata |= {"config": json.dumps(config), "progress": json.dumps(progress)}
    save_file(older, path, metadata | {"sha256": checkpoint._digest(older)})


def test_a_finished_run_goes_on_where_its_last_stage_is_longer(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = OFF.format(steps=2), ON.format(steps=2)
    config = write_config(tmp_path / "c.toml", first, last)
    folder = training.run(config, data_root=root, out=tmp_path / "out")

    def steps_after(*stages: str) -> int:
        training.run(
            write_config(tmp_path / "c.toml", *stages), data_root=root, out=folder, resume=True
        )
        return int(models.load(folder / "weights.safetensors").card.steps)

    assert steps_after(first, ON.format(steps=5)) == 7
    assert capsys.readouterr().err == ""
    assert steps_after(first, ON.format(steps=5)) == 7
    assert steps_after(OFF.format(steps=9), ON.format(steps=3)) == 7
    told = capsys.readouterr().err.splitlines()
    assert told == [f"warning: stage {n} is over, what changed in it has no effect" for n in (1, 2)]


def test_checkpoint_in_older_words_resumes(
    finished: tuple[Path, Path], copy: Path, root: Path
) -> None:
    """The first half by the previous version, the second by this one: the same bits."""
    (copy / checkpoint.PREVIOUS).replace(copy / checkpoint.NAME)
    in_older_words(copy / checkpoint.NAME)
    assert any(name.startswith("average.") for name in tensors_of(copy))
    training.run(finished[0], data_root=root, out=copy, resume=True)
    assert_same(tensors_of(copy), tensors_of(finished[1]))
    _, metadata = checkpoint.read(copy / checkpoint.NAME)
    assert json.loads(metadata["progress"])["training_sets"] == ["bsd400"]
