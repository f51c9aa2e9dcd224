"""The site of docs/ in a real browser: what a reader on a phone sees, what search finds, and the list for models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.http_servers import Silent, http_server
from tests.integration.process import ROOT, environment

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
browsing = pytest.importorskip("tests.integration.browser", reason="playwright is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not browsing.CHROMIUM, reason="chromium is not installed")]

SCREENS = 12


class _Files(Silent, SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site as `make docs` does, which fails on broken links."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment() | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Serves the site's files."""
    with http_server(partial(_Files, directory=site)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Starts one browser for all tests."""
    with browsing.chromium() as started:
        yield started


# The height of a page in screens, whether it is wider than the screen, and whether a block of code is cut.
_MEASURED = """() => ({
    height: document.documentElement.scrollHeight / innerHeight,
    isWide: document.documentElement.scrollWidth > innerWidth,
    isCut: [...document.querySelectorAll('pre > code')].some(code => code.scrollWidth > code.clientWidth),
})"""


def test_no_page_is_long_or_wide_on_a_phone(site: Path, url: str, browser: Any) -> None:
    with browsing.watched(browser, url, scheme="dark", size="phone") as seen:
        # Each page would read the index of the search, and sort all words of the site, although nobody searches here.
        index = json.loads((site / "search/search_index.json").read_text())
        index["docs"] = index["docs"][:1]
        seen.page.route("**/search_index.json", lambda route: route.fulfill(json=index))
        for file in sorted(site.glob("*.html")):
            if file.name == "404.html":
                continue
            seen.page.goto(f"{url}/{file.name}")
            found = seen.page.evaluate(_MEASURED)
            assert found["height"] <= SCREENS, (file.name, found)
            assert not found["isWide"] and not found["isCut"], (file.name, found)


def test_a_link_opens_the_folded_section_that_it_leads_to(url: str, browser: Any) -> None:
    with browsing.watched(browser, url, size="phone") as seen:
        seen.page.goto(f"{url}/operations.html#embeddingslow")
        seen.page.get_by_text("The slowest hundredth of requests takes").wait_for()
        assert not seen.page.get_by_text("Prometheus gets no answer").is_visible()
        seen.page.get_by_role("button", name="Runbook").click()
        seen.page.get_by_text("The slowest hundredth of requests takes").wait_for(state="hidden")


def test_search_finds_a_page_by_what_it_is_about(url: str, browser: Any) -> None:
    with browsing.watched(browser, url) as seen:
        for asked, found in (("several models", "Several models and versions"), ("which rows are hot", "Hot rows")):
            seen.page.goto(f"{url}/index.html")
            # Keys, as the page reads the box at its focus and at each key: text that is set between them is not seen.
            seen.page.get_by_role("textbox", name="Search").press_sequentially(asked)
            # The list changes with each key, and after the last one.
            seen.page.locator(".md-search-result__item h1").first.filter(has_text=found).wait_for()


def test_links_have_titles_and_llms_txt_lists_each_page(site: Path) -> None:
    pages = {file.stem for file in (ROOT / "docs").glob("*.md")} - {"README"}
    listed = (site / "llms.txt").read_text()
    for name in pages:
        assert f"]({name}.md)" in listed, name
        assert (site / f"{name}.md").read_text() == (ROOT / "docs" / f"{name}.md").read_text()
        assert ".md</a>" not in (site / f"{name}.html").read_text(), name
