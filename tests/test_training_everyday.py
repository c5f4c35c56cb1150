"""Runs in color, for all noise levels, on several sets and on images of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from training_runs import OFF, ON, RUNTIME, assert_same, tensors_of

from nlrn import models, training
from nlrn.datasets import DataError
from nlrn.models.nlrn_residual import ResidualConfig, ResidualNLRN, gray_weights, random_residual
from nlrn.training import config as configuration
from nlrn.training import files
from nlrn.training.config_tables import Data
from nlrn.training.parsing import TrainingError
from nlrn.training.report import read_metrics
from nlrn.training.step import Step, StepMetrics

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = (
    "[model]\nsteps = 2\nchannels = 4\nembed = 2\nwindow = 5\nunshuffle = 2\nnoise_map = true\n"
    "in_channels = {channels}\nout_channels = {channels}\n"
)
LEVELS = (
    "[data]\nchannels = {channels}\nsigma_range = [0, 75]\nvalidation_sigmas = [15, 50]\n"
    "crop = 24\nvalidation_images = 2\nscales = [1.0]\n{more}\n"
)
OPTIMIZER = "[optimizer]\nmethod = 'muon'\nloss_balance = 0.5\nskip_above = 1.05\n"


def write_config(
    path: Path, *stages: str, channels: int = 3, save: float = 60.0, more: str = ""
) -> Path:
    runtime = RUNTIME.format(log_every=5, save=save, tensorboard="false")
    tables = "".join(f"[[stages]]\n{stage}\n" for stage in stages)
    head = MODEL.format(channels=channels) + LEVELS.format(channels=channels, more=more)
    path.write_text(f"name = 'everyday'\n{head}{OPTIMIZER}{runtime}{tables}")
    return path


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_for_all_levels_is_trained_validated_and_described(
    channels: int, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = OFF.format(steps=5), ON.format(steps=5)
    config = write_config(tmp_path / "c.toml", *stages, channels=channels)
    folder = training.run(config, data_root=root, out=tmp_path / "out")
    network = models.load(folder / "weights.safetensors")
    card = network.card
    assert (card.name, card.architecture, card.task) == ("everyday", "nlrn", "denoise")
    assert (card.channels, card.sigma, card.sigma_range) == (channels, None, (0, 75))
    assert (card.training_sets, card.steps, card.factors) == (("bsd400",), 10, ())
    entries = [e for e in read_metrics(folder / "metrics.jsonl") if "loss" not in e]
    for entry in entries:
        assert entry["psnr"] == pytest.approx((entry["psnr_15"] + entry["psnr_50"]) / 2)
        assert entry["psnr_15"] > entry["psnr_50"]
    assert card.validation_psnr == round(entries[-1]["psnr"], 3)
    said = capsys.readouterr().out
    assert f"(15: {entries[-1]['psnr_15']:.3f}, 50: {entries[-1]['psnr_50']:.3f})" in said
    assert all("skipped" in e for e in read_metrics(folder / "metrics.jsonl") if "loss" in e)
    with Image.open(folder / "validation.png") as picture:
        assert picture.size == (3 * 24, 2 * 24) and picture.mode == ("L", "RGB")[channels == 3]
    image = torch.rand(1, channels, 10, 12)
    assert network(network.input_for(image, 0.1)).shape == image.shape


@pytest.mark.slow
def test_a_run_with_levels_and_skipped_steps_resumes_to_the_same_bits(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = "steps = 120\nlr = 1e-2\nbatch = 2\npatch = 12\nfreeze_norm = true"
    config = write_config(tmp_path / "c.toml", stage, save=0.0)
    whole = training.run(config, data_root=root, out=tmp_path / "whole")
    pop_metrics = Step.pop_metrics

    def fail_after_80(self: Step) -> StepMetrics:
        if self.done > 80:
            raise RuntimeError("the machine is gone")
        return pop_metrics(self)

    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="is gone"):
        context.setattr(Step, "pop_metrics", fail_after_80)
        training.run(config, data_root=root, out=tmp_path / "cut")
    resumed = training.run(config, data_root=root, out=tmp_path / "cut", resume=True)
    assert_same(tensors_of(resumed), tensors_of(whole))
    readings = [e for e in read_metrics(whole / "metrics.jsonl") if "loss" in e]
    assert sum(entry["skipped"] for entry in readings if entry["step"] > 80) > 0


def begun_with(parent: ResidualNLRN, shape: str, root: Path, tmp_path: Path) -> Path:
    """A run of a gray network that starts from `parent` and changes next to nothing."""
    parent.save_pretrained(tmp_path / "parent.safetensors")
    stage = "steps = 1\nlr = 1e-12\nbatch = 2\npatch = 12"
    config = write_config(tmp_path / "c.toml", stage, channels=1)
    text = config.read_text()
    model = text[text.index("[model]") : text.index("[data]")]
    small = "[model]\narchitecture = 'nlrn-residual'\nchannels = 4\nembed = 2\nwindow = 5\n"
    config.write_text(text.replace(model, f"{small}{shape}\n"))
    start_from = str(tmp_path / "parent.safetensors")
    return training.run(config, data_root=root, out=tmp_path / "out", start_from=start_from)


def test_a_gray_network_starts_from_one_for_color(root: Path, tmp_path: Path) -> None:
    shape = ResidualConfig(steps=2, channels=4, embed=2, window=5, in_channels=3)
    color = random_residual(shape)
    folder = begun_with(color, "steps = 2", root, tmp_path)
    found = models.load(folder / "weights.safetensors").state_dict()
    for name, wanted in gray_weights(color).items():
        torch.testing.assert_close(found[name], wanted, msg=name)


def test_several_sets_are_trained_on_together(root: Path, tmp_path: Path) -> None:
    (root / "t91").mkdir()
    Image.fromarray(np.zeros((80, 90, 3), np.uint8)).save(root / "t91" / "mine.png")
    more = "train = ['bsds500/train', 't91', 'bsd400']\nby_area = true"
    config = write_config(tmp_path / "c.toml", OFF.format(steps=2), more=more)
    folder = training.run(config, data_root=root, out=tmp_path / "out")
    card = models.load(folder / "weights.safetensors").card
    assert card.training_sets == (
        "bsd400",
        "bsds500/train",
        "own images",
    )  # t91 has none of its own


# --- images of one's own ------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with twelve photographs and three that are too small for a patch."""
    folder, rng = tmp_path / "pictures", np.random.default_rng(0)
    for number in range(15):
        coarse = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        size = (54, 36) if number < 12 else (14, 40)
        file = folder / ("day", "night")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize(size).save(file)
    return folder


