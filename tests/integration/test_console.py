"""The console in a real browser, against a real server: pages, actions, sign-in, and versions that change meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import numpy as np
import pytest

from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, until, unused_ports
from tests.integration.test_access import TOKENS, bearer, caller
from tests.toy_model import toy_tables, write_toy_model
from tests.versions_to_compare import random_rows, write_version

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

    from tests.integration.browser import Watched

if not shutil.which("chromium"):
    pytest.skip("no chromium is installed", allow_module_level=True)
browsing = pytest.importorskip("tests.integration.browser", reason="playwright is not installed", exc_type=ImportError)

pytestmark = pytest.mark.slow
MANY_ROWS = 1_000_000
PAIR_ROWS = 200
PAIR_MAP = "map?model=pair&table={}&color={}"
PAGES = (
    "",
    "tables",
    "tables?id=1",
    "map",
    PAIR_MAP.format("user", "drift"),
    PAIR_MAP.format("tag", "key:tag"),
    PAIR_MAP.format("tag", "traffic"),
    "try",
    "traffic",
    "compare",
    "deltas",
)
ADMIN_PAGES = ("admin?model=spare&table=user",)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts one browser for all tests."""
    with browsing.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes version 1 of the toy model, and models "large", "pair" and "spare".

    large: its table of users has a million rows. pair: has two versions; row 7 of users points the other way in the
    second. spare: two versions of the toy model, of which the second is served.
    """
    folder = tmp_path_factory.mktemp("console")
    write_toy_model(folder / "toy" / "1")
    rows = np.arange(MANY_ROWS, dtype=np.float32)
    users = np.stack([np.cos(rows) * (1 + rows / MANY_ROWS), np.sin(rows)], axis=1).astype(np.float32)

    def enlarge(manifest: dict[str, Any]) -> None:
        manifest["tables"]["user"]["vocabulary_size"] = MANY_ROWS

    write_toy_model(folder / "large" / "1", tables=toy_tables() | {"user": users}, edit_manifest=enlarge)
    pair = random_rows(PAIR_ROWS, 1, 2)
    for version in ("1", "2"):
        write_version(folder / "pair" / version, pair, keys=["film:a", "film:b", "book:c"])
        pair[7] *= -1
    write_toy_model(folder / "spare" / "1")
    write_toy_model(folder / "spare" / "2", scale=2)
    collector = f'log_collector_config {{ filename_prefix: "{folder}/log" }}'
    log = f"logging_config {{ {collector} sampling_config {{ sampling_rate: 1 }} }}"
    entries = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" {more} }}\n'
        for name, more in (("toy", log), ("large", ""), ("spare", ""), ("pair", "model_version_policy { all {} }"))
    )
    (folder / "models.conf").write_text(f"model_config_list {{\n{entries}}}\n")
    return folder


def serve(base: Path, **settings: object) -> ServerProcess:
    """Starts a server of all models that `base` writes."""
    usual: dict[str, object] = {
        "model_config_file": base / "models.conf",
        "admin_port": unused_ports(1)[0],
        "file_system_poll_wait_seconds": 0.1,
        "graph_signatures": "off",
        "delta_journal_dir": base / "journals",
    }
    return ServerProcess(**(usual | settings))


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[ServerProcess]:
    """Starts a server without access control, to which each request is slow, and waits until it has no problems."""
    with serve(base, slow_request_ms=0.001) as process:
        process.answering()
        until(lambda: process.http.get("/readyz").json().get("problems") == {})
        yield process


@pytest.fixture
def console(browser: Browser, server: ServerProcess) -> Iterator[Watched]:
    with browsing.watched(browser, f"http://127.0.0.1:{server.http_port}") as opened:
        yield opened


def settle(page: Page) -> None:
    """Waits until a page has loaded its data."""
    browsing.wait_for(page, "!/Loading/.test(document.body.innerText)")


def box(page: Page, name: str) -> Locator:
    """Returns the combobox of this name."""
    return page.get_by_role("combobox", name=name, exact=True)


needs_axe = pytest.mark.skipif(not browsing.AXE.is_file(), reason="axe-core is not installed: make console")


@needs_axe
@pytest.mark.parametrize(("scheme", "size"), [("light", "wide"), ("dark", "phone")])
def test_no_page_has_findings(browser: Browser, server: ServerProcess, scheme: str, size: str) -> None:
    # Its text has a name that no line of a phone holds.
    server.http.post("/v1/models/toy:lookup", json={"features": {"n" * 200: [1]}})
    for port, places in ((server.http_port, PAGES), (server.admin_port, ADMIN_PAGES)):
        with browsing.watched(browser, f"http://127.0.0.1:{port}", scheme=scheme, size=size) as seen:
            for place in places:
                page = seen.open(place)
                settle(page)
                assert seen.findings() == [], place
                # No page is wider than the window, so that a phone's user need not scroll sideways.
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), place


def test_a_browser_is_led_to_the_console(console: Watched) -> None:
    console.page.goto(console.base)
    console.page.wait_for_selector("h1 >> text=Overview")
    assert console.page.url == f"{console.base}/console"


def test_the_page_of_the_api_names_a_served_model_first_and_folds_versions(
    browser: Browser, server: ServerProcess
) -> None:
    with browsing.watched(browser, f"http://127.0.0.1:{server.http_port}", scheme="dark", size="phone") as seen:
        seen.page.goto(f"{seen.base}/docs")
        shown = seen.page.locator(".opblock:visible")
        seen.page.get_by_role("heading", name="Embedding server").wait_for()
        seen.page.get_by_text("All examples here are requests for the model large, version 1").wait_for()
        paths = [path.replace("\u200b", "") for path in shown.locator(".opblock-summary-path").all_inner_texts()]
        # A comparison has no path without a version.
        assert [path for path in paths if "{version}" in path or "{label}" in path] == [
            "/v1/models/{model}/versions/{version}:diff"
        ]
        assert "/v1/models/{model}:lookup" in paths
        seen.page.get_by_role("checkbox").check()
        seen.page.get_by_text("/labels/{label}:lookup").wait_for()
        assert shown.count() > len(paths)
        assert seen.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert seen.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        seen.page.get_by_role("link", name="Console", exact=True).click()
        seen.page.get_by_role("heading", name="Overview").wait_for()


@contextlib.contextmanager
def broken_version(server: ServerProcess, base: Path) -> Iterator[None]:
    """Holds a version 3 of the model "spare" that can not be loaded; at the end the server has forgotten it."""

    def statuses() -> dict[str, str]:
        listed = server.http.get("/v1/models/spare").json()["model_version_status"]
        return {one["version"]: one["state"] for one in listed}

    (base / "spare/3").mkdir()
    (base / "spare/3/saved_model.pb").write_bytes(b"broken")
    until(lambda: statuses().get("3") == "END")
    yield
    shutil.rmtree(base / "spare/3")
    until(lambda: "3" not in statuses())


def test_a_phone_shows_the_version_that_answers_beside_one_that_failed(
    browser: Browser, server: ServerProcess, base: Path
) -> None:
    page = f"http://127.0.0.1:{server.http_port}"
    with broken_version(server, base), browsing.watched(browser, page, size="phone") as seen:
        seen.open().get_by_role("region", name="Model spare").get_by_text(re.compile("2 AVAILABLE 3 END")).wait_for()


def test_a_phone_folds_what_nobody_asked_for(browser: Browser, server: ServerProcess) -> None:
    with browsing.watched(browser, f"http://127.0.0.1:{server.http_port}", size="phone") as seen:
        page = seen.open()
        card = page.get_by_role("region", name="Model toy")
        tables = page.get_by_role("region", name="Tables of toy")
        card.get_by_text("AVAILABLE").first.wait_for()
        settle(page)
        assert not tables.is_visible()
        # A model with failed requests, as of other tests, is open already.
        if not card.get_by_text("Tables: 2").is_visible():
            card.get_by_role("heading", name="toy").click()
        card.get_by_text("Tables: 2").click()
        tables.get_by_role("link", name="user").wait_for()


def test_the_policy_holds(console: Watched) -> None:
    page = console.open()
    console.expected = ("Content Security Policy",)
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.wasRun = 1';"
        " document.body.append(s); }"
    )
    assert page.evaluate("window.wasRun === undefined")


def test_a_swap_shows_while_somebody_looks(console: Watched, base: Path) -> None:
    page = console.open()
    card = page.locator("section[aria-label='Model toy']")
    card.locator("tr", has_text="AVAILABLE").first.wait_for()
    (base / "toy" / "3").mkdir()
    (base / "toy" / "3" / "saved_model.pb").write_bytes(b"broken")
    card.locator("p.problem", has_text="version 3").wait_for()
    card.get_by_text("There is no older version to go back to.").wait_for()
    attention = page.get_by_role("region", name="What needs attention").locator("tr", has_text="version 3")
    attention.get_by_text("EmbeddingVersionFailed").wait_for()
    shutil.rmtree(base / "toy" / "3")
    page.goto(f"{console.base}/console#/tables?model=toy&table=user&id=2")
    page.wait_for_selector("h2 >> text=Row 2")
    write_toy_model(base / "toy" / "2.new", scale=3)
    (base / "toy" / "2.new").rename(base / "toy" / "2")
    # The console shows the row of version 2 without a reload of the page.
    browsing.wait_for(page, "/version\\s*2\\b/.test(document.querySelector(\"section[aria-label='Row']\")?.innerText)")
    assert "60.3" in page.locator("section[aria-label='Row']").inner_text()
    console.open()
    page.locator("section[aria-label='Model toy'] svg[aria-label*='version 2: START']").wait_for()
    since = page.get_by_role("region", name="Versions of toy").locator("tbody tr").first.locator("td").nth(2)
    assert re.fullmatch(r"\d\d:\d\d:\d\d, (now|\d+ (s|min) ago)", since.inner_text())
    page.get_by_text("unloading or ended").first.wait_for()


def test_many_models_do_not_hide_the_one_that_fails(browser: Browser, tmp_path: Path) -> None:
    def note(manifest: dict[str, Any]) -> None:
        manifest["provenance"] = {"notice": "a toy"}

    names = [f"m{number:02d}" for number in range(12)]
    for name in names:
        write_toy_model(tmp_path / name / "1", edit_manifest=note)
    (tmp_path / "m07" / "1" / "saved_model.pb").write_bytes(b"broken")
    with ServerProcess(models=tmp_path, graph_signatures="off", file_system_poll_wait_seconds=0.1) as server:
        server.ready()
        for number, name in enumerate(names):
            for _ in range(number + 1):
                server.http.post(f"/v1/models/{name}:lookup", json={"features": {"user": [1]}})
            for _ in range(2):
                server.http.post(f"/v1/models/{name}:lookup", json={"features": {"user": [number - 100]}})
        with browsing.watched(browser, f"http://127.0.0.1:{server.http_port}") as seen:
            page = seen.open()
            rows = page.get_by_role("region", name="What needs attention").locator("tbody tr")
            until(lambda: rows.count() == 2)
            assert rows.nth(0).inner_text().startswith("m07\tcan not answer: version 1 is END")
            reasons = page.get_by_role("list", name="What failed most").locator("li")
            reasons.filter(has_text=re.compile(r"^22 × HTTP lookup, .+ and 8 more: such as: ")).wait_for()
            assert rows.nth(1).inner_text().startswith("m00, m01, m02 and 8 more\tversion 1: a toy")
            page = seen.open("traffic")
            busiest = page.get_by_role("region", name="Rate and failures by model", exact=True).locator("tbody tr")
            until(lambda: busiest.count() == 8)
            assert [row.split("\t")[0] for row in busiest.all_inner_texts()][:3] == ["m11", "m10", "m09"]
            page.get_by_text("The plots have the first 8 lines of").wait_for()
            page.get_by_text("4 more").first.click()
            page.get_by_role("region", name="Rate and failures by model, further ones").get_by_text("m00").wait_for()


def find(page: Page, text: str) -> Locator:
    """Searches for a row on the page Tables; returns the list of the rows that were found."""
    page.get_by_role("searchbox", name="Label, key or row id", exact=True).fill(text)
    page.get_by_role("button", name="Find").click()
    return page.locator("section[aria-label='Found rows']")


def test_a_row_is_found_by_id_and_by_key(console: Watched) -> None:
    page = console.open("tables?model=large&table=user")
    find(page, "999999").get_by_text("by row id").wait_for()
    row = page.locator("section[aria-label='Row']")
    row.locator("h2", has_text="Row 999999").wait_for()
    norm = np.hypot(np.cos(999_999) * 2, np.sin(999_999))
    assert f"{norm:.4g}" in row.inner_text() and "the version's own files" in row.inner_text()
    assert row.locator("svg rect").count() == 2
    box(page, "Table").select_option("tag")
    find(page, "green").get_by_text("by key of tags").wait_for()
    row.locator("h2", has_text="Row 2 green").wait_for()
    found = find(page, "no such key")
    found.get_by_text("by unknown key of tags: lookups read this row").wait_for()
    # A new text is not searched for yet, so nothing is told of the old one.
    page.get_by_role("searchbox", name="Label, key or row id", exact=True).fill("x")
    found.wait_for(state="detached")
    page = console.open("tables?model=large&table=user")
    find(page, "x").get_by_text("No row of this table has it").wait_for()
    find(page, "1000000").get_by_text("This table has ids 0 to 999,999.").wait_for()
    page = console.open("tables?model=large&table=user&find=7")
    row.locator("h2", has_text="Row 7").wait_for()
    assert page.get_by_role("searchbox").input_value() == "7"


def test_the_numbers_of_a_column_have_the_same_decimals(console: Watched) -> None:
    page = console.open("tables?model=toy&table=user&id=1")
    for region in ("Rows of the table", "Nearest rows by cosine"):
        cells = page.get_by_role("region", name=region).locator("td.number:last-child")
        cells.first.wait_for()
        decimals = {len(text.partition(".")[2]) for text in cells.all_inner_texts()}
        assert len(decimals) == 1, cells.all_inner_texts()
        assert cells.first.evaluate("cell => getComputedStyle(cell).textAlign") == "right"
        assert cells.first.evaluate("cell => getComputedStyle(cell).fontVariantNumeric") == "tabular-nums"


def test_a_request_is_filled_in_by_the_labels_of_rows(console: Watched) -> None:
    page = console.open("try?model=toy&signature=lookup")
    form = page.get_by_role("form", name="Request")
    tags = form.get_by_role("textbox", name=re.compile("^tags int64"))
    form.get_by_text("tags int64; a line per row; in it ids 0 to 3 of table tag, or keys such as red, with").wait_for()
    form.get_by_text("user int64; ids 0 to 4 of table user, one for each row, with commas").wait_for()
    form.locator("div", has=page.get_by_role("textbox", name="tags int64")).get_by_text("Find by label").click()
    for label, text in (("green", "2"), ("blue", "2, 3")):
        form.get_by_role("searchbox", name="Label, or key, of a row of “tag”").fill(label)
        form.get_by_role("list", name="Rows found for tags").get_by_role("button").click()
        browsing.wait_for(page, f"[...document.querySelectorAll('textarea')].some(one => one.value === {text!r})")
        assert tags.input_value() == text
    form.get_by_role("button", name="Send").click()
    page.get_by_text(re.compile("200 from version")).wait_for()


def test_pages_of_a_million_rows(console: Watched) -> None:
    page = console.open("tables?model=large&table=user&start=999950")
    rows = page.locator("section[aria-label='Rows']")
    rows.get_by_text("999950 to 999999 of 1,000,000").wait_for()
    assert rows.get_by_role("button", name="Next").is_disabled()
    rows.get_by_role("button", name="Previous").click()
    rows.get_by_text("999900 to 999949").wait_for()
    rows.get_by_role("link", name="999900").click()
    page.wait_for_selector("h2 >> text=Row 999900")


def test_a_map_of_a_million_rows_is_sampled_and_chosen_from(console: Watched) -> None:
    page = console.open("map?model=large&table=user")
    page.get_by_text("100,000 of 1,000,000 rows").wait_for()
    canvas = page.locator("canvas[role=application]")
    browsing.wait_for(page, "document.querySelector('canvas[role=application]').dataset.drawMs !== undefined")
    assert canvas.evaluate(COLORS) > 50
    place = canvas.bounding_box()
    assert place is not None
    page.mouse.click(place["x"] + place["width"] * 0.6, place["y"] + place["height"] * 0.5)
    page.locator("section[aria-label='Row'] h2").wait_for()
    by_mouse = page.locator("section[aria-label='Row'] h2").inner_text()
    canvas.focus()
    for key in ("ArrowLeft", "ArrowLeft", "+", "+", "Enter"):
        page.keyboard.press(key)
    heading = "document.querySelector(\"section[aria-label='Row'] h2\")?.innerText"
    browsing.wait_for(page, f"({heading} ?? {by_mouse!r}) !== {by_mouse!r}")
    page.mouse.wheel(0, -500)
    page.get_by_role("button", name="Whole map").click()


# Counts the different colours in a canvas.
COLORS = "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
# A JavaScript condition: the map's points have the colours of the values named in place of {}.
SHOWS = "document.querySelector('canvas[role=application]')?.dataset.shows === '{}'"


def test_a_map_shows_drift_and_groups_of_keys(console: Watched) -> None:
    page = console.open("map?model=pair&table=user")
    box(page, "Colour").select_option("drift")
    page.get_by_text("How far each row turned since version 1").wait_for()
    browsing.wait_for(page, "/1 − cosine 0/.test(document.querySelector('div.ramp div.ramp')?.innerText)")
    browsing.wait_for(page, SHOWS.format("1 − cosine"))
    assert page.locator("div.ramp div.ramp canvas").evaluate(COLORS) > 50
    # The map has three colours: the background, the rows that did not turn, and row 7.
    assert page.locator("canvas[role=application]").evaluate(COLORS) == 3
    assert box(page, "Since version").locator("option").all_inner_texts() == ["1"]
    box(page, "Table").select_option("tag")
    box(page, "Colour").select_option("label")
    groups = page.get_by_role("list", name="Colours")
    groups.get_by_text("film: 2").wait_for()
    assert groups.get_by_role("listitem").all_inner_texts() == ["film: 2", "book: 1"]
    page.get_by_role("searchbox", name="Search for a label, key or row id").fill("M:A")
    groups.get_by_text("“M:A” in the name: 1").wait_for()
    # A found name leads to its row; the pointer tells the name of the row below it.
    page.get_by_role("button", name="film:a, row 1").click()
    page.locator("section[aria-label='Row'] h2", has_text="Row 1 film:a").wait_for()
    canvas = page.locator("canvas[role=application]")
    place = canvas.bounding_box()
    assert place is not None
    tip = page.locator(".map .tip")
    for column, line in itertools.product(range(60), range(20)):
        page.mouse.move(
            place["x"] + place["width"] * (column + 0.5) / 60, place["y"] + place["height"] * (line + 0.5) / 20
        )
        if tip.count():
            break
    assert re.fullmatch(r"((film|book):[abc], )?row \d", tip.inner_text())


def test_a_map_fills_its_canvas(console: Watched) -> None:
    page = console.open("map?model=large&table=user")
    browsing.wait_for(page, "document.querySelector('canvas[role=application]')?.dataset.drawMs !== undefined")
    canvas = page.locator("canvas[role=application]")
    left, right, top, bottom = canvas.evaluate(EXTENT)
    assert right - left > 0.85 or bottom - top > 0.85


# Returns how far the points of a map reach, as shares of the canvas: left, right, top and bottom.
EXTENT = """c => {
  const data = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
  let [l, r, t, b] = [1, 0, 1, 0];
  data.forEach((one, at) => {
    if (!one) return;
    const [x, y] = [(at % c.width) / c.width, Math.floor(at / c.width) / c.height];
    [l, r, t, b] = [Math.min(l, x), Math.max(r, x), Math.min(t, y), Math.max(b, y)];
  });
  return [l, r, t, b];
}"""


def test_a_row_is_found_by_a_part_of_its_label_with_its_nearest_rows(console: Watched) -> None:
    page = console.open("tables?model=pair&table=tag")
    find(page, "BOOK").get_by_role("link", name="book:c").wait_for()
    row = page.locator("section[aria-label='Row']")
    row.locator("h2", has_text="Row 3 book:c").wait_for()
    nearest = row.get_by_role("region", name="Nearest rows by cosine")
    nearest.get_by_role("link", name="film:a").click()
    row.locator("h2", has_text="Row 1 film:a").wait_for()


@pytest.mark.parametrize("size", list(browsing.SIZES))
def test_a_chosen_row_is_marked_and_its_details_come_into_sight(
    browser: Browser, server: ServerProcess, size: str
) -> None:
    with browsing.watched(browser, f"http://127.0.0.1:{server.http_port}", size=size) as seen:
        page = seen.open("tables?model=large&table=user")
        rows = page.get_by_role("region", name="Rows of the table").locator("tbody tr")
        rows.nth(17).wait_for()
        last = str(rows.count() - 1)
        top = "document.querySelector(\"section[aria-label='Row']\").getBoundingClientRect().top"
        # The last row of the page; then the same row again, when its details are out of sight.
        for _ in range(2):
            rows.last.get_by_role("link").click()
            page.locator("section[aria-label='Row'] h2", has_text=f"Row {last}").wait_for()
            assert page.locator("tr[aria-current]").locator("td").first.inner_text().endswith(last)
            browsing.wait_for(page, f"{top} > -20 && {top} < innerHeight * 0.5")


def test_another_table_forgets_what_belongs_to_the_former_one(console: Watched) -> None:
    page = console.open("tables?model=large&table=user&start=999950&id=999999")
    page.wait_for_selector("h2 >> text=Row 999999")
    box(page, "Table").select_option("tag")
    page.get_by_role("region", name="Rows", exact=True).get_by_text("0 to 3 of 4").wait_for()
    assert page.locator("section[aria-label='Row']").count() == 0
    console.open("map?model=pair&table=tag&id=1&text=film&color=key:tags")
    page.get_by_text("Row 1 is chosen.").wait_for()
    box(page, "Model").select_option("large")
    box(page, "Table").select_option("user")
    page.get_by_text("100,000 of 1,000,000 rows").wait_for()
    assert page.get_by_role("searchbox").input_value() == "" and page.get_by_text("is chosen").count() == 0
    browsing.wait_for(page, SHOWS.format("norm"))


def test_last_errors_are_grouped_with_the_newest_first(console: Watched, server: ServerProcess) -> None:
    for number in range(4):
        server.http.post("/v1/models/pair:lookup", json={"features": {"user": [number - 4]}})
    for _ in range(3):
        server.http.post("/v1/models/spare:lookup", json={"features": {"nothing": [1]}})
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                # A request for the model "none".
                ask(b"\n\x06\n\x04none", timeout=PATIENCE_S)
    page = console.open()
    rows = page.get_by_role("region", name="Failed requests").locator("tbody tr")
    rows.filter(has_text="none").first.wait_for()
    # Errors that differ only in their numbers are one line.
    beyond = rows.filter(has_text="position 0")
    assert (
        re.search(r"such as: .*id -1 at position 0", beyond.inner_text())
        and beyond.locator("td").nth(2).inner_text() == "4"
    )
    cells = [row.locator("td").all_inner_texts() for row in rows.all()[:2]]
    assert [one[2:6] for one in cells] == [
        ["2", "gRPC Predict", "127.0.0.1", "unknown model"],
        ["3", "HTTP lookup", "127.0.0.1", "spare"],
    ]
    assert cells[0][6].startswith("NOT_FOUND ") and cells[0][6].endswith("; models: large, pair, spare, toy")
    assert all(re.fullmatch(r"now|\d+ (s|min) ago", time) for one in cells for time in one[:2])
    assert all(re.fullmatch(r"[\w.:-]{6,64}", one[7]) for one in cells)
    # The table fits its box, with its last column.
    assert page.get_by_role("region", name="Failed requests").evaluate("box => box.scrollWidth <= box.clientWidth")
    exact = [one.get_attribute("title") or "" for one in rows.locator("td:first-child time").all()]
    assert exact == sorted(exact, reverse=True) and all(re.fullmatch(r"[\d-]{10} [\d:]{8}", one) for one in exact)
    # One look at the top of the page shows that requests fail, and a click leads to the reasons.
    attention = page.get_by_role("region", name="Needs attention")
    attention.get_by_text(re.compile(r"\d+ requests failed in the last 5 minutes")).wait_for()
    failing = attention.get_by_role("region", name="Requests that failed").locator("tbody tr")
    told = [row.locator("td").all_inner_texts() for row in failing.all()]
    assert {("unknown model", "NOT_FOUND"), ("spare", "INVALID_ARGUMENT")} <= {(one[0], one[1]) for one in told}
    attention.get_by_text(re.compile(r"Of the \d+ newest, by client: 127\.0\.0\.1 \(\d+\)\. By reason:")).wait_for()
    often = attention.get_by_role("list", name="What failed most").get_by_role("listitem").all_inner_texts()
    assert 1 <= len(often) <= 3 and any('signature "lookup" has no feature' in text for text in often)
    attention.get_by_role("link", name="Last errors").click()
    assert page.evaluate("document.activeElement.innerText") == "Last errors"
    page.get_by_text("No request was refused for lack of room.").wait_for()


def test_requests_that_reach_no_method_are_counted_once_and_listed(server: ServerProcess) -> None:
    def failures() -> dict[tuple[str, str], int]:
        counts = server.http.get("/v1/statusz").json()["recent_failures"]["counts"]
        return {(one["model"], one["code"]): one["requests"] for one in counts}

    mistakes = (
        ("POST", "/v1/models/toy:lookp", "toy", "INVALID_ARGUMENT", ""),
        ("GET", "/v1/modelz/toy", "", "INVALID_ARGUMENT", ""),
        ("GET", "/v1/models/none/metadata", "", "NOT_FOUND", "GET /v1/models/{model}/metadata"),
        ("GET", "/nowhere", "", "NOT_FOUND", ""),
        ("POST", "/v1/models/toy/tables/none:neighbors", "toy", "NOT_FOUND", "neighbors"),
        ("GET", "/v1/models/toy:lookup", "toy", "INVALID_ARGUMENT", "lookup"),
        ("POST", "/v1/models/toy/tables/none:rows", "toy", "NOT_FOUND", "rows"),
        ("GET", "/v2/models/toy/infer", "toy", "INVALID_ARGUMENT", "infer"),
    )
    for number, (method, path, model, code, called) in enumerate(mistakes):
        before = failures()
        body = ({"ids": [1], "k": 1} if called == "neighbors" else {"ids": [1]}) if method == "POST" else None
        answer = server.http.request(method, path, json=body, headers={"X-Request-Id": f"mistake-{number}"})
        assert answer.status_code >= 400, path
        until(lambda before=before: failures() != before)
        after = failures()
        more = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
        assert more == {(model, code): 1}, path
        listed = [
            one
            for one in server.http.get("/v1/statusz").json()["last_errors"]
            if one["request_id"] == f"mistake-{number}"
        ]
        assert [(one["model"], one["code"], one["method"]) for one in listed] == [(model, code, called)], path
    # No path is a label of a metric.
    assert "modelz" not in server.http.get("/metrics").text and "lookp" not in server.http.get("/metrics").text


def test_an_operator_sees_slow_requests_request_logs_settings_and_signatures_that_are_not_run(
    console: Watched, server: ServerProcess, base: Path
) -> None:
    assert server.http.post("/v1/models/toy:lookup", json={"features": {"user": [1]}}).status_code == 200
    page = console.open()
    for section, summary, region, cells in (
        ("Server", "Requests slower than 0.001 ms", "Slow requests", ["toy", "lookup", "1"]),
        ("Server", "Request logs", "Request logs", ["toy", f"{base}/log", "100 %"]),
        ("Server", "Changed settings", "Changed settings", ["--slow_request_ms", "0.001"]),
        ("Model toy", "no request can run", "Signatures of toy that are not run", ["serving_default"]),
    ):
        card = page.get_by_role("region", name=section, exact=True)
        card.locator("summary").filter(has_text=summary).click()
        row = card.get_by_role("region", name=region, exact=True).locator("tbody tr")
        for cell in cells:
            row = row.filter(has_text=cell)
        row.first.wait_for()
    assert not browsing.AXE.is_file() or console.findings() == []


def test_a_chosen_model_stays_chosen_on_the_next_page(console: Watched) -> None:
    page = console.open("tables?model=pair&table=user")
    for name in ("Try", "Traffic", "Overview", "Map"):
        page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", name=name, level=1).wait_for()
    assert box(page, "Model").input_value() == "pair"


def test_a_form_of_many_fields_shows_and_sends_the_first_ones(console: Watched) -> None:
    page = console.page

    def widen(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        if "tables" in document:
            (first, *_) = document["tables"]
            document["tables"] = [first | {"name": f"table{n}", "features": [f"feature{n}"]} for n in range(30)]
        else:
            signature = document["metadata"]["signature_def"]["signature_def"]["lookup"]
            signature["inputs"] = {f"feature{number}": signature["inputs"]["user"] for number in range(30)}
        route.fulfill(response=answer, json=document)

    def give(route: Route) -> None:
        rows.append(route.request.url)
        route.fulfill(json={"keys": {}})

    rows: list[str] = []
    page.route(re.compile(r"/v1/models/toy/(tables|metadata)$"), widen)
    page.route("**/tables/table*:row*", give)
    console.open("try?model=toy&signature=lookup")
    page.get_by_text("18 more fields").wait_for()
    assert len(rows) == 12
    program = page.get_by_role("region", name="curl").inner_text()
    assert "feature11" in program and "feature12" not in program
    assert [one.rpartition("/")[2].partition(":")[0] for one in rows] == [f"table{number}" for number in range(12)]


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[ServerProcess]:
    """Serves eight models, of which the first can not be loaded."""
    for number in range(8):
        write_toy_model(tmp_path / f"m{number}" / "1")
    next((tmp_path / "m0" / "1").glob("variables/*.data-*")).write_bytes(b"")
    with ServerProcess(models=tmp_path, graph_signatures="off") as process:
        process.answering()
        until(lambda: set(process.http.get("/readyz").json()["problems"]) == {"m0"})
        yield process


def test_many_models_are_folded_and_a_page_begins_with_one_that_answers(
    browser: Browser, crowded: ServerProcess
) -> None:
    with browsing.watched(browser, f"http://127.0.0.1:{crowded.http_port}") as seen:
        page = seen.open()
        settle(page)
        opened = [card.get_attribute("open") for card in page.locator("section[aria-label^='Model '] > details").all()]
        assert len(opened) == 8 and [one is not None for one in opened] == [True] + [False] * 7
        # The card of a model says a fault once.
        assert page.locator("section[aria-label='Model m0']").inner_text().count("variables.data") == 1
        seen.open("tables")
        assert box(page, "Model").input_value() == "m1"
        seen.open("deltas")
        page.get_by_text("6 more versions whose rows were not changed").click()
        assert page.locator("section[aria-label^='Deltas of']").count() == 1
        page.get_by_text("m7, version 1").wait_for()


def test_a_server_without_a_model_says_so_on_each_page(browser: Browser, base: Path, tmp_path: Path) -> None:
    (tmp_path / "none.conf").write_text("model_config_list {}")
    with (
        serve(base, model_config_file=tmp_path / "none.conf") as process,
        browsing.watched(browser, f"http://127.0.0.1:{process.answering().http_port}") as seen,
    ):
        for place in ("tables", "map", "try", "compare", "deltas"):
            page = seen.open(place)
            page.get_by_text("This server has no model that you may see.").wait_for()
            assert page.get_by_role("heading", level=1).inner_text().lower() == place
        seen.open().get_by_role("region", name="Needs attention").get_by_text("no model is configured").wait_for()


def test_a_broken_link_is_told(console: Watched) -> None:
    console.expected = ("400", "404", "501")
    for place, text in (
        ("nowhere", "there is no page “nowhere” here."),
        ("tables?model=none", "There is no model “none”."),
        ("tables?model=toy&version=99", "Version 99 of “toy” is not AVAILABLE."),
        ("map?model=toy&table=none", "Model “toy” has no table “none”."),
        ("try?model=toy&signature=none", "toy has no signature “none”."),
        ("compare?model=spare&from=9", "spare has no version 9."),
    ):
        page = console.open(place)
        page.get_by_role("alert").get_by_text(f"Broken link: {text}").wait_for()


def test_versions_on_disk_are_compared_and_an_empty_choice_explains_itself(
    console: Watched, server: ServerProcess, base: Path
) -> None:
    with broken_version(server, base):
        page = console.open("compare?model=spare")
        # A version that failed to load is not compared unless somebody chooses it.
        browsing.wait_for(page, "/3 .failed to load/.test(document.body.innerText)")
        page.get_by_text("From version 1 to 2: ").wait_for()
    browsing.wait_for(page, "!/failed to load/.test(document.body.innerText)")
    page.locator("section[aria-label='Table user']").wait_for()
    page.get_by_text("From version 1 to 2: 0 rows added, 0 removed").wait_for()
    assert box(page, "From version").locator("option").all_inner_texts() == ["2", "1 (on disk, not served)"]
    assert page.get_by_text("Almost no row kept its neighbours").count() == 0
    anew = {"k": 10, "overlap": 0.14, "chance": 0.1, "queries": 5}

    def train_anew(route: Any) -> None:
        answer = route.fetch()
        tables = [one | {"neighbours": anew} for one in answer.json()["tables"]]
        route.fulfill(response=answer, json=answer.json() | {"tables": tables})

    page.route("**/*:diff*", train_anew)
    page.reload()
    page.get_by_text("do not mix vectors of both versions. Usual after training anew.").first.wait_for()
    page.unroute("**/*:diff*")
    console.open("compare?model=large")
    page.get_by_text("Comparing needs two versions, and the folder of large has 1.").wait_for()
    page.get_by_text(f"model-export export MODEL.keras --out {base}/large").wait_for()
    assert box(page, "From version").count() == 0
    console.open("deltas")
    card = page.locator("section[aria-label='Deltas of large 1']")
    card.get_by_text("No rows were changed since this version was loaded.").wait_for()
    card.get_by_text(f"model-export delta {base}/large/1 --table tag --rows new.npz").wait_for()
    card.get_by_text("/v1/models/large/tables/tag:upsert").wait_for()
    admin = card.get_by_role("link", name="page Admin").get_attribute("href")
    assert admin == f"http://127.0.0.1:{server.admin_port}/console#/admin"


def test_a_lookup_is_tried_and_its_programs_give_the_same(console: Watched, server: ServerProcess) -> None:
    page = console.open("try?model=large&signature=lookup")
    for name in ("user", "tags", "tags_sum", "tags_sqrtn"):
        fill(page, name, "")
    assert page.get_by_role("button", name="Send").is_disabled()
    fill(page, "user", "1, 2")
    fill(page, "tags", "red, green\n")
    fill(page, "tags_sum", "")
    fill(page, "tags_sqrtn", "")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("200 from version 1").wait_for()
    shown = json.loads(page.get_by_role("region", name="Body of the answer").inner_text())
    assert shown["embeddings"]["user"][0] == pytest.approx([np.cos(1), np.sin(1)], rel=1e-4)
    assert shown["embeddings"]["tags"] == [[1.5, 2.5, 1.0]]
    curl, python = (page.get_by_role("region", name=name, exact=True).inner_text() for name in ("curl", "Python"))
    assert "fetch" in page.get_by_role("region", name="TypeScript", exact=True).inner_text()
    if shutil.which("curl"):
        told = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        assert json.loads(told.stdout) == shown
    told = subprocess.run(
        [sys.executable, "-c", python], cwd=ROOT / "client/src", capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert told.returncode == 0 and told.stdout.startswith("1 "), told.stderr
    console.expected = ("400", "501")
    fill(page, "user", "-1")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("id -1 at position 0").wait_for()
    fill(page, "user", "1")
    # The answer was one to other inputs.
    page.get_by_text("Send the request to see its answer.").wait_for()
    fill(page, "user", "[1")
    assert page.get_by_role("button", name="Send").is_disabled()


def fill(page: Page, name: str, text: str) -> None:
    """Fills in an input's field in the form of a signature."""
    page.locator("label.field").filter(has_text=re.compile(rf"^{name} ")).locator("textarea").fill(text)


