"""Looks for the journal of a version's upserts, whose place only the server's settings name.

A server keeps it as <--delta_journal_dir>/<model>/<version>-<fingerprint>.journal. The folder is often beside the
model's or the repository's, so the search goes there; a journal elsewhere is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from service.artifact.delta_file import fingerprint_of
from service.artifact.delta_journal import journal_path

# A journal's own folder, its model's folder in it, and that folder below another one.
_DEPTHS = ("", "*/", "*/*/")


def find_journal(folder: Path) -> Path | None:
    """Returns a journal with upserts of a version, None where none is found.

    The name holds the version's fingerprint, so a journal that is found belongs to this version.

    Args:
      folder: the version folder, below the model's folder.
    """
    if not folder.name.isdecimal():
        return None
    name = journal_path(Path(), "", int(folder.name), fingerprint_of(folder)).name
    for root in dict.fromkeys([*folder.parents[:3], Path.cwd()]):
        for path in _found(root, name):
            # An empty journal was opened and never written to.
            if path.stat().st_size:
                return path
    return None


def _found(root: Path, name: str) -> Iterator[Path]:
    for depth in _DEPTHS:
        try:
            yield from sorted(path for path in root.glob(depth + name) if path.is_file())
        except OSError:
            # A folder that may not be read holds no journal that could be folded from here.
            continue
