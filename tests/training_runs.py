"""A small data root and small configs for the tests of training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from nlrn.datasets import VAL_NOT_IN_BSD68
from nlrn.training import checkpoint

SOURCE = Path(__file__).parents[1] / "src"

MODEL = "[model]\nsteps = 2\nchannels = 4\nembed = 2\nwindow = 5\n"
DATA = "[data]\nsigma = 25\ncrop = 24\nvalidation_images = 2\nscales = [1.0, 0.7]\n"
RUNTIME = (
    "[runtime]\naccelerator = 'cpu'\nlog_every = {log_every}\nsave_minutes = {save}\n"
    "validate_minutes = 60\ntensorboard = {tensorboard}\n"
)
OFF = "steps = {steps}\nlr = 2e-3\nbatch = 4\npatch = 16\nnon_local = false"
ON = "steps = {steps}\nlr = 1e-3\nbatch = 4\npatch = 12\nfreeze_norm = true\nwarmup = 2"


def make_root(folder: Path) -> Path:
    """A data root with a few small images in the folders of BSDS500; never square."""
    rng = np.random.default_rng(0)
    names = {
        "train": ["100075", "100080"],
        "test": ["100007"],
        "val": ["101085", *VAL_NOT_IN_BSD68[:3]],
    }
    for split, stems in names.items():
        path = folder / "bsds500" / split
        path.mkdir(parents=True)
        for stem in stems:
            coarse = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((54, 36)).save(path / f"{stem}.png")
    return folder


def write_config(
    path: Path,
    *stages: str,
    log_every: int = 2,
    save: float = 60.0,
    tensorboard: bool = False,
    top: str = "",
    more: str = "",
) -> Path:
    """A config file with the given bodies of [[stages]]."""
    runtime = RUNTIME.format(log_every=log_every, save=save, tensorboard=str(tensorboard).lower())
    tables = "".join(f"[[stages]]\n{stage}\n" for stage in stages)
    path.write_text(f"name = 'test'\n{top}\n{MODEL}{DATA}{runtime}{more}{tables}")
    return path


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """`nlrn train` with these arguments in a process of its own."""
    command = [sys.executable, "-m", "nlrn", "train", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / checkpoint.NAME)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
