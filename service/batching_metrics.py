"""Batching in numbers, under TensorFlow Serving's names.

Source: tensorflow_serving/batching/{batching_session.cc,batching_util.h} (9d981c5).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from service.core.errors import ServiceError

_PREFIX = ":tensorflow:serving:batching_session:"
# Its exponential buckets: 1 * 2^k rows, 100 * 1.2^k microseconds.
_ROWS_BUCKETS = [2**k for k in range(14)]
_MICROS_BUCKETS = [100 * 1.2**k for k in range(52)]


class BatchMetrics:
    """Prometheus metrics of batching; implements core.batching.observer.BatchObserver. Concurrency: any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def rows(name: str, about: str) -> Histogram:
            return Histogram(_PREFIX + name, about, buckets=_ROWS_BUCKETS, registry=registry)

        self._input = rows("input_batch_size", "Rows of a request that is to be batched.")
        self._processed = rows("processed_batch_size", "Rows of a batch that is run, padding included.")
        self._padding = rows("padding_size", "Rows of a batch that are padding.")
        self._queuing = Histogram(
            _PREFIX + "queuing_latency",
            "Microseconds that a request waited for its batch.",
            buckets=_MICROS_BUCKETS,
            registry=registry,
        )
        self._runs = Counter(_PREFIX + "wrapped_run_count", "Batches that were run.", registry=registry)
        self._requests = Counter(
            "embedding_server_batched_requests",
            "Requests in those batches; one that is split counts in each.",
            registry=registry,
        )
        self._rejected = Counter(
            "embedding_server_batching_rejected",
            "Requests that no batch took, by canonical code: too large, queue full, too late.",
            ("code",),
            registry=registry,
        )

    def arrived(self, *, rows: int) -> None:
        """See core.batching.observer.BatchObserver."""
        self._input.observe(rows)

    def processed(self, *, requests: int, rows: int, padding: int, queue_seconds: list[float]) -> None:
        """See core.batching.observer.BatchObserver."""
        self._runs.inc()
        self._requests.inc(requests)
        self._processed.observe(rows + padding)
        self._padding.observe(padding)
        for seconds in queue_seconds:
            self._queuing.observe(1e6 * seconds)

    def rejected(self, *, error: Exception) -> None:
        """See core.batching.observer.BatchObserver."""
        self._rejected.labels(error.code if isinstance(error, ServiceError) else "INTERNAL").inc()
