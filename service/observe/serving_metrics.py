"""Writes metrics with TensorFlow Serving's names, labels and bucket limits, from this server's counts.

Source: tensorflow_serving/servables/tensorflow/{util,saved_model_warmup_util}.cc, batching/{batching_session.cc,
batching_util.h}, util/prometheus_exporter.cc (9d981c5); tensorflow/core/common_runtime/metrics.cc (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.control.request_context import Subject
from service.observe.metric_text import (
    BATCH_ROWS,
    EXAMPLES,
    MICROSECONDS,
    QUEUE_MICROSECONDS,
    REQUEST,
    Kind,
    Rows,
    Times,
    family,
    histogram,
    labels,
    limit_texts,
    sample,
)
from service.observe.request_metrics import Batches, Requests, Successes, Warmup

_LATENCY = limit_texts(MICROSECONDS)
_WAIT = limit_texts(QUEUE_MICROSECONDS)
_EXAMPLES = limit_texts(EXAMPLES)
_BATCH = limit_texts(BATCH_ROWS)

_ENTRYPOINTS = {"grpc": "GRPC", "http": "REST"}
# Signature's kind -> value of the metric label "runtime": "TF1" for predict signatures, as in TensorFlow Serving, and
# "lookup" for lookups, which run without TensorFlow.
_RUNTIMES = {"predict": "TF1", "lookup": "lookup"}
# The method of which TensorFlow Serving counts only the examples and not the requests, because one request is several
# inferences.
_EXAMPLES_ONLY = "MultiInference"


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts from which TensorFlow Serving's metrics are written. requests: totals since the start."""

    requests: Requests
    warmups: Iterable[Warmup]
    batches: Batches


def serving_lines(counted: Counted) -> list[str]:
    """Returns the lines of TensorFlow Serving's metrics, in its order: families by name, samples by labels."""
    lines = []
    for name, (kind, samples, _) in _FAMILIES.items():
        lines += family(name, kind)
        lines += samples(name, counted)
    return lines


def _requests(name: str, counted: Counted) -> list[str]:
    totals: dict[tuple[str, str], int] = {}
    for subject, cell in _shown(counted):
        totals[subject.model, "OK"] = totals.get((subject.model, "OK"), 0) + cell.count
    for (subject, code), count in counted.requests.failures.items():
        if subject.method != _EXAMPLES_ONLY:
            totals[subject.model, code] = totals.get((subject.model, code), 0) + count
    return [
        sample(name, labels({"model_name": model, "status": status}), count)
        for (model, status), count in sorted(totals.items())
    ]


def _request_latency(name: str, counted: Counted) -> list[str]:
    totals: dict[str, Times] = {}
    for subject, cell in _shown(counted):
        entrypoint = _ENTRYPOINTS.get(subject.api, subject.api)
        labelled = labels({"model_name": subject.model, "API": subject.method, "entrypoint": entrypoint})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.times)
    return _latencies(name, sorted(totals.items()), _LATENCY)


def _runtime_latency(name: str, counted: Counted) -> list[str]:
    totals: dict[str, Times] = {}
    for subject, cell in _shown(counted):
        labelled = labels({"model_name": subject.model, "API": subject.method, "runtime": _RUNTIMES[cell.kind]})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.run_times)
    return _latencies(name, sorted(totals.items()), _LATENCY)


def _shown(counted: Counted) -> Iterable[tuple[Subject, Successes]]:
    return (item for item in counted.requests.successes.items() if item[0].method != _EXAMPLES_ONLY)


def _latencies(name: str, found: Iterable[tuple[str, Times]], limits: Sequence[str]) -> list[str]:
    lines = []
    for labelled, times in found:
        places, total = times.limits.microseconds, times.seconds * 1e6
        lines += histogram(name, labelled, limits=limits, counts=times.counts, total=total, places=places)
    return lines


def _graph_runs(name: str, counted: Counted) -> list[str]:
    return [sample(name, "", sum(cell.count for cell in _graph_cells(counted)))]


def _graph_time(name: str, counted: Counted) -> list[str]:
    return [sample(name, "", round(sum(cell.run_times.seconds for cell in _graph_cells(counted)) * 1e6))]


def _graph_cells(counted: Counted) -> Iterable[Successes]:
    return (cell for cell in counted.requests.successes.values() if cell.kind == "predict")


def _examples(counted: Counted) -> list[tuple[str, Rows]]:
    totals: dict[str, Rows] = {}
    for subject, cell in counted.requests.successes.items():
        if cell.examples is not None:
            totals.setdefault(labels({"model": subject.model}), Rows(EXAMPLES)).merge(cell.examples)
    return sorted(totals.items())


