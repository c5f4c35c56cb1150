"""What holds for all tests, and what several of them share."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from web_server import Server

# Threads of GNU OpenMP wait for each other by spinning. The operations of the tests are small, and
# as soon as another program wants the cores they take ten times as long. To be said before torch.
os.environ.setdefault("GOMP_SPINCOUNT", "0")


@pytest.fixture
def small_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root of small images in the manifest: Set12 gray, the others color."""
    from nlrn import datasets

    root = tmp_path / "data"
    hashes: dict[str, dict[str, str]] = {}
    generator = np.random.default_rng(0)
    for folder, names, shape in (
        ("set12", ("0", "1", "2"), (21, 26)),
        ("set5", ("0", "1"), (29, 26, 3)),
        ("kodak24", ("0", "1"), (19, 24, 3)),
        ("bsds500/test", ("0", "1"), (27, 34, 3)),
        ("polyu", ("0_mean", "0_real", "1_mean", "1_real", "2_mean", "2_real"), (23, 20, 3)),
    ):
        (root / folder).mkdir(parents=True)
        hashes[folder] = {}
        for name in names:
            file = root / folder / f"{name}.png"
            Image.fromarray(generator.integers(0, 256, shape, np.uint8)).save(file)
            hashes[folder][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    published = datasets.manifest()
    monkeypatch.setattr(datasets, "manifest", lambda: published | hashes)
    monkeypatch.setenv("NLRN_DATA", str(root))
    return root


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a small network."""
    from command_line import SMALL

    from nlrn.models.nlrn import random_network

    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    random_network(SMALL).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def web_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small networks: tiny and slow, which denoise, and large, which enlarges."""
    from web_server import save_models

    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(web_models: Path) -> Iterator[Server]:
    """The web server with small limits; beside the package's models it has tiny."""
    from web_server import Options, Server

    own = (web_models / "tiny.safetensors",)
    with Server(Options(device="cpu", models=own, max_bytes=2**20, max_pixels=10**6)) as running:
        yield running


@pytest.fixture
def photo(server: Server, tmp_path: Path) -> str:
    """Id of a small image on the web server, sent anew: it keeps a few only."""
    from web_server import noisy_image

    return server.upload(noisy_image(), "photo.png", tmp_path)


@pytest.fixture(scope="module")
def address(web_models: Path) -> Iterator[str]:
    """Where `nlrn web` is, with tiny and slow."""
    from web_browser import served

    with served(web_models) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    from web_browser import launched

    with launched() as running:
        yield running


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes every `Denoiser` wait for this event, with signs of progress."""
    from nlrn.restoration import Denoiser, Restored

    go_on = threading.Event()

    def restore(self: Denoiser, image: Any, *_: Any, progress: Any, **__: Any) -> Restored:
        for i in range(600):
            progress(i % 10 + 1, 12)
            if go_on.wait(0.05):
                break
        return Restored(image, {})

    monkeypatch.setattr(Denoiser, "restore", restore)
    return go_on


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small only lose time to threads, and bits must not depend on their number."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a few small images in the folders of BSDS500."""
    from training_runs import make_root

    return make_root(tmp_path_factory.mktemp("data"))
