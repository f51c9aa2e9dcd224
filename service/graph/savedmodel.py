"""Opens the whole graph of a SavedModel as TensorFlow Serving does: in one session, whose tensors have names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.artifact.signature_def import read_meta_graph
from service.artifact.tpu_lowering import TPU_TAG, lower
from service.errors import ArtifactError
from service.graph.graph_session import GraphError, GraphProgram, GraphSession, open_session, session_config
from service.graph.handles import repair_handles
from service.graph.preparation import Step, asset_paths, checkpoint_prefix, init_op, restore_steps
from service.graph.restoring import add_restore, needed_variables, signature_tensors
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
        """Closes the TensorFlow session of this backend, which frees the graph's variables."""
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
    return SavedModelBackend(session, read_sparse_names(meta_graph))


def _restore_steps(meta_graph: Any, artifact: Path, init: str) -> list[Step]:
    """Returns the steps that restore the variables that a signature or the init node reads, which it adds to the graph.

    A SavedModel of Keras 3 holds a second copy of each variable, and one of tf_keras the optimizer's variables.
    """
    needed = needed_variables(meta_graph, [*signature_tensors(meta_graph), *([init] if init else [])])
    if needed is None:
        return restore_steps(meta_graph, artifact)
    saved, variables = needed
    return [(add_restore(meta_graph.graph_def, saved, variables, checkpoint_prefix(artifact)), {})]


def _text(error: GraphError) -> str:
    return _first_line(error.message) or f"error {error.code} without a text"


def _first_line(text: str) -> str:
    # The other lines of a TensorFlow error are left out: they list graph nodes and Python frames of the exporter.
    # Before the message stand the functions that the node lies in, one after the other.
    return _NODE_MARKS.sub("", text.strip().removeprefix("Graph execution error:").strip().partition("\n")[0]).strip()
