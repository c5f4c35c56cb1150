"""Many files by Ray: the same results as one after the other, whatever is killed on the way."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import SMALL, assert_one_clear_line, names, nlrn, picture

from nlrn import batch, bulk, images
from nlrn.batch import FileOptions, Job, Observer
from nlrn.models.nlrn import random_network
from nlrn.restoration import Denoiser, Restored

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
    # What Ray says of its own settings whoever uses them.
    pytest.mark.filterwarnings("ignore:`use_push_based_shuffle` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`use_polars` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`use_arrow_tensor_v2` is deprecated:DeprecationWarning"),
    # What Ray leaves to the garbage collector, at any later moment.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file .*/ray/:ResourceWarning"),
]

KINDS = (
    ("png", "uint8", (9, 14, 3)), ("png", "uint16", (11, 8)), ("jpg", "uint8", (12, 10, 3)),
    ("tif", "float32", (8, 13)), ("tif", "uint16", (10, 9, 3)), ("webp", "uint8", (9, 12, 3)),
    ("bmp", "uint8", (13, 9, 3)), ("npy", "float64", (7, 11)), ("tga", "uint8", (8, 9, 3)),
    ("pgm", "uint16", (10, 13)), ("ppm", "uint8", (9, 8, 3)), ("jp2", "uint8", (12, 11)),
)  # fmt: skip
COUNT, BROKEN = 195, 5
SIGMA = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray with two cores, which all tests share."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR, object_store_memory=128 * 2**20,
    )  # fmt: skip
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "m.safetensors"
    random_network(SMALL).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of 195 small images of all kinds and 5 broken ones."""
    root = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        suffix, dtype, shape = KINDS[i % len(KINDS)]
        most = 1.0 if dtype.startswith("float") else np.iinfo(dtype).max
        pixels = (rng.random(shape) * most).astype(dtype)
        path = root / f"{i % 3}" / f"{i:03}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        images.write(path, images.Image(pixels, dpi=(300, 300)))
    for i, (suffix, content) in enumerate(_broken(root)):
        (root / "1" / f"broken{i}.{suffix}").write_bytes(content)
    return root