def test_traffic_shows_requests_while_they_come(console: Watched, server: ServerProcess) -> None:
    server.lookup({"user": [1]}, model="large")
    page = console.open("traffic")
    page.get_by_text("Requests since the server's start").first.wait_for()
    row = page.locator("section[aria-label='Requests by model'] tr", has_text="large")

    def is_counted() -> bool:
        for _ in range(50):
            server.lookup({"user": [1]}, model="large")
        page.wait_for_timeout(100)
        cells = row.locator("td").all_inner_texts()
        return bool(cells) and cells[1] != "0" and int(cells[5].replace(",", "")) >= 50

    until(is_counted)
    latencies = page.get_by_role("region", name="Latency of lookups and of predictions").locator("tr", has_text="large")
    latencies = latencies.filter(has_text="lookups")
    kind, answered, p50, p99 = latencies.locator("td").all_inner_texts()[1:]
    assert kind == "lookups" and int(answered.replace(",", "")) >= 50 and 0 < float(p50) <= float(p99)
    lines = page.locator(".u-legend").first
    models = {one.inner_text(): one.locator(".u-marker").evaluate(MARKER) for one in lines.locator(".u-series").all()}
    blue = next(style for name, style in models.items() if name.startswith("large answered"))
    # A model keeps its colour when requests for no model come. Failures have a colour for each model; grey is for none.
    for model in ("aaa", "large"):
        server.http.post(f"/v1/models/{model}:lookup", json={"features": {"nothing": [1]}})
    for failed in ("unknown model failed", "large failed"):
        browsing.wait_for(page, f"/{failed}/.test(document.querySelector('.u-legend').innerText)")
    failures = {}
    for one in lines.locator(".u-series").all():
        style = one.locator(".u-marker").evaluate(MARKER) if one.locator(".u-marker").count() else ""
        if one.inner_text().startswith("large answered"):
            assert style == blue and style.startswith("solid")
        elif "failed" in one.inner_text():
            failures[one.inner_text().partition(" failed")[0]] = style
    assert failures["unknown model"] == "dashed rgb(141, 144, 153)"
    assert len(set(failures.values())) == len(failures) and {style[:6] for style in failures.values()} == {"dashed"}
    assert page.locator(".uplot canvas").count() == 2
    page.get_by_role("link", name="last errors", exact=True).click()
    browsing.wait_for(page, "document.activeElement.innerText === 'Last errors'")


