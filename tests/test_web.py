"""The server of the web page: what it answers, what it refuses, what it leaves behind."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import pytest
import schemathesis
import tifffile
import uvicorn
from command_line import nlrn, png_header
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

from nlrn import images
from nlrn.attention_maps import explain
from nlrn.hardware import keep_freed_memory
from nlrn.models.nlrn import CONFIGS, random_network
from nlrn.web import guard, pictures
from nlrn.web.server import create_app
from nlrn.web.studio import MOST_WAITING, Options

SMALL = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=4, channels=8, embed=4)
SENT = {"content-type": "application/octet-stream"}


class Server:
    """A server in a thread, and a client for it."""

    def __init__(self, options: Options) -> None:
        listening = socket.create_server((options.host, 0))
        self.app = create_app(options)
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.get, self.delete = self.client.get, self.client.delete

    def stop(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()

    def post(self, path: str, **values: Any) -> httpx.Response:
        return self.client.post(path, json=values)

    def send(self, content: bytes, name: str = "a.png", **headers: str) -> httpx.Response:
        return self.client.post(
            "/api/pictures", params={"name": name}, content=content, headers=SENT | headers
        )

    def upload(self, image: images.Image, name: str, folder: Path) -> str:
        path = folder / f"sent{Path(name).suffix}"
        images.write(path, image, overwrite=True)
        answer = self.send(path.read_bytes(), name)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def run(self, **wish: Any) -> dict[str, Any]:
        """Starts a job and gives its facts when it is finished."""
        answer = self.post("/api/jobs", **({"model": "tiny", "sigma": 25} | wish))
        assert answer.status_code == 202, answer.text
        return self.finished(answer.json()["id"])

    def finished(self, job: str) -> dict[str, Any]:
        return self.events(job)[-1]

    def events(self, job: str) -> list[dict[str, Any]]:
        with self.client.stream("GET", f"/api/jobs/{job}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    random_network(SMALL).save_pretrained(folder / "tiny.safetensors")
    network = random_network(dataclasses.replace(SMALL, steps=1))
    network.save_pretrained(folder / "large.safetensors", {"task": "sr"})
    return folder / "tiny.safetensors", folder / "large.safetensors"


@pytest.fixture(scope="module")
def server(models: tuple[Path, Path]) -> Iterator[Server]:
    running = Server(Options(device="cpu", models=models[:1], max_bytes=2**20, max_pixels=10**6))
    yield running
    running.stop()


def rgb(shape: tuple[int, ...] = (20, 26, 3), dtype: str = "uint8", seed: int = 0) -> images.Image:
    values = np.random.default_rng(seed).uniform(0.2, 0.8, shape)
    pixels = images.from_float(values, dtype)
    if shape[2:] == (4,):
        return images.Image(pixels[..., :3].copy(), pixels[..., 3].copy())
    return images.Image(pixels)


@pytest.fixture(scope="module")
def picture(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Sends a small picture, anew for each test: the server keeps a few only."""
    folder = tmp_path_factory.mktemp("picture")
    return lambda: server.upload(rgb(), "photo.png", folder)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes denoising wait for this event, with signs of progress."""
    go_on = threading.Event()

    def denoise_image(image: images.Image, *rest: Any) -> images.Image:
        for i in range(600):
            rest[-1](i % 10 + 1, 12)
            if go_on.wait(0.05):
                break
        return image

    monkeypatch.setattr("nlrn.restoration.denoiser.denoise_image", denoise_image)
    return go_on


# What it does


def test_health_and_models(server: Server) -> None:
    assert server.get("/api/health").json()["status"] == "ok"
    offer = server.get("/api/models").json()
    assert [task["name"] for task in offer["tasks"]] == ["denoise", "upscale"]
    assert offer["models"][0] == {
        "name": "tiny", "task": "denoise", "description": "your own file"
    }  # fmt: skip
    assert offer["limits"]["bytes"] == 2**20 and ".png" in offer["limits"]["suffixes"]


def test_an_upload_is_described(server: Server, tmp_path: Path) -> None:
    identifier = server.upload(rgb((31, 40, 4), "uint16"), "a b.png", tmp_path)
    facts = server.get(f"/api/pictures/{identifier}").json()
    assert (facts["width"], facts["height"], facts["channels"]) == (40, 31, 3)
    assert (facts["dtype"], facts["alpha"], facts["name"]) == ("uint16", True, "a b.png")
    noisy = server.get(f"/api/pictures/{identifier}", params={"noise": 60}).json()
    assert noisy["sigma"] > facts["sigma"] > 20
    preview = server.get(f"/api/pictures/{identifier}/preview")
    (tmp_path / "preview.png").write_bytes(preview.content)
    shown = images.read(tmp_path / "preview.png")
    assert shown.pixels.dtype == np.uint8 and shown.alpha is not None
    assert shown.pixels.shape == (31, 40, 3)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        (rgb(), "a.png"),
        (rgb((17, 21), "uint16"), "b.png"),
        (rgb((15, 22, 4), "uint16"), "c.png"),
        (rgb((14, 19), "float32"), "d.tif"),
        (rgb((24, 16, 3)), "e.jpg"),
        (rgb((13, 18), "float64"), "f.npy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_result_is_the_file_that_the_command_writes(
    server: Server, models: tuple[Path, Path], tmp_path: Path, image: images.Image, name: str
) -> None:
    images.write(tmp_path / name, image)
    command = nlrn("denoise", tmp_path / name, "--model", models[0], "--strength", 0.8)
    assert command.exit_code == 0, command.output
    sent = server.send((tmp_path / name).read_bytes(), f"holiday/{name}").json()
    facts = server.run(picture=sent["id"], sigma=None, strength=0.8)
    assert facts["state"] == "done", facts
    stem, suffix = name.split(".")
    assert facts["filename"] == f"{stem}_denoised.{suffix}"
    result = server.get(f"/api/jobs/{facts['id']}/result")
    assert result.content == (tmp_path / f"{stem}_denoised.{suffix}").read_bytes()
    assert result.headers["content-disposition"].endswith(f"{stem}_denoised.{suffix}")
    assert server.get(f"/api/jobs/{facts['id']}/preview").headers["content-type"] == "image/png"


def test_progress_grows_and_ends(server: Server, picture: Callable[[], str]) -> None:
    job = server.post("/api/jobs", picture=picture(), model="tiny", sigma=25).json()
    assert job["state"] in ("waiting", "running")
    events = server.events(job["id"])
    done = [event["done"] for event in events]
    assert done == sorted(done) and events[-1]["state"] == "done"
    assert events[-1]["done"] == events[-1]["total"] == 3 * SMALL.steps
    assert server.get(f"/api/jobs/{job['id']}").json() == events[-1]


def test_an_estimate_of_the_time_left(
    server: Server, picture: Callable[[], str], slow: threading.Event
) -> None:
    job = server.post("/api/jobs", picture=picture(), model="tiny", sigma=25).json()["id"]
    wait_for(lambda: server.get(f"/api/jobs/{job}").json()["done"] >= 3)
    facts = server.get(f"/api/jobs/{job}").json()
    expected = facts["seconds"] * (12 - facts["done"]) / facts["done"]
    assert facts["seconds_left"] == pytest.approx(expected, rel=0.2)
    slow.set()
    assert server.finished(job)["seconds_left"] is None


def test_noise_first_shows_what_came_back(server: Server, tmp_path: Path) -> None:
    smooth = np.linspace(60, 200, 40 * 50).reshape(40, 50).round().astype(np.uint8)
    identifier = server.upload(images.Image(smooth), "clean.png", tmp_path)
    facts = server.run(picture=identifier, noise=25)
    noisy = facts["scores"]["noisy"]
    assert noisy["psnr"] == pytest.approx(20 * np.log10(255 / 25), abs=0.5) and noisy["ssim"] < 0.9
    assert facts["scores"]["restored"]["psnr"] > 5
    again = server.run(picture=identifier, noise=25)
    assert again["scores"] == facts["scores"], "the noise is another one each time"
    result = server.get(f"/api/jobs/{facts['id']}/result").content
    (tmp_path / "result.png").write_bytes(result)
    assert images.read(tmp_path / "result.png").pixels.dtype == np.uint8


def test_warnings_reach_the_page(server: Server, picture: Callable[[], str]) -> None:
    facts = server.run(picture=picture(), model="denoise-gray-s25", sigma=5, strength=0.5)
    assert ["noise of sigma 5 is weak" in text for text in facts["warnings"]] == [True]


def test_tasks_come_from_the_models(models: tuple[Path, Path], tmp_path: Path) -> None:
    running = Server(Options(device="cpu", models=models))
    try:
        tasks = running.get("/api/models").json()["tasks"]
        assert [task["name"] for task in tasks] == ["denoise", "upscale"]
        identifier = running.upload(rgb(), "small.png", tmp_path)
        facts = running.run(picture=identifier, task="upscale", scale=3, model="large")
        assert (facts["width"], facts["height"]) == (78, 60)
        assert facts["filename"] == "small_x3.png" and facts["sigma"] is None
        images.write(tmp_path / "small.png", rgb())
        nlrn("upscale", tmp_path / "small.png", "--scale", 3, "--model", models[1])
        result = running.get(f"/api/jobs/{facts['id']}/result").content
        assert result == (tmp_path / "small_x3.png").read_bytes()
        wrong = running.post("/api/jobs", picture=identifier, task="upscale", model="tiny")
        assert wrong.status_code == 422 and "large" in wrong.json()["error"]
    finally:
        running.stop()


def test_maps_sum_to_one_and_are_those_of_the_library(
    server: Server, models: tuple[Path, Path], picture: Callable[[], str], tmp_path: Path
) -> None:
    look = {"picture": picture(), "model": "tiny", "sigma": 25.0, "row": 3, "column": 13}
    answer = server.post("/api/maps", **look)
    assert answer.status_code == 200, answer.text
    facts = answer.json()
    assert facts["window"] == 5 and facts["states"] == [1, 2, 3, 4]
    np.testing.assert_allclose(np.sum(facts["weights"], axis=1), 1, atol=1e-3)
    expected = explain(rgb().pixels, (3, 13), 25, models[0]).weights
    np.testing.assert_allclose(facts["weights"], expected.reshape(4, 25), atol=1e-3)
    assert facts["halo"] is None, "so small a picture is traced as a whole"


def test_a_whole_picture_is_traced_for_exact_maps(server: Server, tmp_path: Path) -> None:
    image = rgb((90, 100))
    view = {"picture": server.upload(image, "a.png", tmp_path), "model": "tiny", "sigma": 25.0}
    near = server.post("/api/maps", **view, row=45, column=50).json()
    assert near["halo"] == 16 and near["seconds_for_whole"] > 0
    beside = server.post("/api/maps", **view, row=47, column=50).json()
    assert beside["halo"] == 14, "not answered from the trace that is there"
    job = server.post("/api/traces", **view)
    assert job.status_code == 202
    assert server.finished(job.json()["id"])["state"] == "done"
    exact = server.post("/api/maps", **view, row=45, column=50).json()
    assert exact["halo"] is None and exact["seconds_for_whole"] is None
    other = server.post("/api/maps", **(view | {"sigma": 30.0}), row=45, column=50).json()
    assert other["halo"] == 16, "another noise level, another trace"


def test_a_click_does_not_wait_for_waiting_pictures(
    server: Server, picture: Callable[[], str], slow: threading.Event
) -> None:
    identifier = picture()
    wish = {"picture": identifier, "model": "tiny", "sigma": 25}
    jobs = [server.post("/api/jobs", **wish).json()["id"] for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        click = pool.submit(server.post, "/api/maps", **wish, row=1, column=1)
        wait_for(lambda: server.get("/api/health").json()["waiting"] == 2)
        server.delete(f"/api/jobs/{jobs[0]}")
        assert click.result().status_code == 200
    states = [server.get(f"/api/jobs/{job}").json()["state"] for job in jobs]
    assert states[0] == "cancelled" and states[1] in ("waiting", "running")
    server.delete(f"/api/jobs/{jobs[1]}")


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_jobs_are_cancelled_running_or_waiting(
    server: Server, picture: Callable[[], str], slow: threading.Event
) -> None:
    wish = {"picture": picture(), "model": "tiny", "sigma": 25}
    jobs = [server.post("/api/jobs", **wish).json()["id"] for _ in range(2)]
    wait_for(lambda: server.get(f"/api/jobs/{jobs[0]}").json()["state"] == "running")
    assert server.delete(f"/api/jobs/{jobs[1]}").json()["state"] == "cancelled"
    assert server.delete(f"/api/jobs/{jobs[0]}").status_code == 202
    assert server.finished(jobs[0])["state"] == "cancelled"
    answer = server.get(f"/api/jobs/{jobs[0]}/result")
    assert answer.status_code == 409 and "cancelled" in answer.json()["error"]
    slow.set()
    assert server.run(**wish)["state"] == "done"


def test_failures_are_one_line_and_the_worker_goes_on(
    server: Server, picture: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = picture()
    for error, shown in [
        (ValueError("two\nlines"), "two lines"),
        (MemoryError(), "not enough memory"),
        (ZeroDivisionError("oops"), "internal error"),
    ]:

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("nlrn.restoration.denoiser.denoise_image", fail)
            facts = server.run(picture=identifier)
        assert facts["state"] == "failed" and shown in facts["error"]
    assert server.run(picture=identifier)["state"] == "done"


def test_pictures_and_results_are_forgotten_in_time(server: Server, tmp_path: Path) -> None:
    first = server.upload(rgb(), "a.png", tmp_path)
    job = server.run(picture=first)["id"]
    for i in range(pictures.KEPT):
        last = server.upload(rgb(seed=i), "b.png", tmp_path)
    assert server.get(f"/api/pictures/{first}").status_code == 404
    assert server.post("/api/jobs", picture=first).status_code == 404
    for _ in range(14):
        server.run(picture=last, strength=0)
    assert server.get(f"/api/jobs/{job}").status_code == 404
    folder = Path(server.app.state.studio._temporary.name)
    assert len(list(folder.iterdir())) <= pictures.KEPT + 13


# What it refuses


def test_too_many_jobs_are_told_to_come_back(
    server: Server, picture: Callable[[], str], slow: threading.Event
) -> None:
    wish = {"picture": picture(), "model": "tiny", "sigma": 25}
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: server.post("/api/jobs", **wish), range(50)))
    accepted = [a.json()["id"] for a in answers if a.status_code == 202]
    refused = [a for a in answers if a.status_code == 429]
    assert len(accepted) + len(refused) == 50
    assert MOST_WAITING <= len(accepted) <= MOST_WAITING + 1
    assert "busy" in refused[0].json()["error"] and refused[0].headers["retry-after"]
    for job in accepted:
        server.delete(f"/api/jobs/{job}")
    for job in accepted:
        assert server.finished(job)["state"] == "cancelled"


def test_fifty_uploads_at_once(server: Server, tmp_path: Path) -> None:
    images.write(tmp_path / "a.png", rgb((40, 50, 3)))
    content = (tmp_path / "a.png").read_bytes()
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: server.send(content).status_code, range(50)))
    assert answers == [201] * 50
    assert server.get("/api/health").status_code == 200


def _float_tiff() -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, np.full((9, 8), 0.5, np.float32))
    return file.getvalue()


def _npy(size: float) -> bytes:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).normal(0, size, (30, 32)))
    return file.getvalue()


BAD_UPLOADS: dict[str, tuple[bytes, str, str, int, str]] = {
    "too large": (b"x" * (2**20 + 1), "a.png", "image/png", 413, "at most 1 MiB"),
    "40000 x 40000": (png_header(40000, 40000), "a.png", "image/png", 413, "40000x40000"),
    "text as PNG": (b"hello", "a.png", "image/png", 422, "not an image"),
    "empty": (b"", "a.png", "image/png", 422, "empty"),
    "unknown suffix": (b"x", "a.exe", "image/png", 415, "unknown kind of file '.exe'"),
    "no suffix": (b"x", "a", "image/png", 415, "unknown kind of file"),
    "wrong content type": (b"x", "a.png", "text/html", 415, "text/html"),
    "a form": (b"x", "a.png", "multipart/form-data; boundary=x", 415, "multipart"),
    "no name": (b"x", "", "image/png", 415, "unknown kind of file"),
    "not what its name can hold": (_float_tiff(), "a.png", "image/png", 422, "PNG cannot hold"),
    "values of another scale": (_npy(400.0), "a.npy", "image/png", 422, "to be in [0, 1]"),
    "values beyond float32": (_npy(1e300), "a.npy", "image/png", 422, "float32 cannot hold"),
    "long name": (b"x", "a" * 300 + ".png", "image/png", 422, "name"),
}


@pytest.mark.parametrize("name", BAD_UPLOADS)
def test_bad_uploads_are_refused_and_leave_nothing(server: Server, name: str) -> None:
    content, filename, kind, status, words = BAD_UPLOADS[name]
    folder = Path(server.app.state.studio._temporary.name)
    before = set(folder.iterdir())
    answer = server.send(content, filename, **{"content-type": kind})
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"] and str(folder) not in answer.text
    assert set(folder.iterdir()) == before
    assert server.get("/api/health").status_code == 200


def test_a_hundred_megabytes_are_refused_before_they_are_sent(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as wire:
        head = f"POST /api/pictures?name=a.png HTTP/1.1\r\nHost: {host}\r\n"
        head += "Content-Type: image/png\r\nContent-Length: 104857600\r\n\r\n"
        wire.sendall(head.encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 413")


def test_a_body_without_a_length_is_cut_off(server: Server) -> None:
    folder = Path(server.app.state.studio._temporary.name)
    before = set(folder.iterdir())
    chunks = (bytes(2**16) for _ in range(800))
    answer = server.client.post("/api/pictures?name=a.png", content=chunks, headers=SENT)
    assert answer.status_code == 413
    assert set(folder.iterdir()) == before


def test_large_requests_that_are_no_upload(server: Server) -> None:
    answer = server.post("/api/jobs", picture="x" * 2**17)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("../../../etc/passwd.png", "passwd"),
        ("..\\..\\boot.png", "boot"),
        ("/etc/cron.d/job.png", "job"),
        ("a\r\nSet-Cookie: x.png", "a__Set-Cookie_ x"),
        ("....png", "picture"),
        ("\u202egnp.exe.png", "_gnp.exe"),
    ],
)
def test_a_path_in_a_name_is_only_a_name(
    server: Server, tmp_path: Path, name: str, stem: str
) -> None:
    identifier = server.upload(rgb(), name, tmp_path)
    facts = server.run(picture=identifier)
    assert facts["filename"] == f"{stem}_denoised.png"
    path = server.app.state.studio.pictures.find(identifier).path
    assert path.is_relative_to(server.app.state.studio._temporary.name)
    assert path.name == "picture.png"
    assert "set-cookie" not in server.get(f"/api/jobs/{facts['id']}/result").headers


opened: list[tuple[str, str]] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and opened is not None and isinstance(arguments[0], str):
        opened.append((arguments[0], str(arguments[1])))


sys.addaudithook(_watch)  # stays for good, and does nothing without a list


def test_no_file_outside_the_temporary_folder_is_written_or_served(
    server: Server, tmp_path: Path
) -> None:
    global opened
    images.write(tmp_path / "a.png", rgb())
    content = (tmp_path / "a.png").read_bytes()
    secret = tmp_path / "secret.png"
    secret.write_bytes(content)
    static = Path(create_app.__code__.co_filename).parent / "static"
    opened = []
    try:
        identifier = server.send(content, f"{secret}").json()["id"]
        server.run(picture=identifier)
        server.post("/api/jobs", picture=str(secret))
        server.post("/api/jobs", picture=identifier, model=str(secret))
        server.post("/api/maps", picture=f"../{secret.name}", row=0, column=0)
        for path in ("/..%2f..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd", str(secret)):
            assert server.get(path).status_code == 404
        for path in ("pictures", "jobs"):
            assert server.get(f"/api/{path}/..%2f..%2fsecret.png").status_code == 404
        seen = [(Path(name), mode) for name, mode in opened]
    finally:
        opened = None
    folder = server.app.state.studio._temporary.name
    written = [name for name, mode in seen if set(mode) & set("wax+")]
    assert written and all(name.is_relative_to(folder) for name in written)
    others = [n for n, _ in seen if n.suffix == ".png" and not n.is_relative_to(folder)]
    assert all(name.is_relative_to(static) for name in others)


@pytest.mark.parametrize("path", ["/", "/api/health", "/api/models"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": ""}, 421),
        ({"host": "localhost:1234"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
    ids=str,
)
def test_other_sites_are_refused(
    server: Server, path: str, headers: dict[str, str], status: int
) -> None:
    answer = server.get(path, headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_link_from_another_site_opens_the_page_but_not_the_api(server: Server) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert server.get("/", headers=link).status_code == 200
    assert server.get("/api/health", headers=link).status_code == 403
    same = {"origin": server.url}
    assert server.send(b"x", **same).status_code == 422
    assert server.send(b"x", origin="https://evil.example").status_code == 403


@pytest.mark.parametrize(
    ("host", "bound", "ours"),
    [
        ("localhost", "127.0.0.1", True),
        ("[::1]:8000", "::1", True),
        ("192.168.1.7:8000", "127.0.0.1", False),
        ("192.168.1.7:8000", "192.168.1.7", True),
        ("192.168.1.7:8000", "0.0.0.0", True),
        ("[fe80::1]:8000", "::", True),
        (f"{socket.gethostname()}:8000", "0.0.0.0", True),
        ("rebound.example", "0.0.0.0", False),
        ("", "0.0.0.0", False),
    ],
)
def test_hosts(host: str, bound: str, ours: bool) -> None:
    assert guard.is_ours(host, bound) is ours


@pytest.mark.parametrize(
    ("path", "values", "words"),
    [
        ("/api/jobs", {"sigma": -1}, "sigma"),
        ("/api/jobs", {"sigma": 1e9}, "sigma"),
        ("/api/jobs", {"strength": 2}, "strength"),
        ("/api/jobs", {"task": "paint"}, "task must be one of denoise, upscale, got 'paint'"),
        ("/api/jobs", {"task": "upscale"}, "model must be one of sr-y, got 'tiny'"),
        ("/api/jobs", {"model": "/etc/passwd"}, "model must be one of tiny"),
        ("/api/jobs", {"colour": "red"}, "colour"),
        ("/api/maps", {"row": 20, "column": 0}, "20 rows and 26 columns"),
        ("/api/maps", {"row": -1, "column": 0}, "row"),
        ("/api/maps", {"row": 0, "column": 0, "channel": 7}, "channel"),
        ("/api/traces", {"model": "nope"}, "model must be one of"),
    ],
    ids=str,
)
def test_values_that_make_no_sense(
    server: Server, picture: Callable[[], str], path: str, values: dict, words: str
) -> None:
    answer = server.post(path, **({"picture": picture(), "model": "tiny"} | values))
    assert answer.status_code == 422 and words in answer.json()["error"], answer.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"picture": 1e999}'])
def test_bodies_that_are_no_request(server: Server, body: bytes) -> None:
    kind = {"content-type": "application/json"}
    answer = server.client.post("/api/jobs", content=body, headers=kind)
    assert answer.status_code == 422 and answer.json()["error"]


def test_no_request_of_the_schema_breaks_the_server(
    server: Server, picture: Callable[[], str]
) -> None:
    """schemathesis: what fits the schema, what does not, and ids that are known."""
    document = server.get("/api/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    known, tried = picture(), set()
    job = server.run(picture=known)["id"]
    found = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    assert len(found) == sum(map(len, document["paths"].values()))
    for operation in found:
        if operation.path.endswith("/events"):
            continue  # answers as long as a job runs; tested above

        @hypothesis.given(case=_cases(operation), real=hypothesis.strategies.booleans())
        @hypothesis.settings(
            max_examples=25, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        def ask(case: schemathesis.Case, real: bool) -> None:
            if real and "identifier" in case.path_parameters:
                case.path_parameters["identifier"] = known if "pictures" in case.path else job
            if real and isinstance(case.body, dict) and "picture" in case.body:
                case.body["picture"] = known
            response = case.call()
            tried.add(response.status_code)
            case.validate_response(response, checks=[not_a_server_error])

        ask()
    assert {200, 202, 404, 422} <= tried
    assert server.get("/api/health").status_code == 200


def _cases(operation: schemathesis.APIOperation) -> hypothesis.strategies.SearchStrategy:
    good, bad = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    return operation.as_strategy(generation_mode=good) | operation.as_strategy(generation_mode=bad)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_returns(server: Server, tmp_path: Path) -> None:
    images.write(tmp_path / "a.npy", images.Image(np.zeros((160, 190, 3), np.uint16)))
    images.write(tmp_path / "b.png", images.Image(np.zeros((900, 1000), np.uint8)))

    def attack() -> None:
        for name in ("a.npy", "b.png"):
            content = (tmp_path / name).read_bytes()
            with ThreadPoolExecutor(10) as pool:
                list(pool.map(lambda _, c=content, n=name: server.send(c, n), range(10)))
        for content, filename, kind, _, _ in BAD_UPLOADS.values():
            server.send(content, filename, **{"content-type": kind})

    def resident() -> int:
        with keep_freed_memory():  # at its end the allocator keeps nothing back
            gc.collect()
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    attack()
    before = resident()
    for _ in range(2):
        attack()
    assert resident() - before < 10 * 2**20
    folder = Path(server.app.state.studio._temporary.name)
    assert len([p for p in folder.iterdir() if not p.name.startswith("job-")]) <= pictures.KEPT


def test_nothing_is_left_when_the_server_stops(models: tuple[Path, Path], tmp_path: Path) -> None:
    running = Server(Options(device="cpu", models=models[:1]))
    folder = Path(running.app.state.studio._temporary.name)
    assert folder.parent == Path(tempfile.gettempdir())
    running.run(picture=running.upload(rgb(), "a.png", tmp_path))
    assert list(folder.iterdir())
    running.stop()
    assert not folder.exists()
    assert not [t for t in threading.enumerate() if t.name == "nlrn-worker" and t.is_alive()][1:]


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = nlrn("web", "--port", taken.getsockname()[1], "--no-browser")
    assert result.exit_code == 2 and "cannot listen on 127.0.0.1" in result.stderr
    result = nlrn("web", "--port", 0, "--model", tmp_path / "no.safetensors", "--no-browser")
    assert result.exit_code == 2 and "no.safetensors" in result.stderr
    result = nlrn("web", "--port", 0, "--device", "toaster", "--no-browser")
    assert result.exit_code == 2 and "toaster" in result.stderr
    result = nlrn("web", "--port", 0, "--dtype", "fp8", "--no-browser")
    assert result.exit_code == 2 and "fp8" in result.stderr


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("nlrn.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = nlrn("web")
    assert result.exit_code == 2 and "pip install '.[web]'" in result.stderr
