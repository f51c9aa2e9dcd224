"""Runs the signatures of a SavedModel as TensorFlow Serving does: in one session, with tensors fed and fetched by
name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.signature_def import read_meta_graph
from service.artifact.tpu_lowering import TPU_TAG, lower
from service.errors import ArtifactError, BackendFailure, GraphRefusal, InvalidRequest, ServiceError, Unimplemented
from service.graph.graph_session import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    OUT_OF_RANGE,
    UNIMPLEMENTED,
    GraphError,
    GraphProgram,
    GraphSession,
    open_session,
    session_config,
)
from service.graph.handles import repair_handles
from service.graph.preparation import Step, asset_paths, checkpoint_prefix, init_op, restore_steps
from service.graph.restoring import add_restore, needed_variables, signature_tensors
from service.graph.sparse import SparseNames, feed_with_sparse, read_sparse_names
from service.types import Array, SignatureSpec, Tensors

# Codes of TensorFlow errors that a client's input can cause.
_CLIENT_CODES = (INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION)
_MISMATCH = re.compile(r"Type mismatch: actual (\w+) vs\. expect (\w+)\s+\[\[\{\{node _arg_\w+_(\d+)\}\}")

_NODE_MARKS = re.compile(r"^(\{\{(function_)?node [^}]*\}\}\s*)+")


class SavedModelBackend:
    """The backend that runs the signatures of a SavedModel in one TensorFlow session. Concurrency: any thread.

    A session serves exports of TensorFlow 1 and 2 alike, which tf.saved_model.load does not.
    """

    def __init__(
        self,
        session: GraphSession,
        signatures: Mapping[str, SignatureSpec],
        *,
        sparse: Mapping[str, Mapping[str, SparseNames]] | None = None,
    ) -> None:
        self._session = session
        self._signatures = signatures
        self._sparse = sparse or {}
        self._callables: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Callable[..., list[Any]]] = {}
        self._compile = threading.Lock()

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Runs a signature's graph and returns the named outputs; strings are object arrays of bytes.

        Raises:
          InvalidRequest: the graph refused the input, in the graph's own words; or the signature has a tensor that no
            request or answer can hold.
          BackendFailure: any other failure of the graph.
        """
        fed, fetched = tuple(sorted(inputs)), tuple(sorted(outputs))
        try:
            call = self._callables.get((signature_name, fed, fetched)) or self._make(signature_name, fed, fetched)
            results = dict(zip(fetched, call(*(inputs[name] for name in fed)), strict=True))
        except GraphError as error:
            raise translated(error) from error
        return {name: np.asarray(results[name]) for name in outputs}

    def _make(self, signature_name: str, fed: tuple[str, ...], fetched: tuple[str, ...]) -> Callable[..., list[Any]]:
        spec = self._signatures[signature_name]
        sparse = self._sparse.get(signature_name, {})
        dense = {name: spec.inputs[name].tensor_name for name in fed}
        feed, convert = feed_with_sparse(fed, sparse, dense)
        fetch = [spec.outputs[name].tensor_name for name in fetched]
        for kind, names in (("input", feed), ("output", fetch)):
            if "" in names:
                raise InvalidRequest(
                    f'signature "{signature_name}" has a sparse or composite {kind} that no request or answer can carry'
                )
        with self._compile:
            made = self._session.call(feed, fetch)
            call = (lambda *arrays: made(*convert(arrays))) if sparse else made
            self._callables[signature_name, fed, fetched] = call
        return call

    @property
    def session_number(self) -> int | None:
        """The number of the graph's session in the native core; None: the session is not in the core."""
        return self._session.number

    def sparse_inputs(self, signature_name: str) -> Mapping[str, SparseNames]:
        """Returns the name of each sparse input of a signature -> the graph's three tensors of this input."""
        return self._sparse.get(signature_name, {})

    def close(self) -> None:
        """Closes the TensorFlow session of this backend, which frees the graph's variables."""
        self._session.close()


def open_savedmodel(
    artifact: Path,
    signatures: Mapping[str, SignatureSpec],
    tags: frozenset[str],
    *,
    threads: int,
    inter_op_threads: int | None = None,
) -> SavedModelBackend:
    """Opens a backend for a SavedModel: loads its graph and restores its variables.

    Args:
      signatures: as read from the artifact's saved_model.pb.
      tags: tags of the MetaGraph; a MetaGraph with "tpu" is lowered for this machine's CPU first, in memory.
      threads: TensorFlow's threads within an operation, and for operations side by side; 0: TensorFlow chooses.
      inter_op_threads: threads for operations side by side, if it is another number.

    Raises:
      ArtifactError: TensorFlow can not load the SavedModel, in TensorFlow's words; or its graph needs a TPU.
    """
    side_by_side = threads if inter_op_threads is None else inter_op_threads
    try:
        meta_graph = read_meta_graph(artifact / "saved_model.pb", tags)
        if TPU_TAG in tags:
            lower(meta_graph)
        repair_handles(meta_graph, artifact)
        init = init_op(meta_graph)
        steps = _restore_steps(meta_graph, artifact, init)
        if init:
            steps.append((init, asset_paths(meta_graph, artifact)))
        config = session_config(threads, side_by_side)
        session = open_session(GraphProgram(meta_graph.graph_def.SerializeToString(), config, tuple(steps)))
    except ArtifactError as error:
        raise ArtifactError(f"{artifact}: {error.message}") from error
    except GraphError as error:
        raise ArtifactError(f"TensorFlow can not load {artifact}: {_text(error)}") from error
    return SavedModelBackend(session, signatures, sparse=read_sparse_names(meta_graph))


def _restore_steps(meta_graph: Any, artifact: Path, init: str) -> list[Step]:
    """Returns the steps that restore the variables that a signature or the init node reads, which it adds to the graph.

    A SavedModel of Keras 3 holds a second copy of each variable, and one of tf_keras the optimizer's variables.
    """
    needed = needed_variables(meta_graph, [*signature_tensors(meta_graph), *([init] if init else [])])
    if needed is None:
        return restore_steps(meta_graph, artifact)
    saved, variables = needed
    return [(add_restore(meta_graph.graph_def, saved, variables, checkpoint_prefix(artifact)), {})]


def translated(error: GraphError) -> ServiceError:
    """Converts a TensorFlow error to an error for the client, with TensorFlow's text if it helps the client."""
    if error.code == UNIMPLEMENTED:
        return Unimplemented(_text(error))
    mismatch = _MISMATCH.match(error.message)
    if mismatch:
        # The error for an input of a wrong dtype gets TensorFlow Serving's text; the callables by which this server
        # runs graphs word it differently.
        sent, wanted, position = mismatch.groups()
        return InvalidRequest(f"Expects arg[{position}] to be {wanted} but {sent} is provided")
    if error.code in _CLIENT_CODES:
        return GraphRefusal(_text(error))
    return BackendFailure("TensorFlow failed to run this request; the server's log has the cause.")


def _text(error: GraphError) -> str:
    return first_line(error.message) or f"error {error.code} without a text"


def first_line(text: str) -> str:
    """Returns the first line of a TensorFlow error text, without the names of functions around the failed node."""
    # The other lines of a TensorFlow error are left out: they list graph nodes and Python frames of the exporter.
    # Before the message stand the functions that the node lies in, one after the other.
    return _NODE_MARKS.sub("", text.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]).strip()