# The dashes and the colour of a line's sample in a legend.
MARKER = "one => `${getComputedStyle(one).borderTopStyle} ${getComputedStyle(one).borderTopColor}`"


def test_hot_rows_show_while_lookups_come(console: Watched, server: ServerProcess) -> None:
    page = console.open("traffic?model=pair&version=2&table=user")
    row = page.get_by_role("region", name="Rows that are read most").locator("tbody tr").first

    def is_hot() -> bool:
        for _ in range(20):
            server.lookup({"user": [9] * 200 + [3] * 20}, model="pair")
        page.wait_for_timeout(100)
        cells = row.locator("td").all_inner_texts() if row.count() else []
        return bool(cells) and cells[0] == "9" and cells[2] not in ("…", "0")

    until(is_hot)
    # The page Tables follows, too, while it is open.
    console.open("tables?model=pair&version=2&table=user")
    row.locator("td").nth(2).get_by_text(re.compile(r"\d")).wait_for()
    before = row.locator("td").nth(2).inner_text()

    def follows() -> bool:
        # The share is rounded, so one lookup more need not show after many.
        server.lookup({"user": [9] * 200}, model="pair")
        return row.locator("td").nth(2).inner_text() != before

    until(follows)
    # A row without a name is told as on the page's list of rows.
    hot = [{"id": 2, "key": None, "label": "b"}, {"id": 3, "key": None, "label": None}]
    answer = {"version": 2, "lookups": 2, "sampled": 2, "rows": [one | {"lookups": 1, "share": 0.5} for one in hot]}
    page.route("**/*:hot*", lambda route: route.fulfill(json=answer))
    for place in ("tables", "traffic"):
        console.open(f"{place}?model=pair&version=2&table=user")
        page.get_by_role("region", name="Rows that are read most").get_by_text("(no name)").wait_for()
    page.unroute("**/*:hot*")
    # Without a choice, the page shows the table that is read most, of the chosen model or of all.
    console.open("traffic?model=pair")
    until(lambda: box(page, "Table").input_value() == "user")
    console.open(PAIR_MAP.format("user", "traffic"))
    page.get_by_text("hottest rows are on the map").wait_for()
    browsing.wait_for(page, SHOWS.format("reads"))
    assert page.locator("canvas[role=application]").evaluate(COLORS) >= 3


