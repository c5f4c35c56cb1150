"""The web server in a thread for tests, a client for it, and small networks and images."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
import httpx
import uvicorn

from nlrn import images
from nlrn.models import ModelCard
from nlrn.models.nlrn import CONFIGS, random_network
from nlrn.web.server import create_app
from nlrn.web.service import Options, Service
from nlrn.web.uploads import DECODING

SMALL = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=4, channels=8, embed=4)
SLOW = dataclasses.replace(SMALL, steps=40)
FAST = dataclasses.replace(SMALL, steps=1)
SENT = {"content-type": "application/octet-stream"}


def save_models(folder: Path) -> Path:
    """Writes tiny and slow, which denoise, and large, which enlarges; gives the folder."""
    random_network(SMALL).save_pretrained(folder / "tiny.safetensors")
    random_network(SLOW).save_pretrained(folder / "slow.safetensors")
    random_network(FAST).save_pretrained(folder / "large.safetensors", ModelCard(task="sr"))
    return folder


def noisy_image(
    shape: tuple[int, ...] = (20, 26, 3), dtype: str = "uint8", seed: int = 0
) -> images.Image:
    """Random pixels of middle brightness; of four channels the last is the alpha."""
    values = np.random.default_rng(seed).uniform(0.2, 0.8, shape)
    pixels = images.from_float(values, dtype)
    if shape[2:] == (4,):
        return images.Image(pixels[..., :3].copy(), pixels[..., 3].copy())
    return images.Image(pixels)


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Server:
    """A context: a server in a thread, and a client for it."""

    def __init__(self, options: Options) -> None:
        listening = socket.create_server((options.host, 0))
        with DECODING:  # FastAPI changes the filters of warnings, as the worker of another does
            self.app = create_app(options)
        # On a busy machine the client may take long until its next request.
        config = uvicorn.Config(self.app, log_level="warning", timeout_keep_alive=120)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.get, self.delete = self.client.get, self.client.delete

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

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

    def start(self, **request: Any) -> str:
        """Starts a job and gives its id."""
        answer = self.post("/api/jobs", **({"model": "tiny", "sigma": 25} | request))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def run(self, **request: Any) -> dict[str, Any]:
        """Starts a job and gives its facts when it is finished."""
        return self.finished(self.start(**request))

    def job(self, job: str) -> dict[str, Any]:
        facts: dict[str, Any] = self.get(f"/api/jobs/{job}").json()
        return facts

    def finished(self, job: str) -> dict[str, Any]:
        return self.events(job)[-1]

    def events(self, job: str) -> list[dict[str, Any]]:
        with self.client.stream("GET", f"/api/jobs/{job}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        return [json.loads(line.removeprefix("data: ")) for line in lines]
