"""A loaded model version, and the lease that keeps it loaded while a request uses it."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from service.engine.deltas import Deltas
from service.errors import DataLoss, GraphUnavailable, SignatureNotFound
from service.types import DEFAULT_SIGNATURE, Backend, SignatureSpec, Table, TableCounts


class Files(Protocol):
    """The files that a servable reads for its answers. Concurrency: any thread.

    mark: one word, other than 0 once the bytes of a file may differ from the loaded bytes.
    is_verified: all bytes with a checksum fit their checksums. is_verification_due: that check is still to be done.
    """

    @property
    def mark(self) -> Sequence[int]: ...

    @property
    def is_verified(self) -> bool: ...

    @property
    def is_verification_due(self) -> bool: ...

    def look(self) -> str:
        """Checks the files for damage; returns the damage in one line, "" if there is none."""
        ...

    def close(self) -> None:
        """Gives back the memory and descriptors of the files; blocks."""
        ...


@dataclass(frozen=True, slots=True)
class NoFiles:
    """The Files of a servable that reads no files."""

    mark: Sequence[int] = (0,)
    is_verified: bool = False
    is_verification_due: bool = False

    def look(self) -> str:
        """Returns "", as there is no file to be damaged."""
        return ""

    def close(self) -> None:
        """Does nothing, as there is no file to close."""


class NativeServable(Protocol):
    """A servable in the form that the native core answers from. Concurrency: any thread."""

    @property
    def num_holders(self) -> int:
        """Returns how many requests and published routes hold the servable."""
        ...

    def table_counts(self) -> Mapping[str, TableCounts]:
        """Returns the core's counts of reads from each table so far."""
        ...

    def on_tables(self, tables: Mapping[str, Any]) -> NativeServable:
        """Returns the same servable on other tables of the same names and shapes; both count together."""
        ...


@dataclass(frozen=True, slots=True)
class Servable:
    """One loaded version of a model, with its backends, tables and files.

    backends: by signature name; a signature without one is listed in metadata but can not run here.
    table_counts: returns the counts of reads from each table so far.
    files: the files that answers are read from; each run checks the mark of the files after its reads.
    is_loading: only the version's lookups have backends yet, and another servable will take this one's place.
    deltas: changes rows of the tables; None: all rows are as they were saved.
    signature_faults: why signatures that a manifest describes are left to their graphs, by name.
    native: the servable that the native core answers from; None: the core forwards all requests for the version.
    remote_tables, remote_lookups: the tables, and the lookups that read one, whose reads wait for other machines.
    forwarded: why the native core, where there is one, leaves signatures to the reference servers, by name.
    """

    name: str
    version: int
    signatures: Mapping[str, SignatureSpec]
    backends: Mapping[str, Backend]
    tables: Mapping[str, Table] = field(default_factory=dict)
    table_counts: Callable[[], Mapping[str, TableCounts]] = dict
    files: Files = NoFiles()
    deltas: Deltas | None = None
    signature_faults: Mapping[str, str] = field(default_factory=dict)
    native: NativeServable | None = None
    forwarded: Mapping[str, str] = field(default_factory=dict)
    is_loading: bool = False
    remote_tables: frozenset[str] = frozenset()
    remote_lookups: frozenset[str] = frozenset()

    def signature(self, name: str, fallback: str = "") -> SignatureSpec:
        """Returns a signature; see find_signature."""
        return find_signature(self.signatures, name, fallback)

    def runs(self, name: str, fallback: str = "") -> bool:
        """Says whether find_signature finds a signature of this name that has a backend."""
        try:
            return self.signature(name, fallback).name in self.backends
        except SignatureNotFound:
            return False

    def backend(self, spec: SignatureSpec) -> Backend:
        """Returns the backend of a signature; raises GraphUnavailable."""
        backend = self.backends.get(spec.name)
        if backend is None:
            runnable = ", ".join(sorted(self.backends)) or "none"
            fault = self.signature_faults.get(spec.name)
            why = f" (its lookup manifest does not fit: {fault})" if fault else ""
            raise GraphUnavailable(
                f'Signature "{spec.name}" runs a TensorFlow graph{why} and this server runs without TensorFlow. '
                f"Signatures it can answer: {runnable}. To run graphs, install the extra [tensorflow] or use the "
                "full image, and do not set --graph_signatures=off."
            )
        return backend

    def all_table_counts(self) -> dict[str, TableCounts]:
        """Returns what was read of each table so far, by the native core too."""
        return sums_of_counts(self.table_counts(), self.native.table_counts() if self.native is not None else {})

    def data_loss(self) -> DataLoss:
        """Returns what a request is told whose answer was read from damaged files."""
        return DataLoss(f'The files of version {self.version} of model "{self.name}" were damaged while it was served.')

    def close(self) -> None:
        """Closes each backend once, what changes rows, and the files."""
        for backend in {id(b): b for b in self.backends.values()}.values():
            backend.close()
        if self.deltas is not None:
            self.deltas.close()
        self.files.close()


