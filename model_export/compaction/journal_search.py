"""Searches for the journal file of a version's upserts; only the server's settings name the journal's folder.

A server keeps it as <--delta_journal_dir>/<model>/<version>-<fingerprint>.journal. That folder is often beside the
model's folder or the repository; the search looks there only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from service.artifact.delta_file import fingerprint_of
from service.artifact.delta_journal import journal_path

# Glob prefixes: a journal is searched in a root folder, in the root's subfolders, and in their subfolders.
_DEPTHS = ("", "*/", "*/*/")


def find_journal(folder: Path) -> Path | None:
    """Returns the path of a journal with upserts of a version; None if none is found.

    The file's name holds the version's fingerprint, so it is a journal of exactly this version.

    Args:
      folder: the version folder, below the model's folder.
    """
    if not folder.name.isdecimal():
        return None
    name = journal_path(Path(), "", int(folder.name), fingerprint_of(folder)).name
    for root in dict.fromkeys([*folder.parents[:3], Path.cwd()]):
        for path in _found(root, name):
            # Skip an empty journal, which has no upserts: a server opened the file and never wrote to it.
            if path.stat().st_size:
                return path
    return None


def _found(root: Path, name: str) -> Iterator[Path]:
    for depth in _DEPTHS:
        try:
            yield from sorted(path for path in root.glob(depth + name) if path.is_file())
        except OSError:
            # Go on with the next depth. glob() itself skips folders that this user may not list; it raises OSError if
            # this user can not reach `root`, or if the disk fails or a folder vanishes during the search.
            continue