def test_admin_actions_ask_first_and_are_on_the_admin_port_only(browser: Browser, server: ServerProcess) -> None:
    assert server.http.get("/console/session").json()["is_admin"] is False
    with browsing.watched(browser, f"http://127.0.0.1:{server.admin_port}") as seen:
        page = seen.open("admin")
        box(page, "Model of the label").select_option("large")
        page.get_by_role("textbox", name="Label", exact=True).fill("stable")
        page.get_by_role("button", name="Change label").click()
        page.get_by_role("button", name="Cancel").click()
        assert server.http.get("/v1/models/large/labels/stable/metadata").status_code == 400
        page.get_by_role("button", name="Change label").click()
        page.get_by_role("button", name="Yes, change label").click()
        page.get_by_text("The label stable of large is version 1 now.").wait_for()
        assert server.http.get("/v1/models/large/labels/stable/metadata").status_code == 200
        page.get_by_role("button", name="Reload the list").click()
        page.get_by_role("button", name="Yes, reload the list").click()
        page.get_by_text("was read again: large, pair, spare, toy").wait_for()
        # The list of models in the file has no label, so the reload removes the label.
        assert server.http.get("/v1/models/large/labels/stable/metadata").status_code == 400
        if browsing.AXE.is_file():
            assert seen.findings() == []


