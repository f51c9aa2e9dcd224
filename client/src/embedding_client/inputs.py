"""Converts the ids and tensors that a caller passes to numpy arrays.

In a lookup, a nested value is a ragged feature, and a flat value is a feature of one id per row, whatever the lengths:

    [1, 2], np.array([1, 2]), ["a", "b"]            one id per row
    [[1, 5], []], np.array([[1, 5]]), RaggedIds     ragged

Ids are integers or strings (str or bytes), never both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from embedding_client.errors import invalid
from embedding_client.leaves import int64_array, leaf_array, to_array
from embedding_client.types import ROW_SPLITS_SUFFIX, VALUES_SUFFIX, WEIGHTS_SUFFIX, Array, RaggedIds

_Item = TypeVar("_Item", covariant=True)


class ListOf(Protocol[_Item]):
    """A list, a tuple or another sequence, but no str and no bytes: "abc" is one id, and no sequence of three.

    Type checkers tell them apart by __contains__, which str and bytes do not define for every object.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[_Item]: ...

    def __contains__(self, value: object, /) -> bool: ...

    def __reversed__(self) -> Iterator[_Item]: ...


Id: TypeAlias = int | str | bytes
FeatureIds: TypeAlias = Array | RaggedIds | ListOf[Id] | ListOf[ListOf[Id]] | ListOf[Array]
FeatureWeights: TypeAlias = Array | Sequence[float] | Sequence[Sequence[float]] | Sequence[Array]
TensorInput: TypeAlias = Array | RaggedIds | Sequence[Any] | Id | float | bool

# The ids of one feature: an array [B] with one id per row, or RaggedIds with any number of ids per row.
Ids: TypeAlias = Array | RaggedIds

_NESTS = (list, tuple, np.ndarray)
# numpy's characters of the dtypes of ids in requests: object, and integers of 32 and 64 bits, which the server converts
# to each other.
_SENT_CHARS = "liqO"
_INT, _LIST = {int}, {list}


def lookup_ids(features: Mapping[str, FeatureIds], weights: Mapping[str, FeatureWeights] | None) -> dict[str, Ids]:
    """Converts the ids of a client's lookup() to arrays or RaggedIds, by feature; RaggedIds also hold the weights.

    Raises:
      InvalidRequest: `features` is empty, a value is neither a list nor an array of ids, or weights do not fit the ids.
    """
    _check_names("features", features)
    if not features:
        raise invalid("a lookup needs at least one feature.")
    if not weights:
        return {name: feature_ids(name, value) for name, value in features.items()}
    _check_names("weights", weights)
    for name in weights:
        if name not in features:
            raise invalid(f'feature "{name}": weights were sent without ids.')
    return {name: feature_ids(name, value, weights.get(name)) for name, value in features.items()}


def _check_names(what: str, given: object) -> None:
    # The first check is for speed: the second takes longer than to convert a feature's ids.
    if type(given) is not dict and not isinstance(given, Mapping):
        raise invalid(f'{what}: expected a dict such as {{"user_id": [1, 2]}}, got {type(given).__name__}.')
    for name in given:
        if not isinstance(name, str):
            raise invalid(f'{what}: expected names as strings, such as "user_id", got {name!r}.')


def feature_ids(name: str, value: FeatureIds, weights: FeatureWeights | None = None) -> Ids:
    """Converts a caller's ids of one feature: to an array [B] if each row has one id, to RaggedIds if it has a list.

    >>> feature_ids("genres", [[1, 5], []]).row_splits.tolist()
    [0, 2, 2]

    Raises:
      InvalidRequest: the value is neither a list nor an array of ids, or weights do not fit the ids.
    """
    ids = _ids(name, value)
    values = ids.values if isinstance(ids, RaggedIds) else ids
    if values.dtype.char not in _SENT_CHARS:
        if values.dtype.kind not in "iu":
            raise invalid(f'feature "{name}": expected integers or strings as ids, got {values.dtype}.')
        values = int64_array(f'feature "{name}"', values)
        ids = ids._replace(values=values) if isinstance(ids, RaggedIds) else values
    if weights is None:
        return ids
    if not isinstance(ids, RaggedIds):
        raise invalid(f'feature "{name}" has one id per row and takes no weights.')
    if ids.weights is not None:
        raise invalid(f'feature "{name}": weights were sent both in RaggedIds and beside it.')
    return ids._replace(weights=_weights(name, weights, ids))


def tensors(inputs: Mapping[str, TensorInput]) -> dict[str, Array]:
    """Converts the inputs of a client's predict() to arrays; returns them by name of the signature's input.

    RaggedIds and lists of integers or strings two deep are ragged. Every array, and every other list, is a dense
    tensor. Python's floats become float32 and its integers int64.

    Raises:
      InvalidRequest: a value makes no tensor.
    """
    _check_names("inputs", inputs)
    arrays: dict[str, Array] = {}
    for name, value in inputs.items():
        if isinstance(value, RaggedIds) or _is_nested_ids(value):
            ids = _ids(name, value)
            assert isinstance(ids, RaggedIds)
            arrays.update(ragged_parts(name, ids))
        else:
            arrays[name] = to_array(f'input "{name}"', value)
    return arrays


