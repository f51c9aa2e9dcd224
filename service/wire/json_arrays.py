"""Converts nested JSON lists to arrays, strictly by the input's dtype, without a Python loop over the elements.

Source: tensorflow_serving/util/json_tensor.cc (9d981c5), FillTensorProto and AddValueToTensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, chain
from typing import Any

import numpy as np

from service.errors import InputMismatch, MalformedPayload
from service.types import Array, RaggedNames, SignatureSpec, TensorSpec
from service.wire.json_document import describe
from service.wire.json_refusals import from_base64

_INT = frozenset({int})
_FLOAT = frozenset({int, float})
_BOOL = frozenset({bool})
_STRING = frozenset({str, dict})
_ALLOWED: dict[str, frozenset[type]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), _INT),
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), _FLOAT),
    "bool": _BOOL,
    "string": _STRING,
}
_MAX_RANK = 64


def ragged_owner(name: str, spec: SignatureSpec) -> str | None:
    """Returns the name of the ragged feature of which an input is the values, the row splits or the weights; None if
    there is none.
    """
    return next((names.feature for names in spec.ragged_names if name in names[1:]), None)


def feature_names(spec: SignatureSpec) -> list[str]:
    """Returns the names that a JSON request may have: ragged features, and inputs that belong to none; sorted."""
    return sorted(spec.ragged.keys() | spec.row_inputs)


def dense_array(name: str, value: Any, tensor: TensorSpec) -> Array:
    """Converts nested JSON lists to an array, and a single JSON value to an array of rank 0.

    Strings are accepted for an id input with a vocabulary of strings; they stay strings here.

    Raises:
      MalformedPayload: lists of one level differ in length, or a value is not of the tensor's dtype.
      InputMismatch: the dtype has no JSON form.
    """
    if type(value) is not list:
        return _leaves(name, [value], {type(value)}, tensor).reshape(())
    shape: list[int] = []
    level: list[Any] = [value]
    while True:
        sizes = set(map(len, level))
        if len(sizes) > 1:
            _refuse_sizes(name, level)
        shape.append(len(level[0]) if level else 0)
        flat = level[0] if len(level) == 1 else list(chain.from_iterable(level))
        types = set(map(type, flat))
        if list not in types:
            break
        if len(types) > 1 or len(shape) == _MAX_RANK:
            _refuse_levels(name, flat, len(shape))
        level = flat
    array = _leaves(name, flat, types, tensor)
    return array if len(shape) == 1 else array.reshape(shape)


def add_ragged(
    arrays: dict[str, Array], names: RaggedNames, rows: Any, spec: SignatureSpec, weights: Any = None
) -> None:
    """Adds to `arrays` the arrays of a ragged feature: values and row splits from one JSON list per row, and weights if
    sent.

    Raises:
      MalformedPayload: not a list of lists, a value of the wrong type, weights with other row lengths, or inputs that
        were sent before.
    """
    feature = names.feature
    if names.values in arrays:
        raise MalformedPayload(f'feature "{feature}": its inputs were sent by another name too.')
    values, lengths = _flat_rows(f'feature "{feature}"', rows, "ids")
    splits = np.array([0, *accumulate(lengths)], spec.inputs[names.row_splits].dtype)
    arrays[names.values] = _leaves(feature, values, set(map(type, values)), spec.inputs[names.values])
    arrays[names.row_splits] = splits
    if weights is not None:
        weights_name = names.weights
        if weights_name not in spec.inputs:
            raise InputMismatch(f'feature "{feature}" takes no weights in signature "{spec.name}".')
        factors, weight_lengths = _flat_rows(f'weights of feature "{feature}"', weights, "weights")
        if weight_lengths != lengths:
            _refuse_weights(feature, lengths, weight_lengths)
        arrays[weights_name] = _leaves(weights_name, factors, set(map(type, factors)), spec.inputs[weights_name])


def _flat_rows(what: str, rows: Any, of_what: str) -> tuple[list[Any], list[int]]:
    if type(rows) is not list or not set(map(type, rows)) <= {list}:
        wrong = rows if type(rows) is not list else next(row for row in rows if type(row) is not list)
        raise MalformedPayload(f"{what}: expected one list of {of_what} per row, got JSON Value: {describe(wrong)}")
    return list(chain.from_iterable(rows)), list(map(len, rows))


def _leaves(name: str, flat: list[Any], types: set[type], tensor: TensorSpec) -> Array:
    dtype = tensor.dtype
    if types and types <= _STRING and tensor.takes_strings:
        return _strings(name, flat, types)
    allowed = _ALLOWED.get(dtype)
    if allowed is None:
        raise InputMismatch(f'input "{name}": dtype {dtype} has no JSON form.')
    if not types <= allowed:
        _refuse_leaf(name, flat, types, tensor, allowed)
    if dtype == "string":
        return np.empty(0, object)
    if allowed is _FLOAT:
        return _floats(flat, dtype)
    try:
        return np.array(flat, dtype)
    except OverflowError as error:
        limits = np.iinfo(dtype)
        wrong = next(number for number in flat if not limits.min <= number <= limits.max)
        raise MalformedPayload(f'input "{name}": {wrong} does not fit {dtype}.') from error


def _floats(flat: list[Any], dtype: str) -> Array:
    try:
        exact = np.array(flat, np.float64)
    except OverflowError:
        # np.array() refuses integers beyond the largest float. Converted one by one, they become infinite, as too large
        # floats do.
        exact = np.array([_as_float(number) for number in flat])
    if dtype == "float64":
        return exact
    with np.errstate(over="ignore"):
        return exact.astype(dtype)


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _strings(name: str, flat: list[Any], types: set[type]) -> Array:
    try:
        if types == {str}:
            encoded: Iterable[bytes] = map(str.encode, flat)
        else:
            encoded = (item.encode() if type(item) is str else from_base64(item) for item in flat)
        result = np.empty(len(flat), object)
        result[:] = list(encoded)
        return result
    except UnicodeEncodeError as error:
        raise MalformedPayload(
            f'input "{name}": a string holds a lone surrogate, which UTF-8 can not write.'
        ) from error


def _refuse_leaf(name: str, flat: list[Any], types: set[type], tensor: TensorSpec, allowed: frozenset[type]) -> None:
    if tensor.takes_strings and tensor.dtype != "string" and str in types and int in types:
        raise MalformedPayload(f'input "{name}": strings and ids are mixed; send one or the other.')
    wrong = next(item for item in flat if type(item) not in allowed)
    hint = ""
    if type(wrong) is str and tensor.vocabulary_size is not None:
        hint = " (its vocabulary has integers)" if tensor.takes_keys else " (it has no vocabulary, send ids)"
    elif type(wrong) is int and tensor.takes_keys:
        hint = " (send the strings of its vocabulary)"
    raise MalformedPayload(
        f'input "{name}": JSON Value: {describe(wrong)} is not of expected type: {tensor.dtype}{hint}'
    )


def _refuse_sizes(name: str, level: list[Any]) -> None:
    size = len(level[0])
    position, other = next((i, len(item)) for i, item in enumerate(level) if len(item) != size)
    raise MalformedPayload(
        f'input "{name}": Expecting tensor size: {size} but got: {other} (list {position} of its level)'
    )


def _refuse_levels(name: str, flat: list[Any], rank: int) -> None:
    if rank == _MAX_RANK:
        raise MalformedPayload(f'input "{name}": lists are nested over {_MAX_RANK} deep.')
    wrong = next(item for item in flat if (type(item) is list) != (type(flat[0]) is list))
    raise MalformedPayload(
        f'input "{name}": Encountered list at unexpected level: JSON Value: {describe(wrong)} beside '
        f"{describe(flat[0])}"
    )


def _refuse_weights(feature: str, lengths: list[int], weight_lengths: list[int]) -> None:
    if len(lengths) != len(weight_lengths):
        raise MalformedPayload(
            f'feature "{feature}": {len(lengths)} rows of ids but {len(weight_lengths)} rows of weights.'
        )
    row = next(i for i, (ids, factors) in enumerate(zip(lengths, weight_lengths, strict=True)) if ids != factors)
    raise MalformedPayload(f'feature "{feature}": row {row} has {lengths[row]} ids but {weight_lengths[row]} weights.')
