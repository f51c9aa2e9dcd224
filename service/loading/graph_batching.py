"""Wraps graph backends of a servable in Batchers, with the parameters from batching files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from service.configuration.text_file import read_proto_text
from service.engine.batch_scheduler import Scheduler
from service.engine.batcher import Batcher, BatchObserver
from service.engine.batching_parameters import BatchingParameters
from service.engine.servable import Servable
from service.errors import ArtifactError, InvalidRequest
from service.types import Backend
from service.wire.batching_proto import parse_batching_text

# Name of the file with one version's batching parameters, in the version's folder beside saved_model.pb.
PER_MODEL_FILE = "batching_params.pbtxt"
# The batching parameters of a server without a file of them; the thread_pool_name is TensorFlow Serving's default.
DEFAULT = BatchingParameters(thread_pool_name="model_server_batch_threads")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphBatching:
    """The rules by which graph runs of every version are batched; lookups are not. Concurrency: any thread.

    scheduler: one scheduler for all models, so that all models share its threads.
    parameters: for every model, unless is_per_model.
    is_per_model: only a version with a PER_MODEL_FILE is batched, with the parameters of that file alone.
    """

    scheduler: Scheduler
    parameters: BatchingParameters
    is_per_model: bool
    observer: BatchObserver

    def wrap(self, servable: Servable, artifact: Path) -> Servable:
        """Returns a servable with its graph backends wrapped in Batchers, or as it is without batching parameters.

        Raises ArtifactError for a wrong PER_MODEL_FILE.
        """
        parameters = self._parameters_of(artifact)
        if parameters is None:
            return servable
        batchers: dict[int, Backend] = {}
        backends = dict(servable.backends)
        for name, backend in servable.backends.items():
            if servable.signatures[name].kind == "lookup":
                continue
            # Signatures of the same graph share one Batcher, so that the graph is closed once.
            backends[name] = batchers.setdefault(
                id(backend),
                Batcher(
                    backend,
                    servable.signatures,
                    parameters=parameters,
                    scheduler=self.scheduler,
                    observer=self.observer,
                ),
            )
        return replace(servable, backends=backends)

    def _parameters_of(self, artifact: Path) -> BatchingParameters | None:
        if not self.is_per_model:
            return self.parameters
        path = artifact / PER_MODEL_FILE
        if not path.exists():
            return None
        try:
            parameters = read_parameters(path)
        except InvalidRequest as error:
            raise ArtifactError(error.message) from error
        if parameters.num_batch_threads is not None:
            logger.info("num_batch_threads is the server's, not a model's", extra={"path": str(path)})
        return parameters


def create_batching(
    parameters_file: str,
    is_per_model: bool,
    *,
    num_processors: int,
    observer: BatchObserver,
    clock: Callable[[], float],
) -> GraphBatching:
    """Returns the rules of batching for --enable_batching; raises InvalidRequest for a wrong parameters file."""
    parameters = read_parameters(Path(parameters_file)) if parameters_file else DEFAULT
    threads = parameters.num_batch_threads or num_processors
    scheduler = Scheduler(threads, thread_pool_name=parameters.thread_pool_name, clock=clock)
    return GraphBatching(scheduler, parameters, is_per_model, observer)


def read_parameters(path: Path) -> BatchingParameters:
    """Reads TensorFlow Serving's batching parameters from a file; raises InvalidRequest."""
    return parse_batching_text(read_proto_text(path), str(path))
