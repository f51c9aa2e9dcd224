"""Assigns a signature's inputs to the ids, row splits and weights of a lookup, and builds requests for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from model_export.answers.opened_graph import SignatureGraph
from service.types import Array, SignatureSpec, TensorSpec

# The inputs of a lookup at most: ids, row splits and weights.
MOST_INPUTS = 3
_IDS = ("int64", "int32", "string")
_SPLITS = ("int64", "int32")
# Size of an inner dimension of ids that the input's shape leaves open.
_OPEN = 2


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the inputs of one lookup. Without row_splits, a row's ids are looked up but not combined."""

    ids: str
    row_splits: str | None = None
    weights: str | None = None

    def request(
        self,
        spec: SignatureSpec,
        rows: Sequence[Sequence[Any]],
        weights: Array | None = None,
        inner: Sequence[int] | None = None,
    ) -> dict[str, Array]:
        """Builds a request with the given rows of ids or keys; other inputs get as many rows, of zeros or without ids.

        Args:
          rows: one list of ids per row; without row_splits each list has as many ids as the inner sizes demand.
          weights: one per id; None means 1 for each id.
          inner: the sizes of a row of ids without row_splits; None: inner_sizes().
        """
        flat = [item for row in rows for item in row]
        request = {name: _filler(tensor, len(rows)) for name, tensor in spec.inputs.items()}
        for names in spec.ragged_names:
            request[names.values] = _array(spec.inputs[names.values], [])
            request[names.row_splits] = np.zeros(len(rows) + 1, request[names.row_splits].dtype)
            if names.weights in request:
                request[names.weights] = np.zeros(0, np.float32)
        ids = _array(spec.inputs[self.ids], flat)
        if self.row_splits is None:
            sizes = inner_sizes(spec.inputs[self.ids]) if inner is None else inner
            request[self.ids] = ids.reshape(len(rows), *sizes)
            return request
        request[self.ids] = ids
        splits = np.cumsum([0, *(len(row) for row in rows)])
        request[self.row_splits] = splits.astype(spec.inputs[self.row_splits].numpy_dtype or np.int64)
        if self.weights is not None:
            request[self.weights] = np.ones(len(flat), np.float32) if weights is None else weights
        return request


def inner_sizes(tensor: TensorSpec) -> list[int]:
    """Returns the sizes of each row of ids of an input; a size that the input's shape leaves open is 2."""
    return [size or _OPEN for size in (tensor.shape or (None,))[1:]]


def possible_roles(graph: SignatureGraph, tensor: str, ids_tensors: Sequence[str]) -> Iterator[Roles]:
    """Yields the possible assignments of a tensor's inputs to ids, row splits and weights, the likely ones first.

    Args:
      ids_tensors: the ids tensors of the table's gathers; all of them depend on the input that holds ids.
    """
    spec, names = graph.spec, graph.sources(tensor)
    if len(names) > MOST_INPUTS:
        return
    of_ids = set().union(*(graph.sources(ids) for ids in ids_tensors))
    inputs = {name: spec.inputs[name] for name in names}
    if len(names) == 1:
        (name,) = names
        if inputs[name].dtype in _IDS and inputs[name].shape:
            yield Roles(name)
        return
    if any(tensor.shape is None or len(tensor.shape) != 1 for tensor in inputs.values()):
        return
    floats = [name for name, tensor in inputs.items() if tensor.dtype == "float32"]
    others = sorted(names - set(floats), key=lambda name: "split" in name or "offset" in name)
    if len(floats) > 1 or len(others) != 2:
        return
    for ids, splits in permutations(others):
        if inputs[ids].dtype in _IDS and inputs[splits].dtype in _SPLITS and ids in of_ids:
            yield Roles(ids, splits, floats[0] if floats else None)


def no_roles(graph: SignatureGraph, tensor: str) -> str:
    """Says why the inputs of a tensor are not the ids, row splits and weights of one lookup."""
    names = sorted(graph.sources(tensor))
    inputs = {name: graph.spec.inputs[name] for name in names[:MOST_INPUTS]}
    if not inputs:
        return "its ids depend on no input"
    if len(inputs) == 1:
        ((name, one),) = inputs.items()
        if one.shape is None:
            return f"input {name!r} may have any number of dimensions, and lookups take ids of a known number"
        return f"input {name!r} is {one.dtype}, and lookups take {', '.join(_IDS)} ids of one dimension or more"
    told = ", ".join(f"{name!r} ({one.dtype})" for name, one in inputs.items())
    told += f" and {len(names) - MOST_INPUTS} others" if len(names) > MOST_INPUTS else ""
    return f"inputs {told} are not the ids, row splits and weights of one lookup"


def feature_name(roles: Roles) -> str:
    """Returns a feature's name: the name of its ids input, or the common prefix of its ids and row_splits inputs.

    >>> feature_name(Roles("tag_values", "tag_splits")), feature_name(Roles("genres__values", "genres__row_splits"))
    ('tag', 'genres')
    >>> feature_name(Roles("user_id"))
    'user_id'
    """
    if roles.row_splits is None:
        return roles.ids
    common = 0
    while common < min(len(roles.ids), len(roles.row_splits)) and roles.ids[common] == roles.row_splits[common]:
        common += 1
    return roles.ids[:common].rstrip("_./-") or roles.ids


def _filler(tensor: TensorSpec, rows: int) -> Array:
    shape = tensor.shape if tensor.shape is not None else (None,)
    # An input of a fixed size, such as the dense shape of a sparse matrix, does not have a row for each row of ids.
    sizes = [shape[0] or rows, *(size or 1 for size in shape[1:])] if shape else []
    dtype = tensor.numpy_dtype or np.dtype(object)
    return np.full(sizes, b"", object) if dtype.kind == "O" else np.zeros(sizes, dtype)


def _array(tensor: TensorSpec, items: Sequence[Any]) -> Array:
    array = np.empty(len(items), tensor.numpy_dtype or object)
    array[:] = items
    return array
