"""Runs the signatures of a SavedModel that are no lookups: the whole graph, in one TensorFlow session.

A session serves exports of TensorFlow 1 and 2 alike, which tf.saved_model.load does not. This is the only module of the
reference that needs TensorFlow; it imports TensorFlow when the first graph is opened.

Source: tensorflow/cc/saved_model/loader.cc (2.21).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.errors import (
    ArtifactError,
    BackendFailure,
    GraphRefusal,
    InvalidRequest,
    ServiceError,
    Unimplemented,
)
from service.graph.restoring import add_echoes, prepared
from service.graph.sparse import feed_with_sparse, read_sparse_names
from service.types import Array, GraphThreads, SignatureSpec, Tensors


class Graph:
    """A SavedModel's graph in a session, opened at the first run. Concurrency: any thread."""

    def __init__(self, artifact: Path, tags: frozenset[str], threads: GraphThreads) -> None:
        self._artifact, self._tags, self._threads = artifact, tags, threads
        self._opening = threading.Lock()
        self._session: Any = None
        self._sparse: Mapping[str, Any] = {}
        self._echoes: Mapping[str, str] = {}
        self._calls: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Any] = {}

    def open(self) -> None:
        """Loads the graph and restores its variables; raises ArtifactError in TensorFlow's words."""
        with self._opening:
            if self._session is not None:
                return
            import tensorflow as tf

            v1, artifact = tf.compat.v1, self._artifact
            meta_graph, steps = prepared(artifact, self._tags)
            echoes = add_echoes(meta_graph, meta_graph.graph_def)
            graph, threads = tf.Graph(), self._threads
            config = v1.ConfigProto(
                allow_soft_placement=True,
                intra_op_parallelism_threads=threads.within_op or 1,
                inter_op_parallelism_threads=threads.side_by_side or threads.all,
            )
            try:
                with graph.as_default():
                    tf.import_graph_def(v1.GraphDef.FromString(meta_graph.graph_def.SerializeToString()), name="")
                session = v1.Session(graph=graph, config=config)
                for operation, fed in steps:
                    session.run(graph.get_operation_by_name(operation), dict(fed))
            except (tf.errors.OpError, ValueError, KeyError) as error:
                raise ArtifactError(f"TensorFlow can not load {artifact}: {first_line(str(error))}") from error
            self._sparse, self._echoes = read_sparse_names(meta_graph), echoes
            self._session = session

    def run(self, spec: SignatureSpec, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Runs a signature's graph on inputs that reference.inputs has checked; returns the named outputs.

        Raises:
          InvalidRequest: the graph refused an input, in TensorFlow's words.
          BackendFailure: any other failure of the graph.
        """
        self.open()
        import tensorflow as tf

        fed = tuple(sorted(inputs))
        try:
            call, convert = self._calls.get((spec.name, fed, outputs)) or self._made(tf, spec, fed, outputs)
            found = call(*convert([inputs[name] for name in fed]))
        except tf.errors.OpError as error:
            raise _translated(tf, error) from error
        return dict(zip(outputs, map(np.asarray, found), strict=True))

    def _made(self, tf: Any, spec: SignatureSpec, fed: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
        """Returns a callable that runs a signature, and a function that makes its arguments from a request's arrays."""
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        feed, convert = feed_with_sparse(
            fed, self._sparse.get(spec.name, {}), {name: spec.inputs[name].tensor_name for name in fed}
        )
        fetched = (spec.outputs[name].tensor_name for name in outputs)
        fetch = [self._echoes.get(tensor, tensor) for tensor in fetched]
        if "" in (*feed, *fetch):
            raise InvalidRequest(f'signature "{spec.name}" has a sparse or composite tensor that no request can carry')
        # Session.run would compare shapes with the placeholders', which TensorFlow Serving does not.
        call = self._session._make_callable_from_options(CallableOptions(feed=feed, fetch=fetch))
        self._calls[spec.name, fed, outputs] = call, convert
        return call, convert

    def close(self) -> None:
        with self._opening:
            if self._session is not None:
                self._session.close()


def _translated(tf: Any, error: Any) -> ServiceError:
    text = first_line(error.message)
    if isinstance(error, tf.errors.UnimplementedError):
        return Unimplemented(text)
    if isinstance(
        error, (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError)
    ):
        return GraphRefusal(text)
    return BackendFailure("TensorFlow failed to run this request; the server's log has the cause.")


def first_line(text: str) -> str:
    # The other lines of an error's text list nodes of the graph, and Python frames of the exporter.
    return text.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]