def ragged_parts(name: str, ids: RaggedIds) -> dict[str, Array]:
    """Returns a ragged feature's arrays by input: <name>__values, <name>__row_splits and, if any, <name>__weights."""
    parts = {name + VALUES_SUFFIX: ids.values, name + ROW_SPLITS_SUFFIX: ids.row_splits}
    if ids.weights is not None:
        parts[name + WEIGHTS_SUFFIX] = ids.weights
    return parts


def lookup_tensors(ids: Mapping[str, Ids]) -> dict[str, Array]:
    """Returns the arrays of a lookup by the signature's input."""
    arrays: dict[str, Array] = {}
    for name, value in ids.items():
        if isinstance(value, RaggedIds):
            arrays.update(ragged_parts(name, value))
        else:
            arrays[name] = value
    return arrays


def _ids(name: str, value: Any) -> Ids:
    if type(value) is list and set(map(type, value)) == _INT:
        # Most lookups have a row or two, and then the checks below are a large part of their cost.
        return int64_array(f'feature "{name}"', value)
    what = f'feature "{name}"'
    if isinstance(value, RaggedIds):
        return _checked(name, value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        array = to_array(what, value)
        if array.ndim == 1:
            return array
        if array.ndim == 2:
            num_rows, num_ids = array.shape
            return RaggedIds(array.reshape(-1), np.arange(num_rows + 1, dtype=np.int64) * num_ids)
        raise invalid(f"{what}: expected ids of rank 1 or 2, got rank {array.ndim}.")
    if not isinstance(value, _NESTS) or (isinstance(value, np.ndarray) and value.ndim == 0):
        raise invalid(f"{what}: expected a list or an array of ids, got {type(value).__name__}.")
    flat, splits = _flat(what, value)
    values = leaf_array(what, flat)
    return values if splits is None else RaggedIds(values, splits)


def _flat(what: str, rows: Sequence[Any] | Array) -> tuple[list[Any], Array | None]:
    """Returns all rows' values in one list, and the row splits; the row splits are None if the rows are not nested."""
    kinds = set(map(type, rows))
    if kinds != _LIST:
        is_nest = set(map(_is_nest, kinds))
        if True not in is_nest:
            return list(rows), None
        if len(is_nest) > 1:
            raise invalid(f"{what}: lists and bare values are mixed.")
    splits = np.array([0, *accumulate(map(len, rows))], np.int64)
    return list(chain.from_iterable(rows)), splits


def _is_nest(kind: type) -> bool:
    return issubclass(kind, _NESTS)


def _is_nested_ids(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    if not all(map(_is_nest, set(map(type, value)))):
        return False
    leaf_types = set(map(type, chain.from_iterable(value)))
    return all(issubclass(kind, (int, np.integer, str, bytes)) and kind is not bool for kind in leaf_types)


def _checked(name: str, ids: RaggedIds) -> RaggedIds:
    what = f'feature "{name}"'
    values, splits = to_array(what, ids.values), to_array(f"{what}: row_splits", ids.row_splits)
    if values.ndim != 1 or splits.ndim != 1 or splits.dtype.kind not in "iu":
        raise invalid(f"{what}: values and row_splits must be of rank 1, and row_splits integers.")
    splits = splits.astype(np.int64, copy=False)
    if not splits.size or splits[0] != 0 or splits[-1] != values.size or (splits[1:] < splits[:-1]).any():
        raise invalid(
            f"{what}: row_splits must start with 0, not decrease, and end with the number of values, {values.size}."
        )
    checked = RaggedIds(values, splits)
    return checked if ids.weights is None else checked._replace(weights=_weights(name, ids.weights, checked))


def _weights(name: str, weights: Any, ids: RaggedIds) -> Array:
    what = f'weights of feature "{name}"'
    splits: Array | None = None
    if isinstance(weights, np.ndarray) and weights.dtype != object:
        if weights.ndim == 2:
            splits = np.arange(len(weights) + 1) * weights.shape[1]
        array = to_array(what, weights).reshape(-1)
    elif isinstance(weights, (list, tuple)):
        flat, splits = _flat(what, weights)
        array = leaf_array(what, flat)
    else:
        raise invalid(f"{what}: expected a list or an array, got {type(weights).__name__}.")
    if array.dtype.kind not in "iuf":
        raise invalid(f"{what}: expected numbers.")
    if array.size != ids.values.size or (splits is not None and not np.array_equal(splits, ids.row_splits)):
        raise invalid(f"{what}: expected one weight per id, in rows as long as the ids'.")
    return array.astype(np.float32, copy=False)
