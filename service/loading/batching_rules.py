"""Decides with which batching parameters the graph runs of a version are batched."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from service.configuration.text_file import read_proto_text
from service.engine.batching_parameters import BatchingParameters
from service.errors import ArtifactError, InvalidRequest
from service.wire.batching_proto import parse_batching_text

# Name of the file with one version's batching parameters, in the version's folder beside saved_model.pb.
PER_MODEL_FILE = "batching_params.pbtxt"
# The batching parameters of a server without a file of them; the thread_pool_name is TensorFlow Serving's default.
DEFAULT = BatchingParameters(thread_pool_name="model_server_batch_threads")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchingRules:
    """The rules by which the native core batches the graph runs of each version. Concurrency: any thread.

    parameters: for every model, unless is_per_model.
    is_per_model: only a version with a PER_MODEL_FILE is batched, with the parameters of that file alone.
    """

    parameters: BatchingParameters
    is_per_model: bool

    def parameters_of(self, artifact: Path) -> BatchingParameters | None:
        """Returns a version's batching parameters; None: its requests run by themselves.

        Raises ArtifactError for a wrong PER_MODEL_FILE.
        """
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


def read_rules(parameters_file: str, is_per_model: bool) -> BatchingRules:
    """Returns the rules of batching for --enable_batching; raises InvalidRequest for a wrong parameters file."""
    return BatchingRules(read_parameters(Path(parameters_file)) if parameters_file else DEFAULT, is_per_model)


def read_parameters(path: Path) -> BatchingParameters:
    return parse_batching_text(read_proto_text(path), str(path))
