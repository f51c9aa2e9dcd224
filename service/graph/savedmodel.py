"""Opens the whole graph of a SavedModel as TensorFlow Serving does: in one session, whose tensors have names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.errors import ArtifactError
from service.graph.graph_session import GraphError, GraphProgram, GraphSession, open_session, session_config
from service.graph.restoring import prepared
from service.graph.sparse import SparseNames, read_sparse_names

_NODE_MARKS = re.compile(r"^(\{\{(function_)?node [^}]*\}\}\s*)+")


@dataclass(frozen=True, slots=True)
class SavedModelBackend:
    """The backend of whole graphs: the signatures of a SavedModel in one TensorFlow session, which the core runs.

    A session serves exports of TensorFlow 1 and 2 alike, which tf.saved_model.load does not.

    sparse: signature -> name of a sparse input -> the graph's three tensors of it.
    """

    session: GraphSession
    sparse: Mapping[str, Mapping[str, SparseNames]]

    def close(self) -> None:
        self.session.close()


def open_savedmodel(
    artifact: Path,
    tags: frozenset[str],
    *,
    threads: int,
    inter_op_threads: int | None = None,
) -> SavedModelBackend:
    """Opens a backend for a SavedModel: loads its graph and restores its variables.

    Args:
      tags: tags of the MetaGraph; a MetaGraph with "tpu" is lowered for this machine's CPU first, in memory.
      threads: TensorFlow's threads within an operation, and for operations side by side; 0: TensorFlow chooses.
      inter_op_threads: threads for operations side by side, if it is another number.

    Raises:
      ArtifactError: TensorFlow can not load the SavedModel, in TensorFlow's words; or its graph needs a TPU.
    """
    side_by_side = threads if inter_op_threads is None else inter_op_threads
    try:
        meta_graph, steps = prepared(artifact, tags)
        config = session_config(threads, side_by_side)
        session = open_session(GraphProgram(meta_graph.graph_def.SerializeToString(), config, tuple(steps)))
    except ArtifactError as error:
        raise ArtifactError(f"{artifact}: {error.message}") from error
    except GraphError as error:
        raise ArtifactError(f"TensorFlow can not load {artifact}: {_text(error)}") from error
    return SavedModelBackend(session, read_sparse_names(meta_graph))


def _text(error: GraphError) -> str:
    # The other lines of a TensorFlow error are left out: they list graph nodes and Python frames of the exporter.
    # Before the message stand the functions that the node lies in, one after the other.
    line = error.message.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]
    return _NODE_MARKS.sub("", line).strip() or f"error {error.code} without a text"
