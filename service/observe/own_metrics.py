"""Writes this server's own metrics, which TensorFlow Serving lacks.

Writes this server's own metrics, with labels that TensorFlow Serving's metrics lack:

API, version, signature, table.

Keeps each version's state and number of failed loads for metrics, as long as the status of its model shows the
version.

Writes metrics on how many lookups of a table read its hottest rows; the rows themselves are listed at `:hot`, not in
labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from service.engine.counts import PageCounts, TableTraffic
from service.engine.deltas import DeltaStatus
from service.engine.neighbor_indexes import IndexName
from service.engine.neighbors import RowIndex
from service.engine.request_context import Subject
from service.engine.servable import Files, LoadedServable
from service.observe.metric_text import QUEUE, REQUEST, SECONDS, Kind, Times, family, histogram, labels, sample
from service.observe.request_metrics import Batches, Requests, Successes
from service.remote.core_clusters import RemoteCounts, RemoteState
from service.types import State, TableCounts, VersionStatus

_SECONDS = tuple(map(repr, SECONDS))
_PREFIX = "embedding_server_"


def request_lines(requests: Requests) -> list[str]:
    name = _PREFIX + "requests_total"
    lines = family(name, "counter", "Requests finished, by canonical code; OK: succeeded.")
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
    lines += [
        sample(name, _subject(subject, code), float(count))
        for (subject, code), count in sorted(counts.items(), key=lambda item: (_order(item[0][0]), item[0][1]))
    ]
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
    name = _PREFIX + "rows_total"
    lines += family(name, "counter", "Rows (examples) of requests that succeeded.")
    return lines + [sample(name, labelled, float(cell.rows)) for labelled, cell in cells]


def _run_times(found: Mapping[Subject, Successes]) -> dict[str, Times]:
    totals: dict[str, Times] = {}
    for subject, cell in found.items():
        # Run times have no label for HTTP or gRPC, which do not influence them: each label would add the many lines of
        # a histogram.
        labelled = labels({"model": subject.model, "signature": subject.signature, "version": subject.version})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.run_times)
    return totals


def servable_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    name = _PREFIX + "requests_in_flight"
    lines = family(name, "gauge", "Requests that hold the version now.")
    lines += [
        sample(name, labels({"model": one.servable.name, "version": one.servable.version}), float(one.num_leases))
        for one in loaded
    ]
    for part, about, is_so in _FILES_FAMILIES:
        name = _PREFIX + part
        lines += family(name, "gauge", about)
        lines += [
            sample(
                name,
                labels({"model": one.servable.name, "version": one.servable.version}),
                float(is_so(one.servable.files)),
            )
            for one in loaded
        ]
    tables = [
        (labels({"model": one.servable.name, "table": table, "version": one.servable.version}), counts)
        for one in loaded
        for table, counts in sorted(one.servable.all_table_counts().items())
    ]
    for part, about, read in _TABLE_FAMILIES:
        name = _PREFIX + part
        lines += family(name, "counter", about)
        lines += [sample(name, labelled, float(read(counts))) for labelled, counts in tables]
    return lines


_FILES_FAMILIES: tuple[tuple[str, str, Callable[[Files], bool]], ...] = (
    (
        "tables_verified",
        "1: the bytes of all tables were compared with their checksums.",
        lambda files: files.is_verified,
    ),
    (
        "tables_verification_due",
        "1: the version answers, and its tables are still to be compared with their checksums.",
        lambda files: files.is_verification_due,
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
    name = _PREFIX + "batched_requests_total"
    lines += family(name, "counter", "Requests in batches that were run; one that is split counts in each.")
    lines.append(sample(name, "", float(batches.num_requests)))
    name = _PREFIX + "batching_rejected_total"
    lines += family(name, "counter", "Requests that no batch took, by canonical code: too large, queue full, too late.")
    return lines + [
        sample(name, labels({"code": code}), float(count)) for code, count in sorted(batches.rejected.items())
    ]


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
        about = "State of each model version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END."
        lines = family(STATE, "gauge", about)
        lines += [sample(STATE, _named(*key), float(status.state)) for key, status in statuses]
        lines += family(
            ERROR,
            "gauge",
            "1 for a version that ended with an error, by canonical code; DATA_LOSS: its files are damaged.",
        )
        lines += [
            sample(ERROR, labels({"code": status.code, "model": model, "version": version}), 1.0)
            for (model, version), status in statuses
            if status.code != "OK"
        ]
        lines += family(
            LOAD_FAILURES,
            "gauge",
            "How often the version failed to load; gone once it has loaded, or its folder is gone.",
        )
        return lines + [
            sample(LOAD_FAILURES, _named(*key), float(count)) for key, count in sorted(self._failures.copy().items())
        ]


def readiness_lines(is_ready: bool, models: Mapping[str, bool]) -> list[str]:
    """Returns the lines of metrics on readiness, of the server and of each model.

    Args:
      is_ready: whether the server is ready; models: whether each configured model can answer.
    """
    lines = family(READY, "gauge", "Whether load balancers shall send requests to this server: 1, else 0.")
    lines.append(sample(READY, "", float(is_ready)))
    lines += family(MODEL_READY, "gauge", "Whether a version of a configured model answers: 1, else 0.")
    return lines + [sample(MODEL_READY, labels({"model": name}), float(models[name])) for name in sorted(models)]


def core_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on signatures that the native core does not run."""
    about = "Signatures of the version that no request can run, although the server has their tables or graphs."
    return family(NOT_RUN, "gauge", about) + [
        sample(NOT_RUN, _named(one.servable.name, one.servable.version), float(len(one.servable.can_not_run)))
        for one in loaded
    ]


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
        lines += family(_DELTA_PREFIX + part, kind, about)
        lines += [sample(_DELTA_PREFIX + part, labels(names), float(read(status))) for names, status in found]
    for part, about, counts in _BY_REASON:
        lines += family(_DELTA_PREFIX + part, "counter", about)
        lines += [
            sample(_DELTA_PREFIX + part, labels({**names, "reason": reason}), float(count))
            for names, status in found
            for reason, count in sorted(counts(status).items())
        ]
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
    lines = family(_DISTINCT, "gauge", "Different rows in the sample of a table's lookups, estimated.")
    lines += [sample(_DISTINCT, labels(_table_names(one)), float(one.distinct)) for one in found]
    lines += family(_SHARE, "gauge", "Share of a table's lookups that read one of its `top` hottest rows, sampled.")
    return lines + [
        sample(_SHARE, labels({**_table_names(one), "top": top}), one.top_share(top)) for one in found for top in _TOPS
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
    lines = family(_NAME, "counter", "Rows of tables that searches for nearest rows compared with their queries.")
    lines += [sample(_NAME, labels({"model": model}), float(count)) for model, count in sorted(scanned.items())]
    for name, about, value in _INDEX_METRICS if indexes else ():
        lines += family(name, "gauge", about)
        for key, index in sorted(indexes.items()):
            told = labels({"model": key.model, "version": str(key.version), "table": key.table, "metric": key.metric})
            lines.append(sample(name, told, float(value(index))))
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
        lines += family(_PAGES_PREFIX + name, kind, about)
        lines.append(sample(_PAGES_PREFIX + name, labels({}), float(getattr(counts, field))))
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
        name = _STORE_PREFIX + part
        lines += family(name, "counter", about)
        lines += [sample(name, labels({"model": model}), float(read(counts))) for model, counts, _ in mirrors]
    name = _STORE_PREFIX + "is_listed"
    lines += family(name, "gauge", "Whether a model's object store could be listed the last time: 1, else 0.")
    return lines + [sample(name, labels({"model": model}), float(is_listed)) for model, _, is_listed in mirrors]


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
        lines += family(_REMOTE_PREFIX + name, "counter", about)
        lines += [
            sample(
                _REMOTE_PREFIX + name,
                labels({"model": model, "version": str(version), "table": table}),
                float(getattr(count, field)),
            )
            for (model, version, table), count in sorted(counts.items())
        ]
    for name, kind, about, field in _CACHE_FAMILIES if found.cache is not None else ():
        lines += family(_CACHE_PREFIX + name, kind, about)
        lines.append(sample(_CACHE_PREFIX + name, labels({}), float(getattr(found.cache, field))))
    return lines


def _state_lines(state: RemoteState) -> list[str]:
    lines: list[str] = []
    if not state.is_reached:
        return lines
    name = "embedding_server_remote_cluster_is_reached"
    lines += family(name, "gauge", "Whether each hash slot of the cluster has a node that answers.")
    lines += [sample(name, labels({"cluster": one}), float(value)) for one, value in sorted(state.is_reached.items())]
    name = "embedding_server_remote_cluster_silent_nodes"
    lines += family(name, "gauge", "Known nodes of the cluster that do not answer.")
    lines += [sample(name, labels({"cluster": one}), float(count)) for one, count in sorted(state.num_silent.items())]
    tables = [
        ({"model": model, "version": str(version), "table": table}, found)
        for (model, version, table), found in sorted(state.compared.items())
    ]
    name = _REMOTE_PREFIX + "compared_blocks_total"
    lines += family(name, "counter", "Blocks in the cluster that were compared with the version's files.")
    lines += [sample(name, labels(subject), float(compared)) for subject, (compared, _) in tables]
    name = _REMOTE_PREFIX + "faulty_blocks"
    lines += family(name, "gauge", "Blocks in the cluster that are lost or differ from the version's files, by fault.")
    for subject, (_, faulty) in tables:
        for fault in _FAULTS:
            lines.append(sample(name, labels(subject | {"fault": fault}), float(faulty.get(fault, 0))))
    name = _REMOTE_PREFIX + "refused_upserts_total"
    lines += family(name, "counter", "Upserts that the table's cluster refused, or for which it could not be reached.")
    for (model, version, table), count in sorted(state.refused.items()):
        lines.append(sample(name, labels({"model": model, "version": str(version), "table": table}), float(count)))
    return lines


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
