from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from training_runs import OFF, write_config

from nlrn.models.nlrn import NLRN
from nlrn.training import config as configuration
from nlrn.training.config import Config
from nlrn.training.parsing import TrainingError, seconds
from nlrn.training.schedule import Progress, ema_alpha, learning_rate

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))
WEIGHTS = [path for path in CONFIGS if path.stem.startswith("denoise-gray-s")]
PAPER = "paper-s25"
EVERYDAY = ("denoise-gray", "denoise-rgb", "denoise-gray-fast", "denoise-rgb-fast")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_of_the_repository_is_sound(path: Path) -> None:
    config = configuration.load(path)
    assert config.name == path.stem
    has_norm = any(isinstance(module, nn.BatchNorm2d) for module in config.network().modules())
    if has_norm and path.stem != PAPER:  # running statistics make images explode otherwise
        assert config.stages[-1].freeze_norm
    train, *more = config.data.train
    assert not set(more) - {"cc0"}
    assert config.data.validation == f"{train.removesuffix('291')}-validation"
    stored = json.loads(json.dumps(config.to_dict()))
    assert Config.from_dict(stored) == config


def test_the_six_weights_have_the_papers_size() -> None:
    assert len(WEIGHTS) == 6
    for path in WEIGHTS:
        assert NLRN(configuration.load(path).model).convolution_parameters == 330_625


def test_the_papers_recipe_is_the_papers() -> None:
    config = configuration.load(next(path for path in CONFIGS if path.stem == PAPER))
    assert config.model == dataclasses.replace(NLRN().config, border="circular")
    (stage,) = config.stages
    assert (stage.steps, stage.batch, stage.patch, stage.border) == (500_000, 16, 45, "circular")
    assert stage.patch == config.model.window and stage.non_local and not stage.freeze_norm
    optimizer = config.optimizer
    assert (optimizer.method, optimizer.clip_norm, optimizer.ema_decay) == ("adam", 0.5, 0)
    rates = [
        learning_rate(stage, Progress(stage_step=step))
        for step in (0, 99_999, 100_000, 200_000, 300_000, 400_000, 450_000, 499_999)
    ]  # as in the authors' code
    assert rates == [1e-3 / 2**n for n in (0, 0, 1, 2, 3, 4, 5, 5)]
    assert ema_alpha(optimizer.ema_decay, 0) == 1  # no average: the weights themselves


@pytest.mark.parametrize("name", EVERYDAY)
def test_the_everyday_networks_take_any_level(name: str) -> None:
    config = configuration.load(next(path for path in CONFIGS if path.stem == name))
    network = config.network()
    assert network.in_channels == config.data.channels == (3 if "rgb" in name else 1)
    assert network.multiple == 2 and config.data.sigma_range == (0, 75)
    image = torch.rand(2, network.in_channels, 8, 10)
    inputs = network.input_for(image, torch.tensor([0.1, 0.2]))
    assert inputs.shape == (2, network.in_channels + 1, 8, 10)
    assert torch.equal(inputs[:, :-1], image)
    torch.testing.assert_close(inputs[:, -1, 3, 4], torch.tensor([0.1, 0.2]))
    assert network(inputs).shape == image.shape
    size = sum(p.numel() for p in network.parameters())
    assert size < 2_100_000  # 8 MB; six sets of weights are worth 0.15 dB (the training log)


