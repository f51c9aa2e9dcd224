"""The deltas of one version that is served: found in its folder and its journal, checked, and shown.

Their numbers are one sequence. A number that never comes holds nothing up: rows are whole values, so that what is
missing is missing by itself; it is counted. One that comes late is put in its place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.artifact.delta_checks import check_delta
from service.artifact.delta_file import Delta, DeltaFault, encode
from service.artifact.delta_inbox import Inbox
from service.artifact.delta_journal import Journal
from service.deltas.overlay import Ordered, Overlay
from service.deltas.sequences import Sequences
from service.deltas.upsert_rows import resolved_rows
from service.engine.deltas import DeltaStatus, Upsert, UpsertReceipt
from service.engine.servable import Holder, Servable
from service.errors import DeltaRefused
from service.types import TableInfo, Vocabulary

logger = logging.getLogger(__name__)

# Read and written at a time; what is left follows at once.
_BATCH_BYTES = 64 << 20
# How long requests may hold on to a side before another one is opened.
_PATIENCE_S = 0.25
# How long an upsert waits to be shown.
_SHOWN_S = 1.0

# Puts a servable in a holder's place: engine.registry's replace.
Replace = Callable[[Holder, Servable], Holder | None]


@dataclass(frozen=True, slots=True)
class Target:
    """The version that deltas are for.

    vocabularies: of each table, by feature. copied: signatures that answer from tables of their own.
    """

    model: str
    version: int
    artifact: Path
    fingerprint: bytes
    tables: Mapping[str, TableInfo]
    vocabularies: Mapping[str, Mapping[str, Vocabulary]]
    copied: tuple[str, ...]


class _Refusals:
    """Logs and counts deltas that are refused. Apart from VersionDeltas, which what tells of them must not hold."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.counts: Counter[str] = Counter()

    def __call__(self, fault: DeltaFault, where: str) -> None:
        self.counts[fault.reason] += 1
        names = {"model": self._target.model, "version": self._target.version}
        extra = {"path": where, "reason": str(fault), "fault": fault.reason}
        logger.error("delta is refused", extra=names | extra)


