"""Adds the decisions in docs/adr/ to the site of mkdocs.yml, the files outside docs/ to which pages link, and llms.txt.

Source: mkdocs.org/dev-guide/plugins, "Events"; llmstxt.org, "Format".
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Matches a link to a folder above the page's, such as [client.py](../examples/client.py).
_UPWARDS = re.compile(r"\[([^]]*)\]\((\.\./[^)#\s]+)\)")
# Folder of the documentation site that holds copies of the files outside docs/ to which its pages link.
_FOLDER = "files"
# Matches a link whose text is the file name of a page, such as [models.md](models.md#labels).
_FILE_NAME = re.compile(r"\[[\w./-]+\.md\]\(([\w./-]+\.md)(#[\w-]+)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Appends the decisions to the site's `nav`, in the order of their numbers; mkdocs.yml need not list them."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    assert config.nav is not None
    config.nav.append({"Decisions": [f"adr/{name}" for name in decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds to the site each file outside docs/ to which a page links; a link to a missing file stays broken."""
    for page in list(files.documentation_pages()):
        for _, link in _UPWARDS.findall(page.content_string):
            target = _beside_docs(page.src_uri, link)
            if target and (ROOT / target).is_file() and f"{_FOLDER}/{target}" not in files.src_uris:
                files.append(File.generated(config, f"{_FOLDER}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes links to files outside docs/ into links to the copies of these files in the site, and file names of pages
    into their titles.
    """

    def moved(link: re.Match[str]) -> str:
        target = _beside_docs(page.file.src_uri, link[2])
        if not target:
            return link[0]
        if (ROOT / target).is_dir():
            return link[1]  # The site has no page for a folder.
        copy = posixpath.relpath(f"{_FOLDER}/{target}", posixpath.dirname(page.file.src_uri) or ".")
        return f"[{link[1]}]({copy})"

    def titled(link: re.Match[str]) -> str:
        target = files.get_file_from_path(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        # A broken link stays as it is, and fails the build.
        return f"[{_title(target)}]({link[1]}{link[2] or ''})" if target else link[0]

    return _FILE_NAME.sub(titled, _UPWARDS.sub(moved, markdown))


def on_post_build(config: MkDocsConfig) -> None:
    """Writes llms.txt, a list of all pages for language models, and the pages' Markdown beside their HTML."""
    lines = [f"# {config.site_name}", f"> {config.site_description}"]
    assert config.nav is not None
    for section in config.nav[1:]:
        ((heading, names),) = section.items()
        lines.append(f"## {heading}")
        for name in names:
            text = (ROOT / "docs" / name).read_text()
            (ROOT / config.site_dir / name).write_text(text)
            lines.append(f"- [{text.partition(chr(10))[0].lstrip('# ')}]({name})")
    (ROOT / config.site_dir / "llms.txt").write_text("\n\n".join(lines).replace(")\n\n- ", ")\n- ") + "\n")


def _title(page: File) -> str:
    return page.content_string.partition("\n")[0].lstrip("# ")


def _beside_docs(page: str, link: str) -> str:
    """Returns the path, from the repository's root, of a file to which a page links; "" if the file is in docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return "" if path.startswith("docs/") else path
