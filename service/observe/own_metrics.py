"""Writes this server's own metrics, with labels that TensorFlow Serving's lack: API, version, signature, table.

Keeps each version's state and number of failed loads for metrics, as long as the status of its model shows the
version.

Writes metrics on how many lookups of a table read its hottest rows; the rows themselves are listed at `:hot`, not in
labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from service.control.request_context import Subject
from service.observe.metric_text import QUEUE, REQUEST, SECONDS, Kind, Times, family, histogram, labels, series
from service.observe.request_metrics import Batches, Requests, Successes
from service.remote.core_clusters import RemoteCounts, RemoteState
from service.search.neighbor_indexes import IndexName
from service.types import State, TableCounts, VersionStatus
from service.versions.counts import PageCounts, TableTraffic
from service.versions.deltas import DeltaStatus
from service.versions.neighbors import RowIndex
from service.versions.servable import LoadedServable

_SECONDS = tuple(map(repr, SECONDS))
_PREFIX = "embedding_server_"


def request_lines(requests: Requests) -> list[str]:
    found: dict[Subject, Successes] = {}
    counts: dict[tuple[Subject, str], int] = {}
    # These metrics have no label for the method (such as Predict), so the counts of a signature's methods are added:
    # hardly any signature has two methods, and TensorFlow Serving's metrics have the label.
    for subject, cell in requests.successes.items():
        key = subject._replace(method="")
        found.setdefault(key, Successes(cell.kind, False)).merge(cell)
    for (subject, code), count in requests.failures.items():
        key = subject._replace(method="")
        counts[key, code] = counts.get((key, code), 0) + count
    counts |= {(subject, "OK"): cell.count for subject, cell in found.items()}
    ordered = sorted(counts.items(), key=lambda item: (_order(item[0][0]), item[0][1]))
    lines = series(
        _PREFIX + "requests_total",
        "counter",
        "Requests finished, by canonical code; OK: succeeded.",
        [(_subject(subject, code), count) for (subject, code), count in ordered],
    )
    cells = [(_subject(subject), cell) for subject, cell in sorted(found.items(), key=lambda item: _order(item[0]))]
    lines += _times(
        "request_seconds",
        "Seconds from the whole request to the encoded answer, of requests that succeeded.",
        [(labelled, cell.times) for labelled, cell in cells],
    )
    lines += _times(
        "run_seconds",
        "Seconds in the tables or the graph, waits for a batch included, of requests that succeeded.",
        sorted(_run_times(found).items()),
    )
    about = "Rows (examples) of requests that succeeded."
    return lines + series(_PREFIX + "rows_total", "counter", about, [(labelled, cell.rows) for labelled, cell in cells])


def control_lines(counts: Mapping[tuple[str, str, str], int]) -> list[str]:
    """Returns the lines of the metric on control requests; counts: by API, model and code."""
    about = "Requests for status, metadata, pages, and changes by the admin port, by canonical code."
    found = [
        (labels({"api": api, "model": model, "code": code}), count)
        for (api, model, code), count in sorted(counts.items())
    ]
    return series(_PREFIX + "control_requests_total", "counter", about, found)


def _run_times(found: Mapping[Subject, Successes]) -> dict[str, Times]:
    totals: dict[str, Times] = {}
    for subject, cell in found.items():
        # Run times have no label for HTTP or gRPC, which do not influence them: each label would add the many lines of
        # a histogram.
        labelled = labels({"model": subject.model, "signature": subject.signature, "version": subject.version})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.run_times)
    return totals


def servable_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    lines = []
    for part, about, read in _VERSION_FAMILIES:
        values = [(_named(one.servable.name, one.servable.version), read(one)) for one in loaded]
        lines += series(_PREFIX + part, "gauge", about, values)
    tables = [
        (labels({"model": one.servable.name, "table": table, "version": one.servable.version}), counts)
        for one in loaded
        for table, counts in sorted(one.servable.all_table_counts().items())
    ]
    for part, about, count in _TABLE_FAMILIES:
        lines += series(_PREFIX + part, "counter", about, [(labelled, count(counts)) for labelled, counts in tables])
    return lines


_VERSION_FAMILIES: tuple[tuple[str, str, Callable[[LoadedServable], float]], ...] = (
    ("requests_in_flight", "Requests that hold the version now.", lambda one: one.num_leases),
    (
        "tables_verified",
        "1: the bytes of all tables were compared with their checksums.",
        lambda one: one.servable.files.is_verified,
    ),
    (
        "tables_verification_due",
        "1: the version answers, and its tables are still to be compared with their checksums.",
        lambda one: one.servable.files.is_verification_due,
    ),
)
_TABLE_FAMILIES: tuple[tuple[str, str, Callable[[TableCounts], int]], ...] = (
    ("table_ids_total", "Ids that lookups sent to the table.", lambda counts: counts.ids),
    (
        "table_missing_ids_total",
        "Ids of lookups without a row, whatever the feature's policy did with them; dropped keys included.",
        lambda counts: counts.missing_ids,
    ),
    (
        "table_oov_keys_total",
        "String and integer keys that are not in the vocabulary, with an OOV row or without.",
        lambda c: c.oov_keys,
    ),
    ("table_read_bytes_total", "Bytes of the rows that lookups read from the table.", lambda counts: counts.read_bytes),
)


def batch_lines(batches: Batches) -> list[str]:
    waits = Times(QUEUE)
    for of_pool in batches.waits.values():
        waits.merge(of_pool)
    lines = _times("queue_seconds", "Seconds that requests waited for their batch.", [("", waits)])
    about = "Requests in batches that were run; one that is split counts in each."
    lines += series(_PREFIX + "batched_requests_total", "counter", about, [("", batches.num_requests)])
    about = "Requests that no batch took, by canonical code: too large, queue full, too late."
    rejected = [(labels({"code": code}), count) for code, count in sorted(batches.rejected.items())]
    return lines + series(_PREFIX + "batching_rejected_total", "counter", about, rejected)


def _times(part: str, about: str, found: Iterable[tuple[str, Times]]) -> list[str]:
    name = _PREFIX + part
    lines = family(name, "histogram", about)
    for labelled, times in found:
        places = times.limits.seconds
        lines += histogram(name, labelled, limits=_SECONDS, counts=times.counts, total=times.seconds, places=places)
    return lines


def _subject(subject: Subject, code: str = "") -> str:
    version = "" if subject.version is None else subject.version
    named = {"api": subject.api, "code": code, "model": subject.model, "signature": subject.signature}
    return labels({name: value for name, value in named.items() if name != "code" or value} | {"version": version})


def _order(subject: Subject) -> tuple[str, str, int, str]:
    return subject.model, subject.signature, -1 if subject.version is None else subject.version, subject.api


READY = "embedding_server_ready"
MODEL_READY = "embedding_server_model_ready"
STATE = "embedding_server_version_state"
ERROR = "embedding_server_version_error"
LOAD_FAILURES = "embedding_server_version_load_failures"
NOT_RUN = "embedding_server_version_signatures_not_run"


class VersionStates:
    """The state and the number of failed loads of each version of each model, for metrics.

    Concurrency: changed() by one caller at a time for each model, lines() by any thread.
    """

    def __init__(self) -> None:
        self._statuses: dict[tuple[str, int], VersionStatus] = {}
        self._failures: dict[tuple[str, int], int] = {}

    def changed(self, model: str, status: VersionStatus) -> None:
        """Stores a version's new state. UNKNOWN, or END without an error, drops the version from the metrics."""
        key = (model, status.version)
        before = self._statuses.get(key)
        is_over = status.state is State.UNKNOWN or (status.state is State.END and status.code == "OK")
        if is_over or status.state is State.AVAILABLE:
            self._failures.pop(key, None)
        elif status.state is State.END and before is not None and before.state is State.LOADING:
            self._failures[key] = self._failures.get(key, 0) + 1
        if is_over:
            self._statuses.pop(key, None)
        else:
            # The metrics of a failed version stay, because the model's status still shows it.
            self._statuses[key] = status

    def forget(self, model: str) -> None:
        for counted in (self._statuses, self._failures):
            for key in [key for key in counted.copy() if key[0] == model]:
                counted.pop(key, None)

    def lines(self) -> list[str]:
        statuses = sorted(self._statuses.copy().items())
        states = [(_named(*key), status.state) for key, status in statuses]
        errors = [
            (labels({"code": status.code, "model": model, "version": version}), 1)
            for (model, version), status in statuses
            if status.code != "OK"
        ]
        failures = [(_named(*key), count) for key, count in sorted(self._failures.copy().items())]
        return [
            *series(
                STATE,
                "gauge",
                "State of each model version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END.",
                states,
            ),
            *series(
                ERROR,
                "gauge",
                "1 for a version that ended with an error, by canonical code; DATA_LOSS: its files are damaged.",
                errors,
            ),
            *series(
                LOAD_FAILURES,
                "gauge",
                "How often the version failed to load; gone once it has loaded, or its folder is gone.",
                failures,
            ),
        ]


