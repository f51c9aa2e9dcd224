"""Sparse inputs travel as ragged ids and mean the same tensor in the graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.signature_def import metadata_json, read_signatures
from service.engine.servable import Servable
from service.errors import Unimplemented
from service.graph.sparse import to_coo
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native

pytestmark = pytest.mark.tf

SERVE = frozenset({"serve"})
ROWS = [[4, 2, 9], [], [7], []]


def ragged(rows: list[list[int]], dtype: str = "int64") -> tuple[np.ndarray, np.ndarray]:
    """Returns the values and row splits of lists of unequal length."""
    return np.array([x for row in rows for x in row], dtype), np.cumsum([0, *map(len, rows)])


@pytest.mark.parametrize("rows", [ROWS, [], [[]], [[], []], [[1]], [[], [5, 6]]], ids=str)
def test_to_coo_is_tensorflows_own_conversion(tf: Any, rows: list[list[int]]) -> None:
    values, splits = ragged(rows)
    expected = tf.RaggedTensor.from_row_splits(values, splits).to_sparse()
    found = to_coo(values, splits)
    for array, tensor in zip(found, (expected.values, expected.indices, expected.dense_shape), strict=True):
        assert (array.tolist(), array.shape) == (tensor.numpy().tolist(), tensor.shape)
        assert array.dtype == np.int64


@pytest.fixture(scope="module")
def folder(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel whose signatures have sparse inputs and outputs."""
    v1 = tf.compat.v1
    folder = tmp_path_factory.mktemp("sparse") / "1"
    signature = v1.saved_model.build_signature_def
    info = v1.saved_model.build_tensor_info
    with tf.Graph().as_default(), v1.Session() as session:
        a, words, cube = (
            v1.sparse_placeholder(dtype, [None] * rank, name)
            for name, dtype, rank in (("a", tf.int64, 2), ("words", tf.string, 2), ("cube", tf.int64, 3))
        )
        x = v1.placeholder(tf.int64, [None], "x")
        dense = tf.sparse.to_dense(a) + x[:, None]
        shape = tf.identity(a.dense_shape)
        lengths = tf.strings.length(tf.sparse.to_dense(words, default_value=b""))
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "both": signature(
                    {"a": info(a), "words": info(words), "x": info(x)},
                    {"dense": info(dense), "lengths": info(lengths), "shape": info(shape)},
                    "tensorflow/serving/predict",
                ),
                "cube": signature({"cube": info(cube)}, {"y": info(tf.identity(cube.dense_shape))}),
                "sparse_answer": signature({"a": info(a)}, {"a": info(a), "shape": info(shape)}),
            },
        )
        builder.save()
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Servable:
    """It, in the native core."""
    return ServableLoader(SERVE, "auto", 1, compile_native)("m", 1, folder)


def run(served: Servable, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a signature in the core; returns its outputs."""
    assert served.native is not None
    return served.native.run(signature, inputs)


def test_a_sparse_matrix_is_described_as_ragged(folder: Path) -> None:
    spec = read_signatures(folder / "saved_model.pb")["both"]
    assert spec.ragged.keys() == {"a", "words"}
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in spec.inputs.items()} == {
        "a__values": ("int64", (None,)),
        "a__row_splits": ("int64", (None,)),
        "words__values": ("string", (None,)),
        "words__row_splits": ("int64", (None,)),
        "x": ("int64", (None,)),
    }
    assert spec.required == set(spec.inputs)
    metadata = json.loads(metadata_json("m", 1, {"s": spec}))["metadata"]["signature_def"]["signature_def"]["s"]
    values = metadata["inputs"]["a__values"]
    assert (values["dtype"], values["tensor_shape"]["dim"][0]["size"]) == ("DT_INT64", "-1")


def test_ragged_rows_become_the_sparse_tensor(served: Servable) -> None:
    values, splits = ragged(ROWS)
    inputs = {
        "a__values": values,
        "a__row_splits": splits,
        "words__values": np.array([b"red", b"a", b""], object),
        "words__row_splits": np.array([0, 2, 2, 3, 3]),
        "x": np.array([10, 20, 30, 40]),
    }
    outputs = run(served, "both", inputs)
    assert outputs["dense"].tolist() == [[14, 12, 19], [20, 20, 20], [37, 30, 30], [40, 40, 40]]
    assert outputs["lengths"].tolist() == [[3, 1], [0, 0], [0, 0], [0, 0]]
    assert outputs["shape"].tolist() == [4, 3]


def test_a_tensor_without_a_form_on_the_wire_is_refused(served: Servable) -> None:
    assert served.not_run == {"cube": 'input "cube" is a sparse or composite tensor'}
    with pytest.raises(Unimplemented, match='input "cube" is a sparse or composite tensor'):
        run(served, "cube", {"cube": np.zeros((1, 1, 1), np.int64)})


def test_the_other_outputs_of_such_a_signature_are_answered(served: Servable) -> None:
    values, splits = ragged(ROWS)
    assert served.native is not None
    inputs = {"a__values": values, "a__row_splits": splits}
    assert served.native.run("sparse_answer", inputs, ("shape",))["shape"].tolist() == [4, 3]
    with pytest.raises(Unimplemented, match='Output "a" .* is a sparse or composite tensor'):
        run(served, "sparse_answer", inputs)
