"""Writes metrics with TensorFlow Serving's names, labels and bucket limits, from this server's counts.

Source: tensorflow_serving/servables/tensorflow/{util,saved_model_warmup_util}.cc, batching/{batching_session.cc,
batching_util.h}, util/prometheus_exporter.cc (9d981c5); tensorflow/core/common_runtime/metrics.cc (TensorFlow 2.21).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.control.request_context import Subject
from service.observe.metric_text import (
    EXAMPLES,
    MICROSECONDS,
    QUEUE,
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

_ENTRYPOINTS = {"grpc": "GRPC", "http": "REST"}
# Signature's kind -> value of the metric label "runtime": "TF1" for predict signatures, as in TensorFlow Serving, and
# "lookup" for lookups, which run without TensorFlow.
_RUNTIMES = {"predict": "TF1", "lookup": "lookup", "search": "lookup"}
# The method of which TensorFlow Serving counts only the examples and not the requests, because one request is several
# inferences.
_EXAMPLES_ONLY = "MultiInference"


# The samples of a metric: labels as labels() writes them, and a number or a histogram.
Samples = Iterable[tuple[str, float | Times | Rows]]


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts from which TensorFlow Serving's metrics are written. requests: totals since the start."""

    requests: Requests
    warmups: Iterable[Warmup]
    batches: Batches


def serving_lines(counted: Counted) -> list[str]:
    """Returns the lines of TensorFlow Serving's metrics, in its order: families by name, samples by labels."""
    lines = []
    for name, one in _FAMILIES.items():
        lines += family(name, one.kind)
        for labelled, found in one.samples(counted):
            if isinstance(found, Times):
                limits = limit_texts(QUEUE_MICROSECONDS if found.limits is QUEUE else MICROSECONDS)
                places, total = found.limits.microseconds, found.seconds * 1e6
                lines += histogram(name, labelled, limits=limits, counts=found.counts, total=total, places=places)
            elif isinstance(found, Rows):
                limits = limit_texts(found.limits)
                lines += histogram(name, labelled, limits=limits, counts=found.counts, total=found.total)
            else:
                lines.append(sample(name, labelled, found))
    return lines


def _requests(counted: Counted) -> Samples:
    totals: Counter[tuple[str, str]] = Counter()
    for subject, cell in _shown(counted):
        totals[subject.model, "OK"] += cell.count
    for (subject, code), count in counted.requests.failures.items():
        if subject.method != _EXAMPLES_ONLY:
            totals[subject.model, code] += count
    return [
        (labels({"model_name": model, "status": status}), count) for (model, status), count in sorted(totals.items())
    ]


def _request_latency(counted: Counted) -> Samples:
    totals: dict[str, Times] = {}
    for subject, cell in _shown(counted):
        entrypoint = _ENTRYPOINTS.get(subject.api, subject.api)
        labelled = labels({"model_name": subject.model, "API": subject.method, "entrypoint": entrypoint})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.times)
    return sorted(totals.items())


def _runtime_latency(counted: Counted) -> Samples:
    totals: dict[str, Times] = {}
    for subject, cell in _shown(counted):
        labelled = labels({"model_name": subject.model, "API": subject.method, "runtime": _RUNTIMES[cell.kind]})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.run_times)
    return sorted(totals.items())


def _shown(counted: Counted) -> Iterable[tuple[Subject, Successes]]:
    return (item for item in counted.requests.successes.items() if item[0].method != _EXAMPLES_ONLY)


def _graph_cells(counted: Counted) -> Iterable[Successes]:
    return (cell for cell in counted.requests.successes.values() if cell.kind == "predict")


def _examples(counted: Counted) -> list[tuple[str, Rows]]:
    totals: dict[str, Rows] = {}
    for subject, cell in counted.requests.successes.items():
        if cell.examples is not None:
            totals.setdefault(labels({"model": subject.model}), Rows(EXAMPLES)).merge(cell.examples)
    return sorted(totals.items())


def _warmup_labels(warmup: Warmup) -> str:
    return labels({"model_path": warmup.path, "status": warmup.status})


def _by(label: str, found: Mapping[Any, Times | Rows]) -> Samples:
    return [(labels({label: name}), one) for name, one in sorted(found.items())]


class _Family(NamedTuple):
    """One metric of TensorFlow Serving. about: its meaning, for the docs only."""

    kind: Kind
    samples: Callable[[Counted], Samples]
    about: str


_BATCHING = ":tensorflow:serving:batching_session:"
# Name of a metric -> its definition, sorted. Families without samples are written too, as in TensorFlow Serving.
_FAMILIES: Mapping[str, _Family] = {
    ":tensorflow:core:graph_run_time_usecs": _Family(
        "counter",
        lambda counted: [("", round(sum(cell.run_times.seconds for cell in _graph_cells(counted)) * 1e6))],
        "Microseconds that requests took in a graph.",
    ),
    ":tensorflow:core:graph_runs": _Family(
        "counter",
        lambda counted: [("", sum(cell.count for cell in _graph_cells(counted)))],
        "Requests that a graph answered.",
    ),
    _BATCHING + "input_batch_size": _Family(
        "histogram",
        lambda counted: [("", counted.batches.arrived)] if any(counted.batches.arrived.counts) else [],
        "Rows of each request that is batched.",
    ),
    _BATCHING + "padding_size": _Family(
        "histogram",
        lambda counted: _by("execution_batch_size", counted.batches.padding),
        "Rows of each batch that are padding.",
    ),
    _BATCHING + "processed_batch_size": _Family(
        "histogram",
        lambda counted: [("", counted.batches.run)] if counted.batches.num_runs else [],
        "Rows of each batch, padding included.",
    ),
    _BATCHING + "queuing_latency": _Family(
        "histogram",
        lambda counted: _by("thread_pool_name", counted.batches.waits),
        "Microseconds that requests waited for their batch.",
    ),
    _BATCHING + "wrapped_run_count": _Family(
        "counter", lambda counted: [("", counted.batches.num_runs)] if counted.batches.num_runs else [], "Batches."
    ),
    ":tensorflow:serving:model_warmup_latency": _Family(
        "histogram",
        lambda counted: [(_warmup_labels(warmup), warmup.times) for warmup in counted.warmups],
        "Microseconds that the replay of a version's warm-up requests took.",
    ),
    ":tensorflow:serving:model_warmup_records_read": _Family(
        "counter",
        lambda counted: [(_warmup_labels(warmup), warmup.records) for warmup in counted.warmups],
        "Warm-up requests that were replayed.",
    ),
    ":tensorflow:serving:request_count": _Family("counter", _requests, "Requests to a signature, by canonical code."),
    ":tensorflow:serving:request_example_count_total": _Family(
        "counter",
        lambda counted: [(labelled, rows.total) for labelled, rows in _examples(counted)],
        "Examples of Classify, Regress and MultiInference.",
    ),
    ":tensorflow:serving:request_example_counts": _Family(
        "histogram", _examples, "Examples of each Classify, Regress or MultiInference."
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
