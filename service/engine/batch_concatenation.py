"""Concatenates the rows of several requests into one batch, and cuts requests into parts.

Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from service.errors import InputMismatch
from service.types import Array, RaggedNames, SignatureSpec, Tensors


def num_rows(spec: SignatureSpec, inputs: Tensors) -> int:
    """Returns B, the number of rows of a request that has passed engine.validation.

    Raises:
      InputMismatch: the inputs differ in their number of rows; the text is TensorFlow Serving's.

    Source: tensorflow_serving/batching/batching_util.h, ComputeTensorBatchSize (9d981c5).
    """
    if not inputs:
        raise InputMismatch("Batching Run() must have at least one input tensor")
    counts = [inputs[names.row_splits].size - 1 for names in _sent(spec, inputs)]
    for name in sorted(inputs.keys() & spec.row_inputs):
        if inputs[name].ndim == 0:
            raise InputMismatch("Batching Run() input tensors must have at least one dimension")
        counts.append(inputs[name].shape[0])
    if min(counts) != max(counts):
        raise InputMismatch("Batching Run() input tensors must have equal 0th-dimension size")
    return counts[0]


def group(spec: SignatureSpec, inputs: Tensors, *, pads: bool) -> Hashable:
    """Returns the key of a request's group: requests with equal input names, dtypes and inner shapes can share a batch.

    Args:
      pads: inputs with different inner sizes may share a batch, not those with different ranks. An empty input has no
        value to pad with, so it shares a batch only with inputs of the same inner shape.
    """
    kinds: list[tuple[str, str, object]] = []
    for name in sorted(inputs):
        array = inputs[name]
        inner: object = array.ndim if pads and array.size else array.shape[1:]
        kinds.append((name, array.dtype.str, inner))
    # Requests with an empty weights input (weight 1 for every id) form a group of their own: in a batch with weighted
    # requests, their ids would have no weights.
    unweighted = tuple(names.weights for names in _sent(spec, inputs) if _is_unweighted(names, inputs))
    return tuple(kinds), unweighted


def rows_of(spec: SignatureSpec, inputs: Tensors, begin: int, end: int) -> dict[str, Array]:
    """Returns a request's inputs cut to the rows from begin to end."""
    cut = {name: array[begin:end] for name, array in inputs.items() if name in spec.row_inputs}
    for names in _sent(spec, inputs):
        splits = inputs[names.row_splits]
        first, last = splits[begin], splits[end]
        cut[names.values] = inputs[names.values][first:last]
        cut[names.row_splits] = splits[begin : end + 1] - first
        if names.weights in inputs:
            weights = inputs[names.weights]
            cut[names.weights] = weights if _is_unweighted(names, inputs) else weights[first:last]
    return cut


def repeated(spec: SignatureSpec, row: Tensors, times: int) -> dict[str, Array]:
    """Returns the inputs of a one-row request with its row repeated `times` times."""
    copies = {name: np.repeat(array, times, axis=0) for name, array in row.items() if name in spec.row_inputs}
    for names in _sent(spec, row):
        splits = row[names.row_splits]
        copies[names.values] = np.tile(row[names.values], times)
        copies[names.row_splits] = (np.arange(times + 1) * splits[1]).astype(splits.dtype)
        if names.weights in row:
            copies[names.weights] = np.tile(row[names.weights], times)
    return copies


def concatenated(spec: SignatureSpec, requests: Sequence[Tensors], *, pads: bool) -> dict[str, Array]:
    """Concatenates the inputs of requests of one group; row splits of a request are shifted by the ids before it.

    Args:
      pads: inner sizes are padded to the largest with the first value of each request's own array, as in TensorFlow
        Serving.
    """
    spliced = {names.row_splits for names in _sent(spec, requests[0])}
    return {
        name: _spliced([request[name] for request in requests])
        if name in spliced
        else _stacked([request[name] for request in requests], pads and name in spec.row_inputs)
        for name in requests[0]
    }


def _sent(spec: SignatureSpec, inputs: Tensors) -> list[RaggedNames]:
    return [names for names in spec.ragged_names if names.values in inputs]


def _is_unweighted(names: RaggedNames, inputs: Tensors) -> bool:
    return names.weights in inputs and inputs[names.weights].size < inputs[names.values].size


def _spliced(parts: Sequence[Array]) -> Array:
    """Concatenates the row splits of several requests, each shifted by the number of ids before it.

    >>> _spliced([np.array([0, 2, 2]), np.array([0, 1])]).tolist()
    [0, 2, 2, 3]
    """
    offsets = np.cumsum([0] + [part[-1] for part in parts[:-1]], dtype=parts[0].dtype)
    moved = [part[1:] + offset for part, offset in zip(parts, offsets, strict=True)]
    return np.concatenate([parts[0][:1], *moved])


def _stacked(parts: Sequence[Array], pads: bool) -> Array:
    if pads and len({part.shape[1:] for part in parts}) > 1:
        sizes = np.max([part.shape[1:] for part in parts], axis=0)
        parts = [_filled_up(part, (part.shape[0], *sizes)) for part in parts]
    return np.concatenate(parts)


def _filled_up(array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape == shape:
        return array
    filled = np.empty(shape, array.dtype)
    filled[...] = array.flat[0]
    filled[tuple(slice(size) for size in array.shape)] = array
    return filled
