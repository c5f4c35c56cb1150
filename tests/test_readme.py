"""What README and docs say can be done, can be done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = ("reference/cli.md", "reference/config.md")  # from the code: tests/test_docs.py
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("code", BLOCKS)
def test_python_examples_run(code: str) -> None:
    torch.manual_seed(0)
    exec(compile(code, "example", "exec"), {})


def test_commands_name_files_and_options_that_exist() -> None:
    from typer.testing import CliRunner

    from nlrn.cli import app

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for config in re.findall(r"configs/[\w-]+\.toml", text):
        assert (ROOT / config).is_file(), config
    for page in PAGES:
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
            target, _, anchor = link.partition("#")
            if target in MADE:
                continue
            assert (page.parent / target).exists(), f"{page.name}: {link}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", (page.parent / target).read_text(), re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", title.lower()) for title in titles]
                assert anchor in [name.replace(" ", "-") for name in anchors], link
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    for command, options in re.findall(
        r"^    nlrn ((?:(?:data|bench) )?\w[\w-]*)(.*?)(?:#|$)", text, re.MULTILINE
    ):
        result = runner.invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0, f"there is no nlrn {command}"
        for option in re.findall(r"(--[a-z-]+)", options):
            assert option in result.output, f"nlrn {command} has no {option}"


@pytest.mark.slow
def test_demo_writes_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    runpy.run_path(str(ROOT / "examples" / "demo.py"))["main"](tmp_path / "demo")
    said = capsys.readouterr().out
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    noisy, restored = map(float, re.findall(r"(\d+\.\d+) dB", said))
    assert restored > noisy + 9


@pytest.mark.slow
def test_the_benchmark_of_the_classic_methods_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    main = runpy.run_path(str(ROOT / "benchmarks" / "classic.py"))["main"]
    report = main("cpu", ["bm3d"], [24, 40], 1)
    assert report["ratio"].keys() == {"24", "40"} and report["memory"]["bm3d"][40] > 0
    shown = capsys.readouterr().out
    assert "times the package's time at 40 (in this run; at most 3: " in shown
    assert "peak memory bm3d" in shown


@pytest.mark.slow
def test_the_cpu_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    report = runpy.run_path(str(ROOT / "benchmarks" / "cpu_restore.py"))["main"](32, 1)
    assert report["share_float32"] > 0 and report["memory_bfloat16"] > 0
    assert "share" in capsys.readouterr().out
