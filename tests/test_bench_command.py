"""nlrn bench run, merge and docs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nlrn import weights
from nlrn.bench import run
from nlrn.cli import app, main
from nlrn.models.nlrn import NLRNConfig, random_network

DATA = os.environ.get("NLRN_DATA")
needs_images = pytest.mark.skipif(DATA is None, reason="NLRN_DATA names no folder of images")
TINY = NLRNConfig(steps=2, channels=8, embed=4, window=7)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def without_time(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_the_command(small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown, said = invoke("run", "denoise-bsd400", "--sets", "set12", "--methods", "noisy",
                               "--json", "out.json", "--markdown", "out.md")  # fmt: skip
    assert code == 0 and "noisy" in shown and not said
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["rows"]) == 9 and len(content["means"]) == 3
    assert {"set", "level", "method", "psnr", "ssim"} <= set(content["means"][0])
    assert "| Set12 | 15 | noisy |" in (tmp_path / "out.md").read_text()
    files = sorted(map(str, Path("rows").glob("*.json")))
    assert len(files) == 3
    assert invoke("merge", *files, "--json", "merged.json")[0] == 0
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert sorted(map(str, merged["rows"])) == sorted(map(str, content["rows"]))
    assert merged["means"] == content["means"]
    assert invoke("merge", "out.json", *files, "--json", "again.json")[0] == 0
    assert json.loads((tmp_path / "again.json").read_text())["means"] == content["means"]


def test_the_documents_are_written_where_they_are(
    small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown, said = invoke("docs")
    assert code == 2 and not shown and "README.md: no such file; run this in the repo" in said
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("no table\n")
    page = tmp_path / "docs" / "results.md"
    page.write_text("<!-- bench denoise-bsd400 full -->\n<!-- /bench -->\n")
    assert invoke("docs")[:2] == (0, "docs/results.md\n")
    assert "| noisy |" not in page.read_text()
    arguments = ("denoise-bsd400", "--sets", "Set12", "--methods", "noisy")
    assert invoke("run", *arguments)[0] == 0
    files = map(str, Path("rows").glob("*.json"))
    assert invoke("docs", *files)[:2] == (0, "docs/results/denoise-bsd400.json\ndocs/results.md\n")
    assert "| Set12 | 15 | noisy |" in page.read_text()
    assert invoke("docs")[:2] == (0, "")


@pytest.mark.parametrize("arguments", [[], ["run"], ["merge"], ["run", "sr", "complexity"]])
def test_what_is_missing_or_too_much_is_said(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["nlrn", "bench", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    shown, said = capsys.readouterr()
    assert not shown and said.startswith("error: ") and said.count("\n") == 1


def test_a_table_without_any_weight_shows_the_papers_figures(
    small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    code, shown, said = invoke("run", "complexity", "--rows", str(tmp_path))
    assert code == 0 and "left out: NLRN-400 at 50: no weight" in said
    assert "4,131k" in shown and "27.64" in shown


def test_color_and_camera(
    small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    rows = ("--rows", str(tmp_path / "rows"))
    code, shown, said = invoke("run", "color", "--sets", "Kodak24", "--levels", "25",
                               "--methods", "noisy,denoise-rgb", *rows)  # fmt: skip
    assert code == 0 and said == "left out: denoise-rgb at 25: no weight 'denoise-rgb' yet\n"
    assert "DRUNet, published" in shown and "paper" not in shown
    code, shown, said = invoke("run", "camera", "--levels", "auto,10", "--methods", "noisy", *rows)
    assert code == 0 and not said
    assert "PolyU, sigma auto" in shown and "PolyU, sigma 10" in shown and "sigma 5" not in shown


def test_a_weight_of_ones_own(small_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    random_network(TINY).save_pretrained(file)
    code, shown, _ = invoke("run", "denoise-bsd400", "--sets", "Set12", "--levels", "15",
                            "--methods", "NLRN", "--weight", str(file), "--device", "cpu",
                            "--rows", str(tmp_path / "rows"))  # fmt: skip
    assert code == 0 and "mine.safetensors@" in shown


def test_a_table_without_its_weight_gets_one_line(
    small_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    code, shown, said = invoke("run", "sr", "--sets", "Set5", "--methods", "NLRN")
    assert code == 2 and not shown
    assert said.count("\n") == 1 and "NLRN at x2: no weight 'sr-y' yet" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nonsense"], "unknown table 'nonsense'; tables: denoise-bsd400, denoise-bsd300"),
        (["run", "sr", "--sets", "Set6"], "sr has no set 'Set6'"),
        (["run", "color", "--sets", "Set12"], "color has no set 'Set12'; it has CBSD68, Kodak24"),
        (["run", "camera", "--methods", "NLRN"], "camera has no method 'NLRN'; it has noisy, NLM-"),
        (["run", "camera", "--levels", "7"], "camera has no level 7; it has auto, 5, 10, 15"),
        (["run", "camera", "--shard", "3/2"], "shard must be one of 1/n to n/n, got 3/2"),
        (
            ["run", "color", "--sets", "Kodak24", "--levels", "5", "--methods", "NLRN-by-channel"],
            "NLRN-by-channel at 5: it is for 15, 25, 50 only",
        ),
        (["run", "sr", "--levels", "two"], "levels must be whole numbers such as 15,25, got 'two'"),
        (["run", "sr", "--protocol", "half"], "protocol must be whole or overlap"),
        (["run", "sr", "--dtype", "fp8"], "dtype must be one of fp32, bf16, got 'fp8'"),
        (["run", "sr", "--device", "abacus"], "device must be auto, cpu, cuda"),
        (["run", "sr", "--shard", "half"], "shard must be such as 1/2, got 'half'"),
        (["run", "sr", "--shard", "3/2"], "shard must be one of 1/n to n/n, got 3/2"),
        (["run", "sr", "--data", "nowhere"], "nowhere: the data root is not a folder"),
        (["run", "sr", "--json", "nowhere/x.json"], "nowhere/x.json: its folder does not exist"),
        (["merge", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["merge", "x.json", "--markdown", "nowhere/x.md"], "nowhere/x.md: its folder does not"),
        (["docs", "nowhere.json"], "nowhere.json: No such file or directory"),
        (
            ["run", "denoise-bsd400", "--sets", "Set12", "--methods", "NLRN", "--weight", "no"],
            "no: neither a file nor a model of the package",
        ),
        (
            ["run", "denoise-bsd400", "--sets", "Set12", "--methods", "NLRN", "--weight", "sr-y"],
            "sr-y: a model for super-resolution, not for denoising",
        ),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, small_root: Path) -> None:
    code, shown, said = invoke(*arguments)
    assert code == 2 and not shown
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said


def test_a_damaged_image_gets_one_line(small_root: Path, tmp_path: Path) -> None:
    file = small_root / "set12" / "1.png"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    code, _, said = invoke("run", "denoise-bsd400", "--sets", "Set12", "--methods", "noisy",
                           "--rows", str(tmp_path / "rows"))  # fmt: skip
    assert code == 2 and said.count("\n") == 1
    assert f"{file}: sha256 differs from the manifest" in said


KILLED = """
import sys, time
from pathlib import Path
from nlrn.bench import methods, run
run.SAVE_SECONDS = 0.0
def slow(degraded, level):
    time.sleep(float(sys.argv[1]))
    return degraded
