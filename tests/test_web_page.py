"""The web page in a real browser: what a user sees and does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import nlrn

pytest.importorskip("playwright")
from playwright.sync_api import Browser, Error, Page, expect
from web_browser import CHROMIUM, color_at, noisy, opened, send
from web_server import SMALL

from nlrn import images

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as page:
        yield page


def test_a_picture_goes_up_and_the_result_is_that_of_the_command(
    page: Page, web_models: Path, tmp_path: Path
) -> None:
    path = noisy(tmp_path / "holiday.png")
    send(page, path)
    expect(page.locator("#about")).to_have_text("80 \u00d7 60 pixels, colour, 8 bit")
    expect(page.locator("#estimate")).to_contain_text("found")
    page.get_by_role("button", name="Remove noise").click()
    expect(page.locator("#outcome")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("The result can be downloaded")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download PNG").click()
    assert download.value.suggested_filename == "holiday_denoised.png"
    command = nlrn("denoise", path, "--model", web_models / "tiny.safetensors")
    assert command.exit_code == 0, command.output
    expected = (tmp_path / "holiday_denoised.png").read_bytes()
    assert Path(download.value.path()).read_bytes() == expected


def test_a_picture_is_enlarged_with_the_model_of_the_package(page: Page, tmp_path: Path) -> None:
    path = noisy(tmp_path / "small.png", (24, 30, 3))
    send(page, path)
    page.get_by_role("radio", name="Enlarge").check()
    expect(page.locator("#method")).to_have_value("Balanced")
    expect(page.locator("#sigma")).to_be_hidden()
    expect(page.locator("#explorer")).to_be_hidden()
    page.get_by_label("Factor").select_option("3")
    page.get_by_role("button", name="Enlarge").click()
    expect(page.locator("#took")).to_contain_text("sr-rgb", timeout=60_000)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download PNG").click()
    assert download.value.suggested_filename == "small_x3.png"
    assert nlrn("upscale", path, "--scale", 3).exit_code == 0
    found = Path(download.value.path()).read_bytes()
    assert found == (tmp_path / "small_x3.png").read_bytes()
    assert images.read(tmp_path / "small_x3.png").pixels.shape == (72, 90, 3)
    page.get_by_role("button", name="1:1").click()  # of the result
    expect(page.locator("#zoom-shown")).to_have_text("100 %")
    assert page.locator("#view").evaluate("view => view.clientWidth") > 900  # the maps' room too
    page.get_by_role("radio", name="Remove noise").check()
    expect(page.locator("#sigma")).to_be_visible()
    expect(page.locator("#status")).to_have_text("")


def test_progress_is_shown_and_the_job_can_be_cancelled(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "large.png", (700, 900, 3)))
    page.locator("#method").select_option("slow")
    page.locator("#run").click()
    expect(page.locator("#progress")).to_be_visible()
    expect(page.locator("#doing")).to_have_text(re.compile(r"Remove noise: \d+ %, about .* left"))
    expect(page.locator("#run")).to_be_disabled()
    assert 0 < page.locator("#bar").evaluate("bar => bar.value") < 1
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#status")).to_have_text("Cancelled.")
    expect(page.locator("#outcome")).to_be_hidden()
    page.locator("#method").select_option("tiny")
    page.get_by_label("Estimate it").uncheck()
    page.locator("#sigma").fill("0")
    page.locator("#run").click()
    expect(page.locator("#outcome")).to_be_visible()


def test_the_divider_goes_from_before_to_after(page: Page, tmp_path: Path) -> None:
    bright = np.full((60, 80), 200, np.uint8)
    images.write(tmp_path / "a.png", images.Image(bright))
    send(page, tmp_path / "a.png")
    page.route("**/api/jobs/*/preview", lambda route: route.fulfill(path=tmp_path / "dark.png"))
    images.write(tmp_path / "dark.png", images.Image(bright // 4))
    page.locator("#run").click()
    expect(page.locator("#splitter")).to_be_visible()
    split = page.locator("#split")
    expect(split).to_have_value("500")
    assert color_at(page, 0.25) == [200] * 3 and color_at(page, 0.75) == [50] * 3
    split.focus()
    page.keyboard.press("Home")
    expect(split).to_have_value("0")
    page.wait_for_timeout(100)
    assert color_at(page, 0.25) == [50] * 3
    page.keyboard.press("End")
    page.wait_for_timeout(100)
    assert color_at(page, 0.75) == [200] * 3
    box = page.locator("#view").bounding_box()
    assert box is not None
    y, right = box["y"] + box["height"] / 2, box["x"] + box["width"] / 2
    edge = page.locator("#view").evaluate("view => view.clientWidth") / 2
    image = min(box["height"] / 60, box["width"] / 80) * 80 / 2
    page.mouse.move(box["x"] + edge + image - 3, y)  # the divider is at the right edge
    page.mouse.down()
    page.mouse.move(right, y, steps=5)
    page.mouse.up()
    assert abs(int(split.input_value()) - 500) < 30


def test_zoom_and_pan(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "a.png"))
    shown = page.locator("#zoom-shown")
    page.get_by_role("button", name="1:1").click()
    expect(shown).to_have_text("100 %")
    page.get_by_role("button", name="Zoom in").click()
    expect(shown).to_have_text("150 %")
    page.locator("#view").focus()
    page.keyboard.press("-")
    expect(shown).to_have_text("100 %")
    view = page.locator("#view")
    view.hover()
    page.mouse.wheel(0, -320)
    expect(shown).to_have_text(re.compile(r"27\d %"))
    page.get_by_role("button", name="Fit").click()
    expect(shown).not_to_have_text(re.compile(r"27\d %"))


def test_a_click_brings_maps_that_sum_to_one(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "a.png", (61, 81)))
    with page.expect_response("**/api/maps") as answer:
        page.locator("#view").click()  # in the middle
    facts = answer.value.json()
    assert (facts["row"], facts["column"]) == (30, 40)
    np.testing.assert_allclose(np.sum(facts["weights"], axis=1), 1, atol=1e-3)
    maps = page.locator("#small button")
    expect(maps).to_have_count(SMALL.steps)
    expect(page.locator("#pixel")).to_have_text("Row 30, column 40, its 5 \u00d7 5 neighbours")
    expect(page.locator("#state-shown")).to_have_text("state 4 of 4")
    page.get_by_role("button", name="State 2").click()
    expect(page.locator("#state-shown")).to_have_text("state 2 of 4")
    expect(maps.nth(1)).to_have_attribute("aria-pressed", "true")
    page.locator("#state").fill("1")
    expect(page.locator("#state-shown")).to_have_text("state 1 of 4")
    page.get_by_role("button", name="Play through the states").click()
    expect(page.locator("#state-shown")).to_have_text("state 3 of 4")
    page.get_by_role("button", name="Stop").click()
    drawn = page.locator("#large").evaluate(
        "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, 99, 99).data).size"
    )
    assert drawn > 10, "nothing is drawn"


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.innerText"))
    assert seen[:4] == ["theme", "file", "paste", "Camera"]
    page.locator("[data-example=brick]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#view")).to_be_focused()
    expect(page.locator("#add")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.locator("#pixel")).to_contain_text("Row 112, column 128")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    expect(page.locator("#pixel")).to_contain_text("Row 102, column 129")


def test_noise_first_shows_scores(page: Page) -> None:
    page.locator("[data-example=camera]").click()
    expect(page.locator("#adding")).to_be_visible()
    page.locator("#noise").fill("50")
    expect(page.locator("#estimate")).to_have_text(re.compile(r"4\d\.\d found|5\d\.\d found"))
    page.locator("#run").click()
    expect(page.locator("#scores")).to_be_visible()
    expect(page.locator("#scores tbody tr").first).to_have_text(re.compile(r"noisy1\d\.\d\d dB0\."))
    expect(page.locator("#tag-before")).to_have_text("noisy")
    page.locator("#add").uncheck()
    expect(page.locator("#outcome")).to_be_hidden()


def test_bad_files_are_explained(page: Page, tmp_path: Path) -> None:
    alert = page.get_by_role("alert")
    for name, content, words in [
        ("broken.png", b"no picture at all", "broken.png: not an image"),
        ("notes.txt", b"hello", "not a kind of picture that is known"),
        ("empty.jpg", b"", "empty.jpg"),
        ("vast.tif", bytes(51 * 2**20), "too large, 50 MiB are the limit"),
    ]:
        (tmp_path / name).write_bytes(content)
        page.locator("#file").set_input_files(tmp_path / name)
        expect(alert).to_contain_text(words)
        expect(page.locator("#bench")).to_be_hidden()
    send(page, noisy(tmp_path / "good.png"))
    expect(alert).to_be_hidden()


def test_pictures_are_dropped_and_pasted(page: Page, tmp_path: Path) -> None:
    content = list(noisy(tmp_path / "a.png").read_bytes())
    put = """([bytes, name, kind]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
        const event = kind === "paste"
            ? new ClipboardEvent(kind, { clipboardData: data })
            : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
        (kind === "paste" ? window : document.body).dispatchEvent(event);
    }"""
    page.evaluate(put, [content, "dropped.png", "dragenter"])
    expect(page.locator("#dropping")).to_be_visible()
    page.evaluate(put, [content, "dropped.png", "drop"])
    expect(page.locator("#name")).to_have_text("dropped.png")
    expect(page.locator("#dropping")).to_be_hidden()
    page.evaluate(put, [content, "pasted.png", "paste"])
    expect(page.locator("#name")).to_have_text("pasted.png")


UNNAMED = """() => [...document.querySelectorAll("button, input, select, canvas, a, progress")]
    .filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim()))
    .filter((e) => !e.closest("[hidden]") && !(e.tagName === "CANVAS" && e.closest("button")))
    .map((e) => e.outerHTML)"""
FAINT = """() => {
    const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (e) => {
        for (let at = e; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const e of document.querySelectorAll("body *")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        const other = e.matches(":disabled, .tag, #small span, .unseen"); // on a picture, or unseen
        if (!own || other || !e.checkVisibility()) continue;
        const ink = light(parse(getComputedStyle(e).color));
        const [dark, bright] = [ink, light(ground(e))].sort((x, y) => x - y);
        if ((bright + 0.05) / (dark + 0.05) < 4.5) found.push(e.outerHTML.slice(0, 80));
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_contrast_and_small_screens(page: Page, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    assert page.evaluate(UNNAMED) == [] and page.evaluate(FAINT) == []
    send(page, noisy(tmp_path / "a.png"))
    page.locator("#view").click()
    expect(page.locator("#small button")).to_have_count(SMALL.steps)
    page.locator("#run").click()
    expect(page.locator("#outcome")).to_be_visible()
    assert page.evaluate(UNNAMED) == [] and page.evaluate(FAINT) == []
    for width, height in [(1366, 820), (1000, 700), (360, 740)]:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(50)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{wide} pixels too wide at {width}"
    page.get_by_role("button", name="Theme: auto").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_the_whole_picture_is_traced_and_the_pointer_followed(page: Page, tmp_path: Path) -> None:
    send(page, noisy(tmp_path / "a.png", (120, 130)))
    page.locator("#view").click()
    expect(page.locator("#source")).to_contain_text("16 pixels around it")
    page.locator("#whole").click()
    expect(page.locator("#source")).to_have_text("From the whole picture: exact.")
    expect(page.locator("#whole")).to_be_hidden()
    page.locator("#follow").check()
    box = page.locator("#view").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.4, steps=4)
    expect(page.locator("#pixel")).not_to_contain_text("Row 60, column 65")


def test_a_server_that_is_gone_is_said(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    expect(page.locator("html[data-ready]")).to_have_count(1)
    context.route("**/api/**", lambda route: route.abort())
    page.locator("[data-example=camera]").click()
    expect(page.get_by_role("alert")).to_contain_text("Is nlrn web still running?")
    context.close()


def test_the_page_cannot_be_framed_by_another(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.set_content(f'<iframe src="{address}"></iframe>')
    frame = page.frames[-1]
    with pytest.raises(Error):
        frame.locator("#start").wait_for(timeout=500)
    page.close()
