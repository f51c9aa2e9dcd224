"""Writes docs/metrics.md from a server's own metrics, with a sample of each; `--check` only compares the file."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import generated_page

from service.control.request_context import Finished, Subject
from service.errors import ArtifactError
from service.observe.logs import dropped_line_metrics
from service.observe.metric_text import BATCH_ROWS, QUEUE, Rows, Times
from service.observe.metrics import Metrics
from service.observe.own_metrics import neighbor_lines, page_lines, readiness_lines, remote_lines, store_lines
from service.observe.request_logs import RequestLogs
from service.observe.request_metrics import Batches, CoreCounts, CoreStatistics, Requests, Successes
from service.observe.serving_metrics import MEANINGS
from service.remote.core_clusters import CacheCounts, ReadCounts, RemoteCounts, RemoteState
from service.search.neighbor_indexes import IndexName
from service.types import State, Table, TableCounts, VersionStatus
from service.versions.counts import PageCounts, SampledRows
from service.versions.deltas import Deltas, DeltaStatus
from service.versions.model_config import ModelConfig, RequestLogConfig
from service.versions.neighbors import RowIndex
from service.versions.servable import LoadedServable, NativeServable, Servable

HEAD = """\
# Metrics

This page lists every metric of `GET /metrics`, with the labels of its series. Counters end in `_total`; other metrics
are gauges unless their row says otherwise. [monitoring.md](monitoring.md) has the meaning of the labels.

This file is generated from the code that declares the metrics (`make generated`).
"""
SECTIONS = {
    "embedding_server_": "Of this server",
    ":tensorflow:": "Of TensorFlow Serving, under its own names",
    "": "Of the process",
}
SECTION_HEAD = """
## %s

| Name | Labels | Meaning |
|---|---|---|
"""


class Family(NamedTuple):
    """One metric in the table. labels: without `le`, which every histogram has."""

    kind: str
    labels: tuple[str, ...]
    about: str


def exposition() -> str:
    """Returns the metrics page of a server that has counted each kind of event once."""
    with tempfile.TemporaryDirectory() as folder:
        logs = RequestLogs(tags=[], max_bytes=1)
        logs.configure([ModelConfig("m", "/m", request_log=RequestLogConfig(str(Path(folder) / "log"), 1.0))])
        counts = SimpleNamespace(read_bytes=0, listings=0, failures=0, fetched=0)
        more = [lambda: readiness_lines(True, {"m": True}), lambda: store_lines([("m", counts, True)])]
        remote = RemoteCounts({("m", 1, "t"): ReadCounts()}, CacheCounts(0, 0, 0))
        index = cast(RowIndex, SimpleNamespace(recall=1.0, seconds=0.1, nbytes=1))
        indexes = {IndexName("m", 1, "t", "dot"): index}
        more += [
            dropped_line_metrics,
            logs.metric_lines,
            lambda: remote_lines(
                remote, RemoteState({"c": True}, {"c": 0}, {("m", 1, "t"): (1, {})}, {("m", 1, "t"): 0})
            ),
            lambda: neighbor_lines({"m": 1}, indexes),
        ]
        more.append(lambda: page_lines(PageCounts(0, 1, 0, 0, 0.0, 0, 0)))
        metrics = Metrics(lambda: [LoadedServable(_servable(), 0), LoadedServable(_sampled(), 0)], more)
        _report(metrics)
        text = metrics.render()[0].decode()
        logs.stop()
    return text


def _servable() -> Servable:
    delta_status = DeltaStatus(0, 0, 0, 0, 0.0, 0, {"format": 1}, {"full": 1})
    deltas = cast(Deltas, SimpleNamespace(status=lambda: delta_status))
    return Servable("m", 1, {}, {}, deltas=deltas)


def _sampled() -> Servable:
    found = SampledRows(1, 1, 1, 0, ((0, 1),))

    def counts() -> dict[str, TableCounts]:
        return {"t": TableCounts()}

    native = SimpleNamespace(hot_rows=lambda table, most: found, feature_counts=dict, table_counts=counts)
    return Servable("m", 1, {}, {}, {"t": cast(Table, None)}, native=cast(NativeServable, native))


def _report(metrics: Metrics) -> None:
    requests = Requests()
    for method in ("Predict", "Classify"):
        counted = Successes("predict", has_examples=method == "Classify")
        counted.times.add(0.001)
        counted.run_times.add(0.001)
        counted.rows = 1
        if counted.examples is not None:
            counted.examples.counts[0] = counted.examples.total = 1
        requests.add_successes(Subject("grpc", method, "m", 1, "s"), counted)
    # The END is of another version, because a version's counts are dropped when the version ends.
    metrics.version_changed("m", VersionStatus(2, State.LOADING))
    metrics.version_changed("m", VersionStatus(2, State.END, ArtifactError.code, "why"))
    rows, waits = Rows(BATCH_ROWS), Times(QUEUE)
    rows.counts[0] = rows.total = 1
    waits.add(0.0)
    metrics.batches = lambda: Batches(1, 1, {"": waits}, {1: rows}, rows, rows, {"UNAVAILABLE": 1})
    counts = CoreCounts(
        requests,
        refused={("m", "queue"): 1},
        waits={"m": waits},
        held={"m": 1},
        dropped={"connections": 1},
        handshakes_failed={"grpc": 1},
    )
    metrics.requests.finished(Finished(Subject("http", "", "m", None, ""), None, 0.0, 0.0, 0, is_control=True))
    metrics.requests.core = cast(CoreStatistics, SimpleNamespace(collect=lambda: counts))
    metrics.core = lambda: counts
    metrics.limit_bytes = 1
    metrics.auth.accepted()
    metrics.tls.accepted("grpc", 0.0)
    metrics.warmups.warmed_up(model="m", version=1, path="/m/1", status="OK", seconds=0.0, records=1)


def families(text: str) -> dict[str, Family]:
    """Returns the metrics of a metrics page by name; a histogram's _bucket, _sum and _count are one metric."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    about = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)) | MEANINGS
    labels: dict[str, set[str]] = {}
    for sample, labelled in re.findall(r"^([^\s#{]+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        name = sample if sample in kinds else re.sub(r"_(bucket|sum|count)$", "", sample)
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', labelled))
    return {name: Family(kind, tuple(sorted(labels[name] - {"le"})), about[name]) for name, kind in kinds.items()}


def page() -> str:
    """Returns the page."""
    return HEAD + "".join(_sections(families(exposition())))


def _sections(found: dict[str, Family]) -> Iterator[str]:
    for begin, title in SECTIONS.items():
        names = [name for name in found if begin == next(one for one in SECTIONS if name.startswith(one))]
        yield SECTION_HEAD % title
        for name in sorted(names):
            kind, labels, about = found[name]
            is_usual = kind == ("counter" if name.endswith("_total") else "gauge")
            yield generated_page.row(f"`{name}`" + ("" if is_usual else f" ({kind})"), ", ".join(labels), about)


if __name__ == "__main__":
    # Reading all metrics logs some events, which need no lines on the terminal.
    logging.disable()
    sys.exit(generated_page.run({"metrics.md": page()}))
