"""Imports point down the house only, and the light parts stay light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "nlrn"
# Each storey may import from those before it, never from its own or a later one.
STOREYS = [
    ["atomic", "errors", "progress"],
    ["remote"],
    ["degrade", "hardware", "metrics", "ops", "threads"],
    ["images", "weights"],
    ["classic", "datasets", "models", "noise", "stacks"],
    ["convert", "inference", "sources"],
    ["restoration"],
    ["attention_maps"],
    ["batch", "bench", "export", "napari", "training"],
    ["ablate", "bulk", "web"],
    ["equal"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: floor for floor, rooms in enumerate(STOREYS) for room in rooms}


def rooms_imported(file: Path) -> set[str]:
    """Rooms of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where they point"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "nlrn" else [base]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("nlrn.")}
    return found - {"__version__"}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [f for f in sorted(PACKAGE.rglob("*.py")) if f != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_down(file: Path) -> None:
    room = room_of(file)
    assert room in FLOOR, f"{room} has no storey in this test's table"
    for other in rooms_imported(file) - {room}:
        assert FLOOR[other] < FLOOR[room], f"{room} imports {other}, which is not below it"


@pytest.mark.parametrize(
    "line",
    ["from nlrn import cli", "import nlrn.cli", "from nlrn.cli import app", "from . import cli",
     "from .cli import app", "def f():\n    from nlrn import cli"],
)  # fmt: skip
def test_an_upward_import_is_noticed(line: str, tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_text(line)
    with pytest.raises(AssertionError):
        for other in rooms_imported(tmp_path / "noise.py"):
            assert FLOOR[other] < FLOOR["noise"]


def loaded_modules(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


HELP = """
from unittest import mock
import nlrn.cli
with mock.patch.object(sys, "argv", ["nlrn", "--help"]):
    try:
        nlrn.cli.main()
    except SystemExit:
        pass
"""


def test_help_loads_no_torch_and_is_quick() -> None:
    modules = loaded_modules(HELP)
    assert "nlrn.cli" in modules
    assert not modules & {"torch", "numpy", "PIL", "triton", "skimage"}
    times = []
    for _ in range(5):  # the best of several, and processor time: other work does not count
        before = os.times()
        subprocess.run(
            [sys.executable, "-c", f"import sys\n{HELP}"], check=True, capture_output=True
        )
        after = os.times()
        used = after.children_user - before.children_user
        times.append(used + after.children_system - before.children_system)
    assert min(times) < 0.5


def test_data_check_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "set12").mkdir()
    arguments = f'["nlrn", "data", "check", "--data", {str(tmp_path)!r}]'
    modules = loaded_modules(HELP.replace('["nlrn", "--help"]', arguments))
    assert "nlrn.datasets" in modules
    assert not modules & {"torch", "PIL", "imagecodecs"}


def test_import_of_the_package_is_lazy() -> None:
    assert "torch" not in loaded_modules("import nlrn")
    assert "torch" not in loaded_modules("from nlrn import batch, estimate_sigma, images")
    assert "torch" in loaded_modules("from nlrn import NLRN")


def test_public_names_exist() -> None:
    import nlrn

    assert len(nlrn.__all__) <= 16
    for name in nlrn.__all__:
        assert getattr(nlrn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = nlrn.nonsense
