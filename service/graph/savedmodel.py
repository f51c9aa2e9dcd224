"""Runs the signatures of a SavedModel as TensorFlow Serving does: in one session, with tensors fed and fetched by name.

TensorFlow is imported when the first graph is opened: the import takes seconds and half a gigabyte of memory.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.tpu_lowering import TPU_TAG, lower
from service.errors import ArtifactError, BackendFailure, GraphRefusal, InvalidRequest, ServiceError, Unimplemented
from service.graph.graph_session import GraphProgram, GraphSession, PythonSession, open_core_session
from service.graph.handles import repair_handles
from service.graph.restoring import add_needed_restore, signature_tensors
from service.graph.sparse import SparseNames, feed_with_sparse, read_sparse_names
from service.graph.tensorflow_import import import_tensorflow
from service.types import Array, SignatureSpec, Tensors

logger = logging.getLogger(__name__)

# Class names of TensorFlow errors that a client's input can cause.
_CLIENT_ERRORS = ("InvalidArgumentError", "OutOfRangeError", "FailedPreconditionError")
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
        error_type: type[Exception],
        sparse: Mapping[str, Mapping[str, SparseNames]] | None = None,
    ) -> None:
        self._session = session
        self._signatures = signatures
        self._sparse = sparse or {}
        self._error_type = error_type
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
        except self._error_type as error:
            raise translated(error) from error
        except UnicodeDecodeError as error:
            # TensorFlow's error text quotes bytes of the request; bytes that are not valid UTF-8 are replaced.
            raise GraphRefusal(first_line(error.object.decode(errors="replace"))) from error
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

    def has_sparse_inputs(self, signature_name: str) -> bool:
        """Says whether a signature has sparse inputs, which requests send as ragged ids."""
        return bool(self._sparse.get(signature_name))

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
    import_tensorflow()
    import tensorflow as tf
    from tensorflow.python.saved_model.loader_impl import SavedModelLoader

    # TensorFlow's log is silenced, because TensorFlow calls SavedModelLoader deprecated at every load. It has no other
    # loader for sessions in which tensors are fed by name.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    side_by_side = threads if inter_op_threads is None else inter_op_threads
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=side_by_side)
    try:
        loader = SavedModelLoader(str(artifact))
        if TPU_TAG in tags:
            tags = _lower_only(loader.saved_model, loader.get_meta_graph_def_from_tags(tags))
        meta_graph = loader.get_meta_graph_def_from_tags(tags)
        repair_handles(meta_graph, artifact)
        session = _open_loaded(loader, meta_graph, config)
    except ArtifactError as error:
        raise ArtifactError(f"{artifact}: {error.message}") from error
    except Exception as error:
        raise ArtifactError(f"TensorFlow can not load {artifact}: {_text(error)}") from error
    return SavedModelBackend(session, signatures, error_type=tf.errors.OpError, sparse=read_sparse_names(meta_graph))


def _open_loaded(loader: Any, meta_graph: Any, config: Any) -> GraphSession:
    """Opens a session over the graph of a SavedModelLoader, in the native core, else in Python."""
    import tensorflow as tf

    tags = sorted(meta_graph.meta_info_def.tags)
    graph = tf.Graph()
    saver, _ = loader.load_graph(graph, tags)
    try:
        program = _program(loader, meta_graph, graph, saver, config)
    except (tf.errors.OpError, ValueError) as error:
        logger.info("the native core can not run the graph", extra={"reason": str(error)})
    else:
        if (core := open_core_session(program)) is not None:
            return core
    session = tf.compat.v1.Session(graph=graph, config=config)
    try:
        loader.restore_variables(session, saver)
        loader.run_init_ops(session, tags)
    except Exception:
        session.close()
        raise
    return PythonSession(session, config.SerializeToString())


def _program(loader: Any, meta_graph: Any, graph: Any, saver: Any, config: Any) -> GraphProgram:
    """Returns a GraphProgram with the steps of SavedModelLoader.load: restore variables, run the init op.

    Source: tensorflow/python/saved_model/loader_impl.py, restore_variables and run_init_ops (2.21).
    """
    from tensorflow.python.saved_model.loader_impl import get_asset_tensors, get_init_op

    steps: list[tuple[str, Mapping[str, bytes]]] = []
    with graph.as_default():
        init = get_init_op(meta_graph)
    if saver is not None:
        saved, path = saver.saver_def, str(loader.variables_path)
        roots = [*signature_tensors(meta_graph), *([] if init is None else [init.name])]
        needed = add_needed_restore(graph, meta_graph, roots, path)
        whole = (saved.restore_op_name, {saved.filename_tensor_name: path.encode()})
        steps.append(whole if needed is None else (needed, {}))
    if init is not None:
        steps.append((init.name, get_asset_tensors(loader.export_dir, meta_graph)))
    return GraphProgram(graph.as_graph_def().SerializeToString(), config.SerializeToString(), tuple(steps))


def _lower_only(saved_model: Any, meta_graph: Any) -> frozenset[str]:
    """Rewrites a TPU MetaGraph for the CPU, and makes it the only MetaGraph of the SavedModel in memory.

    Returns its tags, which another MetaGraph of the SavedModel may have had too.
    """
    lowered = type(meta_graph)()
    lowered.CopyFrom(meta_graph)
    lower(lowered)
    # Only the SavedModelLoader's copy of saved_model.pb in memory is changed, not the file.
    del saved_model.meta_graphs[:]
    saved_model.meta_graphs.add().CopyFrom(lowered)
    return frozenset(lowered.meta_info_def.tags)


def translated(error: Exception) -> ServiceError:
    """Converts a TensorFlow error to an error for the client, with TensorFlow's text if it helps the client."""
    if type(error).__name__ == "UnimplementedError":
        return Unimplemented(_text(error))
    mismatch = _MISMATCH.match(str(error))
    if mismatch:
        # The error for an input of a wrong dtype gets TensorFlow Serving's text; the callables by which this server
        # runs graphs word it differently.
        sent, wanted, position = mismatch.groups()
        return InvalidRequest(f"Expects arg[{position}] to be {wanted} but {sent} is provided")
    if type(error).__name__ in _CLIENT_ERRORS:
        return GraphRefusal(_text(error))
    return BackendFailure("TensorFlow failed to run this request; the server's log has the cause.")


def _text(error: Exception) -> str:
    return first_line(str(getattr(error, "message", "") or error)) or type(error).__name__


def first_line(text: str) -> str:
    """Returns the first line of a TensorFlow error text, without the names of functions around the failed node."""
    # The other lines of a TensorFlow error are left out: they list graph nodes and Python frames of the exporter.
    # Before the message stand the functions that the node lies in, one after the other.
    return _NODE_MARKS.sub("", text.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]).strip()
