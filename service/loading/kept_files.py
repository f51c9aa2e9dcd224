"""Keeps files for the next start of the server: the hot rows of versions, and indexes of nearest rows.

A file `<folder>/<model>/<version>.jsonl` has one JSON object in a line: {"table", "id", "key", "lookups"}, table by
table, the hottest row first. Other programs may read the files to fill their caches.

A file `<folder>/<model>/<version>-<metric>-<hash>.rows` has the index of one table. The hash is computed from the
version's manifest, which has the checksums of its tables, and from the table's name. delta_journal.model_folder()
encodes the model's name in both.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from service.artifact.delta_file import fingerprint_of
from service.artifact.delta_journal import model_folder
from service.artifact.files import read_plain_file, write_whole
from service.errors import ArtifactError
from service.search.neighbor_indexes import Indexing, IndexName
from service.tables.row_index import RowLists, build_index, decode, encode, tune_index
from service.types import Array
from service.versions.counts import MAX_HOT_ROWS
from service.versions.neighbors import RowIndex
from service.versions.servable import LoadedServable, Servable
from service.versions.threads import repeat

logger = logging.getLogger(__name__)

_WRITE_EVERY_S = 60.0
# Largest size in bytes of a file of hot rows that is read. The server writes at most MAX_HOT_ROWS lines for each table,
# so another program wrote a larger file.
_MAX_FILE_BYTES = 64 << 20


class HotRowsFiles:
    """The files of hot rows in one folder. Concurrency: any thread.

    Args:
      folder: "": there are no files. loaded: returns the AVAILABLE versions.
    """

    def __init__(self, folder: str, loaded: Callable[[], list[LoadedServable]]) -> None:
        self._folder = Path(folder).absolute() if folder else None
        self._loaded = loaded

    def watch(self, stop: threading.Event) -> None:
        if self._folder is not None:
            repeat(self.write, stop, _WRITE_EVERY_S, "hot-rows")

    def write(self) -> None:
        if self._folder is None:
            return
        for one in self._loaded():
            lines = list(_lines(one.servable))
            path = _path(self._folder, one.servable.name, one.servable.version)
            if not lines:
                # This process has not yet counted hot rows of the version, so the file of an earlier process is kept.
                continue
            try:
                write_whole(path, "".join(f"{line}\n" for line in lines).encode())
            except OSError as error:
                logger.warning("hot rows are not written", extra={"path": str(path), "reason": str(error)})

    def read(self, model: str, version: int) -> Mapping[str, Array]:
        """Returns table -> its hot rows ([n] int64, the hottest first), from the version's file or an older version's.

        Empty where there is no file, or the file is damaged.
        """
        path = None if self._folder is None else _newest(self._folder, model, version)
        if path is None:
            return {}
        found: dict[str, list[int]] = {}
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                found.setdefault(str(row["table"]), []).append(int(row["id"]))
            return {table: np.array(ids, np.int64) for table, ids in found.items()}
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("hot rows can not be read", extra={"path": str(path), "reason": str(error)})
            return {}

    def newest(self, model: str, version: int) -> Mapping[str, Array]:
        """Returns the hot rows that read() finds in a file; without any, the rows that lookups read most in the newest
        loaded version whose number is at most `version`.
        """
        if found := self.read(model, version):
            return found
        older = [one.servable for one in self._loaded() if one.servable.name == model]
        older = [servable for servable in older if servable.version <= version]
        if not older:
            return {}
        newest = max(older, key=lambda servable: servable.version)
        traffic = {table: newest.traffic(table, MAX_HOT_ROWS) for table in newest.tables}
        hot = {table: [row.id for row in one.rows] for table, one in traffic.items() if one is not None}
        return {table: np.array(ids, np.int64) for table, ids in hot.items() if ids}


def _path(folder: Path, model: str, version: int) -> Path:
    return model_folder(folder, model) / f"{version}.jsonl"


def _newest(folder: Path, model: str, version: int) -> Path | None:
    files = _path(folder, model, version).parent.glob("*.jsonl")
    numbers = [int(path.stem) for path in files if path.stem.isdecimal() and int(path.stem) <= version]
    return _path(folder, model, max(numbers)) if numbers else None


def _lines(servable: Servable) -> Iterator[str]:
    for table in sorted(servable.tables):
        traffic = servable.traffic(table, MAX_HOT_ROWS)
        for row in traffic.rows if traffic is not None else ():
            yield json.dumps({"table": table, "id": row.id, "key": row.key, "lookups": row.lookups})


# If more than this share of a table's rows was changed, its nearest-row index is not written to a file, because each
# search with the index would compare all changed rows.
_MAX_CHANGED_SHARE = 0.01


class NeighborIndexFiles:
    """The files of nearest-row indexes in one folder; implements search.neighbor_indexes.IndexFiles.

    Concurrency: one caller at a time.
    """

    def __init__(self, folder: Path, version_folder: Callable[[str, int], Path]) -> None:
        self._folder = folder
        self._version_folder = version_folder

    def load(self, name: IndexName, num_rows: int) -> RowLists | None:
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
    files = NeighborIndexFiles(Path(folder).absolute(), version_folder) if folder else None
    return Indexing(build_index, tune_index, files)
