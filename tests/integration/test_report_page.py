"""Opens the page of `inspect --html` from a file in a real browser: zoom, names, nearest rows, and no requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from model_export.__main__ import main
from tests.toy_model import toy_tables, write_toy_model

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

if not shutil.which("chromium"):
    pytest.skip("no chromium is installed", allow_module_level=True)
browsing = pytest.importorskip("tests.integration.browser", reason="playwright is not installed", exc_type=ImportError)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Opens the report on a toy whose users are 3,000 unit vectors on a circle; fails at the end if it has faults."""
    base = tmp_path_factory.mktemp("report")
    angles = np.arange(3000) * 2 * np.pi / 3000
    users = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    folder = write_toy_model(
        base / "1",
        tables=toy_tables() | {"user": users},
        edit_manifest=lambda manifest: manifest["tables"]["user"].update(vocabulary_size=3000),
    )
    (folder / "assets" / "tag.txt").write_text("red\n<img src=x onerror=alert(1)>\nblue\n")
    assert main(["inspect", str(folder), "--html", str(base / "report.html")]) == 0
    url = (base / "report.html").as_uri()
    with browsing.chromium() as browser, browsing.watched(browser, url) as seen:
        seen.page.goto(url)
        yield seen.page


def ticks(figure: Locator) -> list[float]:
    """Returns the numbers at the ticks of a picture's horizontal axis, ascending."""
    texts = figure.locator(".axes .tick[text-anchor=middle]").all_text_contents()
    return sorted(float(text) for text in texts)


def shown_at(point: Locator) -> tuple[float, float, float]:
    """Returns the x and y of a point's centre, and the point's width, in pixels of the browser's window."""
    box = point.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, box["width"]


def test_a_selected_row_shows_its_nearest_rows_by_name(page: Page) -> None:
    figure = page.locator("figure.rows").nth(1)
    figure.locator("[data-row='1']").hover(force=True)
    assert figure.locator(".tip").inner_text() == "row 1 · red"
    figure.locator("[data-row='1']").click(force=True)
    # Rows are [i, i * i, 1], so by the cosine the rows nearest to row 1 are row 2, row 3 and row 0.
    lines = figure.locator(".nearest li").all_inner_texts()
    assert lines == [
        "row 2 · <img src=x onerror=alert(1)> cosine 0.882",
        "row 3 · blue cosine 0.787",
        "row 0 · (any other key) cosine 0.577",
    ]
    assert figure.locator(".near").count() == 3 and figure.locator(".chosen").get_attribute("data-row") == "1"
    figure.locator(".nearest li button").nth(1).click()
    assert figure.locator(".nearest b").inner_text() == "row 3 · blue"


def test_nearest_rows_are_those_of_the_whole_table(page: Page) -> None:
    figure = page.locator("figure.rows").nth(0)
    points = {int(point.get_attribute("data-row") or "") for point in figure.locator("[data-row]").all()[:50]}
    row = next(iter(points))
    search = figure.locator("input")
    search.fill(str(row))
    search.press("Enter")
    found = [int(line.split()[1]) for line in figure.locator(".nearest li").all_inner_texts()]
    # The rows are 3,000 points on a circle, so the ten nearest rows of a point are five on each side. The picture shows
    # two thirds of the rows.
    assert sorted((one - row + 1500) % 3000 - 1500 for one in found) == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
    search.fill("no such row")
    search.press("Enter")
    assert "No point of this picture" in figure.locator(".nearest").inner_text()


def test_zoom_moves_points_and_axes_and_keeps_the_size_of_points(page: Page) -> None:
    figure = page.locator("figure.rows").nth(0)
    first, whole = figure.locator("[data-row]").first, ticks(figure)
    _, _, width = shown_at(first)
    figure.get_by_title("Zoom in").click()
    figure.get_by_title("Zoom in").click()
    narrow = ticks(figure)
    assert max(narrow) - min(narrow) < (max(whole) - min(whole)) / 2
    assert shown_at(first)[2] == pytest.approx(width, rel=0.05)
    # The row may be outside the view; its selection moves the view.
    figure.locator("input").fill(first.get_attribute("data-row") or "")
    figure.locator("input").press("Enter")
    plot = figure.locator("svg svg").bounding_box()
    x, y, _ = shown_at(first)
    assert plot is not None
    assert plot["x"] - 1 <= x <= plot["x"] + plot["width"] + 1 and plot["y"] - 1 <= y <= plot["y"] + plot["height"] + 1
    figure.get_by_title("Show the whole picture").click()
    assert ticks(figure) == whole


def test_the_wheel_zooms_about_the_pointer_and_a_drag_moves(page: Page) -> None:
    figure = page.locator("figure.rows").nth(1)
    figure.get_by_title("Show the whole picture").click()
    figure.scroll_into_view_if_needed()
    point = figure.locator("[data-row='2']")
    x, y, _ = shown_at(point)
    # A browser's wheel event has whole pixels.
    wheel_x, wheel_y = round(x), round(y)
    page.mouse.move(wheel_x, wheel_y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    browsing.wait_for(page, "document.querySelectorAll('.map')[1].getAttribute('transform').includes('scale(4)')")
    near = wheel_x + 4 * (x - wheel_x), wheel_y + 4 * (y - wheel_y)
    assert shown_at(point)[:2] == pytest.approx(near, abs=1)
    page.mouse.down()
    page.mouse.move(wheel_x + 30, wheel_y + 10, steps=3)
    page.mouse.up()
    assert shown_at(point)[:2] == pytest.approx((near[0] + 30, near[1] + 10), abs=1)
    figure.locator("svg").first.focus()
    page.keyboard.press("0")
    assert shown_at(point)[:2] == pytest.approx((x, y), abs=1)


def test_the_page_is_accessible(page: Page) -> None:
    if not browsing.AXE.exists():
        pytest.skip("console/node_modules is not installed")
    page.evaluate(browsing.AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [f"{one['id']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]] == []
