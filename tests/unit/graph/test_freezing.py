"""Variables as constants: only those that nothing but reads them, and with the values of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from service.graph import freezing  # noqa: E402
from service.graph.freezing import freeze  # noqa: E402
from service.graph.restoring import Saved  # noqa: E402

VALUES = {"read": [[1.5, -2.0]], "written": [3.0], "passed_on": [4.0], "counted": [5, 6], "named": ["x"]}


class Graph:
    """Variables, what is done with each, and a checkpoint of them."""

    def __init__(self, folder: Path) -> None:
        v1 = tf.compat.v1
        self.prefix = str(folder / "variables")
        graph = tf.Graph()
        with graph.as_default():
            made = {name: v1.get_variable(name, initializer=tf.constant(value)) for name, value in VALUES.items()}
            with graph.control_dependencies([tf.no_op(name="before")]):
                for name, variable in made.items():
                    tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype, name=f"use_{name}")
            tf.raw_ops.AssignAddVariableOp(resource=made["written"].handle, value=tf.constant([1.0]), name="write")
            tf.identity(made["passed_on"].handle, name="pass_on")
            saver = v1.train.Saver(made)
            with v1.Session(graph=graph) as session:
                session.run(v1.global_variables_initializer())
                saver.save(session, self.prefix, write_meta_graph=False, write_state=False)
        kept = ("use_", "write", "pass_on", "before")
        self.nodes: dict[str, Any] = {
            node.name: node for node in graph.as_graph_def().node if node.name in VALUES or node.name.startswith(kept)
        }
        self.saved = {name: Saved(name, "", variable.dtype.as_datatype_enum, None) for name, variable in made.items()}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Returns a graph of five variables."""
    return Graph(tmp_path)


def kinds(graph: Graph) -> dict[str, str]:
    """Returns the op of what reads each variable."""
    return {name: graph.nodes[f"use_{name}"].op for name in VALUES}


def test_what_is_only_read_becomes_a_constant(graph: Graph) -> None:
    freeze(graph.nodes, graph.saved, graph.prefix)
    read = "ReadVariableOp"
    assert kinds(graph) == {"read": "Const", "written": read, "passed_on": read, "counted": "Const", "named": read}
    assert {"read", "counted"}.isdisjoint(graph.nodes)
    assert {"written", "passed_on", "named"} <= graph.nodes.keys()


def test_a_constant_has_the_value_of_the_checkpoint_and_still_waits(graph: Graph) -> None:
    freeze(graph.nodes, graph.saved, graph.prefix)
    node = graph.nodes["use_read"]
    value = tf.make_ndarray(node.attr["value"].tensor)
    assert value.dtype == np.float32 and value.tolist() == VALUES["read"]
    assert list(node.input) == ["^before"]


def test_what_nothing_restores_stays(graph: Graph) -> None:
    del graph.saved["read"]
    freeze(graph.nodes, graph.saved, graph.prefix)
    assert kinds(graph)["read"] == "ReadVariableOp"


def test_large_ones_stay(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_MOST_BYTES", 7)
    freeze(graph.nodes, graph.saved, graph.prefix)
    # Two float32 are 8 bytes, as are two int32.
    assert "Const" not in kinds(graph).values()


def test_and_so_do_those_that_are_too_much_in_all(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_MOST_BYTES_IN_ALL", 15)
    freeze(graph.nodes, graph.saved, graph.prefix)
    assert sorted(kinds(graph).values()).count("Const") == 1
