"""Opens the whole graph of a SavedModel as TensorFlow Serving does: in one session, whose tensors have names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import ArtifactError
from service.graph.flat_graph import flatten
from service.graph.graph_session import GraphError, GraphProgram, GraphSession, open_session, session_config
from service.graph.restoring import prepared
from service.graph.sparse import SparseNames, read_sparse_names

_NODE_MARKS = re.compile(r"^(\{\{(function_)?node [^}]*\}\}\s*)+")


@dataclass(frozen=True, slots=True)
class SavedModelBackend:
    """The backend of whole graphs: the signatures of a SavedModel in one TensorFlow session, which the core runs.

    A session serves exports of TensorFlow 1 and 2 alike, which tf.saved_model.load does not.

    sparse: signature -> name of a sparse input -> the graph's three tensors of it.
    bounded: the signatures whose run time depends on the sizes of their inputs alone, not on their values.
    """

    session: GraphSession
    sparse: Mapping[str, Mapping[str, SparseNames]]
    bounded: frozenset[str]

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
      threads, inter_op_threads: as in session_config.

    Raises:
      ArtifactError: TensorFlow can not load the SavedModel, in TensorFlow's words; or its graph needs a TPU.
    """
    try:
        meta_graph, steps = prepared(artifact, tags)
        config = session_config(threads, inter_op_threads, meta_graph.graph_def)
        session = open_session(GraphProgram(meta_graph.graph_def.SerializeToString(), config, tuple(steps)))
    except ArtifactError as error:
        raise ArtifactError(f"{artifact}: {error.message}") from error
    except GraphError as error:
        raise ArtifactError(f"TensorFlow can not load {artifact}: {_text(error)}") from error
    signatures = meta_graph.signature_def.items()
    bounded = frozenset(name for name, signature in signatures if _is_bounded(meta_graph, signature))
    return SavedModelBackend(session, read_sparse_names(meta_graph), bounded)


def _is_bounded(meta_graph: Any, signature: Any) -> bool:
    try:
        # Without the outputs that have no tensor of their own, because they are sparse or composite.
        flat = flatten(meta_graph.graph_def, [info.name for info in signature.outputs.values() if info.name])
    except (ArtifactError, KeyError):
        return False
    return flat.is_bounded(flat.nodes)


def _text(error: GraphError) -> str:
    # The other lines of a TensorFlow error are left out: they list graph nodes and Python frames of the exporter.
    # Before the message stand the functions that the node lies in, one after the other.
    line = error.message.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]
    return _NODE_MARKS.sub("", line).strip() or f"error {error.code} without a text"
