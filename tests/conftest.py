"""What holds for all tests, and what several of them share."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# Threads of GNU OpenMP wait for each other by spinning. The operations of the tests are small, and
# as soon as another program wants the cores they take ten times as long. To be said before torch.
os.environ.setdefault("GOMP_SPINCOUNT", "0")


@pytest.fixture
def small_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root of small gray images for Set12 and color ones for Set5, in the manifest."""
    from nlrn import datasets

    root = tmp_path / "data"
    hashes: dict[str, dict[str, str]] = {}
    generator = np.random.default_rng(0)
    for folder, count, shape in (("set12", 3, (21, 26)), ("set5", 2, (29, 26, 3))):
        (root / folder).mkdir(parents=True)
        hashes[folder] = {}
        for number in range(count):
            file = root / folder / f"{number}.png"
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
