"""The web page in a real browser for tests: Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect, sync_playwright
from web_server import noisy_image

from nlrn import images

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
expect.set_options(timeout=20_000)


@contextmanager
def served(models: Path) -> Iterator[str]:
    """The address that `nlrn web` says it is at, with the models tiny and slow of a folder."""
    own = [option for file in ("tiny", "slow") for option in ("--model", f"{file}.safetensors")]
    server = subprocess.Popen(
        [sys.executable, "-m", "nlrn", "web", "--port", "0", "--no-browser", *own],
        cwd=models,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"GOMP_SPINCOUNT": "0"},
    )
    assert server.stdout is not None
    found = re.search(r"http://\S+", server.stdout.readline())
    assert found, server.communicate()
    yield found.group()
    server.terminate()
    _, said = server.communicate(timeout=30)
    assert not said, said


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        # In a container the browser's own sandbox cannot be had.
        try:
            running = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
        except Error as error:  # Ubuntu's is a stub that asks for a snap, which a container has not
            pytest.skip(f"{CHROMIUM} does not start: {str(error).splitlines()[0]}")
        yield running
        running.close()


@contextmanager
def opened(browser: Browser, address: str, width: int = 1366, height: int = 820) -> Iterator[Page]:
    """The page, ready; at the end it has asked nobody else, and the console has no errors."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, accept_downloads=True, has_touch=width < 500
    )
    complaints: list[str] = []

    def pass_or_note(route: Route) -> None:
        url = route.request.url
        if not url.startswith((address, "blob:", "data:")):
            complaints.append(f"asked for {url}")
            route.abort()
        else:
            route.continue_()

    context.route("**/*", pass_or_note)
    page = context.new_page()
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    expect(page.locator("html[data-ready]")).to_have_count(1)
    yield page
    context.close()
    # A refused request is written to the console by the browser itself.
    assert not [c for c in complaints if "server responded with a status of 4" not in c]


def noisy(path: Path, shape: tuple[int, ...] = (60, 80, 3)) -> Path:
    images.write(path, noisy_image(shape))
    return path


def send(page: Page, path: Path) -> None:
    page.locator("#file").set_input_files(path)
    expect(page.locator("#name")).to_have_text(path.name)
    expect(page.locator("#bench")).to_be_visible()


def color_at(page: Page, share: float) -> list[int]:
    """RGB of the canvas, at half of its height and a share of its width."""
    return page.locator("#view").evaluate(
        """(canvas, share) => [...canvas.getContext("2d").getImageData(
            Math.round(share * canvas.width), Math.round(canvas.height / 4), 1, 1).data].slice(0, 3)
        """,
        share,
    )
