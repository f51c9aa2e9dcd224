"""Writes this server's own metrics, with labels that TensorFlow Serving's lack: API, version, signature, table.

A version has metrics as long as the status of its model shows it. The hottest rows of a table are listed at `:hot`, not
in labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from service.control.request_context import Subject
from service.observe.metric_text import (
    QUEUE,
    REQUEST,
    SECONDS,
    Families,
    Named,
    Times,
    family,
    histogram,
    labels,
    lines_of,
    series,
)
from service.observe.request_metrics import Batches, CoreCounts, Requests, Successes
from service.remote.core_clusters import RemoteCounts, RemoteState
from service.search.neighbor_indexes import IndexName
from service.types import State, VersionStatus
from service.versions.counts import PageCounts
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
    about = "Requests finished, by canonical code; OK: succeeded."
    lines = series(_PREFIX + "requests_total", about, [(_subject(*key), count) for key, count in ordered])
    cells = [(_subject(subject), cell) for subject, cell in sorted(found.items(), key=lambda item: _order(item[0]))]
    about = "Seconds from the whole request to the encoded answer, of requests that succeeded."
    lines += _times("request_seconds", about, [(labels(named), cell.times) for named, cell in cells])
    about = "Seconds in the tables or the graph, waits for a batch included, of requests that succeeded."
    lines += _times("run_seconds", about, sorted(_run_times(found).items()))
    about = "Rows (examples) of requests that succeeded."
    return lines + series(_PREFIX + "rows_total", about, [(named, cell.rows) for named, cell in cells])


def control_lines(counts: Mapping[tuple[str, str, str], int]) -> list[str]:
    about = "Requests for status, metadata, pages, and changes by the admin port, by canonical code."
    found = [
        ({"api": api, "model": model, "code": code}, count) for (api, model, code), count in sorted(counts.items())
    ]
    return series(_PREFIX + "control_requests_total", about, found)


def _run_times(found: Mapping[Subject, Successes]) -> dict[str, Times]:
    totals: dict[str, Times] = {}
    for subject, cell in found.items():
        # Run times have no label for HTTP or gRPC, which do not influence them: each label would add the many lines of
        # a histogram.
        labelled = labels({"model": subject.model, "signature": subject.signature, "version": subject.version})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.run_times)
    return totals


def servable_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    tables = [
        ({"model": one.servable.name, "table": table, "version": one.servable.version}, counts)
        for one in loaded
        for table, counts in sorted(one.servable.all_table_counts().items())
    ]
    return [
        *lines_of(_PREFIX, _VERSION_FAMILIES, [(_of(one), one) for one in loaded]),
        *lines_of(_PREFIX, _TABLE_FAMILIES, tables),
    ]


_VERSION_FAMILIES: Families = (
    ("requests_in_flight", "Requests that hold the version now.", "num_leases"),
    ("tables_verified", "1: the bytes of all tables were compared with their checksums.", "servable.files.is_verified"),
    (
        "tables_verification_due",
        "1: the version answers, and its tables are still to be compared with their checksums.",
        "servable.files.is_verification_due",
    ),
)
_TABLE_FAMILIES: Families = (
    ("table_ids_total", "Ids that lookups sent to the table.", "ids"),
    (
        "table_missing_ids_total",
        "Ids of lookups without a row, whatever the feature's policy did with them; dropped keys included.",
        "missing_ids",
    ),
    (
        "table_oov_keys_total",
        "String and integer keys that are not in the vocabulary, with an OOV row or without.",
        "oov_keys",
    ),
    ("table_read_bytes_total", "Bytes of the rows that lookups read from the table.", "read_bytes"),
)


def batch_lines(batches: Batches) -> list[str]:
    waits = Times(QUEUE)
    for of_pool in batches.waits.values():
        waits.merge(of_pool)
    lines = _times("queue_seconds", "Seconds that requests waited for their batch.", [("", waits)])
    about = "Requests in batches that were run; one that is split counts in each."
    lines += series(_PREFIX + "batched_requests_total", about, [({}, batches.num_requests)])
    about = "Requests that no batch took, by canonical code: too large, queue full, too late."
    rejected = [({"code": code}, count) for code, count in sorted(batches.rejected.items())]
    return lines + series(_PREFIX + "batching_rejected_total", about, rejected)


def admission_lines(counts: CoreCounts, limit_bytes: int | None) -> list[str]:
    """Returns the lines of the metrics on refused requests, waits and dropped connections.

    Args:
      limit_bytes: most bytes in flight, of all models together; None: the server has no limit yet.
    """
    about = "Bytes of requests and answers in flight; model is empty for requests of no known model."
    held = [({"model": model}, size) for model, size in sorted(counts.held.items())]
    lines = series(_PREFIX + "in_flight_bytes", about, held)
    about = "How many bytes may be in flight, of all models together."
    lines += series(_PREFIX + "in_flight_limit_bytes", about, [] if limit_bytes is None else [({}, limit_bytes)])
    about = "Requests refused before they ran, by reason: overload, or limits on one client."
    refused = [({"model": of, "reason": why}, count) for (of, why), count in sorted(counts.refused.items()) if count]
    lines += series(_PREFIX + "refused_total", about, refused)
    about = "Connections that the server refused or cut; docs/security.md has the reasons."
    dropped = [({"reason": reason}, count) for reason, count in sorted(counts.dropped.items())]
    lines += series(_PREFIX + "connections_dropped_total", about, dropped)
    about = "Seconds that requests which ran had waited for a thread."
    waits = [(labels({"model": model}), times) for model, times in sorted(counts.waits.items())]
    return lines + _times("thread_wait_seconds", about, waits)


def _times(part: str, about: str, found: Iterable[tuple[str, Times]]) -> list[str]:
    name = _PREFIX + part
    lines = family(name, "histogram", about)
    for labelled, times in found:
        places = times.limits.seconds
        lines += histogram(name, labelled, limits=_SECONDS, counts=times.counts, total=times.seconds, places=places)
    return lines


def _subject(subject: Subject, code: str = "") -> Named:
    version = "" if subject.version is None else subject.version
    of_code = {"code": code} if code else {}
    return {"api": subject.api, **of_code, "model": subject.model, "signature": subject.signature, "version": version}


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
            ({"code": status.code, "model": model, "version": version}, 1)
            for (model, version), status in statuses
            if status.code != "OK"
        ]
        failures = [(_named(*key), count) for key, count in sorted(self._failures.copy().items())]
        of_state = "State of each model version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END."
        of_error = "1 for a version that ended with an error, by canonical code; DATA_LOSS: its files are damaged."
        of_failures = "How often the version failed to load; gone once it has loaded, or its folder is gone."
        return [
            *series(STATE, of_state, states),
            *series(ERROR, of_error, errors),
            *series(LOAD_FAILURES, of_failures, failures),
        ]


def readiness_lines(is_ready: bool, models: Mapping[str, bool]) -> list[str]:
    about = "Whether load balancers shall send requests to this server: 1, else 0."
    of_model = "Whether a version of a configured model answers: 1, else 0."
    answering = [({"model": name}, models[name]) for name in sorted(models)]
    return [*series(READY, about, [({}, is_ready)]), *series(MODEL_READY, of_model, answering)]


def core_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    about = "Signatures of the version that no request can run, although the server has their tables or graphs."
    return series(NOT_RUN, about, [(_of(one), len(one.servable.can_not_run)) for one in loaded])


def _named(model: str, version: int) -> Named:
    return {"model": model, "version": version}


def _of(one: LoadedServable) -> Named:
    return _named(one.servable.name, one.servable.version)


_DELTA_PREFIX = "embedding_server_delta_"
_DELTA_FAMILIES: Families = (
    ("last_sequence", "Highest number of a delta that lookups use.", "last_sequence"),
    ("rows", "Rows that deltas have changed since the export.", "rows"),
    ("pending", "Deltas that were read and that lookups do not use yet.", "pending"),
    ("lag_seconds", "Seconds for which the oldest delta has waited, or could not be read.", "lag_s"),
    ("missing", "Deltas that are missing: numbers below the highest one.", "missing"),
    ("applied_total", "Deltas that were applied.", "applied"),
)
_BY_REASON: Families = (
    ("refused_total", "Deltas that were refused, by reason.", "refused"),
    (
        "journal_failures_total",
        "Upserts that the journal did not take, by reason: full, held, unwritable.",
        "journal_failures",
    ),
)


def delta_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    found = [(_of(one), one.servable.deltas.status()) for one in loaded if one.servable.deltas is not None]
    if not found:
        return []
    lines = lines_of(_DELTA_PREFIX, _DELTA_FAMILIES, found)
    for part, about, counts in _BY_REASON:
        by_reason = [
            ({**named, "reason": reason}, count)
            for named, status in found
            for reason, count in sorted(getattr(status, counts).items())
        ]
        lines += series(_DELTA_PREFIX + part, about, by_reason)
    return lines


_DISTINCT = "embedding_server_table_sampled_rows"
_SHARE = "embedding_server_table_hot_share"
_TOPS = (1, 10, 100, 1000)


def hot_rows_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    found = [
        traffic
        for one in loaded
        for table in sorted(one.servable.tables)
        if (traffic := one.servable.traffic(table, max(_TOPS), has_keys=False)) is not None
    ]
    if not found:
        return []
    named = [({"model": one.model, "table": one.table, "version": one.version}, one) for one in found]
    shares = [({**of, "top": top}, one.top_share(top)) for of, one in named for top in _TOPS]
    about = "Different rows in the sample of a table's lookups, estimated."
    of_share = "Share of a table's lookups that read one of its `top` hottest rows, sampled."
    return [*series(_DISTINCT, about, [(of, one.distinct) for of, one in named]), *series(_SHARE, of_share, shares)]


_INDEX_FAMILIES: Families = (
    ("recall", "Share of the ten nearest rows that the index of a table finds, measured when it was built.", "recall"),
    ("build_seconds", "Seconds that the build of a table's index took.", "seconds"),
    ("bytes", "Bytes of memory of a table's index.", "nbytes"),
)


def neighbor_lines(scanned: Mapping[str, int], indexes: Mapping[IndexName, RowIndex]) -> list[str]:
    if not scanned:
        return []
    about = "Rows of tables that searches for nearest rows compared with their queries."
    found = [({"model": model}, count) for model, count in sorted(scanned.items())]
    lines = series("embedding_server_neighbor_rows_scanned_total", about, found)
    if indexes:
        named = [(key._asdict(), index) for key, index in sorted(indexes.items())]
        lines += lines_of("embedding_server_neighbor_index_", _INDEX_FAMILIES, named)
    return lines


_PAGES_FAMILIES: Families = (
    ("cold_rows_total", "Ids of lookups whose row was not in memory and was read from the disk.", "rows"),
    ("reads_total", "Pages of tables that were read for lookups.", "reads"),
    ("drops_total", "Pages that the server dropped to keep to --paged_tables_mib.", "drops"),
    ("losses_total", "Pages that the kernel dropped, because memory was short.", "losses"),
    ("read_seconds_total", "Seconds that threads spent reading pages, all threads together.", "seconds"),
    ("resident_bytes", "Bytes of pages of tables that are in memory.", "bytes"),
    ("max_bytes", "Most bytes of pages of tables that stay in memory.", "max_bytes"),
)


def page_lines(counts: PageCounts) -> list[str]:
    is_used = counts.reads or counts.bytes
    return lines_of("embedding_server_paged_", _PAGES_FAMILIES, [({}, counts)]) if is_used else []


_STORE_PREFIX = "embedding_server_store_"
_STORE_FAMILIES: Families = (
    ("read_bytes_total", "Bytes of objects that were read from a model's object store.", "read_bytes"),
    ("listings_total", "Listings of a model's versions in its object store.", "listings"),
    ("failures_total", "Listings and fetches that failed.", "failures"),
    ("fetched_versions_total", "Versions that were fetched to their end.", "fetched"),
)


def store_lines(mirrors: Sequence[tuple[str, object, bool]]) -> list[str]:
    """Returns the lines of metrics on object stores; none if no model is in one.

    Args:
      mirrors: of each model in a store: its name, its counts, and whether its store could be listed the last time.
    """
    if not mirrors:
        return []
    about = "Whether a model's object store could be listed the last time: 1, else 0."
    return [
        *lines_of(_STORE_PREFIX, _STORE_FAMILIES, [({"model": model}, counts) for model, counts, _ in mirrors]),
        *series(_STORE_PREFIX + "is_listed", about, [({"model": model}, is_listed) for model, _, is_listed in mirrors]),
    ]


_REMOTE_PREFIX = "embedding_server_remote_table_"
_READ_FAMILIES: Families = (
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
_CACHED_FAMILIES: Families = (
    ("cache_hits_total", "Rows that the cache had.", "cache_hits"),
    ("cache_misses_total", "Rows that the cache lacked, and that were read.", "cache_misses"),
)
_FAULTS = ("missing", "cut short", "of another type", "differs")
_CACHE_FAMILIES: Families = (
    ("rows", "Rows of remote tables in the cache.", "rows"),
    ("bytes", "Bytes that the rows of remote tables in the cache take, with the cache's own data.", "bytes"),
    ("evictions_total", "Rows that other rows displaced.", "evictions"),
)


def remote_lines(found: RemoteCounts, state: RemoteState) -> list[str]:
    lines = _state_lines(state)
    if not found.tables:
        return lines
    named = [(_table(key), counts) for key, counts in sorted(found.tables.items())]
    lines += lines_of(_REMOTE_PREFIX, _READ_FAMILIES, named)
    if found.cache is not None:
        lines += lines_of(_REMOTE_PREFIX, _CACHED_FAMILIES, named)
        lines += lines_of("embedding_server_remote_cache_", _CACHE_FAMILIES, [({}, found.cache)])
    return lines


_CLUSTER_PREFIX = "embedding_server_remote_cluster_"


def _state_lines(state: RemoteState) -> list[str]:
    if not state.is_reached:
        return []
    reached = [({"cluster": one}, value) for one, value in sorted(state.is_reached.items())]
    silent = [({"cluster": one}, count) for one, count in sorted(state.num_silent.items())]
    compared = [(_table(key), number) for key, (number, _) in sorted(state.compared.items())]
    faulty = [
        ({**_table(key), "fault": fault}, found.get(fault, 0))
        for key, (_, found) in sorted(state.compared.items())
        for fault in _FAULTS
    ]
    refused = [(_table(key), count) for key, count in sorted(state.refused.items())]
    lines = []
    for name, about, values in (
        (_CLUSTER_PREFIX + "is_reached", "Whether each hash slot of the cluster has a node that answers.", reached),
        (_CLUSTER_PREFIX + "silent_nodes", "Known nodes of the cluster that do not answer.", silent),
        (
            _REMOTE_PREFIX + "compared_blocks_total",
            "Blocks in the cluster that were compared with the version's files.",
            compared,
        ),
        (
            _REMOTE_PREFIX + "faulty_blocks",
            "Blocks in the cluster that are lost or differ from the version's files, by fault.",
            faulty,
        ),
        (
            _REMOTE_PREFIX + "refused_upserts_total",
            "Upserts that the table's cluster refused, or for which it could not be reached.",
            refused,
        ),
    ):
        lines += series(name, about, values)
    return lines


def _table(key: tuple[str, int, str]) -> Named:
    return dict(zip(("model", "version", "table"), key, strict=True))


def remote_status(found: RemoteCounts) -> dict[str, Any]:
    if not found.tables:
        return {}
    return {
        "cache": None if found.cache is None else asdict(found.cache),
        "tables": [
            {"model": model, "version": version, "table": table, **asdict(counts)}
            for (model, version, table), counts in sorted(found.tables.items())
        ],
    }
