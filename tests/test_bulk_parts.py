"""What many files need and no cluster: whole results, URLs, lists, reports, sizes of pools."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import assert_one_clear_line, names, nlrn, picture
from picture_files import fitting

from nlrn import batch, bulk, images
from nlrn.bulk.pool import cores_each
from nlrn.bulk.report import write_report
from nlrn.remote import RemotePath, as_path

FAST = ("--method", "nlm", "--sigma", "20")


# Results that are whole


@pytest.mark.parametrize("suffix", images.SUFFIXES)
def test_a_file_is_whole_until_something_is_cut_off(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    images.write(path, fitting(suffix))
    content = path.read_bytes()
    assert images.is_whole(io.BytesIO(content), suffix)
    for length in (0, 1, 20, len(content) // 2, len(content) - 1):
        assert not images.is_whole(io.BytesIO(content[:length]), suffix), length


@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64"])
def test_a_deep_tiff_is_whole(dtype: str, tmp_path: Path) -> None:
    pixels = (np.random.default_rng(0).random((70, 50)) * 255).astype(dtype)
    images.write(tmp_path / "a.tif", images.Image(pixels))
    content = (tmp_path / "a.tif").read_bytes()
    assert images.is_whole(io.BytesIO(content), ".tif")
    assert not images.is_whole(io.BytesIO(content[:-300]), ".tif")


def test_a_result_that_is_not_whole_is_done_again(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        picture(tmp_path / "in" / name)
    arguments = ("denoise", tmp_path / "in", "-o", tmp_path / "out", *FAST, "--skip-existing")
    assert nlrn(*arguments).exit_code == 0
    good = {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")}
    (tmp_path / "out" / "a.png").write_bytes(b"")  # claimed, and killed before it was renamed
    (tmp_path / "out" / "b.png").write_bytes(good["b.png"][:-5])
    result = nlrn(*arguments, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [Path(facts["output"]).name for facts in report["done"]] == ["a.png", "b.png"]
    assert [Path(name).name for name in report["skipped"]] == ["c.png"]
    assert {name: (tmp_path / "out" / name).read_bytes() for name in good} == good


# URLs and lists


@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty file system of fsspec's in memory."""
    import fsspec

    storage = fsspec.filesystem("memory")
    yield storage
    storage.store.clear()
    storage.pseudo_dirs[:] = [""]


def _upload(storage: Any, folder: Path, names: list[str]) -> None:
    for name in names:
        storage.pipe_file(f"/in/{name}", picture(folder / name).read_bytes())


def test_urls_are_read_and_written_like_files(memory: Any, tmp_path: Path) -> None:
    _upload(memory, tmp_path / "in", ["a.png", "b.jpg", "sub/c.tif"])
    memory.pipe_file("/in/.hidden.png", b"hidden")
    memory.pipe_file("/in/notes.txt", b"no image")
    result = nlrn("denoise", "memory://in", "-r", "-o", "memory://in/out", *FAST)
    assert result.exit_code == 0, result.output
    assert "memory://in/out/sub/c.tif (sigma 20" in result.stdout
    assert nlrn("denoise", tmp_path / "in", "-r", "-o", tmp_path / "out", *FAST).exit_code == 0
    for name in names(tmp_path / "out"):
        assert memory.cat_file(f"/in/out/{name}") == (tmp_path / "out" / name).read_bytes()
    assert sorted(memory.find("/in/out")) == [
        f"/in/out/{n}" for n in ("a.png", "b.jpg", "sub/c.tif")
    ]
    again = nlrn("denoise", "memory://in", "-r", "-o", "memory://in/out", *FAST)
    assert again.exit_code == 2 and again.stderr.count("exists already; --overwrite") == 3
    skipped = nlrn(
        "denoise", "memory://in", "-r", "-o", "memory://in/out", *FAST, "--skip-existing"
    )
    assert skipped.exit_code == 0 and "3 skipped" in skipped.stderr