def sums_of_counts(counts: Mapping[str, TableCounts], more: Mapping[str, TableCounts]) -> dict[str, TableCounts]:
    """Adds what was read of tables at two places, by table."""
    totals = dict(counts)
    for name, added in more.items():
        totals[name] = TableCounts(*map(operator.add, totals.get(name, TableCounts()), added))
    return totals


def find_signature(signatures: Mapping[str, SignatureSpec], name: str, fallback: str = "") -> SignatureSpec:
    """Returns a signature by name.

    Args:
      name: "" means serving_default.
      fallback: what "" means where there is no serving_default.

    Raises:
      SignatureNotFound: there is none of that name.
    """
    spec = signatures.get(name or DEFAULT_SIGNATURE)
    if spec is None and not name:
        spec = signatures.get(fallback)
    if spec is None:
        # TensorFlow Serving's text, to the letter; metadata lists what there is.
        raise SignatureNotFound(f'Serving signature key "{name or DEFAULT_SIGNATURE}" not found.')
    return spec


class Holder:
    """A published servable and the leases on it.

    Args:
      before: of the same version, whose place it takes.

    Concurrency: any thread. A deque stands in for the count because append and pop are atomic: a lock here would be
    taken twice per request, and a thread that loses the processor while holding it would stall every other.
    """

    __slots__ = ("servable", "_leases", "_is_retired", "_before")

    def __init__(self, servable: Servable, before: Holder | None = None) -> None:
        self.servable = servable
        # Those of the same version that requests may hold still; each knows none of the others, lest all live for ever.
        self._before: tuple[Holder, ...] = ()
        if before is not None:
            self._before = tuple(holder for holder in (before, *before._before) if not holder.is_free)
            before._before = ()
        self._leases: deque[None] = deque()
        self._is_retired = False

    def acquire(self) -> bool:
        """Takes a lease; False when the servable is being unloaded and another must be looked up."""
        # Lease first, check second; retire() does it the other way round, so one of the two always sees the other.
        self._leases.append(None)
        if self._is_retired:
            self._leases.pop()
            return False
        return True

    def release(self) -> None:
        """Gives one lease back."""
        self._leases.pop()

    def retire(self) -> None:
        """Refuses new leases from now on."""
        self._is_retired = True

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the servable, and nobody will."""
        # In this order: a lease taken after the second look sees the first.
        return self._is_retired and not self._leases and not self._native_holders()

    @property
    def num_leases(self) -> int:
        """Leases not yet given back, those on what it took the place of included.

        While the native core has a route to the servable, that route counts as one.
        """
        holders = (self, *self._before)
        # Two holders may have the same native servable: deltas take turns on two sets of tables.
        natives = {id(holder.servable.native): holder for holder in holders}
        return sum(len(holder._leases) for holder in holders) + sum(
            holder._native_holders() for holder in natives.values()
        )

    @property
    def num_requests(self) -> int:
        """Requests that hold the published servable now."""
        # Its route is none.
        routed = min(self._native_holders(), 1)
        return self.num_leases - routed

    def _native_holders(self) -> int:
        return self.servable.native.num_holders if self.servable.native is not None else 0


class LoadedServable(NamedTuple):
    """A published servable and how many requests hold it."""

    servable: Servable
    num_leases: int


class Lease:
    """Holds a servable for one request: `with registry.lease(ref) as servable`."""

    __slots__ = ("_holder",)

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def __enter__(self) -> Servable:
        return self._holder.servable

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.release()
