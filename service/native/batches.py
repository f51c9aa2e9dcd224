"""Holds the native core's batcher, which batches graph runs, and gives its counts."""

from __future__ import annotations

import json
import logging
from typing import Any

from service.configuration.settings import Settings
from service.engine.batching_parameters import BatchingParameters
from service.observe.batch_metrics import Batches
from service.observe.buckets import BATCH_ROWS, QUEUE, Rows, Times

logger = logging.getLogger(__name__)


class Batcher:
    """The native core's batcher: the queues of all models' requests, and the threads that run their batches.

    Concurrency: any thread.

    Args:
      num_threads: the most batches that run at a time. thread_pool_name: the beginning of the threads' names.
    """

    def __init__(self, num_threads: int, thread_pool_name: str) -> None:
        # service._native is imported here and not at the top, because the native core may not be installed.
        from service import _native

        limits = {"wait_s": QUEUE.limits_s, "rows": [int(limit) for limit in BATCH_ROWS]}
        self.core = _native.Batcher(num_threads, thread_pool_name, json.dumps(limits))
        self._pool = thread_pool_name

    def counts(self) -> Batches:
        found = json.loads(self.core.counts())
        waits = Times(QUEUE)
        if found["num_runs"]:
            waits.counts, waits.seconds = found["waits"]["counts"], found["waits"]["sum"]
        return Batches(
            found["num_runs"],
            found["num_requests"],
            {self._pool: waits} if found["num_runs"] else {},
            {int(size): _rows(rows) for size, rows in found["padding"].items()},
            _rows(found["arrived"]),
            _rows(found["run"]),
            found["rejected"],
        )


def create_batcher(settings: Settings, parameters: BatchingParameters | None) -> Batcher | None:
    """Returns the native core's batcher; None without parameters, and, with a warning, if the servers in Python answer,
    which do not batch.
    """
    if parameters is None:
        return None
    if settings.data_plane != "core":
        logger.warning("--enable_batching has no effect: the servers in Python answer each request by itself")
        return None
    return Batcher(parameters.num_batch_threads or settings.graph_threads, parameters.thread_pool_name)


def _rows(found: dict[str, Any]) -> Rows:
    rows = Rows(BATCH_ROWS)
    if found["counts"]:
        rows.counts, rows.total = found["counts"], found["sum"]
    return rows