def test_a_pattern_of_urls_keeps_the_tree(memory: Any, tmp_path: Path) -> None:
    _upload(memory, tmp_path / "in", ["a.png", "x/b.png", "x/y/c.png", "x/d.jpg"])
    assert nlrn("denoise", "memory://in/**/*.png", "-o", "memory://out", *FAST).exit_code == 0
    assert sorted(memory.find("/out")) == ["/out/a.png", "/out/x/b.png", "/out/x/y/c.png"]


def test_a_url_of_the_source_itself_is_refused(tmp_path: Path) -> None:
    source = picture(tmp_path / "a.png")
    result = nlrn("denoise", source, "-o", f"file://{source}", "--overwrite", *FAST)
    assert_one_clear_line(result, "a.png: would be replaced by its own result")


def test_one_url(memory: Any, tmp_path: Path) -> None:
    _upload(memory, tmp_path, ["a.png"])
    assert nlrn("denoise", "memory://in/a.png", *FAST).exit_code == 0
    assert memory.exists("/in/a_denoised.png")
    assert nlrn("denoise", "memory://in/a.png", *FAST, "-o", tmp_path / "b.png").exit_code == 0
    assert (tmp_path / "b.png").read_bytes() == memory.cat_file("/in/a_denoised.png")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://in/none.png", ["memory://in/none.png: no such file"]),
        ("memory://in/*.png", ["no file matches"]),
        ("nonsense://a/b.png", ["nonsense://a/b.png", "rotocol not known"]),
        ("memory://in/text.png", ["memory://in/text.png: not an image nlrn can read"]),
    ],
)
def test_bad_urls_give_one_line(url: str, words: list[str], memory: Any) -> None:
    memory.pipe_file("/in/text.png", b"text")
    memory.pipe_file("/in/text.txt", b"text")
    result = nlrn("denoise", url if "*" not in url else "memory://in/x*.png", *FAST)
    assert_one_clear_line(result, *words)
    assert result.stderr.count(url) <= 1


def test_remote_paths_are_written_whole_or_not_at_all(memory: Any) -> None:
    path = RemotePath("memory://out/sub/a.png")
    path.write_bytes(b"one", overwrite=False)
    with pytest.raises(FileExistsError):
        path.write_bytes(b"two", overwrite=False)
    assert path.read_bytes() == b"one"
    path.write_bytes(b"two", overwrite=True)
    assert path.read_bytes() == b"two" and memory.find("/out") == ["/out/sub/a.png"]
    assert isinstance(as_path("s3://bucket/a.png"), RemotePath)
    assert (
        isinstance(as_path("C:/a.png"), Path) and isinstance(as_path("a://"), RemotePath) is False
    )


