"""Several pictures, strength, formats, BM3D beside the network: at a desk and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import nlrn

pytest.importorskip("playwright")
from playwright.sync_api import Browser, Page, Route, expect
from web_browser import CHROMIUM, color_at, noisy, opened, send
from web_server import noisy_image

from nlrn import images

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]
SIZES = {"desk": (1280, 800), "phone": (390, 844)}


@pytest.fixture(params=SIZES)
def page(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    with opened(browser, address, *SIZES[request.param]) as page:
        yield page
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{wide} pixels too wide"


def run(page: Page) -> None:
    page.locator("#run").click()
    expect(page.locator("#outcome")).to_be_visible()
    expect(page.locator("#progress")).to_be_hidden()


def download(page: Page) -> tuple[str, bytes]:
    with page.expect_download() as started:
        page.locator("#download").click()
    return started.value.suggested_filename, Path(started.value.path()).read_bytes()


def test_several_pictures_wait_their_turn(page: Page, tmp_path: Path) -> None:
    files = [noisy(tmp_path / f"{name}.png", (30, 40 + i, 3)) for i, name in enumerate("abc")]
    page.locator("#file").set_input_files(files)
    items = page.locator("#pictures li")
    expect(items).to_have_count(3)
    expect(page.locator("#name")).to_have_text("a.png")
    expect(page.locator("#expected")).to_contain_text("all about")
    page.get_by_role("button", name="Remove noise: all 3").click()
    for i in range(3):
        expect(items.nth(i)).to_contain_text("done")
    expect(page.locator("#outcome")).to_be_visible()
    for i, file in enumerate(files):
        items.nth(i).get_by_role("button", name=file.name).first.click()
        expect(page.locator("#name")).to_have_text(file.name)
        expect(page.locator("#about")).to_contain_text(f"{40 + i} \u00d7 30")
        expect(page.locator("#download")).to_have_attribute("download", f"{file.stem}_denoised.png")
    page.get_by_role("button", name="Remove c.png").click()
    expect(items).to_have_count(2)
    expect(page.locator("#name")).to_have_text("b.png")
    page.get_by_role("button", name="Remove a.png").click()
    expect(page.locator("#pictures")).to_be_hidden()
    assert download(page)[0] == "b_denoised.png"


def test_progress_and_result_are_in_view(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "a.png"))
    page.locator("#run").scroll_into_view_if_needed()
    run(page)
    page.wait_for_timeout(700)  # it may scroll
    expect(page.locator("#tag-after")).to_be_in_viewport()
    expect(page.locator("#strength")).to_be_in_viewport()


def test_a_waiting_picture_can_be_cancelled(page: Page, tmp_path: Path) -> None:
    page.locator("#file").set_input_files([noisy(tmp_path / f"{n}.png", (500, 600)) for n in "ab"])
    items = page.locator("#pictures li")
    expect(items).to_have_count(2)
    page.locator("#method").select_option("slow")
    page.locator("#run-all").click()
    expect(items.nth(0)).to_have_text(re.compile(r"\d+ %"))
    expect(items.nth(1)).to_contain_text("waiting")
    items.nth(1).locator("button").first.click()
    expect(page.locator("#doing")).to_have_text("Waiting for other pictures …")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress")).to_be_hidden()
    expect(items.nth(1)).not_to_contain_text("waiting")
    items.nth(0).locator("button").first.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#run")).to_be_enabled()


def test_strength_changes_the_result_without_a_second_run(
    page: Page, web_models: Path, tmp_path: Path
) -> None:
    images.write(tmp_path / "a.png", images.Image(np.full((60, 80), 200, np.uint8)))
    images.write(tmp_path / "dark.png", images.Image(np.full((60, 80), 100, np.uint8)))
    page.route("**/api/jobs/*/preview", lambda route: route.fulfill(path=tmp_path / "dark.png"))
    send(page, tmp_path / "a.png")
    expect(page.locator("#mix")).to_be_hidden()
    run(page)
    started: list[str] = []
    page.on("request", lambda r: started.append(r.url) if r.method == "POST" else None)
    page.locator("#split").fill("0")
    page.locator("#strength").fill("40")
    expect(page.locator("#strength-shown")).to_have_text("40 %")
    page.wait_for_timeout(100)
    np.testing.assert_allclose(color_at(page, 0.75), 160, atol=1)
    page.unroute("**/api/jobs/*/preview")
    noisy(tmp_path / "b.png")
    send(page, tmp_path / "b.png")
    run(page)
    page.locator("#strength").fill("80")
    assert not [url for url in started if url.endswith("/jobs")][1:], "the network ran again"
    model = web_models / "tiny.safetensors"
    command = nlrn("denoise", tmp_path / "b.png", "--model", model, "--strength", 0.8)
    assert command.exit_code == 0, command.output
    assert download(page) == ("b_denoised.png", (tmp_path / "b_denoised.png").read_bytes())


def test_a_result_is_kept_when_the_task_is_changed(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "a.png", (24, 30)))
    run(page)
    took = page.locator("#took").inner_text()
    page.get_by_role("radio", name="Enlarge").check()
    expect(page.locator("#outcome")).to_be_hidden()
    page.get_by_role("radio", name="Remove noise").check()
    expect(page.locator("#took")).to_have_text(took)
    assert download(page)[0] == "a_denoised.png"
    expect(page.locator("#stale")).to_be_hidden()
    page.locator("#method").select_option("BM3D")
    expect(page.locator("#stale")).to_be_visible()
    expect(page.locator("#took")).to_have_text(took)


def test_a_result_comes_in_the_format_of_choice(page: Page, tmp_path: Path) -> None:
    images.write(tmp_path / "a.tif", noisy_image((24, 30), "float32"))
    send(page, tmp_path / "a.tif")
    run(page)
    formats = page.locator("#format option").all_inner_texts()
    assert formats == ["TIF", "PNG", "JPG", "WEBP"]
    page.get_by_label("Format of the download").select_option("JPG")
    expect(page.get_by_role("link", name="Download JPG")).to_be_visible()
    name, content = download(page)
    assert name == "a_denoised.jpg" and content.startswith(b"\xff\xd8\xff")


def test_bm3d_stands_beside_the_network(page: Page) -> None:
    page.locator("[data-example=brick]").click()
    expect(page.locator("#expected")).to_contain_text("with tiny")
    run(page)
    expect(page.locator("#scores tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Compare with BM3D").click()
    expect(page.locator("#scores tbody tr").nth(1)).to_contain_text("BM3D")
    expect(page.locator("#tag-before")).to_have_text("BM3D")
    beside = page.get_by_role("button", name="Side by side")
    expect(beside).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#splitter")).to_be_hidden()
    # The same pixel is in the middle of both halves, and a click on either finds it.
    canvas = page.locator("#view")
    box = canvas.bounding_box()
    assert box is not None
    for share in (0.25, 0.75):
        with page.expect_response("**/api/maps") as answer:
            canvas.click(position={"x": share * box["width"], "y": box["height"] / 2})
        found = [answer.value.json()[key] for key in ("row", "column")]
        np.testing.assert_allclose(found, (112, 128), atol=1)
    expect(canvas).to_have_attribute("aria-label", re.compile("BM3D on the left"))
    page.locator("#left").select_option("before")
    expect(page.locator("#tag-before")).to_have_text("noisy")
    beside.click()
    expect(page.locator("#splitter")).to_be_visible()
    restored = page.locator("#scores tbody tr").nth(2)
    with page.expect_response("**/scores?strength=0.5") as scored:
        page.locator("#strength").evaluate(
            """(slider) => { slider.value = 50; slider.dispatchEvent(new Event("input")); }"""
        )
        expect(restored).to_contain_text("…")  # the old ones would be beside the new strength
        page.locator("#strength").dispatch_event("change")
    shown = f"{scored.value.json()['scores']['restored']['psnr']:.2f} dB"
    expect(restored).to_contain_text(shown)


def test_methods_are_offered_and_asked_for(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "a.png", (20, 26)))
    names = page.locator("#method option").all_inner_texts()
    assert names[:5] == ["Fast", "Balanced", "Best, slow", "BM3D", "tiny"]
    asked: list[dict[str, Any]] = []

    def note(route: Route) -> None:
        asked.append(route.request.post_data_json or {})
        route.fulfill(json={"seconds": 3 * 3600, "model": "some"})

    page.route("**/api/estimates", note)
    for name, expected in (
        ("Fast", {"quality": "fast"}),
        ("Best, slow", {"quality": "best"}),
        ("BM3D", {"method": "bm3d"}),
        ("denoise-rgb", {"model": "denoise-rgb"}),
    ):
        page.locator("#method").select_option(name)
        expect(page.locator("#expected")).to_have_text("About 3.0 h with some")
        chosen = {key: asked[-1].get(key) for key in ("quality", "method", "model")}
        assert {key: value for key, value in chosen.items() if value} == expected
        bm3d = name == "BM3D"
        expect(page.locator("#no-maps")).to_be_visible(visible=bm3d)
    page.locator("#method").select_option("BM3D")
    page.unroute("**/api/estimates")
    run(page)
    expect(page.locator("#took")).to_contain_text("s with BM3D, noise level")
    expect(page.locator("#compare")).to_be_hidden()


def test_maps_of_cells_lie_on_their_cells(page: Page, tmp_path: Path) -> None:
    images.write(tmp_path / "a.png", images.Image(np.full((60, 80, 3), 90, np.uint8)))
    send(page, tmp_path / "a.png")
    page.locator("#method").select_option("denoise-rgb")
    page.locator("#view").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#pixel")).to_contain_text("Row 30, column 40")
    page.keyboard.press("ArrowRight")
    pixel = "Row 30, column 41, its 23 \u00d7 23 neighbours, cells of 2 \u00d7 2 pixels"
    expect(page.locator("#pixel")).to_have_text(pixel)
    expect(page.locator("#meaning")).to_contain_text("cells.")
    expect(page.locator("#channels")).to_be_hidden()
    page.locator("#overlay").check()
    page.wait_for_timeout(100)
    # Its cell begins at column 40; 11 cells to the left the maps begin, with a white line.
    line = page.locator("#view").evaluate(
        """(canvas) => {
            const [w, h] = [canvas.clientWidth, canvas.clientHeight];
            const scale = Math.min(w / 80, h / 60, 32);
            const [x, y] = [(w - 80 * scale) / 2 + 18 * scale, (h - 60 * scale) / 2 + 9 * scale];
            const brush = canvas.getContext("2d");
            const part = brush.getImageData(Math.round(x) - 2, Math.round(y), 4, 1);
            return Math.max(...part.data.filter((_, i) => i % 4 === 0));
        }"""
    )
    assert line > 200


def test_a_picture_that_cannot_be_shown_leaves_the_other_as_it_is(
    page: Page, tmp_path: Path
) -> None:
    send(page, noisy(tmp_path / "good.png", (60, 80)))
    first = page.locator("#about").inner_text()
    page.route("**/api/pictures/*/preview*", lambda route: route.fulfill(status=404))
    page.locator("#file").set_input_files(noisy(tmp_path / "odd.png", (200, 3)))
    expect(page.get_by_role("alert")).to_contain_text("could not be shown")
    expect(page.locator("#name")).to_have_text("good.png")
    expect(page.locator("#about")).to_have_text(first)
    with page.expect_request("**/api/jobs") as started:
        page.locator("#run").click()
    expect(page.locator("#outcome")).to_be_visible()
    sent = started.value.post_data_json or {}
    get = "(id) => fetch(`api/pictures/${id}`).then((answer) => answer.json())"
    facts = page.evaluate(get, sent["picture"])
    assert facts["name"] == "good.png"
    page.unroute("**/api/pictures/*/preview*")
    send(page, tmp_path / "odd.png")
    expect(page.locator("#about")).to_contain_text("3 \u00d7 200 pixels")
    run(page)
    expect(page.locator("#alert")).to_be_hidden()


def test_the_clipboard_is_pasted(page: Page, tmp_path: Path) -> None:
    content = list(noisy(tmp_path / "a.png").read_bytes())
    paste = """([bytes, name]) => {
        const data = new DataTransfer();
        if (bytes) data.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
        else data.setData("text/plain", "words");
        dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
    }"""
    page.evaluate(paste, [None, ""])
    expect(page.get_by_role("alert")).to_have_text("There is no picture in the clipboard.")
    page.evaluate(paste, [content, "screenshot"])
    expect(page.locator("#name")).to_have_text("screenshot.png")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_paste_button_reads_the_clipboard(page: Page, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(
        """async (bytes) => navigator.clipboard.write([new ClipboardItem(
            { "image/png": new Blob([new Uint8Array(bytes)], { type: "image/png" }) })])""",
        list(noisy(tmp_path / "a.png").read_bytes()),
    )
    page.get_by_role("button", name="Paste a picture").click()
    expect(page.locator("#name")).to_have_text("pasted.png")
    expect(page.locator("#about")).to_contain_text("80 \u00d7 60")


SPINNER = """() => {
    const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    document.getElementById("maps").classList.add("waiting");
    const drawn = getComputedStyle(document.getElementById("big"), "::after");
    const under = getComputedStyle(document.getElementById("large")).backgroundColor;
    const clear = drawn.backgroundColor === "rgba(0, 0, 0, 0)";
    const [dark, bright] = [drawn.borderTopColor, clear ? under : drawn.backgroundColor]
        .map(light).sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_spinner_is_seen(page: Page, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    send(page, noisy(tmp_path / "a.png"))
    assert page.evaluate(SPINNER) > 3
