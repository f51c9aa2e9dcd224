"""Gathers the content of the status page: the server, its models, requests in flight, and the last errors."""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from service.configuration.settings import Settings
from service.configuration.settings_reading import shown_settings
from service.observe.attention import ReadFiles, attention
from service.observe.history import Noted, RecentRequests
from service.observe.metric_text import Times, quantile_s
from service.observe.request_metrics import CoreCounts, Requests, Successes
from service.tables.huge_pages import huge_bytes, resident_bytes
from service.tables.table import MappedTable
from service.types import runnable
from service.versions.deltas import DeltaStatus
from service.versions.registry import Registry
from service.versions.servable import LoadedServable

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Statusz:
    """The functions and counters from which the content of the status page is gathered. Concurrency: any thread.

    requests: returns the counts of requests for versions that are still served.
    clusters: returns the nodes of each cluster with remote tables, and why the cluster can not be reached.
    remote: returns the counts of reads of remote tables, and of the cache of their rows.
    failures: returns the numbers of requests that failed in the last minutes; see history.RecentFailures.
    """

    version: Callable[[], str]
    settings: Settings
    registry: Registry
    recent: RecentRequests
    requests: Callable[[], Requests]
    logs: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    stores: Callable[[], list[Document]] = list
    clusters: Callable[[], list[Document]] = list
    core: Callable[[], CoreCounts] = CoreCounts
    data_plane: Callable[[], Document] = dict
    remote: Callable[[], Document] = dict
    files: Callable[[], ReadFiles] = ReadFiles
    failures: Callable[[], Document] = dict
    started_s: float = field(default_factory=time.time)
    # Of the monotonic clock, because the wall clock may be set while the server runs.
    begun_s: float = field(default_factory=time.monotonic)

    def read(self) -> Document:
        counted = self.requests()
        loaded = self.registry.loaded()
        document = {
            "server": self._server(),
            "data_plane": self.data_plane(),
            "models": {name: self._model(name, loaded) for name in self.registry.models()},
            "requests": _requests(counted),
            "overload": overload(self.settings, self.core()),
            "slow_requests": [_noted(one) for one in self.recent.slowest()],
            "recent_failures": self.failures(),
            "last_errors": [_noted(one) for one in self.recent.failures()],
            "request_logs": dict(self.logs()),
            "stores": self.stores(),
            "remote": self.remote(),
            "clusters": self.clusters(),
            "settings": shown_settings(self.settings),
        }
        return {"attention": attention(document, self.files(), time.time()), **document}

    def _server(self) -> Document:
        return {
            "version": self.version(),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "started": _time(self.started_s),
            "uptime_s": round(time.monotonic() - self.begun_s, 1),
            "is_ready": self.registry.is_ready,
            "slow_request_s": self.recent.slow_s if self.settings.slow_request_ms else None,
            **_process(),
        }

    def _model(self, name: str, loaded: Sequence[LoadedServable]) -> Document:
        mine = {one.servable.version: one for one in loaded if one.servable.name == name}
        notes = self.registry.notes(name)
        versions = [
            {
                "version": status.version,
                "state": status.state.name,
                "code": status.code,
                "message": status.message,
                "note": notes.get(status.version, ""),
                **(_version(mine[status.version]) if status.version in mine else {}),
            }
            for status in self.registry.all_statuses(name)
        ]
        return {
            "problem": self.registry.problem(name),
            "folder": self.registry.noted_problem(name),
            "labels": dict(self.registry.labels(name)),
            "versions": versions,
        }


