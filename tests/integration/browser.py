"""Opens the console in a real Chromium, and collects the faults of each page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or ""
AXE = ROOT / "console/node_modules/axe-core/axe.min.js"
# Width and height of a desktop's window, of half of one, and of a phone's, in pixels.
SIZES = {"wide": (1280, 900), "narrow": (800, 1000), "phone": (390, 844)}
# Without these Chromium asks its maker's servers for updates.
_QUIET = ["--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
_PATIENCE_MS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts Chromium without a window."""
    with sync_playwright() as playwright:
        options = [*_QUIET, "--no-sandbox", "--no-first-run", "--disable-sync"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        try:
            yield browser
        finally:
            browser.close()


def wait_for(page: Page, expression: str) -> None:
    """Waits until an expression is true in a page.

    Playwright's own function would compile the expression in the page, which the page's policy forbids.
    """
    end_s = time.monotonic() + _PATIENCE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end_s, expression
        page.wait_for_timeout(20)


@dataclass
class Watched:
    """A page of the console, with its faults: errors in its log, and requests for other hosts.

    expected: texts of errors in the log that the test provokes, such as a refused sign-in.
    """

    page: Page
    base: str
    # The console may ask for hot rows of a table that the server does not sample; the browser logs the answer 501.
    expected: tuple[str, ...] = ("501",)
    faults: list[str] = field(default_factory=list)

    def open(self, place: str = "") -> Page:
        """Opens a place in the console, such as "tables?id=1", and waits for its heading; returns the page."""
        self.page.goto(f"{self.base}/console#/{place}")
        self.page.wait_for_selector("h1")
        return self.page

    def findings(self) -> list[str]:
        """Returns axe's findings on accessibility in the page as it is."""
        self.page.evaluate(AXE.read_text())
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]
        ]


@contextmanager
def watched(
    browser: Browser, base: str, *, scheme: str = "light", size: str = "wide", **options: Any
) -> Iterator[Watched]:
    """Opens an empty page for the console of a server; fails at its end if the page has faults.

    A browser opens a page of its own only once, and again after a failure: a new page costs 0.6 s of processor time,
    because Chromium starts a process and compiles the console anew. The next user finds the page as if it were new.
    """
    width, height = SIZES[size]
    context = browser.contexts[0] if browser.contexts else browser.new_context(**options)
    context.set_default_timeout(_PATIENCE_MS)
    page = context.pages[0] if context.pages else context.new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    seen = Watched(page, base)

    def note(text: str) -> None:
        if not any(one in text for one in seen.expected):
            seen.faults.append(text)

    noted = {
        "console": lambda message: note(message.text) if message.type in ("error", "warning") else None,
        "pageerror": lambda error: note(str(error)),
        "request": lambda request: None if request.url.startswith((base, "data:")) else note(request.url),
    }
    for event, listener in noted.items():
        page.on(event, listener)  # type: ignore[call-overload]
    try:
        yield seen
        assert not seen.faults, seen.faults
        for event, listener in noted.items():
            page.remove_listener(event, listener)
        page.unroute_all(behavior="wait")
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.goto("about:blank")
        context.clear_cookies()
    except BaseException:
        context.close()
        raise
