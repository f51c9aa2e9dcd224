"""Writes the metrics of reads from remote tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from service.observe.metric_text import Kind, family, labels, sample
from service.remote.counts import RemoteCounts, RemoteState

_PREFIX = "embedding_server_remote_table_"
_FAMILIES = (
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
    for name, about, field in _FAMILIES if found.cache is None else (*_FAMILIES, *_CACHED_FAMILIES):
        lines += family(_PREFIX + name, "counter", about)
        lines += [
            sample(
                _PREFIX + name,
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
    name = _PREFIX + "compared_blocks_total"
    lines += family(name, "counter", "Blocks in the cluster that were compared with the version's files.")
    lines += [sample(name, labels(subject), float(compared)) for subject, (compared, _) in tables]
    name = _PREFIX + "faulty_blocks"
    lines += family(name, "gauge", "Blocks in the cluster that are lost or differ from the version's files, by fault.")
    for subject, (_, faulty) in tables:
        for fault in _FAULTS:
            lines.append(sample(name, labels(subject | {"fault": fault}), float(faulty.get(fault, 0))))
    name = _PREFIX + "refused_upserts_total"
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
