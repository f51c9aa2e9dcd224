"""Adds the decisions in docs/adr/ to the site of mkdocs.yml, and the files outside docs/ to which pages link.

Source: mkdocs.org/dev-guide/plugins, "Events".
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Matches a link to a folder above the page's, such as ](../examples/client.py).
_UPWARDS = re.compile(r"\]\((\.\./[^)#\s]+)")
# Folder of the documentation site that holds copies of the files outside docs/ to which its pages link.
_FOLDER = "files"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Appends the decisions to the site's `nav`, in the order of their numbers; mkdocs.yml need not list them."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    assert config.nav is not None
    config.nav.append({"Decisions": [f"adr/{name}" for name in decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds to the site each file outside docs/ to which a page links; a link to a missing file stays broken."""
    for page in list(files.documentation_pages()):
        for link in _UPWARDS.findall(page.content_string):
            target = _beside_docs(page.src_uri, link)
            if target and (ROOT / target).is_file() and f"{_FOLDER}/{target}" not in files.src_uris:
                files.append(File.generated(config, f"{_FOLDER}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes links to files outside docs/ into links to the copies of these files in the site."""

    def moved(link: re.Match[str]) -> str:
        target = _beside_docs(page.file.src_uri, link[1])
        if not target:
            return link[0]
        return "](" + posixpath.relpath(f"{_FOLDER}/{target}", posixpath.dirname(page.file.src_uri) or ".")

    return _UPWARDS.sub(moved, markdown)


def _beside_docs(page: str, link: str) -> str:
    """Returns the path, from the repository's root, of a file to which a page links; "" if the file is in docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return "" if path.startswith("docs/") else path
