"""Declares a servable (loaded model version), and the leases that keep it loaded while requests use it."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from service.artifact.row_labels import NO_LABELS, RowLabels
from service.errors import DataLoss, SignatureNotFound, did_you_mean, listed
from service.types import (
    DEFAULT_SIGNATURE,
    Array,
    Backend,
    SignatureSpec,
    TableCounts,
    Tensors,
    Vocabulary,
    runnable,
)
from service.versions.counts import FeatureCounts, SampledRows, TableTraffic, hot_rows_of
from service.versions.deltas import Deltas
from service.versions.neighbors import SearchedTable, TableKeys


class Files(Protocol):
    """The mapped files of a servable's tables, and whether they are damaged. Concurrency: any thread.

    is_damaged: the bytes of a file may differ from the loaded bytes.
    is_verified: all bytes that have a checksum match it. is_verification_due: the checksums are still to be compared.
    """

    @property
    def is_damaged(self) -> bool: ...

    @property
    def is_verified(self) -> bool: ...

    @property
    def is_verification_due(self) -> bool: ...

    def look(self) -> str:
        """Checks the mapped table files for damage; returns one line that describes the damage, "" if none is found."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NoFiles:
    """A null object for Files, of a servable that reads no files."""

    is_damaged: bool = False
    is_verified: bool = False
    is_verification_due: bool = False

    def look(self) -> str:
        return ""

    def close(self) -> None:
        """Does nothing, because the servable has no files."""


class NativeServable(Protocol):
    """A servable that the native core has compiled, to answer requests without Python. Concurrency: any thread."""

    def answer(self, request: bytes, method: str = "Predict") -> bytes:
        """Answers a request that names this model as the gRPC port does, but never in a batch; returns the response.
        Blocks. Raises ServiceError.

        Args:
          method: the method of TensorFlow Serving's PredictionService to which the request belongs.
        """

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...] = ()) -> dict[str, Array]:
        """Runs a signature as answer() does; returns the named outputs, by default all. Raises ServiceError."""

    @property
    def num_holders(self) -> int: ...

    def forget_counts(self) -> None:
        """Forgets what was counted and sampled so far; to be called before clients' requests come."""

    def table_counts(self) -> Mapping[str, TableCounts]: ...

    def feature_counts(self) -> FeatureCounts: ...

    def hot_rows(self, table: str, most: int) -> SampledRows | None:
        """Returns the hottest rows of a table; None if the native core does not sample the table's ids."""

    def on_tables(self, tables: Mapping[str, Any]) -> NativeServable:
        """Returns a compiled servable with the same signatures that reads other tables of the same names and shapes.

        Both servables add to the same counts of reads.
        """


@dataclass(frozen=True, slots=True)
class Servable:
    """One loaded version of a model, with its backends, tables and files.

    backends: by signature name; a signature without one is listed in metadata but can not run here.
    files: the files that answers are read from; each run checks is_damaged of the files after its reads.
    is_loading: only the version's lookups have backends yet, and another servable will take this one's place.
    deltas: changes rows of the tables; None: all rows are as they were saved.
    signature_faults: signature -> why its graph is run although the manifest describes its lookup.
    native: the servable that the native core answers from; None: no request can run the version.
    keys: table -> keys of its rows, for tables with vocabularies. labels: table -> labels of its rows, if it has any.
    notice: what the exporter wants every operator to know of the version; "" for nothing.
    unproven: "signature/feature" of lookups that a spec declares and that `adopt` could not read in the graph.
    """

    name: str
    version: int
    signatures: Mapping[str, SignatureSpec]
    backends: Mapping[str, Backend]
    tables: Mapping[str, SearchedTable] = field(default_factory=dict)
    vocabularies: Mapping[str, Sequence[Vocabulary]] = field(default_factory=dict)
    files: Files = NoFiles()
    deltas: Deltas | None = None
    signature_faults: Mapping[str, str] = field(default_factory=dict)
    native: NativeServable | None = None
    not_run: Mapping[str, str] = field(default_factory=dict)
    is_loading: bool = False
    remote_tables: frozenset[str] = frozenset()
    keys: Mapping[str, TableKeys] = field(default_factory=dict)
    labels: Mapping[str, RowLabels] = field(default_factory=dict)
    unproven: tuple[str, ...] = ()
    notice: str = ""

    def signature(self, name: str, fallback: str = "") -> SignatureSpec:
        return find_signature(self.signatures, name, fallback)

    @property
    def can_not_run(self) -> Mapping[str, str]:
        """Signature -> why no request can run it, although the server has its tables or its graph."""
        if self.is_loading:
            return {}
        return {name: reason for name, reason in self.not_run.items() if name in self.backends}

    def all_table_counts(self) -> dict[str, TableCounts]:
        return {} if self.native is None else dict(self.native.table_counts())

    def traffic(self, table: str, most: int, *, has_keys: bool = True) -> TableTraffic | None:
        """Returns the counts of lookups of a table, with its hottest rows; None if its ids are not sampled."""
        native = self.native
        found = native.hot_rows(table, most) if native is not None else None
        if native is None or found is None:
            return None
        counts = native.feature_counts()
        return TableTraffic(
            self.name,
            self.version,
            table,
            lookups=found.lookups,
            distinct=found.distinct,
            max_overcount=found.overcount,
            sampled=found.samples,
            oov_keys=self.all_table_counts().get(table, TableCounts()).oov_keys,
            rows=hot_rows_of(found, lambda row: self.key_of(table, row), self.labels_of(table))
            if has_keys
            else hot_rows_of(found),
            features=counts.get(table, {}),
        )

    def labels_of(self, table: str) -> RowLabels:
        return self.labels.get(table, NO_LABELS)

    def key_of(self, table: str, row: int) -> str | int | None:
        """Returns the key of a row in the first vocabulary with one, else None; bytes that are no UTF-8 are escaped."""
        keys = (vocabulary.key_of(row) for vocabulary in self.vocabularies.get(table, ()))
        key = next((key for key in keys if key is not None), None)
        return key.decode(errors="backslashreplace") if isinstance(key, bytes) else key

    def data_loss(self) -> DataLoss:
        return DataLoss(f'The files of version {self.version} of model "{self.name}" were damaged while it was served.')

    def close(self) -> None:
        # In the reverse order of these lines; an error keeps no other part open.
        with ExitStack() as parts:
            parts.callback(self.files.close)
            if self.deltas is not None:
                parts.callback(self.deltas.close)
            for backend in {id(b): b for b in self.backends.values()}.values():
                parts.callback(backend.close)