def test_no_weight_starts_from_one_that_has_seen_other_images() -> None:
    configs = {path.stem: configuration.load(path) for path in CONFIGS if "denoise" in path.stem}
    for config in configs.values():
        if config.start_from:
            assert configs[config.start_from].data.train == config.data.train


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 9", "stepz = 9", r"stages 1: unknown key 'stepz'; known keys: steps, minutes"),
        ("[data]", "[dada]", r"unknown key 'dada'"),
        ("sigma = 25", "sigmas = 25", r"\[data\] unknown key 'sigmas'"),
        ("window = 5", "window = 6", r"\[model\] window must be odd"),
        ("window = 5", "windows = 5", r"\[model\] unknown config key 'windows'"),
        (
            "window = 5",
            "window = 5\nin_channels = 3",
            r"\[model\] takes 3 channels and gives 1, \[",
        ),
        (
            "window = 5",
            "architecture = 'unet'",
            r"\[model\] architecture must be one of nlrn, ",
        ),
        ("sigma = 25", "sigma = 25\nchannels = 2", r"\[data\] channels must be 1 or 3, got 2"),
        ("sigma = 25", "sigma_range = [50, 0]", r"\[data\] sigma_range must be two levels from 0"),
        ("sigma = 25", "sigma_range = [50]", r"sigma_range must be two levels .* got \[50.0\]"),
        ("sigma = 25", "validation_sigmas = [-5]", r"validation_sigmas must be 0 or more, got"),
        ("sigma = 25", "task = 'sr'\nsigma_range = [0, 9]", r"are for task denoise, got 'sr'"),
        ("steps = 9", "steps = 9\nscales = [2]", r"stages 1: scales must be in \(0, 1\], got \[2"),
        ("steps = 9", "steps = 9\nfactors = [3]", r"stages 1: factors must be among the data's"),
        ("sigma = 25", "held_out = 1", r"\[data\] held_out must be in \(0, 1\), got 1.0"),
        ("sigma = 25", "train = ['bsd400', 'bsd68']", r"\[data\] train must be one of .*'bsd68'"),
        ("sigma = 25", "train = []", r"\[data\] train names no image set"),
        ("sigma = 25", "train = 3", r"\[data\] 'train' must be a list, got 3"),
        ("sigma = 25", "train = 'nowhere'", r"cc0.*, or a folder of images, got 'nowhere'"),
        ("sigma = 25", "sigma = '25'", r"\[data\] 'sigma' must be float, got '25'"),
        ("sigma = 25", "sigma = 0", r"\[data\] sigma must be positive, got 0"),
        ("[1.0, 0.7]", "[1.0, 'x']", r"\[data\] 'scales': every entry must be float, got 'x'"),
        ("[1.0, 0.7]", "[1.0, 0.0]", r"\[data\] scales must be in \(0, 1\]"),
        ("sigma = 25", "sigma = 25\ntrain = 'set12'", r"train must be one of bsd400"),
        ("sigma = 25", "sigma = 25\nvalidation = 'bsd68'", r"validation must be one of"),
        ("steps = 9", "", r"either steps or minutes, got steps 0 and minutes 0.0"),
        ("steps = 9", "steps = 9\nminutes = 1", r"either steps or minutes"),
        ("steps = 9", "steps = 9\nschedule = 'linear'", r"schedule must be one of cosine"),
        ("steps = 9", "steps = 9\nhold = 1", r"hold must be in \[0, 1\), got 1"),
        ("steps = 9", "steps = 9\nhold = 0.5\nschedule = 'halved'", r"hold is for .* 'halved'"),
        ("steps = 9", "steps = 9\nborder = 'zero'", r"border must be one of mask, circular"),
        ("[data]", "[optimizer]\nmethod = 'sgd'\n[data]", r"method must be one of adam, muon"),
        ("[data]", "[optimizer]\nclip_norm = -1\n[data]", r"clip_norm must be 0 or more, got -1"),
        ("[data]", "[optimizer]\nloss_balance = 2\n[data]", r"balance must be in \[0, 1\], got 2"),
        ("[data]", "[optimizer]\nskip_above = 1\n[data]", r"must be 0 or more than 1, got 1.0"),
        ("[data]", "[optimizer]\nmomentum = 1\n[data]", r"momentum must be in \[0, 1\), got 1"),
        ("[data]", "[optimizer]\nweight_decay = 0.1\n[data]", r"is for method muon, got 'adam'"),
        ("'cpu'", "'tpu'", r"\[runtime\] accelerator must be one of auto, cpu, cuda"),
        ("name = 'test'", "", r"the config has no 'name'"),
        ("name = 'test'", "name = 'test'\nseed = 'a'", r"'seed' must be int, got 'a'"),
        ("name = 'test'", "name = test", r"not a TOML file"),
    ],
)
def test_mistakes_are_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = write_config(tmp_path / "c.toml", OFF.format(steps=9))
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(TrainingError, match=message) as caught:
        configuration.load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_missing_config_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"none\.toml: No such file"):
        configuration.load(tmp_path / "none.toml")


def test_a_single_name_does_for_a_list_and_factors_stay_whole(tmp_path: Path) -> None:
    path = write_config(tmp_path / "c.toml", OFF.format(steps=9))
    more = "[data]\ntask = 'sr'\ntrain = 't91'\nfactors = [2, 4]"
    path.write_text(path.read_text().replace("[data]", more))
    data = configuration.load(path).data
    assert data.train == ("t91",) and data.factors == (2, 4)
    assert all(type(factor) is int for factor in data.factors)


def test_a_folder_is_found_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "pictures").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "configs" / "c.toml", OFF.format(steps=9))
    text = path.read_text()
    for name in ("pictures", "elsewhere"):
        path.write_text(text.replace("[data]", f"[data]\ntrain = '{name}'"))
        data = configuration.load(path).data
        assert Path(data.train[0]).samefile(next(tmp_path.rglob(name)))
        assert data.is_own and data.validation == ""


def test_the_tiny_config_fits_the_tutorial() -> None:
    tiny = next(path for path in CONFIGS if path.stem == "tiny")
    assert tomllib.loads(tiny.read_text())["runtime"]["accelerator"] == "cpu"


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("45s", 45), ("8m", 480), ("1.5h", 5400)]
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0s", "0", "-3m", "8 m", "soon"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(TrainingError, match="a duration is something like 90s"):
        seconds(text)