class VersionDeltas:
    """See engine.deltas.Deltas for what requests and metrics use. Concurrency: any thread.

    Args:
      journal: makes the journal of upserts, told where to report; None: there is none.
      max_rows: of an upsert; max_bytes: of a file.
      wake: called when an upsert is on disk.
    """

    def __init__(
        self,
        target: Target,
        overlay: Overlay,
        *,
        journal: Callable[[Callable[[DeltaFault, str], None]], Journal] | None,
        max_rows: int,
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
        self._max_rows = max_rows
        self._wake = wake
        self._clock = clock
        self._wall_clock = wall_clock
        self._catching_up = threading.Lock()
        self._news = threading.Condition()
        self._numbers = Sequences()
        # Of files, by number: the same file may be touched, another one may not have its number.
        self._checksums: dict[int, int] = {}
        self._highest = self._last_journaled = 0
        self._pending: list[Ordered] = []
        self._applied = 0
        self._shown_upsert = 0
        self._behind_since_s: float | None = None
        self._blocked_since_s: float | None = None
        self._has_failed = self._is_closed = False

    def at_load(self, servable: Servable) -> Servable:
        """Returns the servable with all deltas that are there, before it is shown to anyone.

        What can not be read is left to catch_up, which says so by its lag.
        """
        with self._catching_up:
            try:
                side = None
                while self._read():
                    side = self._overlay.prepare(may_open=True)
                    assert side is not None  # nobody holds one yet
                    self._overlay.write(side, self._pending)
                    self._note_applied()
                if side is None:
                    return servable
                self._overlay.show(side, None)
            except (OSError, ValueError) as error:
                self._log_failure(error)
                return servable
        self._tell("applied deltas")
        return side.servable

    def catch_up(self, holder: Holder, replace: Replace) -> bool:
        """Shows what is new; returns whether nothing is left to be shown.

        Args:
          holder: of the version, as it is published.
        """
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
        """See engine.deltas.Deltas."""
        target = self._target
        if self._journal is None:
            raise DeltaRefused(
                "This server keeps no journal of upserts, so they would be lost when it ends: start it with "
                "--delta_journal_dir, or put delta files into the version's folder."
            )
        if target.copied and not upsert.is_forced:
            raise DeltaRefused(f"{_copied_text(target.copied)} Send force: true to change the lookups all the same.")
        ids = resolved_rows(target.tables, target.vocabularies, table, upsert, self._max_rows)

        def make(sequence: int) -> tuple[Delta, bytes]:
            made_us = int(self._wall_clock() * 1e6)
            delta = Delta(sequence, table, ids, upsert.rows, target.fingerprint, max(made_us, 0), upsert.is_forced)
            return delta, encode(delta)

        delta = self._journal.append(make, self._highest + 1)
        if self._is_closed:
            # On disk, for when the version is served again; nobody shows it now.
            self._journal.close()
        self._wake()
        with self._news:
            is_visible = self._news.wait_for(lambda: self._shown_upsert >= delta.sequence, _SHOWN_S)
        return UpsertReceipt(target.model, target.version, table, delta.sequence, ids.size, is_visible)

    def status(self) -> DeltaStatus:
        """See engine.deltas.Deltas."""
        since_s = self._behind_since_s
        return DeltaStatus(
            last_sequence=self._numbers.last,
            applied=self._applied,
            rows=self._overlay.rows,
            pending=len(self._pending),
            lag_s=0.0 if since_s is None else max(self._clock() - since_s, 0.0),
            missing=self._numbers.missing,
            refused=dict(self._refusals.counts),
            journal_failures=dict(self._journal.failures) if self._journal is not None else {},
        )

    def close(self) -> None:
        """See engine.deltas.Deltas. What points back here is let go of, or all would stay until a full collection."""
        with self._catching_up:
            self._is_closed = True
            self._overlay.close()
            if self._journal is not None:
                self._journal.close()

    def _read(self) -> bool:
        """Takes what is new; returns whether there was anything, and so may be more."""
        found = 0
        for delta in self._journal.read(_BATCH_BYTES) if self._journal is not None else ():
            found += 1
            self._take(delta, is_journaled=True)
        for delta in self._inbox.read(_BATCH_BYTES):
            found += 1
            self._take(delta, is_journaled=False)
        if self._pending and self._behind_since_s is None:
            self._behind_since_s = self._clock()
        return found > 0

    def _take(self, delta: Delta, *, is_journaled: bool) -> None:
        try:
            if not is_journaled and self._checksums.get(delta.sequence, delta.checksum) != delta.checksum:
                raise DeltaFault("repeated", f"another file had the number {delta.sequence}")
            if (not is_journaled and delta.sequence in self._checksums) or (
                is_journaled and delta.sequence <= self._last_journaled
            ):
                return
            check_delta(delta, self._target.tables, self._target.fingerprint)
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
        # What was acknowledged counts more than a file of the same number.
        self._pending.append(Ordered(2 * delta.sequence + is_journaled, delta))

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
            # The version is on its way out: nobody asks it any more.
            return True
        self._overlay.show(side, new)
        self._note_applied()
        self._tell("applied deltas")
        return True

    def _note_applied(self) -> None:
        missing = self._numbers.missing
        for one in self._pending:
            self._numbers.add(one.delta.sequence)
        self._applied += len(self._pending)
        self._pending = []
        if self._numbers.missing > missing:
            extra = {"missing": self._numbers.missing, "last": self._numbers.last}
            logger.warning("numbers of deltas are missing", extra=self._names() | extra)
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
    return (
        f"Signature {names} answers from tables that would not change: TensorFlow has a copy of its own, or its runs "
        "are batched."
    )