def _example_counts(name: str, counted: Counted) -> list[str]:
    return _rows(name, _examples(counted), _EXAMPLES)


def _example_total(name: str, counted: Counted) -> list[str]:
    return [sample(name, labelled, rows.total) for labelled, rows in _examples(counted)]


def _rows(name: str, found: Iterable[tuple[str, Rows]], limits: tuple[str, ...]) -> list[str]:
    lines = []
    for labelled, rows in found:
        lines += histogram(name, labelled, limits=limits, counts=rows.counts, total=rows.total)
    return lines


def _warmup_latency(name: str, counted: Counted) -> list[str]:
    return _latencies(name, [(_warmup_labels(warmup), warmup.times) for warmup in counted.warmups], _LATENCY)


def _warmup_records(name: str, counted: Counted) -> list[str]:
    return [sample(name, _warmup_labels(warmup), warmup.records) for warmup in counted.warmups]


def _warmup_labels(warmup: Warmup) -> str:
    return labels({"model_path": warmup.path, "status": warmup.status})


def _queuing_latency(name: str, counted: Counted) -> list[str]:
    found = sorted(counted.batches.waits.items())
    return _latencies(name, [(labels({"thread_pool_name": pool}), waits) for pool, waits in found], _WAIT)


def _wrapped_runs(name: str, counted: Counted) -> list[str]:
    return [sample(name, "", counted.batches.num_runs)] if counted.batches.num_runs else []


def _input_rows(name: str, counted: Counted) -> list[str]:
    return _rows(name, [("", counted.batches.arrived)] if any(counted.batches.arrived.counts) else [], _BATCH)


def _processed_rows(name: str, counted: Counted) -> list[str]:
    return _rows(name, [("", counted.batches.run)] if counted.batches.num_runs else [], _BATCH)


def _padding_rows(name: str, counted: Counted) -> list[str]:
    found = sorted(counted.batches.padding.items())
    return _rows(name, [(labels({"execution_batch_size": size}), rows) for size, rows in found], _BATCH)


class _Family(NamedTuple):
    """One metric of TensorFlow Serving. samples: returns its lines. about: its meaning, for the docs only."""

    kind: Kind
    samples: Callable[[str, Counted], list[str]]
    about: str


_BATCHING = ":tensorflow:serving:batching_session:"
# Name of a metric -> its definition, sorted. Families without samples are written too, as in TensorFlow Serving.
_FAMILIES: Mapping[str, _Family] = {
    ":tensorflow:core:graph_run_time_usecs": _Family(
        "counter", _graph_time, "Microseconds that requests took in a graph."
    ),
    ":tensorflow:core:graph_runs": _Family("counter", _graph_runs, "Requests that a graph answered."),
    _BATCHING + "input_batch_size": _Family("histogram", _input_rows, "Rows of each request that is batched."),
    _BATCHING + "padding_size": _Family("histogram", _padding_rows, "Rows of each batch that are padding."),
    _BATCHING + "processed_batch_size": _Family("histogram", _processed_rows, "Rows of each batch, padding included."),
    _BATCHING + "queuing_latency": _Family(
        "histogram", _queuing_latency, "Microseconds that requests waited for their batch."
    ),
    _BATCHING + "wrapped_run_count": _Family("counter", _wrapped_runs, "Batches."),
    ":tensorflow:serving:model_warmup_latency": _Family(
        "histogram", _warmup_latency, "Microseconds that the replay of a version's warm-up requests took."
    ),
    ":tensorflow:serving:model_warmup_records_read": _Family(
        "counter", _warmup_records, "Warm-up requests that were replayed."
    ),
    ":tensorflow:serving:request_count": _Family("counter", _requests, "Requests to a signature, by canonical code."),
    ":tensorflow:serving:request_example_count_total": _Family(
        "counter", _example_total, "Examples of Classify, Regress and MultiInference."
    ),
    ":tensorflow:serving:request_example_counts": _Family(
        "histogram", _example_counts, "Examples of each Classify, Regress or MultiInference."
    ),
    ":tensorflow:serving:request_latency": _Family(
        "histogram",
        _request_latency,
        "Microseconds from the whole request to the encoded answer, of requests that succeeded.",
    ),
    ":tensorflow:serving:runtime_latency": _Family(
        "histogram",
        _runtime_latency,
        "Microseconds in the tables or the graph, of successes; runtime: TF1 for graphs, lookup for lookups.",
    ),
}
MEANINGS: Mapping[str, str] = {name: one.about for name, one in _FAMILIES.items()}