def test_rows_are_changed_and_erased_after_a_question(browser: Browser, server: ServerProcess) -> None:
    def rows(feature: str, ids: list[Any]) -> Any:
        return server.lookup({feature: ids}, model="spare")[feature]

    with browsing.watched(browser, f"http://127.0.0.1:{server.admin_port}") as seen:
        page = seen.open("admin?model=spare&table=user")
        card = page.locator("section[aria-label='Rows']")
        ids = card.get_by_role("textbox", name="Row ids")
        ids.fill("3, 1")
        change = card.get_by_role("button", name="Change rows", exact=True)
        values = card.get_by_role("textbox", name="New values")
        for wrong, text in (("1 2", "Enter 2 lines"), ("1 2\n3", "Line 2 has 1 numbers"), ("1 2\n3 x", "no number")):
            values.fill(wrong)
            card.get_by_text(text).wait_for()
            assert change.is_disabled()
        values.fill("0.5, -1\n[8, 9]")
        before = rows("user", [3, 1, 2])
        change.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("Change 2 rows (3, 1) of table user of spare, version 2?").wait_for()
        dialog.get_by_role("button", name="Cancel").click()
        assert rows("user", [3, 1, 2]) == before
        change.click()
        page.get_by_role("button", name="Yes, change rows").click()
        page.get_by_text("Delta 1 changed 2 rows of table user, version 2. Lookups use them.").wait_for()
        assert rows("user", [3, 1, 2]) == [[0.5, -1], [8, 9], before[2]]
        card.get_by_role("combobox", name="Table").select_option("tag")
        card.get_by_role("combobox", name="Rows by").select_option("key:tags")
        values.fill("")
        card.get_by_role("textbox", name="Keys").fill("blue")
        card.get_by_role("button", name="Erase rows", exact=True).click()
        dialog.get_by_text("Erase 1 row (of the keys blue) of table tag of spare, version 2?").wait_for()
        page.get_by_role("button", name="Yes, erase rows").click()
        page.get_by_text("Delta 2 erased 1 row of table tag").wait_for()
        assert rows("tags", [["blue"], ["red"]]) == [[0, 0, 0], [2, 2, 2]]
        deltas = page.context.new_page()
        deltas.goto(f"{seen.base}/console#/deltas")
        last = deltas.get_by_role("region", name="Last deltas of spare 2").locator("tbody tr")
        last.nth(1).wait_for()
        cells = [row.locator("td").all_inner_texts()[:4] for row in last.all()]
        assert cells == [
            ["2", "tag", "1", "request, in the journal"],
            ["1", "user", "2", "request, in the journal"],
        ]
        assert "of 1 GiB" in deltas.locator("section[aria-label='Deltas of spare 2'] .journal").inner_text()
        deltas.close()
        seen.expected = ("400", "501")
        card.get_by_role("textbox", name="Keys").fill("no such key")
        card.get_by_role("button", name="Erase rows", exact=True).click()
        page.get_by_role("button", name="Yes, erase rows").click()
        refusal = page.get_by_role("alert").get_by_text("no such key")
        refusal.wait_for()
        card.get_by_role("textbox", name="Keys").fill("other")
        refusal.wait_for(state="detached")
        if browsing.AXE.is_file():
            assert seen.findings() == []


