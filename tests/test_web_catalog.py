"""What the page offers and keeps: one restoration for each model, traces within memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from web_server import SMALL, Options, noisy_image, wait_for

from nlrn import Settings, weights
from nlrn.attention_maps import trace
from nlrn.models import ModelCard, Network
from nlrn.models.nlrn import NLRN, NLRNConfig, random_network
from nlrn.restoration.choice import QUALITIES, Choice, choose_denoiser, choose_upscaler
from nlrn.web import map_cache
from nlrn.web.catalog import Catalog
from nlrn.web.map_cache import MapCache, TraceKey
from nlrn.web.schema import RestoreRequest
from nlrn.web.service import Service

CPU = torch.device("cpu")
KEY = TraceKey("upload", 0.0, 25.0, "tiny", 1)
PLAIN = dataclasses.replace(SMALL, non_local_every=0)


def nothing(done: int, total: int) -> None:
    """No progress is wanted."""


def saved(folder: Path, name: str, config: NLRNConfig = SMALL, task: str = "") -> Path:
    path = folder / f"{name}.safetensors"
    random_network(config).save_pretrained(path, ModelCard(task=task))
    return path


def catalog_of(*files: Path) -> Catalog:
    return Catalog(files, Settings(device="cpu"))


def test_own_models_come_first_and_stand_for_those_of_the_same_name(tmp_path: Path) -> None:
    own = (
        saved(tmp_path, "tiny"),
        saved(tmp_path, "denoise-gray-s25"),
        saved(tmp_path, "x", task="sr"),
    )
    catalog = catalog_of(*own)
    names = [model.name for model in catalog.models()]
    assert names[:3] == ["tiny", "denoise-gray-s25", "x"] and len(set(names)) == len(names)
    assert len(names) == 2 + len(weights.manifest())
    assert {m.name: m.task for m in catalog.models()}["x"] == "upscale"
    assert catalog.denoiser(Choice("denoise-gray-s25")).engine_for().network.config == SMALL


def test_the_model_is_the_one_asked_for_or_the_best(tmp_path: Path) -> None:
    catalog = catalog_of(saved(tmp_path, "tiny"), saved(tmp_path, "large", task="sr"))
    assert catalog.choose("denoise", "tiny") == Choice("tiny")
    for quality in QUALITIES:
        for channels in (1, 3):
            found = catalog.choose("denoise", None, quality, channels)
            assert found == choose_denoiser(channels, quality), "not that of the command"
    assert catalog.choose("upscale", None).model == "large"
    assert catalog_of().choose("upscale", None) == choose_upscaler()
    for wrong in ("large", str(tmp_path / "tiny.safetensors"), ""):
        with pytest.raises(ValueError, match="model must be one of tiny, denoise-rgb"):
            catalog.choose("denoise", wrong)
    with pytest.raises(ValueError, match="quality chooses a model"):
        catalog.choose("denoise", "tiny", "fast")


def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a safetensors file"):
        catalog_of(tmp_path / "bad.safetensors")
    color = dataclasses.replace(SMALL, in_channels=3, out_channels=3)
    with pytest.raises(ValueError, match="takes no luminance"):
        catalog_of(saved(tmp_path, "color", color, "sr"))


def test_each_model_is_loaded_and_prepared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(saved(tmp_path, "tiny"), saved(tmp_path, "large", task="sr"))
    prepared: list[Network] = []
    prepare = NLRN.for_inference

    def count(self: NLRN, *arguments: Any) -> Any:
        prepared.append(self)
        return prepare(self, *arguments)

    monkeypatch.setattr(NLRN, "for_inference", count)
    image = noisy_image((12, 17, 3))
    for sigma, scale, size in ((25.0, 2.0, (24, 34)), (40.0, 3.0, (36, 51)), (None, 1.5, (18, 26))):
        request = RestoreRequest(picture="x", sigma=sigma)
        catalog.restore(image, Choice("tiny"), request, nothing)
        request = RestoreRequest(picture="x", task="upscale", scale=scale)
        enlarged = catalog.restore(image, Choice("large"), request, nothing).image
        assert enlarged.pixels.shape == (*size, 3)
    denoiser, upscaler = catalog.denoiser(Choice("tiny")), catalog.upscaler(Choice("large"))
    assert prepared == [denoiser.engine_for().network, upscaler.engine.network]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"affinity": "symmetric_embedded_gaussian"},  # query and key are one
        {"affinity": "gaussian"},  # the features themselves
        {"non_local_every": 2, "propagate": False},
    ],
    ids=str,
)
def test_the_limit_of_a_whole_trace_counts_what_is_kept(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_network(dataclasses.replace(SMALL, **changes))
    traced = trace(network, torch.rand(1, 1, 19, 23), 25, device="cpu")
    kept = {e.values.data_ptr(): e.values.nbytes for e in (*traced.queries, *traced.keys)}
    cache = MapCache(CPU, torch.float32)
    monkeypatch.setattr(map_cache, "MAX_WHOLE_BYTES", sum(kept.values()))
    assert cache.why_not_whole((19, 23), network) is None
    assert "24 x 19 pixels are too many" in str(cache.why_not_whole((19, 24), network))
    with pytest.raises(ValueError, match="too many to keep"):
        cache.trace_whole(KEY, torch.rand(1, 1, 20, 23), network, nothing)


def test_a_network_that_compares_no_pixels_has_no_maps() -> None:
    cache, network = MapCache(CPU, torch.float32), random_network(PLAIN)
    for work in (
        lambda: cache.compute(KEY, torch.rand(1, 1, 9, 11), network, (3, 4), nothing),
        lambda: cache.trace_whole(KEY, torch.rand(1, 1, 9, 11), network, nothing),
    ):
        with pytest.raises(ValueError, match="maps need a network that compares pixels"):
            work()


def test_traces_of_an_upload_are_forgotten_with_it() -> None:
    cache, network = MapCache(CPU, torch.float32), random_network(SMALL)
    image = torch.rand(1, 1, 60, 70)
    found = cache.compute(KEY, image, network, (30, 40), nothing)
    again = cache.find(KEY, (30, 40))
    assert again is not None and (again.weights == found.weights).all() and found.halo == 16
    assert cache.find(KEY, (33, 40)) is not None and cache.find(KEY, (34, 40)) is None
    assert cache.find(KEY._replace(channel=0), (30, 40)) is None
    cache.forget("another")
    assert cache.find(KEY, (30, 40)) is not None
    cache.forget("upload")
    assert cache.find(KEY, (30, 40)) is None


def test_the_first_model_with_maps_is_warmed_up(tmp_path: Path) -> None:
    own = saved(tmp_path, "plain", PLAIN), saved(tmp_path, "tiny")
    with Service(Options(device="cpu", models=own)) as service:
        wait_for(lambda: service.map_cache.is_warm)
