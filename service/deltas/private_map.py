"""A version's tables mapped once more, so that rows can be written: only the pages written to are copied.

Everything else is still the file's own pages, which all processes share.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.errors import ArtifactError
from service.tables.guarded_files import GuardedFiles, GuardedMap
from service.tables.table import MappedTable
from service.types import TABLE_DTYPES, Array

# Without it the kernel sets memory aside for a copy of every page, and refuses tables larger than memory. Linux.
_MAP_NORESERVE = 0x4000


class OverlaidTable:
    """A table whose rows may be written while nobody reads it.

    table: for readers. octets: [V, bytes of a row], of the same memory; scales: [V] float32 of int8 and int4, else [0].
    """

    __slots__ = ("octets", "scales", "table")

    def __init__(self, table: MappedTable, octets: Array, scales: Array) -> None:
        self.table = table
        self.octets = octets
        self.scales = scales

    def write(self, ids: Array, numbers: Array, scales: Array | None) -> None:
        """Writes rows as they are stored; ids: [N] int64, none twice."""
        self.octets[ids] = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(ids), -1)
        if scales is not None:
            self.scales[ids] = scales.reshape(-1)

    def copy(self, ids: Array, other: OverlaidTable) -> None:
        """Takes rows from another one of the same shape."""
        self.octets[ids] = other.octets[ids]
        if self.scales.size:
            self.scales[ids] = other.scales[ids]


class PrivateMaps:
    """Maps a version's tables privately, as often as wanted. Concurrency: one caller at a time.

    The files are opened here, once: what a name means later, or whether it is still there, does not matter.

    Args:
      guarded: the version's files, whose mark tells of damage to these maps, too.

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
        """Gives the files back; maps that somebody reads stay until then."""
        self._finalizer()

    def open(self, tables: Mapping[str, MappedTable]) -> dict[str, OverlaidTable]:
        """Maps the same tables once more; raises OSError or ValueError where the system does not."""
        maps = {file: map_privately(descriptor, self._guarded) for file, descriptor in self._descriptors.items()}
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


def map_privately(descriptor: int, guarded: GuardedFiles) -> mmap.mmap:
    """Maps a file so that what is written is seen by this map alone, and a file that is cut short is survived."""
    flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    mapped = GuardedMap(descriptor, 0, flags, protection)
    guarded.guard(mapped)
    return mapped


def _close(descriptors: Mapping[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