def test_a_model_is_rolled_back_after_a_question(browser: Browser, server: ServerProcess, base: Path) -> None:
    def version() -> str:
        return str(server.http.get("/v1/models/spare/metadata").json()["model_spec"]["version"])

    with browsing.watched(browser, f"http://127.0.0.1:{server.admin_port}") as seen:
        seen.expected = ("400", "404", "409", "501")
        page = seen.open("admin")
        card = page.locator("section[aria-label='Versions']")
        card.get_by_role("combobox", name="Model to roll back").select_option("spare")

        versions = card.get_by_role("combobox", name="To version")
        assert versions.locator("option").all_inner_texts() == ["2 (served now)", "1"]
        assert versions.input_value() == "1"
        broken = base / "spare" / "3"
        broken.mkdir()
        (broken / "saved_model.pb").write_bytes(b"broken")
        told = ["3 (failed to load)", "2 (served now)", "1"]
        until(lambda: versions.locator("option").all_inner_texts() == told)
        assert versions.input_value() == "1"
        shutil.rmtree(broken)
        until(lambda: versions.locator("option").all_inner_texts() == told[1:])

        def roll_back(to: str) -> None:
            card.get_by_role("combobox", name="To version").select_option(to)
            card.get_by_role("button", name="Roll back", exact=True).click()
            page.get_by_role("button", name="Yes, roll back").click()

        roll_back("1")
        page.get_by_text("spare serves version 1 only.").wait_for()
        until(lambda: version() == "1")
        overview = page.context.new_page()
        overview.goto(f"http://127.0.0.1:{server.http_port}/console")
        spare = overview.get_by_role("region", name="Model spare")
        spare.get_by_text("Rolled back to 1, until End roll-back").wait_for()
        card.get_by_role("button", name="End roll-back", exact=True).click()
        page.get_by_role("button", name="Yes, end roll-back").click()
        page.get_by_text("spare serves the versions again").wait_for()
        until(lambda: version() == "2")
        spare.get_by_text(f"mv {base}/spare/2 {base}/spare/.2").wait_for()
        link = spare.get_by_role("link", name="page Admin")
        assert link.get_attribute("href") == f"http://127.0.0.1:{server.admin_port}/console#/admin"
        overview.close()
        card.get_by_role("button", name="End roll-back", exact=True).click()
        page.get_by_role("button", name="Yes, end roll-back").click()
        page.get_by_text('Model "spare" is not pinned to a version.').wait_for()


