"""Converts ragged ids to sparse inputs of a signature, because requests (TensorProto) can not hold sparse tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.types import ROW_SPLITS_SUFFIX, VALUES_SUFFIX, Array, SignatureSpec


class SparseNames(NamedTuple):
    """The names of the graph's three tensors that make up one sparse input."""

    values: str
    indices: str
    dense_shape: str


def read_sparse_names(meta_graph: Any) -> dict[str, dict[str, SparseNames]]:
    """Returns signature -> name of a sparse input -> the graph's three tensors of this input.

    Source: tensorflow/core/protobuf/meta_graph.proto, TensorInfo.CooSparse (2.21).
    """
    return {
        name: {
            key: SparseNames(
                info.coo_sparse.values_tensor_name,
                info.coo_sparse.indices_tensor_name,
                info.coo_sparse.dense_shape_tensor_name,
            )
            for key, info in signature.inputs.items()
            if info.WhichOneof("encoding") == "coo_sparse"
        }
        for name, signature in meta_graph.signature_def.items()
    }


def to_coo(values: Array, row_splits: Array) -> tuple[Array, Array, Array]:
    """Converts ragged ids to the values, indices and dense shape of a sparse [B, K] matrix with the same ids per row.

    Args:
      values: [N] of any dtype.
      row_splits: [B+1] int64.

    Returns:
      values: [N], unchanged.
      indices: [N, 2] int64, row and place in the row.
      dense_shape: [2] int64, B and the ids of the longest row.

    >>> to_coo(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))[1].tolist()
    [[0, 0], [0, 1], [2, 0]]
    """
    lengths = np.diff(row_splits)
    rows = np.repeat(np.arange(lengths.size), lengths)
    places = np.arange(values.size) - np.repeat(row_splits[:-1], lengths)
    shape = np.array([lengths.size, lengths.max(initial=0)], np.int64)
    return values, np.stack([rows, places], axis=1).astype(np.int64, copy=False), shape


def fed_inputs(
    spec: SignatureSpec, sparse: Mapping[str, SparseNames], wanted: frozenset[str] | None = None
) -> list[dict[str, Any]]:
    """Returns the tensors of a graph that the native core feeds with inputs of a request, as
    native/src/towers/description.rs reads them.

    Args:
      sparse: the signature's sparse inputs.
      wanted: only these tensors; None: all.
    """
    numbers = {name: number for number, name in enumerate(spec.inputs)}
    splits = {key + ROW_SPLITS_SUFFIX for key in sparse}
    fed = [(tensor.tensor_name, name, "tensor") for name, tensor in spec.inputs.items() if name not in splits]
    for key, names in sparse.items():
        fed += [(names.indices, key + ROW_SPLITS_SUFFIX, "indices")]
        fed += [(names.dense_shape, key + ROW_SPLITS_SUFFIX, "dense_shape")]
    return [
        {"tensor": tensor, "input": numbers[name], "form": form}
        for tensor, name, form in fed
        if (wanted is None or tensor in wanted) and name in numbers
    ]


def feed_with_sparse(
    fed: Sequence[str], sparse: Mapping[str, SparseNames], tensor_names: Mapping[str, str]
) -> tuple[list[str], Callable[[Sequence[Array]], list[Array]]]:
    """Returns the names of a graph's tensors to feed, and a function that makes their values from a request's arrays.

    Args:
      fed: input names of the request, in the order of its arrays.
    """
    place = {name: i for i, name in enumerate(fed)}
    parts = {part: key for key in sparse for part in (key + VALUES_SUFFIX, key + ROW_SPLITS_SUFFIX)}
    dense = [name for name in fed if name not in parts]
    keys = sorted({parts[name] for name in fed if name in parts})

    def convert(arrays: Sequence[Array]) -> list[Array]:
        converted = [arrays[place[name]] for name in dense]
        for key in keys:
            converted += to_coo(arrays[place[key + VALUES_SUFFIX]], arrays[place[key + ROW_SPLITS_SUFFIX]])
        return converted

    return [tensor_names[name] for name in dense] + [tensor for key in keys for tensor in sparse[key]], convert