def test_a_folder_of_ones_own_images_is_enough(
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NLRN_DATA", raising=False)
    more = "train = 'pictures'\nheld_out = 0.3"
    config = write_config(tmp_path / "c.toml", OFF.format(steps=3), more=more)
    folder = training.run(config, out=tmp_path / "out")
    assert models.load(folder / "weights.safetensors").card.training_sets == ("own images",)
    said = capsys.readouterr().out.splitlines()
    small = [line for line in said if "smaller than the patches of 16 pixels" in line]
    assert len(small) == 1 and small[0].endswith("and are left out")

    moved = tmp_path / "moved"
    moved.mkdir()
    pictures.rename(moved / pictures.name)
    longer = write_config(moved / "c.toml", *[OFF.format(steps=3)] * 2, more=more)
    resumed = training.run(longer, out=folder, resume=True)
    assert models.load(resumed / "weights.safetensors").card.steps == 6
    other = write_config(moved / "c.toml", OFF.format(steps=3), more=more.replace("0.3", "0.4"))
    with pytest.raises(TrainingError, match=r"another \[data\] held_out; use another"):
        training.run(other, out=folder, resume=True)


def test_ones_own_images_in_the_folders_of_sets(pictures: Path, tmp_path: Path, root: Path) -> None:
    """As docs/training.md has it, with the sets that a config names by default."""
    own = tmp_path / "own"
    for number, name in enumerate(("train", "test", "val")):
        (own / "bsds500" / name).mkdir(parents=True)
        for file in sorted(pictures.rglob("*.png"))[4 * number : 4 * number + 4]:
            shutil.copy(file, own / "bsds500" / name / file.name)
    config = write_config(tmp_path / "c.toml", OFF.format(steps=2))
    folder = training.run(config, data_root=own, out=tmp_path / "out")
    assert models.load(folder / "weights.safetensors").card.training_sets == ("own images",)
    shutil.copy(root / "bsds500" / "test" / "100007.png", own / "bsds500" / "test")
    found = files.find(configuration.load(config).data, own)
    assert found.training_sets == ["bsd400", "own images"]
    assert {file.parent.name for file in found.validation} == {"val"}


def test_published_images_among_ones_own_are_not_forgotten(tmp_path: Path) -> None:
    """So that nobody is told a figure on images that the network was trained on."""
    for name in ("holiday/1.jpg", "bsds500/val/101085.jpg", "kodak24/mine.webp"):
        file = tmp_path / "all" / name
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "2.jpg").touch()
    data = Data(train=(str(tmp_path / "all"),), validation=str(tmp_path / "other"))
    found = files.find(data)
    assert found.training_sets == ["own images", "bsds500/val"]


def test_more_images_than_memory_are_refused_before_they_are_read(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nlrn.training.loop.free_memory", lambda device: 50_000)
    config = write_config(tmp_path / "c.toml", OFF.format(steps=3), more="train = 'pictures'")
    with pytest.raises(TrainingError, match=r"take 0\.0 GB at the scales \[1\.0\], .*fewer scales"):
        training.run(config, out=tmp_path / "out")
    monkeypatch.setattr("nlrn.training.loop.free_memory", lambda device: 10**9)
    training.run(config, out=tmp_path / "out")


def test_a_folder_for_validation_is_never_trained_on(pictures: Path, tmp_path: Path) -> None:
    more = "train = 'pictures'\nvalidation = 'pictures/night'"
    config = write_config(tmp_path / "c.toml", OFF.format(steps=3), more=more)
    found = files.find(configuration.load(config).data)
    assert {file.parent.name for file in found.validation} == {"night"}
    assert {file.parent.name for file in found.train} == {"day"}
    assert found.training_sets == ["own images"]


def test_sets_without_a_data_root_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NLRN_DATA", raising=False)
    config = write_config(tmp_path / "c.toml", OFF.format(steps=3))
    with pytest.raises(DataError, match="no data root: name the folder of the image sets"):
        training.run(config, out=tmp_path / "out")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (2, 2)])
def test_more_sets_of_weights_begin_as_the_ones_before(
    before: int, after: int, root: Path, tmp_path: Path
) -> None:
    shape = ResidualConfig(
        steps=4, channels=4, embed=2, window=5, cells=before, non_local_every=2, in_channels=1
    )
    parent = random_residual(shape)
    more = f"steps = 4\ncells = {after}\nnon_local_every = 2"
    folder = begun_with(parent, more, root, tmp_path)
    found, image = models.load(folder / "weights.safetensors"), torch.rand(1, 2, 12, 16)
    assert isinstance(found, ResidualNLRN) and len(found.states.cells) == after
    torch.testing.assert_close(found(image), parent(image), rtol=0, atol=1e-6)
