"""Requests laid end to end along the rows, and cut apart again. Pure functions; Concurrency: any thread."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from service.errors import InputMismatch
from service.types import Array, RaggedNames, SignatureSpec, Tensors


def num_rows(spec: SignatureSpec, inputs: Tensors) -> int:
    """Returns B of a request that has passed engine.validation.

    Raises:
      InputMismatch: in TensorFlow Serving's words, where not every input has B rows.

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
    """Returns what two requests must have in common to share a batch: names, dtypes, inner shapes.

    Args:
      pads: inner sizes may differ, the number of dimensions may not. An empty input has no value to be padded with,
        so it keeps to its like.
    """
    kinds: list[tuple[str, str, object]] = []
    for name in sorted(inputs):
        array = inputs[name]
        inner: object = array.ndim if pads and array.size else array.shape[1:]
        kinds.append((name, array.dtype.str, inner))
    # Weights that are left empty mean 1 for every id, which ids beside them that have weights would not.
    unweighted = tuple(names.weights for names in _sent(spec, inputs) if _is_unweighted(names, inputs))
    return tuple(kinds), unweighted


def rows_of(spec: SignatureSpec, inputs: Tensors, begin: int, end: int) -> dict[str, Array]:
    """Returns rows begin to end of a request."""
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
    """Returns a request of one row as one of `times` rows like it."""
    copies = {name: np.repeat(array, times, axis=0) for name, array in row.items() if name in spec.row_inputs}
    for names in _sent(spec, row):
        splits = row[names.row_splits]
        copies[names.values] = np.tile(row[names.values], times)
        copies[names.row_splits] = (np.arange(times + 1) * splits[1]).astype(splits.dtype)
        if names.weights in row:
            copies[names.weights] = np.tile(row[names.weights], times)
    return copies


def concatenated(spec: SignatureSpec, requests: Sequence[Tensors], *, pads: bool) -> dict[str, Array]:
    """Returns requests of one group as one request; row splits go on where those of the request before end.

    Args:
      pads: inner sizes are filled up to the largest with the first value of each request's own array, as in
        TensorFlow Serving.
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
    """Returns row splits of requests laid end to end.

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
