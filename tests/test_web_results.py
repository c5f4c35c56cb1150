"""What the server of the web page keeps and gives out: results, estimates, maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import nlrn
from web_server import Options, Server, noisy_image, wait_for

from nlrn import images, models
from nlrn.attention_maps import explain, trace
from nlrn.models import ModelCard
from nlrn.models.nlrn import CONFIGS, random_network
from nlrn.models.nlrn_residual import ResidualConfig, random_residual
from nlrn.restoration.choice import QUALITIES, Choice, choose_denoiser
from nlrn.web import estimates, map_cache, results, uploads
from nlrn.web.map_cache import MapCache, TraceKey
from nlrn.web.results import fitting, formats_for


def test_previews_and_levels_do_not_grow_with_the_noise_tried(server: Server, photo: str) -> None:
    upload = server.service.uploads.find(photo)
    assert upload is not None
    for noise in np.linspace(0, 60, uploads.MAX_NOISES + 5):
        assert server.get(f"/api/pictures/{photo}", params={"noise": noise}).status_code == 200
    for noise in (0, 5, 10, 15, 5.0000001, 0):
        path = f"/api/pictures/{photo}/preview"
        assert server.get(path, params={"noise": noise}).headers["content-type"] == "image/png"
    previews = list(upload.path.parent.glob("preview*"))
    assert len(previews) <= uploads.MAX_PREVIEWS
    assert len(upload.noises) <= uploads.MAX_NOISES and 0.0 in upload.noises


def test_strength_and_format_need_no_second_run(server: Server, tmp_path: Path) -> None:
    image = noisy_image((22, 31, 4), "uint16")
    identifier = server.upload(image, "a.png", tmp_path)
    facts = server.run(picture=identifier)
    offered = server.get(f"/api/pictures/{identifier}").json()["formats"]
    assert offered == [".png", ".webp", ".tif"], "JPEG has no place for transparency"

    def result(strength: float, kind: str) -> images.Image:
        asked = f"strength={strength}&format={kind}"
        answer = server.get(f"/api/jobs/{facts['id']}/result?{asked}")
        assert answer.headers["content-disposition"].endswith(f"a_denoised.{kind}")
        (tmp_path / f"got.{kind}").write_bytes(answer.content)
        return images.read(tmp_path / f"got.{kind}")

    none, half, full = (result(strength, "tif") for strength in (0, 0.5, 1))
    assert (none.pixels == image.pixels).all() and full.pixels.dtype == np.uint16
    mean = (none.pixels.astype(float) + full.pixels) / 2
    np.testing.assert_allclose(half.pixels, mean, atol=1.01)
    assert (full.pixels != none.pixels).mean() > 0.9
    shallow = result(1, "webp")
    assert shallow.pixels.dtype == np.uint8 and shallow.alpha is not None
    np.testing.assert_allclose(shallow.pixels * 257.0, full.pixels, atol=129)
    for wrong in ("format=jpg", "format=exe", "strength=1.1", "strength=nan"):
        refused = server.get(f"/api/jobs/{facts['id']}/result?{wrong}")
        assert refused.status_code == 422, refused.text


@pytest.mark.parametrize(
    ("shape", "dtype", "suffix", "expected"),
    [
        ((5, 7), "uint8", ".jpeg", [".jpeg", ".png", ".webp", ".tif"]),
        ((5, 7, 3), "float32", ".npy", [".npy", ".png", ".jpg", ".webp", ".tif"]),
        ((5, 7, 4), "uint8", ".tiff", [".tiff", ".png", ".webp"]),
    ],
    ids=str,
)
def test_every_format_that_is_offered_can_be_written(
    server: Server, tmp_path: Path, shape: tuple, dtype: str, suffix: str, expected: list
) -> None:
    image = noisy_image(shape, dtype)
    identifier = server.upload(image, f"a{suffix}", tmp_path)
    upload = server.service.uploads.find(identifier)
    assert upload is not None and formats_for(upload) == expected
    for each in expected:
        images.write(tmp_path / f"out{each}", fitting(image, each), overwrite=True)


def test_bm3d_is_what_the_command_makes(server: Server, tmp_path: Path) -> None:
    images.write(tmp_path / "a.png", noisy_image((33, 40)))
    sent = server.send((tmp_path / "a.png").read_bytes()).json()
    facts = server.run(picture=sent["id"], sigma=20, model=None, method="bm3d")
    assert (facts["state"], facts["model"], facts["sigma"]) == ("done", "bm3d", 20)
    asked = ("denoise", tmp_path / "a.png", "--method", "bm3d", "--sigma", 20, "--strength", 0.7)
    assert nlrn(*asked).exit_code == 0
    result = server.get(f"/api/jobs/{facts['id']}/result", params={"strength": 0.7})
    assert result.content == (tmp_path / "a_denoised.png").read_bytes()


@pytest.mark.parametrize("shape", [(20, 26), (20, 26, 3)], ids=str)
def test_qualities_choose_what_the_command_chooses(
    server: Server, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    identifier = server.upload(noisy_image(shape), "a.png", tmp_path)
    assert server.get("/api/models").json()["qualities"] == list(QUALITIES)
    for quality in QUALITIES:
        facts = server.run(picture=identifier, sigma=0, model=None, quality=quality)
        expected = choose_denoiser(1 if len(shape) == 2 else 3, quality)
        assert facts["model"] == expected.model
    views = server.service.catalog.denoiser(Choice("denoise-rgb", 8)).engine_for().settings.views
    assert views == 8


def test_scores_follow_the_strength(server: Server, tmp_path: Path) -> None:
    smooth = np.linspace(60, 200, 40 * 50).reshape(40, 50).round().astype(np.uint8)
    identifier = server.upload(images.Image(smooth), "clean.png", tmp_path)
    facts = server.run(picture=identifier, noise=25)

    def scores(strength: float) -> dict:
        asked = {"strength": strength}
        return server.get(f"/api/jobs/{facts['id']}/scores", params=asked).json()["scores"]

    assert scores(1) == facts["scores"]
    assert scores(0)["restored"] == facts["scores"]["noisy"]
    plain = server.run(picture=identifier)
    assert server.get(f"/api/jobs/{plain['id']}/scores").json() == {"scores": None}


def test_the_time_is_estimated_before_the_start(
    server: Server, photo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nlrn.restoration.Upscaler.seconds", lambda *_: 3.0)
    for asked, model in (
        ({"model": "tiny"}, "tiny"),
        ({"method": "bm3d"}, "bm3d"),
        ({"task": "upscale", "scale": 2}, "sr-rgb"),
        ({"task": "upscale", "scale": 2, "model": "sr-y"}, "sr-y"),
    ):
        for _ in range(2):  # measured, then known
            answer = server.post("/api/estimates", picture=photo, **asked).json()
            assert answer["model"] == model and 0 < answer["seconds"] < 60


def test_estimates_learn_from_what_was_done(
    server: Server, photo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "WORTH_LEARNING", 0.0)
    catalog = server.service.catalog
    monkeypatch.setattr(type(catalog), "seconds", lambda *_: 100.0)
    asked = {"picture": photo, "sigma": 25, "model": "tiny"}
    assert server.post("/api/estimates", **asked).json()["seconds"] > 0
    facts = server.run(picture=photo)
    learned = server.post("/api/estimates", **asked).json()["seconds"]
    assert learned <= facts["seconds"] + 0.01


def test_an_estimate_does_not_wait_where_all_places_are_taken(
    server: Server, photo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.service.worker, "_max_waiting", 0)
    asked = {"picture": photo, "model": "denoise-gray-s70", "sigma": 60}
    assert server.post("/api/estimates", **asked).json() == {"seconds": None, "model": None}


def test_results_are_bounded_by_bytes(
    server: Server, photo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.run(picture=photo)["id"]
    monkeypatch.setattr(results, "MAX_RESULT_BYTES", 20_000)
    second = server.run(picture=photo)["id"]
    third = server.run(picture=photo)["id"]
    assert server.get(f"/api/jobs/{third}/result").status_code == 200
    gone = server.get(f"/api/jobs/{first}/result")
    assert gone.status_code == 404 and "run it again" in gone.json()["error"]
    assert server.get(f"/api/jobs/{first}/preview").status_code == 404
    assert not (server.service.folder / f"job-{first}").exists()
    kept = [f"job-{each}" for each in (second, third)]
    folders = [folder for folder in server.service.folder.glob("job-*") if folder.name in kept]
    assert sum(uploads.stored_bytes(folder) for folder in folders) <= 20_000


def test_uploads_are_bounded_by_bytes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(server.get(f"/api/pictures/{server.upload(noisy_image(), 'a.png', tmp_path)}").text)
    assert size > 0
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 5_000)
    sent = [server.upload(noisy_image(seed=i), "a.png", tmp_path) for i in range(6)]
    found = [server.get(f"/api/pictures/{each}").status_code for each in sent]
    assert found[0] == 404 and found[-1] == 200
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 1)
    assert server.get(f"/api/pictures/{sent[-1]}/preview").status_code == 200, "the last one stays"


def test_a_picture_can_be_removed_with_its_results(server: Server, photo: str) -> None:
    job = server.run(picture=photo)["id"]
    assert server.delete(f"/api/pictures/{photo}").status_code == 204
    assert server.get(f"/api/pictures/{photo}").status_code == 404
    assert server.get(f"/api/jobs/{job}/result").status_code == 404
    assert server.delete(f"/api/pictures/{photo}").status_code == 404
    left = {folder.name for folder in server.service.folder.iterdir()}
    assert not left & {photo, f"job-{job}"}


CELLS = ResidualConfig(in_channels=3, window=5, steps=3, channels=8, embed=4, unshuffle=2)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small network for color on cells of 2 x 2 pixels."""
    path = tmp_path_factory.mktemp("cells") / "cells.safetensors"
    random_residual(CELLS).save_pretrained(path, ModelCard(task="denoise"))
    return path


