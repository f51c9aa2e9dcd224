"""Runs simultaneous requests for a tower (a graph without its lookups) as one batch, if its rows are independent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from service.engine.batch_concatenation import concatenated, num_rows
from service.engine.batch_scheduler import Scheduler
from service.engine.batcher import Batcher, BatchObserver
from service.engine.batching_parameters import BatchingParameters
from service.errors import ServiceError
from service.graph.tower import TowerBackend
from service.types import Array, Backend, SignatureSpec, Tensors

logger = logging.getLogger(__name__)

# Largest number of waiting batches; never reached, because each waiting request holds a thread, and a server has fewer
# threads than this.
_MAX_WAITING_BATCHES = 1000


class _Unobserved:
    """A BatchObserver that counts nothing, because batch metrics are only for the batches of --enable_batching."""

    def arrived(self, *, rows: int) -> None:
        pass

    def processed(self, *, requests: int, rows: int, padding: int, queue_seconds: list[float]) -> None:
        pass

    def rejected(self, *, error: Exception) -> None:
        pass


class TowerBatcher(Batcher):
    """A Batcher that never delays a request to fill a batch: requests that arrive during a run share the next run.

    A request that finds no run in progress runs at once in its own thread. A request with more rows than a batch holds
    runs by itself. close() ends the thread that runs the waiting requests.

    max_rows: the most rows of a batch.
    """

    def __init__(
        self,
        backend: Backend,
        signatures: Mapping[str, SignatureSpec],
        max_rows: int,
        *,
        observer: BatchObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own_scheduler = Scheduler(1, thread_pool_name="tower", clock=clock)
        self.max_rows = max_rows
        super().__init__(
            backend,
            signatures,
            parameters=BatchingParameters(max_batch_size=max_rows, max_enqueued_batches=_MAX_WAITING_BATCHES),
            scheduler=self._own_scheduler,
            observer=observer or _Unobserved(),
        )

    def run(
        self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...], deadline_s: float | None = None
    ) -> dict[str, Array]:
        """Runs a request in a batch; a request with more than max_rows rows runs by itself."""
        if num_rows(self._signatures[signature_name], inputs) > self.max_rows:
            return self._backend.run(signature_name, inputs, outputs)
        return super().run(signature_name, inputs, outputs, deadline_s)

    @property
    def backend(self) -> Backend:
        """The backend that runs the graph, to which this batcher passes each batch."""
        return self._backend

    def close(self) -> None:
        """Closes the tower's backend, and ends the thread of the batch scheduler that only this tower uses."""
        self._own_scheduler.stop()
        super().close()


def batched(tower: TowerBackend, max_rows: int) -> dict[str, Backend]:
    """Returns signature -> backend: a TowerBatcher if the tower computes rows independently, else the tower itself."""
    found = {name: cut.spec for name, cut in tower.cuts.items() if cut.is_rowwise and _is_rowwise(tower, cut.spec)}
    backends: dict[str, Backend] = dict.fromkeys(tower.cuts, tower)
    if found:
        backends |= dict.fromkeys(found, TowerBatcher(tower, found, max_rows))
    return backends


def _is_rowwise(tower: TowerBackend, spec: SignatureSpec) -> bool:
    """Says whether a tower gives test requests the same answers in one run as in separate runs, up to rounding."""
    random = np.random.default_rng(5)
    requests = [_random_request(spec, rows, random) for rows in (3, 1, 4)]
    outputs = tuple(spec.outputs)
    try:
        together = tower.run(spec.name, concatenated(spec, requests, pads=False), outputs)
        apart = [tower.run(spec.name, request, outputs) for request in requests]
    except ServiceError as error:
        logger.info("requests are not run together", extra={"signature": spec.name, "reason": error.message})
        return False
    return all(_is_joined(together[name], [answer[name] for answer in apart]) for name in outputs)


def _is_joined(together: Array, apart: Sequence[Array]) -> bool:
    if together.ndim == 0 or any(part.ndim != together.ndim for part in apart):
        return False
    joined = np.concatenate(apart)
    if joined.shape != together.shape or together.dtype.kind != "f":
        return joined.shape == together.shape and bool((joined == together).all())
    scale = float(np.abs(together).max(initial=0))
    return bool(np.allclose(joined, together, rtol=1e-4, atol=1e-5 * scale, equal_nan=True))


def _random_request(spec: SignatureSpec, rows: int, random: np.random.Generator) -> dict[str, Array]:
    request = {name: np.array(array) for name, array in spec.defaults.items()}
    for name in spec.row_inputs:
        shape = (rows, *(size or 2 for size in (spec.inputs[name].shape or (None,))[1:]))
        request[name] = _random(spec, name, shape, random)
    for names in spec.ragged_names:
        splits = np.cumsum([0, *random.integers(0, 4, rows)])
        request[names.row_splits] = splits.astype(spec.inputs[names.row_splits].numpy_dtype)
        request[names.values] = _random(spec, names.values, (int(splits[-1]),), random)
        if names.weights in spec.inputs:
            request[names.weights] = _random(spec, names.weights, (int(splits[-1]),), random)
    return request


def _random(spec: SignatureSpec, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    dtype = spec.inputs[name].numpy_dtype
    if dtype is None or dtype.kind == "O":
        return np.full(shape, b"", object)
    if dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    return random.integers(0, min(spec.inputs[name].vocabulary_size or 2, 100), shape).astype(dtype)
