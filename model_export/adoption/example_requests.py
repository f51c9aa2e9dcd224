"""Makes serialized tf.Examples and SequenceExamples for inputs that a graph parses, as its parsing ops say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from model_export.tensorflow_setup import tf
from service.graph.flat_graph import FlatGraph, canonical
from service.types import Array, SignatureSpec

# Largest number of values of a field whose length the graph leaves open, and number of steps of a sequence.
_MOST_VALUES = 4
# Ids and the texts of words are drawn below this number, which is small so that tables have the rows.
_MOST_ID = 3

Field = tuple[str, Any, int | None]


def example_fillers(flat: FlatGraph, spec: SignatureSpec) -> dict[str, Callable[[int, np.random.Generator], Array]]:
    """Returns a function for each input that the graph parses as tf.Examples: (B, random) -> [B] strings."""
    found = {}
    inputs = {canonical(tensor.tensor_name): name for name, tensor in spec.inputs.items() if tensor.tensor_name}
    for node in flat.nodes.values():
        if node.op not in _READERS:
            continue
        given = flat.data_inputs(node.name)
        source = given[0]
        while source not in inputs and flat.nodes[source.partition(":")[0]].op in ("Identity", "Reshape", "ExpandDims"):
            source = flat.data_inputs(source.partition(":")[0])[0]
        if source in inputs:
            found[inputs[source]] = _READERS[node.op](flat, node, given)
    return found


def _examples(flat: FlatGraph, node: Any, inputs: list[str]) -> Callable[[int, np.random.Generator], Array]:
    """Reads ParseExampleV2. Its inputs: serialized, names, sparse_keys, dense_keys, ragged_keys, dense_defaults."""
    sparse, dense, ragged = (_keys(flat, tensor) for tensor in inputs[2:5])
    fields = _fields(node, sparse, dense, ragged)
    return lambda rows, random: _texts(_example(fields, random) for _ in range(rows))


def _old_examples(flat: FlatGraph, node: Any, inputs: list[str]) -> Callable[[int, np.random.Generator], Array]:
    """Reads ParseExample. Its inputs: serialized, names, each sparse key, each dense key, dense_defaults."""
    count = node.attr["Nsparse"].i
    keys = [key for tensor in inputs[2 : 2 + count + node.attr["Ndense"].i] for key in _keys(flat, tensor)]
    fields = _fields(node, keys[:count], keys[count:], [])
    return lambda rows, random: _texts(_example(fields, random) for _ in range(rows))


def _sequences(flat: FlatGraph, node: Any, inputs: list[str]) -> Callable[[int, np.random.Generator], Array]:
    """Reads ParseSequenceExampleV2. Its keys follow serialized and debug_name: of context, then of feature lists."""
    keys = [_keys(flat, tensor) for tensor in inputs[2:8]]
    context_sparse, context_dense, context_ragged, list_sparse, list_dense, list_ragged = keys
    attr = node.attr
    context = [
        *_open(context_sparse, attr["context_sparse_types"]),
        *_closed(context_dense, attr["Tcontext_dense"], attr["context_dense_shapes"]),
        *_open(context_ragged, attr["context_ragged_value_types"]),
    ]
    lists = [
        *_open(list_sparse, attr["feature_list_sparse_types"]),
        *_closed(list_dense, attr["feature_list_dense_types"], attr["feature_list_dense_shapes"]),
        *_open(list_ragged, attr["feature_list_ragged_value_types"]),
    ]

    def one(random: np.random.Generator) -> Any:
        example = tf.train.SequenceExample()
        for field in context:
            example.context.feature[field[0]].CopyFrom(_feature(field, random))
        steps = int(random.integers(1, _MOST_VALUES + 1))
        for field in lists:
            for _ in range(steps):
                example.feature_lists.feature_list[field[0]].feature.add().CopyFrom(_feature(field, random))
        return example

    return lambda rows, random: _texts(one(random) for _ in range(rows))


_READERS = {
    "ParseExampleV2": _examples,
    "ParseExample": _old_examples,
    "ParseSequenceExampleV2": _sequences,
}


def _keys(flat: FlatGraph, tensor: str) -> list[str]:
    node = flat.nodes[tensor.partition(":")[0]]
    if node.op != "Const":
        return []
    return [key.decode() for key in tf.make_ndarray(node.attr["value"].tensor).reshape(-1).tolist()]


def _fields(node: Any, sparse: Sequence[str], dense: Sequence[str], ragged: Sequence[str]) -> list[Field]:
    return [
        *_open(sparse, node.attr["sparse_types"]),
        *_closed(dense, node.attr["Tdense"], node.attr["dense_shapes"]),
        *_open(ragged, node.attr["ragged_value_types"]),
    ]


def _open(keys: Sequence[str], types: Any) -> list[Field]:
    return [(key, tf.as_dtype(dtype), None) for key, dtype in zip(keys, types.list.type, strict=True)]


def _closed(keys: Sequence[str], types: Any, shapes: Any) -> list[Field]:
    sizes = [int(np.prod([max(1, d.size) for d in shape.dim])) for shape in shapes.list.shape]
    return [(key, tf.as_dtype(dtype), size) for key, dtype, size in zip(keys, types.list.type, sizes, strict=True)]


def _example(fields: Sequence[Field], random: np.random.Generator) -> Any:
    example = tf.train.Example()
    for field in fields:
        example.features.feature[field[0]].CopyFrom(_feature(field, random))
    return example


def _feature(field: Field, random: np.random.Generator) -> Any:
    _, dtype, size = field
    count = int(random.integers(0, _MOST_VALUES + 1)) if size is None else size
    feature = tf.train.Feature()
    if dtype == tf.float32:
        feature.float_list.value.extend(random.uniform(0, 1, count).tolist())
    elif dtype == tf.string:
        feature.bytes_list.value.extend(b"%d" % number for number in random.integers(0, _MOST_ID, count))
    else:
        feature.int64_list.value.extend(random.integers(0, _MOST_ID, count).tolist())
    return feature


def _texts(examples: Iterator[Any]) -> Array:
    texts = [example.SerializeToString() for example in examples]
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