def readiness_lines(is_ready: bool, models: Mapping[str, bool]) -> list[str]:
    """Returns the lines of metrics on readiness, of the server and of each model.

    Args:
      is_ready: whether the server is ready; models: whether each configured model can answer.
    """
    answering = [(labels({"model": name}), models[name]) for name in sorted(models)]
    return [
        *series(
            READY, "gauge", "Whether load balancers shall send requests to this server: 1, else 0.", [("", is_ready)]
        ),
        *series(MODEL_READY, "gauge", "Whether a version of a configured model answers: 1, else 0.", answering),
    ]


def core_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on signatures that the native core does not run."""
    about = "Signatures of the version that no request can run, although the server has their tables or graphs."
    values = [(_named(one.servable.name, one.servable.version), len(one.servable.can_not_run)) for one in loaded]
    return series(NOT_RUN, "gauge", about, values)


def _named(model: str, version: int) -> str:
    return labels({"model": model, "version": version})


_DELTA_PREFIX = "embedding_server_delta_"
_DELTA_FAMILIES: tuple[tuple[str, Kind, str, Callable[[DeltaStatus], float]], ...] = (
    ("last_sequence", "gauge", "Highest number of a delta that lookups use.", lambda status: status.last_sequence),
    ("rows", "gauge", "Rows that deltas have changed since the export.", lambda status: status.rows),
    ("pending", "gauge", "Deltas that were read and that lookups do not use yet.", lambda status: status.pending),
    (
        "lag_seconds",
        "gauge",
        "Seconds for which the oldest delta has waited, or could not be read.",
        lambda status: status.lag_s,
    ),
    ("missing", "gauge", "Deltas that are missing: numbers below the highest one.", lambda status: status.missing),
    ("applied_total", "counter", "Deltas that were applied.", lambda status: status.applied),
)
_BY_REASON: tuple[tuple[str, str, Callable[[DeltaStatus], Mapping[str, int]]], ...] = (
    ("refused_total", "Deltas that were refused, by reason.", lambda status: status.refused),
    (
        "journal_failures_total",
        "Upserts that the journal did not take, by reason: full, held, unwritable.",
        lambda status: status.journal_failures,
    ),
)


def delta_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on deltas; none if no version has deltas."""
    found = [
        ({"model": one.servable.name, "version": one.servable.version}, one.servable.deltas.status())
        for one in loaded
        if one.servable.deltas is not None
    ]
    if not found:
        return []
    lines = []
    for part, kind, about, read in _DELTA_FAMILIES:
        lines += series(_DELTA_PREFIX + part, kind, about, [(labels(names), read(status)) for names, status in found])
    for part, about, counts in _BY_REASON:
        by_reason = [
            (labels({**names, "reason": reason}), count)
            for names, status in found
            for reason, count in sorted(counts(status).items())
        ]
        lines += series(_DELTA_PREFIX + part, "counter", about, by_reason)
    return lines


