"""Runs any signature of a SavedModel as TensorFlow Serving does: in one session, fed and fetched by name.

TensorFlow (seconds, half a gigabyte) is imported when the first graph is opened and not before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.core.errors import ArtifactError, BackendFailure, InvalidRequest, ServiceError
from service.core.types import Array, SignatureSpec, Tensors

# What a graph may raise because of what a client sent.
_CLIENT_ERRORS = ("InvalidArgumentError", "OutOfRangeError", "FailedPreconditionError", "UnimplementedError")


class SavedModelBackend:
    """Runs signatures in one TensorFlow session. Concurrency: any thread.

    A session, not `tf.saved_model.load`: it takes TF 1 and TF 2 exports alike. Its callables from options, not
    `Session.run`: they feed without holding shapes against the placeholders', as TensorFlow Serving does, and cost less
    (48 us a call against 271 us, y = 0.5 x + 2 on eight numbers).
    """

    def __init__(
        self,
        session: Any,
        signatures: Mapping[str, SignatureSpec],
        *,
        new_options: Callable[..., Any],
        error_type: type[Exception],
    ) -> None:
        self._session = session
        self._signatures = signatures
        self._new_options = new_options
        self._error_type = error_type
        self._callables: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Callable[..., list[Any]]] = {}
        self._compile = threading.Lock()

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns the named outputs; strings come as object arrays of bytes.

        Raises:
          InvalidRequest: the graph refused the input, in the graph's own words.
          BackendFailure: any other failure of the graph.
        """
        fed, fetched = tuple(sorted(inputs)), tuple(sorted(outputs))
        call = self._callables.get((signature_name, fed, fetched)) or self._make(signature_name, fed, fetched)
        try:
            results = dict(zip(fetched, call(*(inputs[name] for name in fed)), strict=True))
        except self._error_type as error:
            raise _translate(error) from error
        except UnicodeDecodeError as error:
            # TensorFlow's own words, quoting bytes of the request that are no text.
            raise InvalidRequest(_first_line(error.object.decode(errors="replace"))) from error
        return {name: np.asarray(results[name]) for name in outputs}

    def _make(self, signature_name: str, fed: tuple[str, ...], fetched: tuple[str, ...]) -> Callable[..., list[Any]]:
        spec = self._signatures[signature_name]
        options = self._new_options(
            feed=[spec.inputs[name].tensor_name for name in fed],
            fetch=[spec.outputs[name].tensor_name for name in fetched],
        )
        with self._compile:
            made: Callable[..., list[Any]] = self._session._make_callable_from_options(options)
            self._callables[signature_name, fed, fetched] = made
        return made

    def close(self) -> None:
        """Frees the graph's variables."""
        self._session.close()


def open_savedmodel(
    artifact: Path, signatures: Mapping[str, SignatureSpec], tags: frozenset[str], *, threads: int
) -> SavedModelBackend:
    """Loads a SavedModel's graph and variables.

    Args:
      signatures: as read from its saved_model.pb.
      tags: which MetaGraph.
      threads: for the kernels of one run, and for runs side by side.

    Raises:
      ArtifactError: TensorFlow can not load it, in TensorFlow's words.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf.config_pb2 import CallableOptions

    # It calls the only loader that feeds and fetches by name deprecated, at every load.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    v1 = tf.compat.v1
    config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = v1.Session(graph=tf.Graph(), config=config)
    try:
        v1.saved_model.loader.load(session, sorted(tags), str(artifact))
    except Exception as error:
        session.close()
        raise ArtifactError(f"TensorFlow can not load {artifact}: {_text(error)}") from error
    return SavedModelBackend(session, signatures, new_options=CallableOptions, error_type=tf.errors.OpError)


def _translate(error: Exception) -> ServiceError:
    if type(error).__name__ in _CLIENT_ERRORS:
        return InvalidRequest(_text(error))
    return BackendFailure("TensorFlow failed to run this request; the server's log has the cause.")


def _text(error: Exception) -> str:
    return _first_line(str(getattr(error, "message", "") or error)) or type(error).__name__


def _first_line(text: str) -> str:
    # Behind the first line TensorFlow lists graph nodes and Python frames of the exporter, of no use to a client.
    return text.strip().removeprefix("Graph execution error:").strip().partition("\n")[0].strip()
