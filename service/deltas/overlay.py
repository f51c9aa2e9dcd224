"""Keeps copies ("sides") of a version's tables: requests read one side while deltas are written to another.

A request holds the servable of one side from its first read to its last, so it sees all rows of a delta or none, and
reads cost the same as without deltas. A side is written to only when no request holds it. Before a side is shown again,
it gets the rows that the other side got meanwhile; so a delta costs its own rows twice, however many came before it.

If two deltas change the same row, the one with the higher sequence number wins, whichever came first: so all processes
end with the same tables, and so does a restart.

The table files are mapped privately: the kernel copies only changed pages, and all processes share the others.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from service.artifact.delta_file import Delta
from service.artifact.files import close_unwritten
from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.artifact.stored_tables import rounded
from service.errors import ArtifactError, os_errors_as
from service.tables.guarded_files import GuardedFiles
from service.tables.table import MappedTable
from service.types import TABLE_DTYPES, Array
from service.versions.servable import Holder, Servable


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
                with os_errors_as(ArtifactError, f"cannot open {artifact / part.file}"):
                    self._descriptors[part.file] = os.open(artifact / part.file, os.O_RDONLY | os.O_CLOEXEC)

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
        close_unwritten(descriptor)


# Maximum number of copies of the tables that are kept, beside the two in use, only because long requests still read
# them; each costs a copy of every page that was written to.
MAX_LOST = 3

# Type of a function that builds a version's servable on one copy of the version's tables.
Rebuild = Callable[[Mapping[str, MappedTable]], Servable]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A delta with a number, its order: if two deltas change the same row, the delta with the larger order wins.

    No two deltas of a version have the same order.
    """

    order: int
    delta: Delta


@dataclass(slots=True, eq=False)
class Side:
    """One copy of a version's tables ("side"), and the holder of the servable that answers from this copy.

    holder: the holder of the requests that read the side; None: the side was never shown.
    behind: table -> rows that were written to the other side only.
    """

    tables: Mapping[str, OverlaidTable]
    servable: Servable
    holder: Holder | None = None
    behind: dict[str, list[Array]] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        return self.holder is None or self.holder.is_free


class Overlay:
    """The copies ("sides") of one version's tables: requests read one copy while deltas are written to another.

    Concurrency: one caller at a time.

    rows: number of rows that deltas have changed since the version was loaded.
    """

    def __init__(self, maps: PrivateMaps, base: Mapping[str, MappedTable], rebuild: Rebuild) -> None:
        self._maps = maps
        # The version's original mapped tables stay open, because they lock pages in memory that the copies of the
        # tables share.
        self._base = base
        self._rebuild = rebuild
        self._shown: Side | None = None
        self._spare: Side | None = None
        self._lost: list[Side] = []
        # Table -> [V] array with the number (order) of the delta that last wrote each row. The kernel allocates only
        # the pages of the array that are written to.
        self._orders: dict[str, Array] = {}
        self._overlaid: dict[str, list[Array]] = {}
        self.rows = 0

    def prepare(self, *, may_open: bool) -> Side | None:
        """Returns a copy of the tables ("side") to write deltas to; None as long as requests read all copies.

        Raises:
          OSError, ValueError: the version's files can not be mapped again.
        """
        self._lost = [side for side in self._lost if not side.is_free]
        if self._spare is not None:
            if self._spare.is_free:
                return self._spare
            if not may_open or len(self._lost) >= MAX_LOST:
                return None
            self._lost.append(self._spare)
            self._spare = None
        tables = self._maps.open(self._base)
        side = Side(tables, self._rebuild({name: one.table for name, one in tables.items()}))
        side.behind = {name: list(ids) for name, ids in self._overlaid.items()}
        self._spare = side
        return side

    def write(self, side: Side, deltas: Sequence[Ordered]) -> None:
        """Writes deltas to a copy of the tables, which prepare() has returned.

        Before the deltas, it copies the rows that are newer in the tables that requests read.
        """
        if self._shown is not None:
            for name, ids in side.behind.items():
                side.tables[name].copy(np.concatenate(ids), self._shown.tables[name])
        side.behind = {}
        for one in sorted(deltas, key=lambda one: one.order):
            self._write(side, one.order, one.delta)

    def show(self, side: Side, holder: Holder | None) -> None:
        """Notes that new requests read this copy of the tables from now on.

        holder: counts the leases on the copy's servable; None: it is not published yet.
        """
        side.holder = holder
        self._spare, self._shown = self._shown, side

    def shown_by(self, holder: Holder) -> None:
        if self._shown is not None and self._shown.holder is None:
            self._shown.holder = holder

    def order_of(self, table: str, row: int) -> int:
        """Returns the number (order) of the delta that wrote a row last; 0 if no delta did. Concurrency: any thread."""
        orders = self._orders.get(table)
        return 0 if orders is None or not 0 <= row < orders.size else int(orders[row])

    def close(self) -> None:
        self._shown = self._spare = None
        self._lost = []
        # _rebuild and _base are deleted because they refer to the version, which refers to this overlay: the reference
        # cycle would keep the memory of the tables.
        del self._rebuild, self._base
        self._maps.close()

    def _write(self, side: Side, order: int, delta: Delta) -> None:
        name, size = delta.table, side.tables[delta.table].table.info.vocabulary_size
        orders = self._orders.setdefault(name, np.zeros(size, np.int64))
        before = orders[delta.ids]
        counts = before < order
        ids = delta.ids[counts]
        if not ids.size:
            return
        side.tables[name].write(ids, *rounded(delta.rows[counts], side.tables[name].table.info.dtype))
        # The numbers in `orders` change only after the rows are written to the overlay's table, so that a failed write
        # is tried again.
        orders[ids] = order
        new = delta.ids[before == 0]
        if new.size:
            self.rows += new.size
            self._overlaid.setdefault(name, []).append(new)
        for other in (self._shown, self._spare):
            if other is not None and other is not side:
                other.behind.setdefault(name, []).append(ids)
