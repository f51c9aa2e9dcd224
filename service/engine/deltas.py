"""Interface of changed rows for requests and metrics; these rows change without a new version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from service.types import Array


@dataclass(frozen=True, slots=True)
class Upsert:
    """New values for rows of a table.

    ids: [N] int64; keys: [N] object (bytes) or int64, of a vocabulary. One of the two is None.
    feature: whose vocabulary the keys are of; "" where the table has only one.
    rows: [N, D] float32.
    is_forced: also where a signature answers from a copy of the table, and would not see them.
    """

    rows: Array
    ids: Array | None = None
    keys: Array | None = None
    feature: str = ""
    is_forced: bool = False


class UpsertReceipt(NamedTuple):
    """An upsert that is on disk.

    is_visible: it is answered by the process that took it; others follow within a second.
    """

    model: str
    version: int
    table: str
    sequence: int
    rows: int
    is_visible: bool


class DeltaStatus(NamedTuple):
    """How far a version's deltas are.

    last_sequence: the highest number that is applied. applied: how many deltas were.
    rows: how many rows differ from the version's own, or did.
    pending: deltas that were read and are not applied; lag_s: for how long the oldest of them is there, or for how long
      they can not be read.
    missing: numbers below the last one that never came.
    refused: by reason. journal_failures: upserts that the journal did not take, by reason; empty where there is none.
    """

    last_sequence: int
    applied: int
    rows: int
    pending: int
    lag_s: float
    missing: int
    refused: Mapping[str, int]
    journal_failures: Mapping[str, int]


class Deltas(Protocol):
    """The changes of one version's rows. Concurrency: any thread."""

    def upsert(self, table: str, upsert: Upsert) -> UpsertReceipt:
        """Puts an upsert on disk and waits a moment until it is answered.

        Raises:
          TableNotFound, InputMismatch, IdOutOfRange, IdsTooMany: it does not fit; nothing was changed.
          DeltaRefused: rows of this version can not be changed.
          JournalUnavailable: it could not be put on disk; nothing was changed.
        """
        ...

    def status(self) -> DeltaStatus:
        """Returns how far it is."""
        ...

    def close(self) -> None:
        """The version is not served any more: gives back the files and the memory that it holds."""
        ...