_DISTINCT = "embedding_server_table_sampled_rows"
_SHARE = "embedding_server_table_hot_share"
_TOPS = (1, 10, 100, 1000)


def hot_rows_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on the rows that lookups read most; none if the server samples no ids."""
    found = [
        traffic
        for one in loaded
        for table in sorted(one.servable.tables)
        if (traffic := one.servable.traffic(table, max(_TOPS), has_keys=False)) is not None
    ]
    if not found:
        return []
    distinct = [(labels(_table_names(one)), one.distinct) for one in found]
    shares = [(labels({**_table_names(one), "top": top}), one.top_share(top)) for one in found for top in _TOPS]
    about = "Share of a table's lookups that read one of its `top` hottest rows, sampled."
    return [
        *series(_DISTINCT, "gauge", "Different rows in the sample of a table's lookups, estimated.", distinct),
        *series(_SHARE, "gauge", about, shares),
    ]


def _table_names(one: TableTraffic) -> dict[str, object]:
    return {"model": one.model, "table": one.table, "version": one.version}


_INDEX_METRICS: tuple[tuple[str, str, Callable[[RowIndex], float]], ...] = (
    (
        "embedding_server_neighbor_index_recall",
        "Share of the ten nearest rows that the index of a table finds, measured when it was built.",
        lambda index: index.recall or 0.0,
    ),
    (
        "embedding_server_neighbor_index_build_seconds",
        "Seconds that the build of a table's index took.",
        lambda index: index.seconds,
    ),
    ("embedding_server_neighbor_index_bytes", "Bytes of memory of a table's index.", lambda index: index.nbytes),
)
_NAME = "embedding_server_neighbor_rows_scanned_total"


def neighbor_lines(scanned: Mapping[str, int], indexes: Mapping[IndexName, RowIndex]) -> list[str]:
    """Returns the lines of metrics on searches for nearest rows and on indexes; none before the first search.

    Args:
      scanned: model -> number of rows that searches compared with their queries.
    """
    if not scanned:
        return []
    about = "Rows of tables that searches for nearest rows compared with their queries."
    lines = series(
        _NAME, "counter", about, [(labels({"model": model}), count) for model, count in sorted(scanned.items())]
    )
    for name, about, value in _INDEX_METRICS if indexes else ():
        values = [(labels(key._asdict()), value(index)) for key, index in sorted(indexes.items())]
        lines += series(name, "gauge", about, values)
    return lines


_PAGES_PREFIX = "embedding_server_paged_"
_PAGES_FAMILIES: tuple[tuple[str, Kind, str, str], ...] = (
    ("cold_rows_total", "counter", "Ids of lookups whose row was not in memory and was read from the disk.", "rows"),
    ("reads_total", "counter", "Pages of tables that were read for lookups.", "reads"),
    ("drops_total", "counter", "Pages that the server dropped to keep to --paged_tables_mib.", "drops"),
    ("losses_total", "counter", "Pages that the kernel dropped, because memory was short.", "losses"),
    ("read_seconds_total", "counter", "Seconds that threads spent reading pages, all threads together.", "seconds"),
    ("resident_bytes", "gauge", "Bytes of pages of tables that are in memory.", "bytes"),
    ("max_bytes", "gauge", "Most bytes of pages of tables that stay in memory.", "max_bytes"),
)


def page_lines(counts: PageCounts) -> list[str]:
    """Returns the lines of metrics on pages of tables; none if the native core has read none."""
    lines: list[str] = []
    if not counts.reads and not counts.bytes:
        return lines
    for name, kind, about, field in _PAGES_FAMILIES:
        lines += series(_PAGES_PREFIX + name, kind, about, [("", getattr(counts, field))])
    return lines


_STORE_PREFIX = "embedding_server_store_"


class StoreCounts(Protocol):
    """Counts of reads from one model's object store. read_bytes: bytes of objects that were read."""

    read_bytes: int
    listings: int
    failures: int
    fetched: int


