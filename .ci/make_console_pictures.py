"""Makes the pictures of docs/console.md: serves a model, and photographs pages of the console in Chromium.

python .ci/make_console_pictures.py --model_base_path models/movielens
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.integration.browser import chromium, wait_for, watched  # noqa: E402
from tests.integration.process import ServerProcess  # noqa: E402

_TARGET = ROOT / "docs/console"
# Picture -> the place in the console, and the text that shows that the page is complete.
_PLACES = {
    "overview": ("", "Tables of|mapped"),
    "tables": ("tables?table=film&id=50", "last written by"),
    "map": ("map?table=film", "rows of version"),
    "try": ("try?signature=lookup", "TypeScript"),
}


def main() -> int:
    """Writes the pictures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_base_path", required=True, type=Path)
    base_path = parser.parse_args().model_base_path.resolve()
    _TARGET.mkdir(exist_ok=True)
    with ServerProcess(model_name="movielens", model_base_path=base_path) as server, chromium() as browser:
        server.ready()
        for name, (place, text) in _PLACES.items():
            with watched(browser, f"http://127.0.0.1:{server.http_port}") as seen:
                page = seen.open(place)
                wait_for(page, f"/{text}/.test(document.body.innerText)")
                page.wait_for_timeout(500)
                page.screenshot(path=_TARGET / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
