"""Reads the deltas of one served version from its folder and its journal, checks them, and writes them to its tables.

Deltas of both places share one sequence of numbers. A missing number delays no other delta, as a delta holds whole rows
and depends on no other; it is only counted. A delta that comes late is applied in the order of its number.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from service.artifact.delta_file import Delta, DeltaFault, Inbox, check_delta, check_rows, encode
from service.artifact.delta_journal import Journal
from service.deltas.overlay import Ordered, Overlay
from service.errors import DeltaRefused, IdOutOfRange, IdsTooMany, InputMismatch, TableNotFound, TableUnreachable
from service.tables.vocabulary import TableKeys
from service.types import Array, TableInfo
from service.versions.deltas import AppliedDelta, DeltaStatus, JournalSize, RowOrigin, Upsert, UpsertReceipt
from service.versions.registry import Registry
from service.versions.servable import Holder, Servable

if TYPE_CHECKING:
    from service.remote.changes import TableChanges

# Largest upsert, in rows.
MAX_UPSERT_ROWS = 65_536


class Sequences:
    """A set of the sequence numbers of deltas, which start at 1. Concurrency: one caller at a time.

    >>> seen = Sequences()
    >>> [seen.add(number) for number in (1, 2, 5, 5)], seen.last, seen.missing
    ([True, True, True, False], 5, 2)
    """

    def __init__(self) -> None:
        # The set of sequence numbers is kept as ranges of consecutive numbers: _starts has the first number of each
        # range and _ends the last one, both ascending.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0

    def add(self, number: int) -> bool:
        place = bisect_right(self._starts, number)
        if place and self._ends[place - 1] >= number:
            return False
        self._count += 1
        joins_left = place > 0 and self._ends[place - 1] == number - 1
        joins_right = place < len(self._starts) and self._starts[place] == number + 1
        if joins_left and joins_right:
            self._ends[place - 1] = self._ends.pop(place)
            del self._starts[place]
        elif joins_left:
            self._ends[place - 1] = number
        elif joins_right:
            self._starts[place] = number
        else:
            self._starts.insert(place, number)
            self._ends.insert(place, number)
        return True

    @property
    def last(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def missing(self) -> int:
        return self.last - self._count


def resolved_rows(
    tables: Mapping[str, TableInfo],
    keys: Mapping[str, TableKeys],
    table: str,
    upsert: Upsert,
) -> Array:
    """Checks an upsert, and returns the [N] int64 ids of the rows that it changes.

    Raises:
      TableNotFound, InputMismatch, IdOutOfRange, IdsTooMany: the upsert does not fit.
    """
    info = tables.get(table)
    if info is None:
        known = ", ".join(sorted(tables)) or "none"
        raise TableNotFound(f'There is no table "{table}". Tables: {known}.')
    named = upsert.ids if upsert.ids is not None else upsert.keys
    assert named is not None  # the parser of upserts refuses an upsert that has neither ids nor keys
    if len(named) != len(upsert.rows) or not len(named):
        raise InputMismatch(f'table "{table}": {len(named)} ids or keys for {len(upsert.rows)} rows.')
    if len(named) > MAX_UPSERT_ROWS:
        raise IdsTooMany(f'table "{table}": {len(named)} rows, the limit is {MAX_UPSERT_ROWS} per request.')
    if upsert.ids is not None:
        ids = upsert.ids
    else:
        ids = (keys.get(table) or TableKeys(table, {})).ids_of(named, upsert.feature)
    try:
        check_rows(info, ids, upsert.rows)
    except DeltaFault as fault:
        error = IdOutOfRange if fault.reason == "ids" else InputMismatch
        raise error(f"{fault}.") from fault
    return ids


def upsert_remote(target: Target, table: str, make: Callable[[int], tuple[Delta, bytes]], floor: int) -> UpsertReceipt:
    """Writes an upsert into a table's cluster, as Deltas.upsert declares; the cluster keeps it, and no journal does.

    Raises:
      TableUnreachable: the cluster takes no writes now.
    """
    # service.remote is imported here and not at the top: redis-py, which it needs, is an optional extra.
    from service.remote.topology import Refused, Unreachable

    try:
        delta, is_visible = target.remote[table].upsert(make, floor)
    except (Unreachable, Refused) as error:
        why = str(error).rstrip(".")
        raise TableUnreachable(f'Rows of table "{table}" can not be changed now: {why}.') from error
    return UpsertReceipt(target.model, target.version, table, delta.sequence, delta.ids.size, is_visible)


logger = logging.getLogger(__name__)

# Bytes of deltas that one step reads from the journal, and from the folder of deltas; the next step follows without a
# pause.
_BATCH_BYTES = 64 << 20
# Seconds for which requests that still read the spare copy of the tables may delay writes to it. After that, a further
# copy is opened, unless overlay.MAX_LOST copies are kept for such requests already.
_PATIENCE_S = 0.25
# Longest time, in seconds, that the request of an upsert waits until lookups are answered with the new rows.
_SHOWN_S = 1.0
# Maximum number of deltas whose creation times are kept. For a row of an older delta, origin() returns no time.
_MAX_TIMES = 100_000
# Maximum number of applied deltas, the newest ones, that the status page lists.
_MAX_RECENT = 20

# Type of Registry.replace in versions.registry: publishes a servable in place of a holder's, and returns the new
# holder.
Replace = Callable[[Holder, Servable], Holder | None]


@dataclass(frozen=True, slots=True)
class Target:
    """The model version that deltas change, with its tables.

    tables: the mapped and the remote tables. keys: table -> keys of its rows, for tables with vocabularies.
    copied: signatures that answer from a copy of the tables. remote: table -> its changes, for tables in clusters.
    """

    model: str
    version: int
    artifact: Path
    fingerprint: bytes
    tables: Mapping[str, TableInfo]
    keys: Mapping[str, TableKeys]
    copied: tuple[str, ...]
    remote: Mapping[str, TableChanges] = field(default_factory=dict)


class _Refusals:
    """Logs and counts refused deltas.

    The readers of delta files and of the journal call this object, so that they need no reference to VersionDeltas.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.counts: Counter[str] = Counter()

    def __call__(self, fault: DeltaFault, where: str) -> None:
        self.counts[fault.reason] += 1
        names = {"model": self._target.model, "version": self._target.version}
        extra = {"path": where, "reason": str(fault), "fault": fault.reason}
        logger.error("delta is refused", extra=names | extra)


