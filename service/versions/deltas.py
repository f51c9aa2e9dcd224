"""Declares the interface to a version's deltas, which change rows of its tables without a new version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from service.types import Array


@dataclass(frozen=True, slots=True)
class Upsert:
    """A request to change rows of a table: new rows, by ids or by keys.

    ids: [N] int64; keys: [N] object (bytes) or int64, keys of a vocabulary. One of the two is None.
    feature: the feature whose vocabulary has the keys; "" if the table has only one vocabulary.
    rows: [N, D] float32.
    is_forced: the rows change even if a signature answers from a copy of the table, which keeps its rows.
    """

    rows: Array
    ids: Array | None = None
    keys: Array | None = None
    feature: str = ""
    is_forced: bool = False


class UpsertReceipt(NamedTuple):
    """The confirmation that an upsert is stored: on disk or, for a remote table, in its cluster.

    is_visible: this process answers with the new rows already; other processes follow within a second.
    """

    model: str
    version: int
    table: str
    sequence: int
    rows: int
    is_visible: bool


class RowOrigin(NamedTuple):
    """The delta that wrote a row last.

    time_s: when the delta was made, in seconds since 1970; None: too long ago to be remembered.
    """

    sequence: int
    time_s: float | None


class AppliedDelta(NamedTuple):
    """A delta whose rows lookups use. time_s: when the delta was made, since 1970. is_upsert: it came by request."""

    sequence: int
    table: str
    rows: int
    time_s: float
    is_upsert: bool


class JournalSize(NamedTuple):
    """The size of a version's journal, and the size at which the journal is full and refuses upserts."""

    bytes: int
    max_bytes: int


class DeltaStatus(NamedTuple):
    """The counts of a version's deltas: applied, pending, missing and refused ones.

    last_sequence: highest sequence number that is applied. applied: number of applied deltas.
    rows: number of rows that have ever differed from the version's own.
    pending: deltas that were read and are not applied yet; lag_s: seconds since the oldest of them was read, or since
      deltas can not be read.
    missing: sequence numbers below the last one that never came.
    refused: number of refused deltas by reason. journal_failures: number of upserts that the journal refused by reason;
      empty without a journal.
    journal: the size of the journal; None without a journal.
    recent: the newest applied deltas, the newest first, without deltas of remote tables.
    """

    last_sequence: int
    applied: int
    rows: int
    pending: int
    lag_s: float
    missing: int
    refused: Mapping[str, int]
    journal_failures: Mapping[str, int]
    journal: JournalSize | None = None
    recent: tuple[AppliedDelta, ...] = ()


class Deltas(Protocol):
    """The deltas of one version: accepts upserts, and reports how many deltas are applied. Concurrency: any thread."""

    def upsert(self, table: str, upsert: Upsert) -> UpsertReceipt:
        """Stores an upsert on disk or, for a remote table, in its cluster, and waits a moment until lookups return it.

        Raises:
          TableNotFound, InputMismatch, IdOutOfRange, IdsTooMany: the upsert does not fit the version; nothing was
            changed.
          DeltaRefused: rows of this version can not be changed.
          JournalUnavailable: the upsert could not be put on disk; nothing was changed.
        """

    def origin(self, table: str, row: int) -> RowOrigin | None: ...

    def status(self) -> DeltaStatus: ...

    def close(self) -> None: ...