_STORE_FAMILIES: tuple[tuple[str, str, Callable[[StoreCounts], int]], ...] = (
    ("read_bytes_total", "Bytes of objects that were read from a model's object store.", lambda one: one.read_bytes),
    ("listings_total", "Listings of a model's versions in its object store.", lambda one: one.listings),
    ("failures_total", "Listings and fetches that failed.", lambda one: one.failures),
    ("fetched_versions_total", "Versions that were fetched to their end.", lambda one: one.fetched),
)


def store_lines(mirrors: Sequence[tuple[str, StoreCounts, bool]]) -> list[str]:
    """Returns the lines of metrics on object stores; none if no model is in one.

    Args:
      mirrors: of each model in a store: its name, its counts, and whether its store could be listed the last time.
    """
    if not mirrors:
        return []
    lines = []
    for part, about, read in _STORE_FAMILIES:
        values = [(labels({"model": model}), read(counts)) for model, counts, _ in mirrors]
        lines += series(_STORE_PREFIX + part, "counter", about, values)
    about = "Whether a model's object store could be listed the last time: 1, else 0."
    listed = [(labels({"model": model}), is_listed) for model, _, is_listed in mirrors]
    return lines + series(_STORE_PREFIX + "is_listed", "gauge", about, listed)


_REMOTE_PREFIX = "embedding_server_remote_table_"
_READ_FAMILIES = (
    ("reads_total", "Reads of rows of one table for one request.", "reads"),
    ("rows_total", "Distinct rows that were read.", "rows"),
    ("read_bytes_total", "Bytes of the rows that were read from the cluster.", "bytes"),
    ("retries_total", "Further rounds of reads: another node was asked for rows that one did not give.", "retries"),
    ("errors_total", "Reads that lacked a row at their end.", "errors"),
    ("default_rows_total", "Rows that could not be read and were answered by a default row.", "default_rows"),
    ("stale_rows_total", "Rows that could not be read, for which the answer has a row of the cache.", "stale_rows"),
    ("hedges_total", "Reads of a node that were also asked of a second node, because the first was slow.", "hedges"),
    ("hedge_wins_total", "Reads that were also sent to a second node, which answered first.", "hedge_wins"),
    ("seconds_total", "Seconds that reads of rows took.", "seconds"),
)
_CACHED_FAMILIES = (
    ("cache_hits_total", "Rows that the cache had.", "cache_hits"),
    ("cache_misses_total", "Rows that the cache lacked, and that were read.", "cache_misses"),
)
_FAULTS = ("missing", "cut short", "of another type", "differs")
_CACHE_PREFIX = "embedding_server_remote_cache_"
_CACHE_FAMILIES: tuple[tuple[str, Kind, str, str], ...] = (
    ("rows", "gauge", "Rows of remote tables in the cache.", "rows"),
    ("bytes", "gauge", "Bytes that the rows of remote tables in the cache take, with the cache's own data.", "bytes"),
    ("evictions_total", "counter", "Rows that other rows displaced.", "evictions"),
)


