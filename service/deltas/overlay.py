"""The tables of one version with deltas in them: two sides, of which one is read while rows are written to the other.

A request holds the servable of one side from its first read to its last, so it sees all rows of a delta or none, and
reads cost what they did. A side is written to only once nobody holds it. What one side got the other gets before it is
shown again, so a delta costs its own rows, twice, however many came before it.

Of two deltas that change a row, the one with the higher number counts, whichever came first: so every process ends with
the same tables, and so does a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.artifact.delta_file import Delta
from service.artifact.rounding import rounded
from service.deltas.private_map import OverlaidTable, PrivateMaps
from service.engine.servable import Holder, Servable
from service.tables.table import MappedTable
from service.types import Array

# Sides that requests hold on to for long, beside the two: each costs the pages that were written to.
MAX_LOST = 3

# The servable of a version, on these tables.
Rebuild = Callable[[Mapping[str, MappedTable]], Servable]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A delta and its place among all: order is larger for what counts more, and never the same twice."""

    order: int
    delta: Delta


@dataclass(slots=True, eq=False)
class Side:
    """Tables and what answers from them.

    holder: of the requests that read it; None: it was never shown.
    behind: rows that the other side got since, by table.
    """

    tables: Mapping[str, OverlaidTable]
    servable: Servable
    holder: Holder | None = None
    behind: dict[str, list[Array]] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        """Whether nobody reads it, nor will."""
        return self.holder is None or self.holder.is_free


class Overlay:
    """Concurrency: one caller at a time.

    rows: how many rows differ from the version's own, or did.
    """

    def __init__(self, maps: PrivateMaps, base: Mapping[str, MappedTable], rebuild: Rebuild) -> None:
        self._maps = maps
        # Kept for its locks on pages, if any, which the sides profit from.
        self._base = base
        self._rebuild = rebuild
        self._shown: Side | None = None
        self._spare: Side | None = None
        self._lost: list[Side] = []
        # By table, the order of what each row was written by; memory is taken only where rows were.
        self._orders: dict[str, Array] = {}
        self._overlaid: dict[str, list[Array]] = {}
        self.rows = 0

    def prepare(self, *, may_open: bool) -> Side | None:
        """Returns a side to write to; None where requests hold on to the other one.

        Args:
          may_open: whether one more may be opened in that case.

        Raises:
          OSError, ValueError: the files can not be mapped once more.
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
        """Brings a side that prepare returned up to date, with these deltas on top of what is shown."""
        if self._shown is not None:
            for name, ids in side.behind.items():
                side.tables[name].copy(np.concatenate(ids), self._shown.tables[name])
        side.behind = {}
        for one in sorted(deltas, key=lambda one: one.order):
            self._write(side, one.order, one.delta)

    def show(self, side: Side, holder: Holder | None) -> None:
        """The side is what requests are answered from now; holder: of its servable."""
        side.holder = holder
        self._spare, self._shown = self._shown, side

    def shown_by(self, holder: Holder) -> None:
        """The side that is shown has been published only now."""
        if self._shown is not None and self._shown.holder is None:
            self._shown.holder = holder

    def close(self) -> None:
        """Lets go of all sides; their memory goes with the last request that reads it."""
        self._shown = self._spare = None
        self._lost = []
        # They hold the version, which holds this.
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
        # Not before: what could not be written is tried again.
        orders[ids] = order
        new = delta.ids[before == 0]
        if new.size:
            self.rows += new.size
            self._overlaid.setdefault(name, []).append(new)
        for other in (self._shown, self._spare):
            if other is not None and other is not side:
                other.behind.setdefault(name, []).append(ids)
