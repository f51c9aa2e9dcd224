"""The last steps of every export: write the manifest, check the files against it, flush them, rename the folder."""

from __future__ import annotations

import os
from pathlib import Path

from model_export.parity.integrity import check_integrity
from service.artifact.manifest import MANIFEST_PATH, Manifest

# If the tables have more bytes than this, the export checks only the graph of a small copy, which has the first rows of
# each table.
WHOLE_CHECK_BYTES = 64 << 20
COMPARED_ROWS = 1000
# Key in the manifest's provenance. If the export compared only the first rows of each table, the value is the number of
# rows compared in a table.
COMPARED_ROWS_KEY = "compared_rows"


def finish(artifact: Path, manifest: Manifest, target: Path) -> None:
    """Writes an artifact's manifest, checks the files against it, flushes them and renames the folder to target."""
    path = artifact / MANIFEST_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(manifest.to_json())
    written = Manifest.read(artifact)
    assert written is not None
    check_integrity(artifact, written)
    _make_durable(artifact)
    os.rename(artifact, target)
    _sync(target.parent)


def _make_durable(artifact: Path) -> None:
    # Make the files readable for the server's user, and flush them to the disk before the rename: a crash may then lose
    # the whole version, but never leaves half of one.
    for path in [artifact, *artifact.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
