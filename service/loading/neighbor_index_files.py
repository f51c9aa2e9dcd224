"""Keeps the nearest-row indexes of tables in files, so that a server that starts again need not build them.

A file `<folder>/<model>/<version>-<metric>-<hash>.rows` has the index of one table. The hash is computed from the
version's manifest, which has the checksums of its tables, and from the table's name. A model's name is percent-encoded.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from service.artifact.delta_file import fingerprint_of
from service.artifact.delta_journal import model_folder
from service.artifact.durable_files import write_whole
from service.artifact.plain_file import read_plain_file
from service.engine.neighbor_indexes import Indexing, IndexName
from service.engine.neighbors import RowIndex
from service.errors import ArtifactError
from service.tables.row_index import RowLists, build_index, tune_index
from service.tables.row_index_file import decode, encode
from service.types import Array

logger = logging.getLogger(__name__)

# If more than this share of a table's rows was changed, its nearest-row index is not written to a file, because each
# search with the index would compare all changed rows.
_MAX_CHANGED_SHARE = 0.01


class NeighborIndexFiles:
    """The files of nearest-row indexes in one folder; implements engine.neighbor_indexes.IndexFiles.

    Concurrency: one caller at a time.

    Args:
      version_folder: returns the folder of a version of a model.
    """

    def __init__(self, folder: Path, version_folder: Callable[[str, int], Path]) -> None:
        self._folder = folder
        self._version_folder = version_folder

    def load(self, name: IndexName, num_rows: int) -> RowLists | None:
        """Reads a table's nearest-row index from its file; None if it is missing, damaged or not of the table."""
        try:
            path, identity = self._place(name)
            if not path.exists():
                return None
            return decode(read_plain_file(path), identity, num_rows)
        except (OSError, ValueError, ArtifactError) as error:
            logger.warning("file of an index is ignored", extra=name._asdict() | {"reason": str(error)})
            return None

    def keep(self, name: IndexName, index: RowIndex, changed: Array) -> None:
        """Writes a table's nearest-row index to a file, unless many rows were changed; readers see the file whole or
        not at all. A failed write is logged.
        """
        if not isinstance(index, RowLists):
            raise TypeError(f"an index of type {type(index).__name__} has no file format")
        extra = name._asdict()
        num_rows = len(index.lists().members)
        if changed.size > num_rows * _MAX_CHANGED_SHARE:
            logger.info("index is not kept: many rows were changed", extra=extra | {"changed_rows": int(changed.size)})
            return
        try:
            path, identity = self._place(name)
            write_whole(path, encode(index, changed, identity))
        except (OSError, ArtifactError) as error:
            logger.warning("index is not kept", extra=extra | {"reason": str(error)})

    def _place(self, name: IndexName) -> tuple[Path, dict[str, str]]:
        manifest = fingerprint_of(self._version_folder(name.model, name.version))
        identity = {"manifest": manifest.hex(), "table": name.table, "metric": name.metric}
        short = hashlib.sha256(manifest + name.table.encode()).hexdigest()[:16]
        file = f"{name.version}-{name.metric}-{short}.rows"
        return model_folder(self._folder, name.model) / file, dict(identity)


def indexing_of(folder: str, version_folder: Callable[[str, int], Path]) -> Indexing:
    """Returns the Indexing that builds nearest-row indexes and keeps them in files of a folder; "" keeps no files."""
    files = NeighborIndexFiles(Path(folder).absolute(), version_folder) if folder else None
    return Indexing(build_index, tune_index, files)