def remote_lines(found: RemoteCounts, state: RemoteState) -> list[str]:
    """Returns the lines of metrics on remote tables; none if no table is remote."""
    lines = _state_lines(state)
    counts = found.tables
    if not counts:
        return lines
    for name, about, field in _READ_FAMILIES if found.cache is None else (*_READ_FAMILIES, *_CACHED_FAMILIES):
        values = [(_table(key), getattr(count, field)) for key, count in sorted(counts.items())]
        lines += series(_REMOTE_PREFIX + name, "counter", about, values)
    for name, kind, about, field in _CACHE_FAMILIES if found.cache is not None else ():
        lines += series(_CACHE_PREFIX + name, kind, about, [("", getattr(found.cache, field))])
    return lines


def _state_lines(state: RemoteState) -> list[str]:
    if not state.is_reached:
        return []
    clusters = "embedding_server_remote_cluster_"
    return [
        *series(
            clusters + "is_reached",
            "gauge",
            "Whether each hash slot of the cluster has a node that answers.",
            [(labels({"cluster": one}), value) for one, value in sorted(state.is_reached.items())],
        ),
        *series(
            clusters + "silent_nodes",
            "gauge",
            "Known nodes of the cluster that do not answer.",
            [(labels({"cluster": one}), count) for one, count in sorted(state.num_silent.items())],
        ),
        *series(
            _REMOTE_PREFIX + "compared_blocks_total",
            "counter",
            "Blocks in the cluster that were compared with the version's files.",
            [(_table(key), compared) for key, (compared, _) in sorted(state.compared.items())],
        ),
        *series(
            _REMOTE_PREFIX + "faulty_blocks",
            "gauge",
            "Blocks in the cluster that are lost or differ from the version's files, by fault.",
            [
                (_table(key, fault=fault), faulty.get(fault, 0))
                for key, (_, faulty) in sorted(state.compared.items())
                for fault in _FAULTS
            ],
        ),
        *series(
            _REMOTE_PREFIX + "refused_upserts_total",
            "counter",
            "Upserts that the table's cluster refused, or for which it could not be reached.",
            [(_table(key), count) for key, count in sorted(state.refused.items())],
        ),
    ]


def _table(key: tuple[str, int, str], **more: str) -> str:
    model, version, table = key
    return labels({"model": model, "version": version, "table": table, **more})


def remote_status(found: RemoteCounts) -> dict[str, Any]:
    """Returns the counts of reads from remote tables for the status page; an empty dict if no table is remote."""
    if not found.tables:
        return {}
    return {
        "cache": None if found.cache is None else asdict(found.cache),
        "tables": [
            {"model": model, "version": version, "table": table, **asdict(counts)}
            for (model, version, table), counts in sorted(found.tables.items())
        ],
    }
