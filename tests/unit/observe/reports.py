"""Reports requests to metrics, and reads the metrics' text."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from service.control.request_context import Finished, Subject
from service.observe.metric_text import EXAMPLES
from service.observe.metrics import Metrics
from service.observe.request_metrics import CoreCounts, Requests, Successes
from tests.exposition import Family, read_exposition


def new_metrics() -> Metrics:
    """Returns the metrics of a server without models."""
    return Metrics(lambda: [])


# Methods whose requests consist of tf.Examples.
_EXAMPLE_METHODS = ("Classify", "Regress", "MultiInference", "classify", "regress")


class Core:
    """A stand-in for the native core's statistics, to whose counts a test adds."""

    def __init__(self) -> None:
        self.requests = Requests()

    def collect(self) -> CoreCounts:
        """Returns the counts that tests added."""
        return CoreCounts(self.requests)

    def retire(self, model: str, version: int) -> Requests:
        """Removes a version's counts, and returns them."""
        return self.requests.take(lambda subject: (subject.model, subject.version) == (model, version))

    def forget(self, model: str) -> None:
        """Removes a model's counts."""
        self.requests.take(lambda subject: subject.model == model)


def finish(metrics: Metrics, version: int | None = 1, error: BaseException | None = None, **more: Any) -> None:
    """Reports one request to the metrics; by default a lookup over HTTP of 3 rows in 1 ms, 8 us of it in the tables.

    A graph run, or a request of Examples, is reported as the native core's counts are.
    """
    labels = {"api": "http", "method": "lookup", "model": "m", "signature": "lookup"}
    subject = Subject(**{name: more.pop(name, label) for name, label in labels.items()}, version=version)
    kind = more.pop("kind", "lookup")
    numbers = {"seconds": 0.001, "run_seconds": 8e-6, "rows": 3} | more
    has_examples = subject.method in _EXAMPLE_METHODS
    if error is not None or (kind == "lookup" and not has_examples):
        metrics.requests.finished(Finished(subject, error=error, **numbers))
        return
    counted = Successes(kind, has_examples)
    counted.rows = numbers["rows"]
    counted.times.add(numbers["seconds"])
    counted.run_times.add(numbers["run_seconds"])
    if counted.examples is not None:
        counted.examples.counts[bisect_right(EXAMPLES, counted.rows)] += 1
        counted.examples.total = counted.rows
    if not isinstance(metrics.requests.core, Core):
        metrics.requests.core = Core()
    metrics.requests.core.requests.add_successes(subject, counted)


def read(metrics: Metrics) -> dict[str, Family]:
    """Returns the metric families of the exposition text."""
    return read_exposition(metrics.render()[0].decode())
