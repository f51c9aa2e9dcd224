"""Makes the pictures of docs/console.md: serves a model, and photographs pages of the console in Chromium.

python .ci/make_console_pictures.py --model_base_path models/movielens
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.integration.browser import chromium, wait_for, watched  # noqa: E402
from tests.integration.process import ServerProcess  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_TARGET = ROOT / "docs/console"
# Name of a picture -> the place in the console, and the text that shows that the page is complete.
_PLACES = {
    "overview": ("", "unknown ids"),
    "tables": ("tables?table=film&id=50", "last written by"),
    "map": ("map?table=film&id=50", "rows of version[^]*Nearest rows"),
    "deltas": ("deltas", "came by"),
}
_ADMIN_PLACES = {"admin": ("admin?table=film", "Erase rows")}


def main() -> int:
    """Writes the pictures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_base_path", required=True, type=Path)
    parser.add_argument("--only", nargs="*", choices=[*_PLACES, *_ADMIN_PLACES], help="pictures; without it, all")
    options = parser.parse_args()
    base_path = options.model_base_path.resolve()
    _TARGET.mkdir(exist_ok=True)
    with TemporaryDirectory() as journals, chromium() as browser:
        settings = {"model_name": "movielens", "model_base_path": base_path, "delta_journal_dir": journals}
        # TensorFlow keeps copies of the tables for signatures that it runs, so a version with such signatures refuses
        # upserts.
        with ServerProcess(**settings, admin_port="auto", graph_signatures="off") as server:
            server.ready()
            _change_rows(server)
            _look_up(server)
            for port, places in ((server.http_port, _PLACES), (server.admin_port, _ADMIN_PLACES)):
                for name, (place, text) in places.items():
                    if options.only and name not in options.only:
                        continue
                    _photograph(browser, f"http://127.0.0.1:{port}", place, text, _TARGET / f"{name}.png")
    return 0


def _change_rows(server: ServerProcess) -> None:
    """Upserts rows with the values that they have."""
    url = "/v1/models/movielens/tables/film"
    for ids in ([50, 20], [7]):
        rows = server.http.post(f"{url}:rows", json={"ids": ids}).json()["rows"]
        admin = f"http://127.0.0.1:{server.admin_port}{url}:upsert"
        server.http.post(admin, json={"ids": ids, "rows": rows}).raise_for_status()


def _look_up(server: ServerProcess) -> None:
    """Sends lookups of films whose numbers are drawn by Zipf's law, as traffic."""
    random = np.random.default_rng(0)
    tables = server.http.get("/v1/models/movielens/tables").json()["tables"]
    (films,) = (table["vocabulary_size"] - 1 for table in tables if table["name"] == "film")
    order = random.permutation(films)
    for _ in range(300):
        drawn = order[np.minimum(random.zipf(1.3, 500) - 1, films - 1)] + 1
        server.lookup({"film_id": drawn.tolist()}, model="movielens")


def _photograph(browser: Browser, base: str, place: str, text: str, target: Path) -> None:
    with watched(browser, base) as seen:
        page = seen.open(place)
        wait_for(page, f"/{text}/.test(document.body.innerText)")
        page.wait_for_timeout(500)
        page.screenshot(path=target)


if __name__ == "__main__":
    sys.exit(main())
