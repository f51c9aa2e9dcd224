"""Fills requests to signatures that run a model's own graph: inputs of which the manifest says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from model_export.answers.edges import Constants, edge_ids, edge_keys
from service.artifact.manifest import SignatureEntry
from service.types import Array, SignatureSpec, TensorSpec

_OPEN_SIZE = 3
# Largest number of requests for one input.
_MOST_EDGES = 40
_SEED = 23


def filled(spec: SignatureSpec, request: Mapping[str, Array], rows: int) -> dict[str, Array]:
    """Returns a request of `rows` rows with values for all inputs: defaults, random numbers, zeros, empty strings."""
    rng = np.random.default_rng(_SEED)
    found = {
        name: array if spec.inputs[name].dtype == "string" else array.astype(spec.inputs[name].dtype)
        for name, array in request.items()
    }
    for names in spec.ragged_names:
        if names.values not in found:
            found[names.values] = _values(rng, spec.inputs[names.values], rows)
            found[names.row_splits] = np.arange(rows + 1).astype(spec.inputs[names.row_splits].dtype)
    for name, tensor in spec.inputs.items():
        if name not in found:
            found[name] = _values(rng, tensor, rows) if tensor.default is None else tensor.default
    return found


def undescribed_edges(
    spec: SignatureSpec, entry: SignatureEntry, sizes: Sequence[int], constants: Constants, rows: int
) -> Iterator[dict[str, Array]]:
    """Yields a request for each edge of each integer or string input that no feature of the manifest describes.

    Args:
      sizes: numbers of rows of the tables, one of which the integers may name.
    """
    ours = {part for f in entry.features.values() for part in (f.ids, f.row_splits, f.weights)}
    ours |= {names.row_splits for names in spec.ragged_names}
    yield filled(spec, {}, rows)
    for name, tensor in spec.inputs.items():
        if name in ours or tensor.default is not None:
            continue
        for value in _edges(tensor, sizes, constants)[:_MOST_EDGES]:
            request = filled(spec, {}, rows)
            if request[name].size:
                request[name].reshape(-1)[-1] = value
                yield request


def _edges(tensor: TensorSpec, sizes: Sequence[int], constants: Constants) -> list[object]:
    if tensor.dtype == "string":
        return [*edge_keys([], constants)]
    if tensor.numpy_dtype is None or tensor.numpy_dtype.kind not in "iu":
        return []
    near = {int(n) for size in sizes for n in edge_ids(size, tensor.numpy_dtype, Constants())}
    return [*sorted(near), *edge_ids(1, tensor.numpy_dtype, constants).tolist()]


def _values(rng: np.random.Generator, tensor: TensorSpec, rows: int) -> Array:
    shape = () if tensor.shape == () else (rows, *((size or _OPEN_SIZE) for size in (tensor.shape or (None,))[1:]))
    if tensor.numpy_dtype is None or tensor.numpy_dtype.kind == "O":
        return np.full(shape, b"", object)
    if tensor.numpy_dtype.kind == "f":
        return np.asarray(rng.uniform(0.1, 1.0, shape)).astype(tensor.numpy_dtype)
    return np.zeros(shape, tensor.numpy_dtype)
