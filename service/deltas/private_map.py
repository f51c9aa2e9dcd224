"""Maps a version's table files privately, so that rows can be changed in memory: the kernel copies only changed pages.

All other pages are the file's own, which all processes share.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.errors import ArtifactError
from service.tables.guarded_files import GuardedFiles
from service.tables.table import MappedTable
from service.types import TABLE_DTYPES, Array


class OverlaidTable:
    """A privately mapped table, whose rows may be written while no request reads the table.

    table: the table for readers. octets: [V, bytes of a row] view of the same memory. scales: [V] float32 of an int8 or
      int4 table, else [0].
    """

    __slots__ = ("octets", "scales", "table")

    def __init__(self, table: MappedTable, octets: Array, scales: Array) -> None:
        self.table = table
        self.octets = octets
        self.scales = scales

    def write(self, ids: Array, numbers: Array, scales: Array | None) -> None:
        """Overwrites this private table's rows of [N] int64 ids, without repeats; numbers: in the stored dtype."""
        self._note(ids)
        self.octets[ids] = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(ids), -1)
        if scales is not None:
            self.scales[ids] = scales.reshape(-1)

    def copy(self, ids: Array, other: OverlaidTable) -> None:
        """Copies into this private table the rows of the given ids from another private table of the same shape."""
        self._note(ids)
        self.octets[ids] = other.octets[ids]
        if self.scales.size:
            self.scales[ids] = other.scales[ids]

    def _note(self, ids: Array) -> None:
        if self.table.changed is None:
            # np.zeros() takes little memory at first: the kernel allocates only the pages of the array that are written
            # to.
            self.table.changed = np.zeros(self.table.info.vocabulary_size, bool)
        self.table.changed[ids] = True


class PrivateMaps:
    """The files of a version's tables, which can be mapped privately several times. Concurrency: one caller at a time.

    The files are opened once, by __init__: if they are renamed or removed later, open() still maps the same bytes.

    Args:
      guarded: the version's files; their mark is set if a private map is damaged, too.

    Raises:
      ArtifactError: a file can not be opened.
    """

    def __init__(self, artifact: Path, manifest: Manifest, guarded: GuardedFiles) -> None:
        self._manifest = manifest
        self._guarded = guarded
        self._descriptors: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, _close, self._descriptors)
        parts: list[TableEntry | TableScale] = [*manifest.tables.values()]
        parts += [table.scale for table in manifest.tables.values() if table.scale is not None]
        for part in parts:
            if part.file not in self._descriptors:
                try:
                    self._descriptors[part.file] = os.open(artifact / part.file, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise ArtifactError(f"cannot open {artifact / part.file}: {error.strerror}") from error

    def close(self) -> None:
        """Closes the table files; memory maps of them stay valid as long as an array refers to them."""
        self._finalizer()

    def open(self, tables: Mapping[str, MappedTable]) -> dict[str, OverlaidTable]:
        """Returns new copy-on-write memory maps of the tables; raises OSError or ValueError if mapping a file fails."""
        maps = {file: self._guarded.map_privately(descriptor) for file, descriptor in self._descriptors.items()}
        opened = {}
        for name, table in tables.items():
            entry = self._manifest.tables[name]
            rows = entry.vocabulary_size
            octets = np.frombuffer(maps[entry.file], np.uint8, entry.nbytes, entry.offset).reshape(rows, -1)
            numbers = octets.view(TABLE_DTYPES[entry.dtype])
            scale, scales = entry.scale, np.empty(0, np.float32)
            if scale is not None:
                scales = np.frombuffer(maps[scale.file], "<f4", rows, scale.offset)
            opened[name] = OverlaidTable(MappedTable(table.info, numbers, scales), octets, scales)
        return opened


def _close(descriptors: Mapping[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