methods.BASELINES["denoise"]["noisy"] = slow
from nlrn.cli import app, main
app(sys.argv[2:], standalone_mode=False)
"""


@pytest.mark.slow
@needs_images
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """SIGKILL in the middle; the JSON is that of a run that nobody stopped, but for its times."""

    def start(pause: float, folder: str) -> subprocess.Popen[bytes]:
        options = ["bench", "run", "denoise-bsd400", "--sets", "Set12", "--methods", "noisy"]
        options += ["--rows", str(tmp_path / folder), "--json", str(tmp_path / f"{folder}.json")]
        script = [sys.executable, "-c", KILLED, str(pause), *options]
        return subprocess.Popen(script, stdout=subprocess.DEVNULL)

    process = start(0.2, "killed")
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = run.read_rows((tmp_path / "killed").glob("*.json"))
    assert 12 <= len(rows) < 36
    for folder in ("killed", "whole"):
        assert start(0, folder).wait(timeout=120) == 0
    killed, whole = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("killed", "whole"))
    assert without_time(killed["rows"]) == without_time(whole["rows"])
    assert without_time(killed["means"]) == without_time(whole["means"])
    kept = {(row.level, row.image): row.seconds for row in rows}
    again = {(row["level"], row["image"]): row["seconds"] for row in killed["rows"]}
    assert all(again[key] == seconds for key, seconds in kept.items())
