"""The server of the web page: what it answers, and what it leaves behind."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from command_line import nlrn
from web_server import SMALL, Options, Server, noisy_image, wait_for

from nlrn import images
from nlrn.attention_maps import explain
from nlrn.web.jobs import MAX_FINISHED
from nlrn.web.uploads import MAX_UPLOADS


def test_health_and_models(server: Server) -> None:
    assert server.get("/api/health").json()["status"] == "ok"
    catalog = server.get("/api/models").json()
    assert [task["name"] for task in catalog["tasks"]] == ["denoise", "upscale"]
    assert catalog["models"][0] == {
        "name": "tiny", "task": "denoise", "description": "your own file"
    }  # fmt: skip
    assert catalog["limits"]["bytes"] == 2**20 and ".png" in catalog["limits"]["suffixes"]


def test_an_upload_is_described(server: Server, tmp_path: Path) -> None:
    identifier = server.upload(noisy_image((31, 40, 4), "uint16"), "a b.png", tmp_path)
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
        (noisy_image(), "a.png"),
        (noisy_image((17, 21), "uint16"), "b.png"),
        (noisy_image((15, 22, 4), "uint16"), "c.png"),
        (noisy_image((14, 19), "float32"), "d.tif"),
        (noisy_image((24, 16, 3)), "e.jpg"),
        (noisy_image((13, 18), "float64"), "f.npy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_result_is_the_file_that_the_command_writes(
    server: Server, web_models: Path, tmp_path: Path, image: images.Image, name: str
) -> None:
    images.write(tmp_path / name, image)
    command = nlrn(
        "denoise", tmp_path / name, "--model", web_models / "tiny.safetensors", "--strength", 0.8
    )
    assert command.exit_code == 0, command.output
    sent = server.send((tmp_path / name).read_bytes(), f"holiday/{name}").json()
    facts = server.run(picture=sent["id"], sigma=None)
    assert facts["state"] == "done", facts
    stem, suffix = name.split(".")
    assert facts["filename"] == f"{stem}_denoised.{suffix}"
    result = server.get(f"/api/jobs/{facts['id']}/result", params={"strength": 0.8})
    assert result.content == (tmp_path / f"{stem}_denoised.{suffix}").read_bytes()
    assert result.headers["content-disposition"].endswith(f"{stem}_denoised.{suffix}")
    assert server.get(f"/api/jobs/{facts['id']}/preview").headers["content-type"] == "image/png"


def test_progress_grows_and_ends(server: Server, photo: str) -> None:
    job = server.post("/api/jobs", picture=photo, model="tiny", sigma=25).json()
    assert job["state"] in ("waiting", "running")
    events = server.events(job["id"])
    done = [event["done"] for event in events]
    assert done == sorted(done) and events[-1]["state"] == "done"
    assert events[-1]["done"] == events[-1]["total"] == 3 * SMALL.steps
    assert server.get(f"/api/jobs/{job['id']}").json() == events[-1]


def test_an_estimate_of_the_time_left(server: Server, photo: str, held: threading.Event) -> None:
    job = server.start(picture=photo)
    wait_for(lambda: server.job(job)["done"] >= 3)
    facts = server.job(job)
    expected = facts["seconds"] * (12 - facts["done"]) / facts["done"]
    assert facts["seconds_left"] == pytest.approx(expected, rel=0.2)
    held.set()
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


def test_warnings_reach_the_page(server: Server, photo: str) -> None:
    facts = server.run(picture=photo, model="denoise-gray-s25", sigma=5)
    assert ["noise of sigma 5 is weak" in text for text in facts["warnings"]] == [True]


def test_tasks_come_from_the_models(web_models: Path, tmp_path: Path) -> None:
    own = (web_models / "tiny.safetensors", web_models / "large.safetensors")
    with Server(Options(device="cpu", models=own)) as running:
        tasks = running.get("/api/models").json()["tasks"]
        assert [task["name"] for task in tasks] == ["denoise", "upscale"]
        identifier = running.upload(noisy_image(), "small.png", tmp_path)
        facts = running.run(picture=identifier, task="upscale", scale=3, model="large")
        assert (facts["width"], facts["height"]) == (78, 60)
        assert facts["filename"] == "small_x3.png" and facts["sigma"] is None
        images.write(tmp_path / "small.png", noisy_image())
        nlrn("upscale", tmp_path / "small.png", "--scale", 3, "--model", own[1])
        result = running.get(f"/api/jobs/{facts['id']}/result").content
        assert result == (tmp_path / "small_x3.png").read_bytes()
        wrong = running.post("/api/jobs", picture=identifier, task="upscale", model="tiny")
        assert wrong.status_code == 422 and "large" in wrong.json()["error"]


def test_maps_sum_to_one_and_are_those_of_the_library(
    server: Server, web_models: Path, photo: str
) -> None:
    click = {"picture": photo, "model": "tiny", "sigma": 25.0, "row": 3, "column": 13}
    answer = server.post("/api/maps", **click)
    assert answer.status_code == 200, answer.text
    facts = answer.json()
    assert facts["window"] == 5 and facts["states"] == [1, 2, 3, 4]
    np.testing.assert_allclose(np.sum(facts["weights"], axis=1), 1, atol=1e-3)
    expected = explain(noisy_image().pixels, (3, 13), 25, web_models / "tiny.safetensors").weights
    np.testing.assert_allclose(facts["weights"], expected.reshape(4, 25), atol=1e-3)
    assert facts["halo"] is None, "so small a picture is traced as a whole"


def test_a_whole_picture_is_traced_for_exact_maps(server: Server, tmp_path: Path) -> None:
    image = noisy_image((90, 100))
    traced = {"picture": server.upload(image, "a.png", tmp_path), "model": "tiny", "sigma": 25.0}
    near = server.post("/api/maps", **traced, row=45, column=50).json()
    assert near["halo"] == 16 and near["seconds_for_whole"] > 0
    beside = server.post("/api/maps", **traced, row=47, column=50).json()
    assert beside["halo"] == 14, "not answered from the trace that is there"
    job = server.post("/api/traces", **traced)
    assert job.status_code == 202
    assert server.finished(job.json()["id"])["state"] == "done"
    exact = server.post("/api/maps", **traced, row=45, column=50).json()
    assert exact["halo"] is None and exact["seconds_for_whole"] is None
    other = server.post("/api/maps", **(traced | {"sigma": 30.0}), row=45, column=50).json()
    assert other["halo"] == 16, "another noise level, another trace"


def test_a_click_does_not_wait_for_waiting_pictures(
    server: Server, photo: str, held: threading.Event
) -> None:
    jobs = [server.start(picture=photo) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        request = {"picture": photo, "model": "tiny", "sigma": 25, "row": 1, "column": 1}
        click = pool.submit(server.post, "/api/maps", **request)
        wait_for(lambda: server.get("/api/health").json()["waiting"] == 2)
        server.delete(f"/api/jobs/{jobs[0]}")
        assert click.result().status_code == 200
    states = [server.job(job)["state"] for job in jobs]
    assert states[0] == "cancelled" and states[1] in ("waiting", "running")
    server.delete(f"/api/jobs/{jobs[1]}")


def test_jobs_are_cancelled_running_or_waiting(
    server: Server, photo: str, held: threading.Event
) -> None:
    jobs = [server.start(picture=photo) for _ in range(2)]
    wait_for(lambda: server.job(jobs[0])["state"] == "running")
    assert server.delete(f"/api/jobs/{jobs[1]}").json()["state"] == "cancelled"
    assert server.delete(f"/api/jobs/{jobs[0]}").status_code == 202
    assert server.finished(jobs[0])["state"] == "cancelled"
    answer = server.get(f"/api/jobs/{jobs[0]}/result")
    assert answer.status_code == 409 and "cancelled" in answer.json()["error"]
    held.set()
    assert server.run(picture=photo)["state"] == "done"


def test_failures_are_one_line_and_the_worker_goes_on(
    server: Server, photo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, shown in [
        (ValueError("two\nlines"), "two lines"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("can't allocate memory: you tried to allocate 9 bytes"), "not enough memory"),
        (ZeroDivisionError("oops"), "internal error"),
    ]:

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("nlrn.restoration.Denoiser.restore", fail)
            facts = server.run(picture=photo)
        assert facts["state"] == "failed" and shown in facts["error"]
    assert server.run(picture=photo)["state"] == "done"


def test_pictures_and_results_are_forgotten_in_time(server: Server, tmp_path: Path) -> None:
    first = server.upload(noisy_image(), "a.png", tmp_path)
    job = server.run(picture=first)["id"]
    for i in range(MAX_UPLOADS):
        last = server.upload(noisy_image(seed=i), "b.png", tmp_path)
    assert server.get(f"/api/pictures/{first}").status_code == 404
    assert server.post("/api/jobs", picture=first).status_code == 404
    for _ in range(MAX_FINISHED + 2):
        server.run(picture=last, sigma=0)
    assert server.get(f"/api/jobs/{job}").status_code == 404
    folder = server.service.folder
    assert len(list(folder.iterdir())) <= MAX_UPLOADS + MAX_FINISHED + 1


def test_nothing_is_left_when_the_server_stops(web_models: Path, tmp_path: Path) -> None:
    with Server(Options(device="cpu", models=(web_models / "tiny.safetensors",))) as running:
        folder = running.service.folder
        assert folder.parent == Path(tempfile.gettempdir())
        running.run(picture=running.upload(noisy_image(), "a.png", tmp_path))
        assert list(folder.iterdir())
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
