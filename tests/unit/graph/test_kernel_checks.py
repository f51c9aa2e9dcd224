"""A graph refuses tensors with which TensorFlow would read behind others in memory, or end the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from service.graph.graph_session import GraphError, GraphProgram, make_program, open_session
from service.types import GraphThreads

pytestmark = [pytest.mark.tf, pytest.mark.core]

FAR = 1 << 40
Numbers = Sequence[int]


def _opened(graph_def: Any) -> Callable[..., list[Any]]:
    program: GraphProgram = make_program(graph_def, [], GraphThreads(1))
    session = open_session(program)
    assert session is not None

    def run(**fed: Any) -> list[Any]:
        call = session.call([f"{name}:0" for name in fed], ["y:0"])
        return call(*(np.array(value, np.int64) for value in fed.values()))[0].tolist()

    return run


def _graph_def(tf: Any, kinds: Sequence[str], *, in_function: bool, shape: Numbers) -> Any:
    """Returns the graph of y, the dense form of the values v with the partitions p0, p1 ..., which are fed."""
    v1 = tf.compat.v1

    def dense(values: Any, *partitions: Any) -> Any:
        return tf.raw_ops.RaggedTensorToTensor(
            shape=tf.constant(shape, tf.int64),
            values=values,
            default_value=tf.constant(-1, tf.int64),
            row_partition_tensors=partitions,
            row_partition_types=kinds,
        )

    with tf.Graph().as_default() as graph:
        fed = [v1.placeholder(tf.int64, None, name) for name in ("v", *(f"p{number}" for number in range(len(kinds))))]
        run = tf.function(dense, autograph=False, experimental_attributes={"_noinline": True}) if in_function else dense
        tf.identity(run(*fed), "y")
        return graph.as_graph_def()


@pytest.fixture(scope="module", params=[False, True], ids=["graph", "function"])
def run(tf: Any, request: pytest.FixtureRequest) -> Mapping[str, Callable[..., list[Any]]]:
    kinds = {
        "flat": ["ROW_SPLITS"],
        "nested": ["ROW_SPLITS", "ROW_SPLITS"],
        "row_ids": ["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
        "splits_of_row_ids": ["FIRST_DIM_SIZE", "VALUE_ROWIDS", "ROW_SPLITS"],
    }
    found = {}
    for name, one in kinds.items():
        rank = len(one) - ("FIRST_DIM_SIZE" in one)
        for shape, size in (("", -1), ("_of_fixed_size", 2)):
            shapes = [-1, *[size] * rank]
            found[name + shape] = _opened(_graph_def(tf, one, in_function=request.param, shape=shapes))
    return found


def test_right_partitions_are_answered(run: Mapping[str, Callable[..., list[Any]]]) -> None:
    assert run["flat"](v=[5, 6, 7], p0=[0, 2, 3]) == [[5, 6], [7, -1]]
    assert run["flat"](v=[5, 6, 7], p0=[0, 0, 3]) == [[-1, -1, -1], [5, 6, 7]]
    # As in TensorFlow: values behind the last row are in no row.
    assert run["flat"](v=[5, 6, 7], p0=[0, 2]) == [[5, 6]]
    assert run["flat"](v=[], p0=[0]) == []
    assert run["flat"](v=[], p0=[0, 0]) == [[]]
    assert run["flat_of_fixed_size"](v=[5, 6, 7], p0=[0, 3, 3]) == [[5, 6], [-1, -1]]
    assert run["nested"](v=[5, 6, 7], p0=[0, 1, 2], p1=[0, 1, 3]) == [[[5, -1]], [[6, 7]]]
    assert run["row_ids"](v=[5, 6, 7], p0=4, p1=[0, 0, 2]) == [[5, 6], [-1, -1], [7, -1], [-1, -1]]
    assert run["splits_of_row_ids"](v=[5, 6, 7], p0=2, p1=[0, 1], p2=[0, 1, 3]) == [[[5, -1]], [[6, 7]]]


@pytest.mark.parametrize("form", ["flat", "flat_of_fixed_size"])
@pytest.mark.parametrize("values", [[], [5, 6, 7]], ids=["empty", "three"])
@pytest.mark.parametrize(
    ("splits", "why"),
    [
        ([0, 5], "past values"),
        ([0, FAR], "past values"),
        ([0, FAR, 0], "sorted"),
        ([0, -FAR, 0], "sorted"),
        ([-2, 0], "non-negative"),
        ([], "may not be empty"),
        ([[0, 0]], "compatible"),
        (0, "compatible"),
    ],
)
def test_row_splits_that_do_not_fit_are_refused(
    run: Mapping[str, Callable[..., list[Any]]], form: str, values: Numbers, splits: Any, why: str
) -> None:
    with pytest.raises(GraphError, match=why):
        run[form](v=values, p0=splits)


@pytest.mark.parametrize("form", ["nested", "nested_of_fixed_size"])
@pytest.mark.parametrize(
    ("outer", "inner"), [([0, FAR], [0, 1, 3]), ([0, 4], [0, 1, 3]), ([0, 2], [0, 1, 5]), ([0, 2], [0, FAR, 3])]
)
def test_row_splits_of_row_splits_are_checked(
    run: Mapping[str, Callable[..., list[Any]]], form: str, outer: Numbers, inner: Numbers
) -> None:
    with pytest.raises(GraphError, match="Ragged splits must"):
        run[form](v=[5, 6, 7], p0=outer, p1=inner)


@pytest.mark.parametrize("form", ["row_ids", "row_ids_of_fixed_size"])
@pytest.mark.parametrize(("values", "row_ids"), [([5, 6], [0, 0, 0, 1, 1]), ([], [0, 1]), ([5, 6], [0])])
def test_row_ids_are_as_many_as_the_values(
    run: Mapping[str, Callable[..., list[Any]]], form: str, values: Numbers, row_ids: Numbers
) -> None:
    with pytest.raises(GraphError, match="reshape"):
        run[form](v=values, p0=2, p1=row_ids)


def test_row_splits_behind_row_ids_are_checked(run: Mapping[str, Callable[..., list[Any]]]) -> None:
    with pytest.raises(GraphError, match="past values"):
        run["splits_of_row_ids"](v=[5, 6, 7], p0=2, p1=[0, 1], p2=[0, 1, 5])


def _opened_call(
    tf: Any, call: Callable[..., Any], ranks: Mapping[str, int], *, in_function: bool
) -> Callable[..., Any]:
    """Returns a caller of the graph of y, what a function makes of int64 tensors that are fed by their names."""
    with tf.Graph().as_default() as graph:
        fed = [tf.compat.v1.placeholder(tf.int64, [None] * rank, name) for name, rank in ranks.items()]
        run = tf.function(call, autograph=False, experimental_attributes={"_noinline": True}) if in_function else call
        tf.identity(tf.cast(run(*fed), tf.int64), "y")
        return _opened(graph.as_graph_def())


@pytest.mark.parametrize("in_function", [False, True])
def test_a_negative_size_of_a_sparse_matrix_is_no_size(tf: Any, in_function: bool) -> None:
    def product(indices: Any, shape: Any) -> Any:
        values = tf.ones([tf.shape(indices)[0]])
        return tf.raw_ops.SparseTensorDenseMatMul(
            a_indices=indices, a_values=values, a_shape=shape, b=[[1.0, 2.0], [3.0, 4.0]]
        )

    opened = _opened_call(tf, product, {"indices": 2, "shape": 1}, in_function=in_function)
    assert opened(indices=[[0, 0], [2, 1]], shape=[3, 2]) == [[1, 2], [0, 0], [3, 4]]
    assert opened(indices=np.zeros((0, 2)), shape=[-1, 2]) == []
    assert opened(indices=[[0, 0], [2, 1]], shape=[-1, 2]) == []
    with pytest.raises(GraphError, match="out of bounds"):
        opened(indices=[[0, 0], [2, 1]], shape=[1, 2])
    with pytest.raises(GraphError, match="inner dimension does"):
        opened(indices=[[0, 0]], shape=[3, -2])


@pytest.mark.parametrize("in_function", [False, True])
def test_what_sparse_concat_joins_has_shapes(tf: Any, in_function: bool) -> None:
    def joined(indices: Any, first: Any, second: Any) -> Any:
        values = tf.ones([tf.shape(indices)[0]])
        return tf.raw_ops.SparseConcat(
            indices=[indices] * 2, values=[values] * 2, shapes=[first, second], concat_dim=0
        ).output_shape

    opened = _opened_call(tf, joined, {"indices": 2, "first": 1, "second": 1}, in_function=in_function)
    assert opened(indices=[[0, 0], [2, 1]], first=[3, 2], second=[4, 2]) == [7, 2]
    assert opened(indices=np.zeros((0, 2)), first=[0, 0], second=[0, 0]) == [0, 0]
    for wrong in ([-1, 2], [1 << 62, 2], [1 << 62, 1 << 62]):
        for shapes in ({"first": wrong, "second": [4, 2]}, {"first": [3, 2], "second": wrong}):
            with pytest.raises(GraphError):
                opened(indices=[[0, 0], [2, 1]], **shapes)


@pytest.mark.parametrize("in_function", [False, True])
def test_no_more_is_counted_than_memory_has_room_for(tf: Any, in_function: bool) -> None:
    def sparse(indices: Any, values: Any, shape: Any) -> Any:
        size, no_weights = tf.constant(64, tf.int64), tf.constant([], tf.float32)
        return tf.raw_ops.SparseBincount(
            indices=indices, values=values, dense_shape=shape, size=size, weights=no_weights
        )

    def ragged(splits: Any, values: Any) -> Any:
        size, no_weights = tf.reduce_max(values) + 1, tf.constant([], tf.float32)
        return tf.raw_ops.RaggedBincount(splits=splits, values=values, size=size, weights=no_weights)

    opened = _opened_call(tf, sparse, {"indices": 2, "values": 1, "shape": 1}, in_function=in_function)
    found = opened(indices=[[0, 0], [2, 1]], values=[1, 63], shape=[3, 2])
    assert [[at for at, number in enumerate(row) if number] for row in found] == [[1], [], [63]]
    for rows in (-1, 1 << 40, 1 << 62):
        with pytest.raises(GraphError):
            opened(indices=[[0, 0], [2, 1]], values=[1, 63], shape=[rows, 2])
    opened = _opened_call(tf, ragged, {"splits": 1, "values": 1}, in_function=in_function)
    assert opened(splits=[0, 1, 2], values=[1, 2]) == [[0, 1, 0], [0, 0, 1]]
    for last in (1 << 40, 1 << 62):
        with pytest.raises(GraphError):
            opened(splits=[0, 1, 2], values=[1, last])


def test_values_may_be_fed_behind_their_placeholder(tf: Any) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        values = tf.identity(v1.placeholder(tf.int64, [None], "not_fed"), "v")
        dense = tf.raw_ops.RaggedTensorToTensor(
            shape=tf.constant([-1, -1], tf.int64),
            values=values,
            default_value=tf.constant(-1, tf.int64),
            row_partition_tensors=[v1.placeholder(tf.int64, [None], "p0")],
            row_partition_types=["ROW_SPLITS"],
        )
        tf.identity(dense, "y")
        opened = _opened(graph.as_graph_def())
    assert opened(v=[5, 6, 7], p0=[0, 2, 3]) == [[5, 6], [7, -1]]
