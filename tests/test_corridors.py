"""The way of a picture through the house, and what a user's type checker says."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from command_line import picture

import nlrn
from nlrn import cli
from nlrn.ops import blocked

PACKAGE = Path(nlrn.__file__).parent


# The states of the everyday network are a module of its own, which sr-rgb has too.
@pytest.mark.parametrize(("model", "most"), [("denoise-gray-s25", 11), ("denoise-gray", 12)])
def test_from_the_command_to_the_backend_without_a_step_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, most: int
) -> None:
    found: list[traceback.StackSummary] = []
    attend = blocked.attend

    def watched(*arguments: Any, **options: Any) -> Any:
        if not found:
            found.append(traceback.extract_stack())
        return attend(*arguments, **options)

    monkeypatch.setattr(blocked, "attend", watched)
    source = picture(tmp_path / "photo.png", (12, 17))
    command = ["nlrn", "denoise", str(source), "--device", "cpu", "--model", model]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    ours = [Path(frame.filename) for frame in found[0] if PACKAGE in Path(frame.filename).parents]
    rooms = [str(file.relative_to(PACKAGE)) for file in ours]
    assert len(rooms) + 1 <= most, rooms  # and the backend itself
    visits = [room for room, _ in groupby(rooms)]
    assert len(visits) == len(set(visits)), visits


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: f.stem)
def test_nobody_but_the_models_names_the_class_of_the_network(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0]
    # The last one exports it; a graph of another format is written layer by layer.
    if room in ("models", "weights", "export", "__init__.py"):
        return
    code = re.sub(r'"""(?:.|\n)*?"""|#.*|"[^"\n]*"', "", file.read_text(encoding="utf-8"))
    assert not re.search(r"\bNLRN\b", code)


SCRIPT = """
import numpy as np
import torch
from pathlib import Path

import nlrn

noisy = np.zeros((8, 9), np.uint8)
clean: np.ndarray = nlrn.denoise(noisy, 25, settings=nlrn.Settings(dtype="bf16"))
read: np.ndarray = nlrn.denoise(Path("photo.png"))
large = nlrn.upscale(torch.zeros(8, 9), 2)
shape: torch.Size = large.shape
denoiser = nlrn.Denoiser("denoise-gray-s25", strength=0.5)
batch: torch.Tensor = denoiser(torch.zeros(1, 1, 8, 9), sigma=0.1)
engine = nlrn.Engine(nlrn.NLRN(nlrn.NLRNConfig(steps=2)))
result: torch.Tensor = engine(torch.zeros(1, 1, 8, 9))
level: float = nlrn.estimate_sigma(noisy)
names: list[str] = [card.name for card in nlrn.list_models()]
maps = nlrn.explain(noisy, (3, 4), 25)
weights: np.ndarray = maps.weights
block = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), nlrn.NonLocalBlock2d(8, embed=4, window=7))
classic: torch.Tensor = nlrn.ClassicDenoiser("bm3d")(torch.zeros(1, 1, 8, 9), 0.1)
bigger: torch.Tensor = nlrn.Upscaler(3)(torch.zeros(1, 3, 8, 9))
"""


@pytest.mark.slow
def test_a_users_script_passes_a_strict_type_checker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(script)]
    environment = {"MYPYPATH": str(PACKAGE.parent), "PATH": ""}
    checked = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