def test_other_sites_can_not_use_the_admin_port(server: ServerProcess) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.admin_port}", timeout=PATIENCE_S) as admin:
        csrf = admin.get("/console/session").json()["csrf"]
        assert csrf
        assert admin.get("/console/session", headers={"Host": "evil.example:9000"}).json()["csrf"] == ""
        own = f"http://127.0.0.1:{server.admin_port}"

        def label(**headers: str) -> int:
            body = {"version": 1}
            return admin.post("/v1/models/large/labels/x", json=body, headers=headers).status_code

        assert label(Origin=own) == 403
        assert label(Origin="http://evil.example", **{"X-Console-Csrf": csrf}) == 403
        assert label(Origin=own, **{"X-Console-Csrf": csrf + "x"}) == 403
        assert label(Origin=own, **{"X-Console-Csrf": csrf}) == 200
        assert label() == 200
        assert admin.post("/v1/models/large/labels/x", json={"version": None}).status_code == 200
        for body, status in (({"version": None}, 400), ({"version": 9}, 400), ({"version": "1"}, 400), ([], 400)):
            assert admin.post("/v1/models/large/labels/x", json=body).status_code == status, body
        assert admin.post("/v1/models/none/labels/x", json={"version": 1}).status_code == 404


@pytest.fixture(scope="module")
def guarded(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server whose callers need tokens: user and reader have one right on "large", boss has all on all."""
    auth = tmp_path_factory.mktemp("auth") / "auth.toml"
    rights = '["predict", "metadata", "admin"]'
    auth.write_text(
        caller("user", token="user", large='["predict", "metadata"]')
        + caller("reader", token="reader", large='["metadata"]')
        + caller("boss", token="boss").rstrip()
        + f'\n[[caller.allow]]\nmodels = ["*"]\nrights = {rights}\n'
    )
    with serve(base, auth_config=auth) as process:
        process.answering()
        until(lambda: process.http.get("/readyz").status_code == 200)
        yield process


def sign_in(page: Page, name: str) -> None:
    page.get_by_label("Token").fill(TOKENS.get(name, name))
    page.get_by_role("button", name="Sign in").click()


def test_a_person_signs_in_and_sees_what_the_caller_may(browser: Browser, guarded: ServerProcess) -> None:
    with browsing.watched(browser, f"http://127.0.0.1:{guarded.http_port}") as seen:
        seen.expected = ("401", "403", "501")
        page = seen.open()
        page.wait_for_selector("h1 >> text=Sign in")
        if browsing.AXE.is_file():
            assert seen.findings() == []
        sign_in(page, "wrong")
        refusal = page.get_by_text("belongs to no caller")
        refusal.wait_for()
        page.get_by_label("Token").fill("x")
        refusal.wait_for(state="detached")
        sign_in(page, "reader")
        page.wait_for_selector("section[aria-label='Model large']")
        assert page.locator("section[aria-label='Model toy']").count() == 0
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert TOKENS["reader"] not in str(page.context.storage_state())
        seen.open("tables?model=large&table=user&id=1")
        page.get_by_text('lacks the right "predict"').first.wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector("h1 >> text=Sign in")
        sign_in(page, "user")
        page.wait_for_selector("h2 >> text=Row 1")
        seen.open("try?model=large&signature=lookup")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("from version 1").wait_for()
        assert "$TOKEN" in page.get_by_role("region", name="curl", exact=True).inner_text()
        page.get_by_text("read your token from the environment variable TOKEN").wait_for()


def test_an_admin_signs_in_on_the_admin_port(browser: Browser, guarded: ServerProcess) -> None:
    with browsing.watched(browser, f"http://127.0.0.1:{guarded.admin_port}") as seen:
        seen.expected = ("401", "403", "501")
        page = seen.open("admin")
        sign_in(page, "user")
        page.get_by_role("textbox", name="Label", exact=True).fill("stable")
        page.get_by_role("button", name="Change label").click()
        page.get_by_role("button", name="Yes, change label").click()
        page.get_by_text('lacks the right "admin"').wait_for()
        page.get_by_role("button", name="Sign out").click()
        sign_in(page, "boss")
        page.get_by_role("button", name="Reload the list").click()
        page.get_by_role("button", name="Yes, reload the list").click()
        page.get_by_text("was read again: large, pair, spare, toy").wait_for()


def test_replicas_with_one_secret_share_a_session(base: Path, guarded: ServerProcess, tmp_path: Path) -> None:
    secret, auth = tmp_path / "secret", tmp_path / "auth.toml"
    secret.write_text("x" * 32)
    auth.write_text(caller("user", token="user", toy='["predict", "metadata"]'))
    settings = {"auth_config": auth, "console_secret_file": secret, "file_system_poll_wait_seconds": 0.05}
    with serve(base, **settings) as one, serve(base, **settings) as other:
        for process in (one, other):
            process.answering()
        signed_in = one.http.post("/console/session", json={"token": TOKENS["user"]})
        cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
        csrf = other.http.get("/console/session", headers=cookie).json()["csrf"]
        search = "/v1/models/toy/tables/user:neighbors", {"ids": [1], "k": 1, "metric": "dot"}
        until(lambda: other.http.get("/v1/models/toy", headers=cookie).status_code == 200)
        assert other.http.post(search[0], json=search[1], headers=cookie).status_code == 403
        allowed = cookie | {"X-Console-Csrf": csrf}
        until(lambda: other.http.post(search[0], json=search[1], headers=allowed).status_code == 200)
        # The native core learns of a session at its first POST, and then answers the session's lookups itself.
        lookup = {"features": {"user": [1]}}
        assert other.http.post("/v1/models/toy:lookup", json=lookup, headers=allowed).status_code == 200
        assert other.http.post("/v1/models/toy:lookup", json=lookup, headers=cookie).status_code == 401
        assert guarded.http.get("/console/overview", headers=cookie).status_code == 401
        auth.write_text(caller("user", token="reader", toy='["predict", "metadata"]'))

        def is_refused() -> bool:
            return all(
                http.get("/console/overview", headers=cookie).status_code == 401 for http in (one.http, other.http)
            )

        until(is_refused)


def test_paths_are_shown_to_callers_with_the_right_admin_only(guarded: ServerProcess, base: Path) -> None:
    for name, shown in (("user", ""), ("boss", f"{base}/large")):
        models = guarded.http.get("/console/overview", headers=bearer(name)).json()["models"]
        assert [one["base_path"] for one in models if one["name"] == "large"] == [shown], name


def test_a_cookie_alone_changes_nothing(guarded: ServerProcess) -> None:
    signed_in = httpx.Client(base_url=f"http://127.0.0.1:{guarded.http_port}", timeout=PATIENCE_S)
    with signed_in as client:
        form = client.post("/console/session", content='{"token": "x"}', headers={"Content-Type": "text/plain"})
        assert form.status_code == 400
        assert client.post("/console/session", json={"token": TOKENS["user"]}).status_code == 204
        session = client.get("/console/session").json()
        assert (session["caller"], session["rights"]) == ("user", [])
        search = "/v1/models/large/tables/user:neighbors", {"ids": [1], "k": 1, "metric": "dot"}
        assert client.post(search[0], json=search[1]).status_code == 403
        assert client.post(search[0], json=search[1], headers={"X-Console-Csrf": session["csrf"]}).status_code == 200
        # If a request has a token in its Authorization header, the session cookie gives it no rights.
        assert client.post(search[0], json=search[1], headers=bearer("reader")).status_code == 403
        assert client.get("/console/overview", headers=bearer("wrong")).status_code == 401
        csrf = {"X-Console-Csrf": session["csrf"]}
        lookup = "/v1/models/large:lookup", {"features": {"user": [1]}}
        assert client.post(lookup[0], json=lookup[1], headers=csrf).status_code == 200
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
        end = client.delete("/console/session", headers=csrf)
        # A copy of the cookie is worth nothing any more, in the core as well.
        address = f"http://127.0.0.1:{guarded.http_port}{lookup[0]}"
        assert httpx.post(address, json=lookup[1], headers=csrf | cookie).status_code == 401
        assert end.status_code == 204 and "Max-Age=0" in end.headers["set-cookie"]
        assert client.get("/console/overview").status_code == 401