def test_a_list_of_files_keeps_the_tree_below_what_they_share(tmp_path: Path) -> None:
    for name in ("in/x/a.png", "in/y/a.png", "in/y/z/b.png"):
        picture(tmp_path / name)
    chosen = ["in/x/a.png", "in/y/z/b.png"]
    (tmp_path / "list.txt").write_text("\n".join(str(tmp_path / name) for name in chosen) + "\n\n")
    result = nlrn("denoise", f"@{tmp_path}/list.txt", *FAST, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert names(tmp_path / "out") == ["x/a.png", "y/z/b.png"]


def test_lists_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_clear_line(nlrn("denoise", "@none.txt", *FAST), "none.txt: no list of files")
    Path("mixed.txt").write_text("/a/b.png\nc.png\n")
    assert_one_clear_line(nlrn("denoise", "@mixed.txt", *FAST), "mixed.txt: paths with and without")
    Path("empty.txt").write_text("\n")
    assert_one_clear_line(nlrn("denoise", "@empty.txt", *FAST), "no images in @empty.txt")
    picture(Path("@a.png"))  # a file of that name is a file
    assert nlrn("denoise", "@a.png", *FAST).exit_code == 0
    assert "@a_denoised.png" in names(tmp_path)


# Options


@pytest.mark.parametrize("command", ["denoise", "upscale"])
def test_without_ray_there_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "find_spec", lambda name: None)
    result = nlrn(command, picture(tmp_path / "a.png"), "--engine", "ray")
    assert_one_clear_line(result, "needs ray and pyarrow", "pip install '.[bulk]'")
    assert names(tmp_path) == ["a.png"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engine", "spark"], ["engine must be local or ray, got 'spark'"]),
        (["--workers", "2"], ["--workers", "--engine ray"]),
        (["--engine", "ray", "--workers", "0"], ["workers must be 1 or more, got 0"]),
        (["--engine", "ray", "--gpus-per-worker", "-1"], ["gpus_per_worker must be 0 or more"]),
        (["--engine", "ray", "-o", "-"], ["takes files, not the standard input or output"]),
        (["--report", "report.txt"], [".json or .parquet", "report.txt"]),
        (["--report", "none/report.json"], ["no such folder"]),
    ],
)
def test_wrong_options_give_one_line(
    options: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    assert_one_clear_line(nlrn("denoise", picture(tmp_path / "a.png"), *FAST, *options), *words)
    assert names(tmp_path) == ["a.png"]


def test_an_address_where_nothing_is_gives_one_line_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"  # free when the server is closed
    source = picture(tmp_path / "a.png")
    result = nlrn("denoise", source, *FAST, "--engine", "ray", "--address", address)
    assert_one_clear_line(result, f"no Ray at {address}", "refused")


@pytest.mark.parametrize(
    ("machines", "workers", "cores"),
    [
        ([2], 2, 1), ([2], 1, 2), ([2], 3, 0.66), ([2], 8, 0.25),
        ([8, 8], 3, 4), ([8, 8], 2, 8), ([16, 4], 5, 4), ([8, 2], 9, 1), ([64] * 4, 256, 1),
    ],
)  # fmt: skip
def test_cores_of_each_worker(machines: list[float], workers: int, cores: float) -> None:
    assert cores_each(machines, workers) == cores
    if cores >= 1:
        assert sum(int(has // cores) for has in machines) >= workers


# Reports


def test_reports_say_the_same_in_json_and_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    report = batch.Report(
        done=[{"input": "a", "output": "b", "width": 3, "height": 4, "sigma": 5.5, "method": "nlm",
               "model": "nlm", "warnings": ["one", "two"], "seconds": 0.1}],
        skipped=["c"],
        failed=[{"input": "d", "error": "broken"}],
        unknown=["e.txt"],
    )  # fmt: skip
    write_report(report, tmp_path / "r.json")
    write_report(report, tmp_path / "r.parquet")
    write_report(report, tmp_path / "r.parquet")  # replaces the first
    assert json.loads((tmp_path / "r.json").read_text())["done"] == report.done
    rows = parquet.read_table(tmp_path / "r.parquet").to_pylist()
    assert [(row["input"], row["status"]) for row in rows] == [
        ("a", "done"), ("d", "failed"), ("c", "skipped"), ("e.txt", "unknown"),
    ]  # fmt: skip
    assert rows[0]["warnings"] == ["one", "two"] and rows[0]["sigma"] == 5.5
    assert rows[1]["error"] == "broken" and rows[1]["width"] is None
    write_report(batch.Report(), tmp_path / "r.parquet")
    assert parquet.read_table(tmp_path / "r.parquet").num_rows == 0


def test_the_local_engine_writes_a_report_too(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_text("broken")
    options = ("-o", tmp_path / "out", "--report", tmp_path / "r.json")
    assert nlrn("denoise", tmp_path / "in", *FAST, *options).exit_code == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert len(report["done"]) == len(report["failed"]) == 1


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_a_report_replaces_a_report_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source, mine = picture(tmp_path / "a.png"), tmp_path / f"mine{suffix}"
    mine.write_text('{"mine": 1}')
    options = ("-o", tmp_path / "b.png", "--report", mine)
    result = nlrn("denoise", source, *FAST, *options)
    assert_one_clear_line(result, "exists and is no report", "--overwrite")
    assert mine.read_text() == '{"mine": 1}' and not (tmp_path / "b.png").exists()
    assert nlrn("denoise", source, *FAST, *options, "--overwrite").exit_code == 0
    first = mine.read_bytes()
    assert first != b'{"mine": 1}'
    assert nlrn("denoise", source, *FAST, *options, "--skip-existing").exit_code == 0
    assert mine.read_bytes() != first, "the report of the second run"