class VersionDeltas:
    """The deltas of one version; implements versions.deltas.Deltas. Concurrency: any thread.

    Args:
      journal: makes the journal of upserts from a function that reports refused records; None: there is no journal.
      max_bytes: of one file.
    """

    def __init__(
        self,
        target: Target,
        overlay: Overlay,
        *,
        journal: Callable[[Callable[[DeltaFault, str], None]], Journal] | None,
        max_bytes: int,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._target = target
        self._overlay = overlay
        self._refusals = _Refusals(target)
        self._inbox = Inbox(target.artifact, max_bytes=max_bytes, refused=self._refusals)
        self._journal = journal(self._refusals) if journal is not None else None
        self._wake = wake
        self._clock = clock
        self._wall_clock = wall_clock
        self._catching_up = threading.Lock()
        self._news = threading.Condition()
        self._numbers = Sequences()
        # Sequence number -> checksum of its delta file: the file may be written again unchanged, but another delta with
        # the same number is refused.
        self._checksums: dict[int, int] = {}
        # Number (order) of a delta -> the time at which the delta was made, in microseconds since 1970.
        self._made_us: dict[int, int] = {}
        self._highest = self._last_journaled = 0
        self._pending: list[Ordered] = []
        self._applied = 0
        self._recent: deque[AppliedDelta] = deque(maxlen=_MAX_RECENT)
        self._shown_upsert = 0
        self._behind_since_s: float | None = None
        self._blocked_since_s: float | None = None
        self._has_failed = self._is_closed = False

    def at_load(self, servable: Servable) -> Servable:
        """Returns the servable on tables with all deltas found so far; called before the version is published.

        Deltas that can not be read now are left to catch_up(); the status shows their lag.
        """
        with self._catching_up:
            try:
                side = None
                while self._read():
                    if not self._pending:
                        continue
                    side = self._overlay.prepare(may_open=True)
                    # Before the version is published, no request reads its tables, so prepare() always returns a copy
                    # of the tables to write to.
                    assert side is not None
                    self._overlay.write(side, self._pending)
                    self._note_applied()
                for changes in self._target.remote.values():
                    changes.follow()
                if side is None:
                    return servable
                self._overlay.show(side, None)
            except (OSError, ValueError) as error:
                self._log_failure(error)
                return servable
        self._tell("applied deltas")
        return side.servable

    def catch_up(self, holder: Holder, replace: Replace) -> bool:
        """Reads new deltas and writes them to the tables; returns whether all deltas are applied now."""
        with self._catching_up:
            if self._is_closed:
                return True
            self._overlay.shown_by(holder)
            try:
                has_more = self._read()
                if self._pending and not self._show(holder, replace):
                    return False
            except (OSError, ValueError) as error:
                self._log_failure(error)
                return False
            self._has_failed = False
            if not has_more:
                self._behind_since_s = None
            return not has_more

    def upsert(self, table: str, upsert: Upsert) -> UpsertReceipt:
        target = self._target
        if self._journal is None and table not in target.remote:
            raise DeltaRefused(
                "This server keeps no journal of upserts, so they would be lost when it ends: start it with "
                "--delta_journal_dir, or put delta files into the version's folder."
            )
        if target.copied and not upsert.is_forced:
            raise DeltaRefused(f"{_copied_text(target.copied)} Send force: true to change the lookups all the same.")
        ids = resolved_rows(target.tables, target.keys, table, upsert)

        def make(sequence: int) -> tuple[Delta, bytes]:
            made_us = int(self._wall_clock() * 1e6)
            delta = Delta(sequence, table, ids, upsert.rows, target.fingerprint, max(made_us, 0), upsert.is_forced)
            return delta, encode(delta)

        if table in target.remote:
            return upsert_remote(target, table, make, self._highest)
        assert self._journal is not None  # an upsert to a version without a journal was refused before
        delta = self._journal.append(make, self._highest + 1)
        if self._is_closed:
            # The version was closed meanwhile. The upsert is on disk, and is applied when the version loads again.
            self._journal.close()
        self._wake()
        with self._news:
            is_visible = self._news.wait_for(lambda: self._shown_upsert >= delta.sequence, _SHOWN_S)
        return UpsertReceipt(target.model, target.version, table, delta.sequence, ids.size, is_visible)

    def origin(self, table: str, row: int) -> RowOrigin | None:
        order = self._overlay.order_of(table, row)
        if not order:
            return None
        made_us = self._made_us.get(order)
        return RowOrigin(order // 2, None if made_us is None else made_us / 1e6)

    def status(self) -> DeltaStatus:
        since_s = self._behind_since_s
        return DeltaStatus(
            last_sequence=self._numbers.last,
            applied=self._applied + sum(changes.applied for changes in self._target.remote.values()),
            rows=self._overlay.rows,
            pending=len(self._pending) + sum(changes.num_pending for changes in self._target.remote.values()),
            lag_s=max(
                0.0 if since_s is None else self._clock() - since_s,
                *(changes.lag_s for changes in self._target.remote.values()),
                0.0,
            ),
            missing=self._numbers.missing,
            refused=dict(self._refusals.counts),
            journal_failures=dict(self._journal.failures) if self._journal is not None else {},
            journal=JournalSize(*self._journal.size) if self._journal is not None else None,
            recent=tuple(self._recent.copy()),
        )

    def close(self) -> None:
        """Closes the journal and frees the tables with deltas; called when the version is no longer served.

        The overlay's references back to the version are removed too: a cycle would keep the memory until a full
        collection.
        """
        with self._catching_up:
            self._is_closed = True
            self._overlay.close()
            if self._journal is not None:
                self._journal.close()

    def _read(self) -> bool:
        found = 0
        for sequence in set[int]().union(*(changes.take_lost() for changes in self._target.remote.values())):
            self._checksums.pop(sequence, None)
            self._inbox.forget(sequence)
        for delta in self._journal.read(_BATCH_BYTES) if self._journal is not None else ():
            found += 1
            self._check_and_queue(delta, is_journaled=True)
        for delta in self._inbox.read(_BATCH_BYTES):
            found += 1
            self._check_and_queue(delta, is_journaled=False)
        if self._pending and self._behind_since_s is None:
            self._behind_since_s = self._clock()
        return found > 0

    def _check_and_queue(self, delta: Delta, *, is_journaled: bool) -> None:
        try:
            if not is_journaled and self._checksums.get(delta.sequence, delta.checksum) != delta.checksum:
                raise DeltaFault("repeated", f"another file had the number {delta.sequence}")
            if (not is_journaled and delta.sequence in self._checksums) or (
                is_journaled and delta.sequence <= self._last_journaled
            ):
                return
            check_delta(delta, self._target.tables, self._target.fingerprint)
            if is_journaled and delta.table in self._target.remote:
                raise DeltaFault("table", "the table is remote now, and the journal of one server is not written there")
            if self._target.copied and not delta.is_forced:
                raise DeltaFault("copied_tables", _copied_text(self._target.copied))
        except DeltaFault as fault:
            self._refusals(fault, f"delta {delta.sequence} of table {delta.table!r}")
            return
        if is_journaled:
            self._last_journaled = delta.sequence
        else:
            self._checksums[delta.sequence] = delta.checksum
        self._highest = max(self._highest, delta.sequence)
        if delta.table in self._target.remote:
            self._numbers.add(delta.sequence)
            where = f"delta {delta.sequence} of table {delta.table!r}"
            self._target.remote[delta.table].queue_file(delta, lambda fault: self._refusals(fault, where))
            return
        # If an upsert and a delta file have the same sequence number, the upsert wins, because a client was told that
        # it is stored.
        order = 2 * delta.sequence + is_journaled
        self._pending.append(Ordered(order, delta))
        self._made_us[order] = delta.created_us
        if len(self._made_us) > _MAX_TIMES:
            self._made_us.pop(next(iter(self._made_us)), None)

    def _show(self, holder: Holder, replace: Replace) -> bool:
        now_s = self._clock()
        waits_s = 0.0 if self._blocked_since_s is None else now_s - self._blocked_since_s
        side = self._overlay.prepare(may_open=waits_s > _PATIENCE_S)
        if side is None:
            self._blocked_since_s = now_s - waits_s
            return False
        self._blocked_since_s = None
        self._overlay.write(side, self._pending)
        new = replace(holder, side.servable)
        if new is None:
            # The version is being unloaded and gets no new requests, so its deltas need not be applied.
            return True
        self._overlay.show(side, new)
        self._note_applied()
        self._tell("applied deltas")
        return True

    def _note_applied(self) -> None:
        missing = self._numbers.missing
        for one in self._pending:
            delta, made_s, is_upsert = one.delta, one.delta.created_us / 1e6, one.order % 2 == 1
            self._numbers.add(delta.sequence)
            self._recent.appendleft(AppliedDelta(delta.sequence, delta.table, len(delta.ids), made_s, is_upsert))
        self._applied += len(self._pending)
        self._pending = []
        if self._numbers.missing > missing:
            extra = {"missing": self._numbers.missing, "last": self._numbers.last}
            logger.warning("sequence numbers of deltas are missing", extra=self._names() | extra)
        with self._news:
            self._shown_upsert = self._last_journaled
            self._news.notify_all()

    def _tell(self, message: str) -> None:
        extra = {"last": self._numbers.last, "rows": self._overlay.rows}
        logger.debug(message, extra=self._names() | extra)

    def _log_failure(self, error: Exception) -> None:
        if not self._has_failed:
            logger.error("deltas can not be applied", extra=self._names() | {"reason": str(error)})
        self._has_failed = True
        self._behind_since_s = self._behind_since_s or self._clock()

    def _names(self) -> dict[str, object]:
        return {"model": self._target.model, "version": self._target.version}


def _copied_text(copied: tuple[str, ...]) -> str:
    names = ", ".join(f'"{name}"' for name in copied)
    return f"Signature {names} answers from tables that would not change: TensorFlow has a copy of its own."


# Seconds until the next attempt to apply deltas, if requests still read the copy of the tables to which the deltas must
# be written.
_AGAIN_S = 0.005


class Follower:
    """The loop that applies new deltas to all served versions. Concurrency: wake and stop from any thread.

    Args:
      poll_s: seconds between scans for deltas of other programs; an upsert of this process wakes the follower.
    """

    def __init__(self, registry: Registry, poll_s: float) -> None:
        self._registry = registry
        self._poll_s = poll_s
        self._news = threading.Event()
        self._is_stopped = False

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        self._is_stopped = True
        self._news.set()

    def run(self) -> None:
        while not self._is_stopped:
            is_done = all([self._look(holder) for holder in self._registry.holders()])
            self._news.wait(self._poll_s if is_done else min(_AGAIN_S, self._poll_s))
            self._news.clear()

    def _look(self, holder: Holder) -> bool:
        deltas = holder.servable.deltas
        if not isinstance(deltas, VersionDeltas):
            return True
        try:
            return deltas.catch_up(holder, self._registry.replace)
        except Exception:
            # An error in one version's deltas must not end the loop: this one thread applies the deltas of all other
            # versions too.
            logger.exception("deltas can not be applied", extra={"model": holder.servable.name})
            return True
