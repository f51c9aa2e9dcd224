"""Batching in Prometheus text, under TensorFlow Serving's names."""

from __future__ import annotations

from service.batching_metrics import BatchMetrics
from service.core.errors import Overloaded
from service.observability import Metrics


def test_batches_are_told_under_tensorflow_servings_names() -> None:
    metrics = Metrics()
    batching = BatchMetrics(metrics.registry)
    batching.arrived(rows=3)
    batching.processed(requests=2, rows=5, padding=3, queue_seconds=[0.0001, 0.5])
    batching.rejected(error=Overloaded("full"))
    lines = metrics.render()[0].decode().splitlines()
    prefix = ":tensorflow:serving:batching_session:"
    for line in (
        f"{prefix}input_batch_size_sum 3.0",
        f"{prefix}processed_batch_size_sum 8.0",
        f'{prefix}processed_batch_size_bucket{{le="4.0"}} 0.0',
        f'{prefix}processed_batch_size_bucket{{le="8.0"}} 1.0',
        f"{prefix}padding_size_sum 3.0",
        f"{prefix}queuing_latency_count 2.0",
        f'{prefix}queuing_latency_bucket{{le="100.0"}} 1.0',
        f"{prefix}queuing_latency_sum 500100.0",
        f"{prefix}wrapped_run_count_total 1.0",
        "embedding_server_batched_requests_total 2.0",
        'embedding_server_batching_rejected_total{code="UNAVAILABLE"} 1.0',
    ):
        assert line in lines
