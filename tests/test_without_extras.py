"""The GPU tests on a machine that has torch and triton but not what the other tests want."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PLUGIN = """
import importlib.machinery

ABSENT = {"bioimageio", "bm3d", "cv2", "fastapi", "httpx", "hypothesis", "imagecodecs", "npe2",
          "onnx", "onnxruntime", "playwright", "pyarrow", "pydantic", "ray", "schemathesis",
          "starlette", "tensorboard", "uvicorn", "zarr"}
find = importlib.machinery.PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find(name, path, target)

importlib.machinery.PathFinder.find_spec = find_spec
"""


@pytest.mark.slow
def test_gpu_tests_are_collected_without_the_extras(tmp_path: Path) -> None:
    (tmp_path / "without_extras.py").write_text(PLUGIN)
    # Plugins of packages that are absent would not be there either.
    paths = f"{TESTS.parent / 'src'}{os.pathsep}{tmp_path}"
    environment = os.environ | {"PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "without_extras", "-m", "gpu"]
    result = subprocess.run(
        [*command, "--collect-only", "-rs", str(TESTS)],
        env=environment, cwd=TESTS.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    marked = [f for f in TESTS.glob("test_*.py") if "@pytest.mark.gpu" in f.read_text()]
    assert len(marked) > 3
    for file in marked:
        if file != Path(__file__):
            assert f"tests/{file.name}::" in result.stdout
    assert "could not import 'fastapi'" in result.stdout, "the absence is not simulated"