def _broken(root: Path) -> list[tuple[str, bytes]]:
    whole = {suffix: next(root.rglob(f"*.{suffix}")).read_bytes() for suffix in ("png", "tif")}
    halves = [(suffix, content[: len(content) // 2]) for suffix, content in whole.items()]
    return [("png", b""), ("jpg", b"no image"), ("bmp", b"BM"), *halves]


@pytest.fixture(scope="module")
def expected(
    folder: Path, weights: str, one_thread: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What the local engine makes of the folder."""
    out = tmp_path_factory.mktemp("local")
    report = batch.run(_jobs(folder, out), _denoiser(weights))
    assert (len(report.done), len(report.failed)) == (COUNT, BROKEN)
    return _contents(out)


def _jobs(folder: Path, out: Path) -> list[Job]:
    return batch.collect([str(folder)], str(out), "", recursive=True)


def _denoiser(weights: str) -> Denoiser:
    return Denoiser(weights, sigma=SIGMA)


def _contents(folder: Path) -> dict[str, bytes]:
    """All files but those that a killed worker had not renamed yet."""
    return {name: (folder / name).read_bytes() for name in names(folder) if ".nlrn-" not in name}


def _broken_names(report: batch.Report) -> list[str]:
    return [Path(failure["input"]).stem for failure in report.failed]


NAMED = [f"broken{i}" for i in range(BROKEN)]


def test_the_results_are_those_of_the_local_engine(
    cluster: str, folder: Path, weights: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, written = tmp_path / "out", tmp_path / "report.parquet"
    options = ("--model", weights, "--sigma", SIGMA, "--recursive", "--json", "--report", written)
    result = nlrn("denoise", folder, "-o", out, *options, "--engine", "ray", "--workers", 2)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exc_info
    assert _contents(out) == expected
    assert "5 of 200 files failed" in result.stderr
    for name in NAMED:
        assert f"{name}." in result.stderr
    report = json.loads(result.stdout)
    assert [facts["input"] for facts in report["done"]] == sorted(
        str(folder / name) for name in expected
    )
    assert len({facts["worker"] for facts in report["done"]}) == 2

    from pyarrow import parquet

    rows = parquet.read_table(written).to_pylist()
    assert [row["status"] for row in rows] == ["done"] * COUNT + ["failed"] * BROKEN
    assert rows[0]["sigma"] == SIGMA and rows[0]["error"] is None and rows[-1]["error"]


class _Killer(Observer):
    """Kills the worker of the 50th file that is done."""

    killed: int | None = None

    def on_done(self, facts: dict[str, Any]) -> None:
        if len(self.report.done) == 50:
            self.killed = int(facts["worker"].rpartition(":")[2])
            os.kill(self.killed, signal.SIGKILL)


def test_a_killed_worker_loses_nothing(
    cluster: str, folder: Path, weights: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    killer = _Killer()
    two = bulk.Cluster(workers=2)
    report = bulk.run(_jobs(folder, tmp_path), _denoiser(weights), None, killer, two)
    assert killer.killed is not None
    assert _contents(tmp_path) == expected
    assert report.exit_code == 1 and _broken_names(report) == NAMED
    assert len(report.done) == COUNT and not report.skipped
    workers = {facts["worker"] for facts in report.done if "worker" in facts}
    assert len(workers) == 3, "a third one took over"


def test_a_killed_job_goes_on_where_it_was(
    cluster: str, folder: Path, weights: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--model", weights, "--sigma", str(SIGMA), "--recursive", "--skip-existing"]
    given = ["denoise", str(folder), "-o", str(out), *options, "--engine", "ray", "--workers", "2"]
    # A Ray of its own, which has to go with it.
    job = subprocess.Popen([sys.executable, "-m", "nlrn", *given], stdout=subprocess.PIPE)
    assert job.stdout is not None
    for _ in range(40):
        assert job.stdout.readline()
    job.kill()
    job.stdout.close()
    job.wait()
    _wait_until_still(out)

    first, *others = sorted(out.rglob("*.png"))
    first.write_bytes(first.read_bytes()[:-7])  # as a full disk leaves it
    missing = [name for name in expected if not (out / name).exists()]
    assert missing, "it was over before it was killed"
    # Killed between writing and renaming, a worker leaves a hidden file that is whole: no result.
    results = [file for name in expected if (file := out / name).exists()]
    before = {file: file.stat().st_mtime_ns for file in results if batch.is_whole(file)}
    assert first not in before and set(others) <= set(before)
    result = nlrn(*given, "--json")
    assert result.exit_code == 1, result.output
    assert _contents(out) == expected
    report = json.loads(result.stdout)
    assert sorted(report["skipped"]) == sorted(str(folder / f.relative_to(out)) for f in before)
    assert len(report["done"]) == COUNT - len(before) and len(report["failed"]) == BROKEN
    assert all(file.stat().st_mtime_ns == written for file, written in before.items())


def _wait_until_still(folder: Path) -> None:
    """Returns when nothing has been written for two seconds: the workers have ended too."""
    seen, since, limit = names(folder), time.monotonic(), time.monotonic() + 60
    while time.monotonic() - since < 2:
        assert time.monotonic() < limit, "the workers have outlived their job"
        time.sleep(0.2)
        if names(folder) != seen:
            seen, since = names(folder), time.monotonic()


def test_a_picture_that_kills_its_workers_is_named_and_stops_nothing_else(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly:  # in here, so that it travels by value: workers have no tests to import
        def restore(self, image: images.Image, **_: Any) -> Restored:
            if image.width == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            return Restored(image, {"scale": 1})

    monkeypatch.setattr(bulk, "RETRIES", 0)
    for i in range(20):
        picture(tmp_path / "in" / f"{i}.png", (8, 13 if i == 7 else 9, 3), i)
    jobs = _jobs(tmp_path / "in", tmp_path / "out")
    report = bulk.run(jobs, Deadly(), cluster=bulk.Cluster(workers=1))
    assert [failure["error"] for failure in report.failed] == [
        f"{tmp_path / 'in' / '7.png'}: its worker was lost (killed, or no memory) 2 times"
    ]
    assert len(report.done) == 19 and len(names(tmp_path / "out")) == 19


def test_urls_lists_and_enlarging(cluster: str, tmp_path: Path) -> None:
    for name in ("a.png", "sub/b.tif"):
        picture(tmp_path / "in" / name, (7, 9))
    (tmp_path / "list.txt").write_text(
        f"file://{tmp_path}/in/a.png\nfile://{tmp_path}/in/sub/b.tif\n"
    )
    out = f"file://{tmp_path}/out"
    options = ("--engine", "ray", "--workers", 1, "--scale", 2, "--overwrite")
    result = nlrn("upscale", f"@{tmp_path}/list.txt", "-o", out, *options)
    assert result.exit_code == 0, result.output
    assert f"{out}/a.png (x2" in result.stdout
    assert nlrn("upscale", tmp_path / "in", "-r", "-o", tmp_path / "local").exit_code == 0
    assert _contents(tmp_path / "out") == _contents(tmp_path / "local")
    assert sorted(_contents(tmp_path / "out")) == ["a.png", "sub/b.tif"]


def test_the_page_on_it_can_be_followed(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "scans" / "sub" / "a.png", (8, 11))
    page = (Path(__file__).parents[1] / "docs" / "bulk.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "bulk.md", "exec"), {})
    assert names(tmp_path) == ["clean/sub/a.png", "run.parquet", "scans/sub/a.png"]


def test_a_worker_with_another_version_refuses(
    cluster: str, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "__version__", "9.9")
    result = nlrn("denoise", picture(tmp_path / "a.png"), "--model", weights, "--engine", "ray")
    assert_one_clear_line(result, "nlrn 0.1.0 on ", "9.9 at the caller")
    assert names(tmp_path) == ["a.png"]


def test_existing_results_are_refused_and_nothing_is_started(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(tmp_path / "in" / "a.png")
    target = picture(tmp_path / "out" / "a.png", seed=1)
    before = target.read_bytes()
    monkeypatch.setattr(bulk, "session", lambda *_: pytest.fail("started for nothing"))
    report = bulk.run(_jobs(tmp_path / "in", tmp_path / "out"), _denoiser(weights), FileOptions())
    assert report.exit_code == 2 and "exists already" in report.failed[0]["error"]
    assert target.read_bytes() == before


def heed_ctrl_c() -> None:
    """For a child: what runs in the background of a shell script ignores it, children included."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_tells_what_is_left_and_leaves_the_cluster_alone(
    cluster: str, weights: str, tmp_path: Path
) -> None:
    for i in range(60):  # enough to be stopped in the middle of it
        picture(tmp_path / "in" / f"{i}.png", (240, 320, 3), i)
    given = [str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--model", weights, "--views", "8"]
    command = [sys.executable, "-m", "nlrn", "denoise", *given]
    command += ["--sigma", str(SIGMA), "--engine", "ray", "--address", cluster]
    job = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )
    assert job.stdout is not None
    assert job.stdout.readline()
    os.killpg(job.pid, signal.SIGINT)
    _, errors = job.communicate(timeout=180)
    assert job.returncode == 130, errors
    assert re.fullmatch(r"interrupted: [1-9]\d? of 60 files left\n", errors), errors
    assert 0 < len(_contents(tmp_path / "out")) < 60

    import ray

    assert ray.cluster_resources()["CPU"] == 2