def test_maps_of_cells_say_so_and_are_those_of_the_library(cells: Path, tmp_path: Path) -> None:
    with Server(Options(device="cpu", models=(cells,))) as running:
        image = noisy_image((31, 44, 3))
        click = {"picture": running.upload(image, "a.png", tmp_path), "row": 13, "column": 21}
        facts = running.post("/api/maps", **click, model="cells", sigma=25).json()
        expected = explain(image.pixels, (13, 21), 25, cells)
        assert (facts["cell"], facts["window"], facts["color"]) == (2, 5, True)
        shown = np.reshape(facts["weights"], expected.weights.shape)
        np.testing.assert_allclose(shown, expected.weights, atol=2e-2)  # bfloat16, maybe


def test_maps_are_those_of_the_network_that_restores(server: Server, tmp_path: Path) -> None:
    for shape, channels in (((20, 26), 1), ((20, 26, 3), 3)):
        identifier = server.upload(noisy_image(shape), "a.png", tmp_path)
        click = {"picture": identifier, "row": 3, "column": 13, "sigma": 30.0}
        facts = server.post("/api/maps", **click).json()
        expected = choose_denoiser(channels).model
        assert facts["model"] == expected and facts["color"] is (channels == 3)
        assert facts["cell"] == 2


def test_a_whole_trace_of_cells_needs_a_quarter(
    cells: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = models.load(cells)
    traced = trace(network, torch.rand(1, 3, 19, 23), 25, device="cpu")
    kept = {e.values.data_ptr(): e.values.nbytes for e in (*traced.queries, *traced.keys)}
    cache = MapCache(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(map_cache, "MAX_WHOLE_BYTES", sum(kept.values()))
    assert cache.why_not_whole((19, 23), network) is None
    assert cache.why_not_whole((19, 25), network) is not None


def test_the_time_of_a_whole_trace_is_that_of_its_network(cells: Path) -> None:
    cache, image = MapCache(torch.device("cpu"), torch.float32), torch.rand(1, 3, 90, 100)
    slow = random_network(dataclasses.replace(CONFIGS["nlrn"], steps=4, window=9, channels=64))
    nothing = lambda done, total: None  # noqa: E731
    for name, network, planes in (
        ("slow", slow, image[:, :1]),
        ("cells", models.load(cells), image),
    ):
        cache.compute(TraceKey("x", 0.0, 25.0, name, 1), planes, network, (45, 50), nothing)
    fast, long = (cache.seconds_for_whole((90, 100), name) for name in ("cells", "slow"))
    assert fast is not None and long is not None and 2 * fast < long
    assert cache.seconds_for_whole((90, 100), "another") is None


def test_the_server_is_quiet_when_a_result_goes_while_it_is_made(
    server: Server, photo: str, held: object
) -> None:
    job = server.start(picture=photo)
    wait_for(lambda: server.job(job)["state"] == "running")
    assert server.delete(f"/api/pictures/{photo}").status_code == 204
    held.set()  # type: ignore[attr-defined]
    facts = server.finished(job)
    assert facts["state"] in ("done", "failed") and str(server.service.folder) not in facts["error"]
    assert not (server.service.folder / f"job-{job}").exists()
