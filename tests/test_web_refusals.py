"""The server of the web page: what it refuses, and that nothing breaks it."""

from __future__ import annotations

import gc
import io
import logging
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import png_header

pytest.importorskip("hypothesis")
pytest.importorskip("schemathesis")
import hypothesis
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from web_server import SENT, Server, noisy_image, wait_for

from nlrn import images
from nlrn.hardware import keep_freed_memory
from nlrn.web import picture_routes, security
from nlrn.web.service import MAX_WAITING
from nlrn.web.uploads import MAX_UPLOADS


def test_too_many_jobs_are_told_to_come_back(
    server: Server, photo: str, held: threading.Event
) -> None:
    request = {"picture": photo, "model": "tiny", "sigma": 25}
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: server.post("/api/jobs", **request), range(50)))
    accepted = [a.json()["id"] for a in answers if a.status_code == 202]
    refused = [a for a in answers if a.status_code == 429]
    assert len(accepted) + len(refused) == 50
    assert MAX_WAITING <= len(accepted) <= MAX_WAITING + 1
    assert "busy" in refused[0].json()["error"] and refused[0].headers["retry-after"]
    for job in accepted:
        server.delete(f"/api/jobs/{job}")
    for job in accepted:
        assert server.finished(job)["state"] == "cancelled"


def test_fifty_uploads_at_once(server: Server, tmp_path: Path) -> None:
    images.write(tmp_path / "a.png", noisy_image((40, 50, 3)))
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
    "values beyond float32": (_npy(1e300), "a.npy", "image/png", 422, "these reach 3.8"),
    "long name": (b"x", "a" * 300 + ".png", "image/png", 422, "name"),
}


@pytest.mark.parametrize("name", BAD_UPLOADS)
def test_bad_uploads_are_refused_and_leave_nothing(server: Server, name: str) -> None:
    content, filename, kind, status, words = BAD_UPLOADS[name]
    folder = server.service.folder
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
    folder = server.service.folder
    before = set(folder.iterdir())
    chunks = (bytes(2**16) for _ in range(800))
    answer = server.client.post("/api/pictures?name=a.png", content=chunks, headers=SENT)
    assert answer.status_code == 413
    assert set(folder.iterdir()) == before


def test_large_requests_that_are_no_upload(server: Server) -> None:
    answer = server.post("/api/jobs", picture="x" * 2**17)
    assert answer.status_code == 413


def _begin_upload(server: Server, sent: bytes = b"x", length: int = 1000) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    wire = socket.create_connection((host, int(port)))
    head = f"POST /api/pictures?name=a.png HTTP/1.1\r\nHost: {host}\r\n"
    wire.sendall(
        f"{head}Content-Type: image/png\r\nContent-Length: {length}\r\n\r\n".encode() + sent
    )
    return wire


def test_slow_uploads_do_not_stop_others(server: Server, tmp_path: Path) -> None:
    slow = [_begin_upload(server) for _ in range(4)]
    try:
        images.write(tmp_path / "a.png", noisy_image())
        content = (tmp_path / "a.png").read_bytes()
        url = "/api/pictures?name=a.png"
        answer = server.client.post(url, content=content, headers=SENT, timeout=8)
        assert answer.status_code == 201
    finally:
        for wire in slow:
            wire.close()


def test_an_upload_that_does_not_come_on_loses_its_place(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture_routes, "UPLOAD_GRACE", 0.3)
    with _begin_upload(server) as wire:
        wire.settimeout(10)
        assert wire.recv(100).startswith(b"HTTP/1.1 408")


def test_an_upload_that_its_sender_aborts_leaves_no_trace(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(server.service.folder.iterdir())
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    try:
        for _ in range(3):
            _begin_upload(server, b"x" * 500).close()
        wait_for(lambda: set(server.service.folder.iterdir()) == before)
        assert server.get("/api/health").status_code == 200
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records, caplog.text


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
    identifier = server.upload(noisy_image(), name, tmp_path)
    facts = server.run(picture=identifier)
    assert facts["filename"] == f"{stem}_denoised.png"
    upload = server.service.uploads.find(identifier)
    assert upload is not None and upload.path.is_relative_to(server.service.folder)
    assert upload.path.name == "picture.png"
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
    images.write(tmp_path / "a.png", noisy_image())
    content = (tmp_path / "a.png").read_bytes()
    secret = tmp_path / "secret.png"
    secret.write_bytes(content)
    static = Path(security.__file__).parent / "static"
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
    folder = server.service.folder
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
    assert security.is_own_host(host, bound) is ours


@pytest.mark.parametrize(
    ("path", "values", "words"),
    [
        ("/api/jobs", {"sigma": -1}, "sigma"),
        ("/api/jobs", {"sigma": 1e9}, "sigma"),
        ("/api/jobs", {"strength": 2}, "strength"),
        ("/api/jobs", {"quality": "worst"}, "quality"),
        ("/api/jobs", {"quality": "best"}, "quality chooses a model"),
        ("/api/jobs", {"method": "bm3d"}, "bm3d is for task denoise, without model and quality"),
        ("/api/estimates", {"task": "paint"}, "task must be one of denoise, upscale"),
        ("/api/estimates", {"model": "nope"}, "model must be one of"),
        ("/api/jobs", {"task": "paint"}, "task must be one of denoise, upscale, got 'paint'"),
        ("/api/jobs", {"task": "upscale"}, "sr-rgb, sr-rgb-fast, sr-y, got 'tiny'"),
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
    server: Server, photo: str, path: str, values: dict, words: str
) -> None:
    answer = server.post(path, **({"picture": photo, "model": "tiny"} | values))
    assert answer.status_code == 422 and words in answer.json()["error"], answer.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"picture": 1e999}'])
def test_bodies_that_are_no_request(server: Server, body: bytes) -> None:
    kind = {"content-type": "application/json"}
    answer = server.client.post("/api/jobs", content=body, headers=kind)
    assert answer.status_code == 422 and answer.json()["error"]


@pytest.mark.slow
def test_no_request_of_the_schema_breaks_the_server(server: Server, photo: str) -> None:
    """schemathesis: what fits the schema, what does not, and ids that are known."""
    document = server.get("/api/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    known, tried = photo, set()
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


@pytest.mark.slow
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
    folder = server.service.folder
    assert len([p for p in folder.iterdir() if not p.name.startswith("job-")]) <= MAX_UPLOADS