def _version(one: LoadedServable) -> Document:
    counts, native = one.servable.all_table_counts(), one.servable.native
    tables = []
    for name, table in sorted(one.servable.tables.items()):
        info, found = table.info, counts.get(name)
        sampled = None if native is None else native.hot_rows(name, 0)
        document: Document = {
            "table": name,
            "rows": info.vocabulary_size,
            "dim": info.embedding_dim,
            "dtype": info.dtype,
            "mapped_bytes": info.nbytes,
            "resident_bytes": resident_bytes(table.weights) if isinstance(table, MappedTable) else None,
            "huge_bytes": huge_bytes(table.weights) if isinstance(table, MappedTable) else None,
            "reads": None if sampled is None else sampled.lookups,
        }
        if found is not None:
            document |= found._asdict()
            document["missing_share"] = found.missing_ids / found.ids if found.ids else 0.0
        tables.append(document)
    files, deltas = one.servable.files, one.servable.deltas
    return {
        "in_flight": one.num_leases,
        "verification": "done" if files.is_verified else "due" if files.is_verification_due else "none",
        "deltas": _deltas(deltas.status()) if deltas is not None else None,
        "signatures": {name: spec.kind for name, spec in sorted(runnable(one.servable.signatures).items())},
        "signature_faults": dict(sorted(one.servable.signature_faults.items())),
        "not_run": dict(sorted(one.servable.not_run.items())),
        "can_not_run": dict(sorted(one.servable.can_not_run.items())),
        "unproven": list(one.servable.unproven),
        "notice": one.servable.notice,
        "tables": tables,
    }


def _deltas(status: DeltaStatus) -> Document:
    document = status._asdict()
    document["journal"] = None if status.journal is None else status.journal._asdict()
    document["recent"] = [{**one._asdict(), "time": _time(one.time_s) if one.time_s else None} for one in status.recent]
    return document


def _requests(counted: Requests) -> list[Document]:
    found: dict[tuple[str, str, str], Document] = {}

    def row(model: str, signature: str, api: str) -> Document:
        key = (model, signature, api)
        named = {"model": model, "signature": signature, "api": api}
        return found.setdefault(key, named | {"requests": 0, "failures": {}, "rows": 0})

    merged: dict[tuple[str, str, str], Successes] = {}
    for subject, cell in counted.successes.items():
        key = (subject.model, subject.signature, subject.api)
        merged.setdefault(key, Successes(cell.kind, False)).merge(cell)
    for key, cell in merged.items():
        document = row(*key)
        document["requests"], document["rows"] = cell.count, cell.rows
        document["mean_ms"] = cell.times.seconds / cell.count * 1e3 if cell.count else None
        document |= {f"p{share}_ms": quantile_ms(cell.times, share / 100) for share in (50, 99)}
    for (subject, code), count in counted.failures.items():
        failures = row(subject.model, subject.signature, subject.api)["failures"]
        failures[code] = failures.get(code, 0) + count
    return [found[key] for key in sorted(found)]


def quantile_ms(times: Times, share: float) -> float | None:
    found_s = quantile_s(times.counts, times.limits.limits_s, share)
    return None if found_s is None else found_s * 1e3


def _noted(one: Noted) -> Document:
    return dataclasses.asdict(one) | {"at": _time(one.at_s)}


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _process() -> Document:
    document: Document = {}
    try:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        for key, name in (("VmRSS", "rss_bytes"), ("RssAnon", "anonymous_bytes"), ("RssFile", "file_bytes")):
            document[name] = int(status[key].split()[0]) * 1024
        document["threads"] = int(status["Threads"])
        document["open_files"] = len(os.listdir("/proc/self/fd"))
        document["max_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (OSError, KeyError, ValueError):
        pass
    times = os.times()
    return document | {"cpu_s": round(times.user + times.system, 2)}


def overload(settings: Settings, counts: CoreCounts) -> Document:
    refused = {key: count for key, count in sorted(counts.refused.items()) if count}
    models = sorted(counts.held.keys() | counts.waits.keys() | {model for model, _ in refused})
    return {
        "limits": {
            "bytes": settings.bytes_in_flight,
            "queued": settings.max_queued_requests,
            "wait_ms": float(settings.max_queue_ms),
        },
        "models": [
            {
                "model": model,
                "in_flight_bytes": counts.held.get(model, 0),
                "refused": {reason: count for (name, reason), count in refused.items() if name == model},
                "p99_thread_wait_ms": quantile_ms(counts.waits[model], 0.99) if model in counts.waits else None,
            }
            for model in models
        ],
        "connections_dropped": dict(counts.dropped),
    }