def sums_of_counts(counts: Mapping[str, TableCounts], more: Mapping[str, TableCounts]) -> dict[str, TableCounts]:
    totals = dict(counts)
    for name, added in more.items():
        totals[name] = TableCounts(*map(operator.add, totals.get(name, TableCounts()), added))
    return totals


def find_signature(signatures: Mapping[str, SignatureSpec], name: str, fallback: str = "") -> SignatureSpec:
    """Returns the signature that a request names, the default one if it names none.

    Args:
      name: "" means serving_default.
      fallback: the name that "" means without a serving_default.

    Raises:
      SignatureNotFound: no signature has that name.
    """
    spec = signatures.get(name or DEFAULT_SIGNATURE)
    if spec is None and not name:
        spec = signatures.get(fallback)
    if spec is None:
        known = runnable(signatures)
        near = did_you_mean(name, known) if name else ""
        # TensorFlow Serving's text ends with a full stop over gRPC, and without one over REST.
        grpc_end = rest_end = near
        if known and not near:
            names = listed(sorted(known))
            grpc_end, rest_end = f". Signatures: {names}", f"; signatures: {names}"
        text = f'Serving signature key "{name or DEFAULT_SIGNATURE}" not found'
        raise SignatureNotFound(text + (grpc_end or "."), rest_end)
    return spec


class Holder:
    """The holder of a published servable, which counts the leases on it.

    Args:
      before: the holder of the same version that this one replaces.

    Concurrency: any thread. Leases are counted by the length of a deque, because append and pop are atomic: a lock
      would be taken twice per request, and a thread preempted with the lock would stop all others.
    """

    __slots__ = ("servable", "_leases", "_is_retired", "_before")

    def __init__(self, servable: Servable, before: Holder | None = None) -> None:
        self.servable = servable
        # Older holders of the same version on which requests may still have leases. They do not refer to each other: a
        # chain of references would keep all of them alive.
        self._before: tuple[Holder, ...] = ()
        if before is not None:
            self._before = tuple(holder for holder in (before, *before._before) if not holder.is_free)
            before._before = ()
        self._leases: deque[None] = deque()
        self._is_retired = False

    def __enter__(self) -> Servable:
        return self.servable

    def __exit__(self, *_: object) -> None:
        self._leases.pop()

    def acquire(self) -> bool:
        """Adds a lease, which the end of a `with` block of the holder ends.

        Returns False if the holder is retired: the caller must then look up the new holder.
        """
        # acquire() adds the lease and then reads _is_retired, while is_free reads both in the opposite order: so either
        # acquire() sees that the holder is retired, or is_free sees the lease.
        self._leases.append(None)
        if self._is_retired:
            self._leases.pop()
            return False
        return True

    def retire(self) -> None:
        self._is_retired = True

    @property
    def is_free(self) -> bool:
        # _is_retired is read before _leases: if the holder is retired, acquire() itself removes a lease that it adds
        # after this read.
        return self._is_retired and not self._leases and not self._native_holders()

    @property
    def num_leases(self) -> int:
        """Number of leases that have not ended, on this holder and on the older holders that it replaced.

        While the native core has a route to the servable, that route counts as one lease.
        """
        holders = (self, *self._before)
        # A native servable that two holders share is counted once: deltas alternate between two copies of the tables,
        # so two holders may share one.
        natives = {id(holder.servable.native): holder for holder in holders}
        return sum(len(holder._leases) for holder in holders) + sum(
            holder._native_holders() for holder in natives.values()
        )

    @property
    def num_requests(self) -> int:
        # The native core's route to the servable counts as one lease, but is no request, so one lease is subtracted.
        routed = min(self._native_holders(), 1)
        return self.num_leases - routed

    def _native_holders(self) -> int:
        return self.servable.native.num_holders if self.servable.native is not None else 0


class LoadedServable(NamedTuple):
    servable: Servable
    num_leases: int
