"""Parses JSON bodies by TensorFlow Serving's rules, converts their lists to arrays, and writes arrays as JSON.

NaN, Infinity and -Infinity are bare words in both directions. A key that comes twice in an object is refused.

Source: tensorflow_serving/util/json_tensor.cc (9d981c5).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import orjson

from service.artifact.tensor_proto import MAX_RANK
from service.errors import InputMismatch, MalformedPayload
from service.reference.inputs import graph_dtype
from service.types import Array, RaggedNames, SignatureSpec, TensorSpec

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ALLOWED: Mapping[str, set[type]] = {
    **dict.fromkeys(_INTEGERS, {int}),
    **dict.fromkeys(_FLOATS, {int, float}),
    "bool": {bool},
    "string": {str, dict},
}


def parse_object(body: bytes, *, strict: bool) -> dict[str, Any]:
    """Parses a body, which must be one JSON object; text behind it is ignored, as in TensorFlow Serving.

    Args:
      strict: refuses bare NaN and Infinity.

    Raises MalformedPayload.
    """
    if not body:
        raise MalformedPayload("JSON Parse error: The document is empty")
    decoder = json.JSONDecoder(
        object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole, parse_constant=_refused if strict else None
    )
    try:
        document = decoder.raw_decode(body.decode("utf-8-sig").lstrip(" \t\r\n"))[0]
    except (ValueError, RecursionError) as error:
        raise MalformedPayload(f"JSON Parse error: {error}") from error
    if type(document) is not dict:
        raise MalformedPayload(f"JSON Value: {shown(document)} Is not object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedPayload(f'JSON object has the key "{twice}" twice')
    return result


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number too big to be stored in double.")
    return number


def _whole(text: str) -> int | float:
    # Integers beyond 64 bits become floats. 20 digits are enough for an int64 and a uint64.
    number = int(text) if len(text) <= 20 else None
    return number if number is not None and -(2**63) <= number < 2**64 else _finite(text)


def _refused(token: str) -> float:
    raise ValueError(f"{token} is no JSON, and this server was told to be strict")


def shown(value: Any) -> str:
    """Returns a JSON value, shortened, for error texts."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def predict_inputs(document: Mapping[str, Any], spec: SignatureSpec) -> dict[str, Array]:
    """Converts the "instances" (rows) or the "inputs" (columns) of a predict body to arrays.

    Raises MalformedPayload and InputMismatch.
    """
    if "instances" in document:
        if "inputs" in document:
            raise MalformedPayload(
                "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
            )
        columns = _columns(document["instances"], spec)
        if extra := sorted(columns.keys() - spec.inputs.keys() - spec.ragged.keys()):
            raise MalformedPayload(f"JSON object: does not have named input: {extra[0]}")
    elif "inputs" in document:
        columns = document["inputs"]
        if type(columns) is not dict or _is_base64(columns):
            columns = {_only_name(spec, "inputs is a plain value/list, but expecting an object"): columns}
        if not _is_described(spec):
            # TensorFlow Serving ignores unknown columns, and refuses unknown names in rows.
            columns = {name: value for name, value in columns.items() if name in spec.inputs}
    else:
        raise MalformedPayload("Missing 'inputs' or 'instances' key")
    arrays: dict[str, Array] = {}
    for name, value in columns.items():
        if (ragged := _nested(name, columns, spec)) is not None:
            for part in (ragged.values, ragged.row_splits):
                if part in columns and part != name:
                    raise MalformedPayload(f'feature "{name}" was sent both as "{name}" and as "{part}".')
            _add_ragged(arrays, ragged, ragged_arrays(ragged, value, spec, columns.get(ragged.weights)))
        elif any(name == one.weights and _nested(one.feature, columns, spec) for one in spec.ragged_names):
            continue
        elif name not in spec.inputs:
            # check_names() will refuse the name.
            arrays[name] = np.empty(0)
        elif "instances" in document and (owner := _owner_by_suffix(name, spec)):
            raise MalformedPayload(f'input "{name}": in instances, send "{owner}" as a list of ids.')
        else:
            arrays[name] = dense_array(name, value, spec.inputs[name])
    return arrays


def lookup_inputs(features: Mapping[str, Any], weights: Mapping[str, Any], spec: SignatureSpec) -> dict[str, Array]:
    """Converts the features and weights of a lookup body to arrays; raises MalformedPayload and InputMismatch."""
    for name in weights:
        if name not in features:
            raise MalformedPayload(f'feature "{name}": weights were sent without ids.')
    parts = {part for names in spec.ragged_names for part in names[1:]}
    arrays: dict[str, Array] = {}
    for name, value in features.items():
        if (ragged := spec.ragged.get(name)) is not None:
            _add_ragged(arrays, ragged, ragged_arrays(ragged, value, spec, weights.get(name)))
        elif name not in spec.inputs or name in parts:
            known = ", ".join(sorted(spec.ragged.keys() | spec.row_inputs))
            raise InputMismatch(f'signature "{spec.name}" has no feature "{name}". Features it takes: {known}.')
        elif name in weights:
            raise InputMismatch(f'feature "{name}" has one id per row and takes no weights.')
        else:
            arrays[name] = dense_array(name, value, spec.inputs[name])
    return arrays


def _columns(instances: Any, spec: SignatureSpec) -> dict[str, Any]:
    """Returns the columns of a list of rows: name -> one value for each row."""
    if type(instances) is not list:
        raise MalformedPayload("Expecting 'instances' to be an list/array")
    if not instances:
        raise MalformedPayload("No values in 'instances' array")
    first = instances[0]
    if type(first) is not dict or _is_base64(first):
        return {_only_name(spec, "instances is a plain list, but expecting list of objects"): instances}
    for position, item in enumerate(instances):
        if type(item) is not dict:
            raise MalformedPayload(f"Expecting object but got list at item {position} of input list")
        if item.keys() != first.keys():
            raise MalformedPayload(
                f"Failed to process element: {position} of 'instances' list. JSON object: {shown(item)} keys must be "
                f"equal to: {','.join(sorted(first))}"
            )
    return {name: [item[name] for item in instances] for name in first}


def _only_name(spec: SignatureSpec, problem: str) -> str:
    names = sorted(spec.ragged.keys() | spec.row_inputs)
    if len(names) != 1:
        raise InputMismatch(f"{problem} as multiple input tensors required: {', '.join(names)}")
    return names[0]


def _is_described(spec: SignatureSpec) -> bool:
    """Says whether a signature has what TensorFlow Serving lacks: a lookup, ragged features, or described inputs."""
    tensors = spec.inputs.values()
    return spec.kind == "lookup" or bool(spec.ragged) or any(t.vocabulary or t.vocabulary_size for t in tensors)


def _nested(name: str, columns: Mapping[str, Any], spec: SignatureSpec) -> RaggedNames | None:
    """Returns the ragged feature that a request sends as nested lists under a name; None if it sends an input."""
    names = spec.ragged.get(name) if name in columns else None
    # Where the input of ids has the feature's name, row splits beside it say that the value is the flat list of ids.
    return None if names is None or (name in spec.inputs and names.row_splits in columns) else names


def _owner_by_suffix(name: str, spec: SignatureSpec) -> str:
    return next(
        (one.feature for one in spec.ragged_names if name in one[1:] and one == RaggedNames.by_suffix(one.feature)), ""
    )


def _add_ragged(arrays: dict[str, Array], names: RaggedNames, added: Mapping[str, Array]) -> None:
    """Adds the arrays of a ragged feature; raises MalformedPayload if another feature needs other row splits or weights
    in the same input.
    """
    for part in (names.row_splits, names.weights):
        if part in arrays and part in added and arrays[part].tobytes() != added[part].tobytes():
            raise MalformedPayload(
                f'feature "{names.feature}": its lists and those of another feature need the same "{part}", but differ.'
            )
    arrays |= added


def ragged_arrays(names: RaggedNames, rows: Any, spec: SignatureSpec, weights: Any) -> dict[str, Array]:
    """Converts one list of ids for each row, and of weights if there are any, to the arrays of a ragged feature.

    Raises MalformedPayload and InputMismatch.
    """
    feature = names.feature
    of_what = "keys or ids" if spec.inputs[names.values].takes_strings else "ids"
    lengths = _row_lengths(f'feature "{feature}"', rows, of_what)
    arrays = {
        names.values: _leaves(feature, list(chain.from_iterable(rows)), spec.inputs[names.values]),
        names.row_splits: np.array([0, *accumulate(lengths)], spec.inputs[names.row_splits].dtype),
    }
    if weights is None:
        return arrays
    if names.weights not in spec.inputs:
        raise InputMismatch(f'feature "{feature}" takes no weights in signature "{spec.name}".')
    found = _row_lengths(f'weights of feature "{feature}"', weights, "weights")
    if len(found) != len(lengths):
        raise MalformedPayload(f'feature "{feature}": {len(lengths)} rows of ids but {len(found)} rows of weights.')
    for row, (wanted, sent) in enumerate(zip(lengths, found, strict=True)):
        if wanted != sent:
            raise MalformedPayload(f'feature "{feature}": row {row} has {wanted} ids but {sent} weights.')
    flat = list(chain.from_iterable(weights))
    return arrays | {names.weights: _leaves(names.weights, flat, spec.inputs[names.weights])}


def _row_lengths(what: str, rows: Any, of_what: str) -> list[int]:
    for row in rows if type(rows) is list else [None]:
        if type(row) is not list:
            wrong = rows if type(rows) is not list else row
            raise MalformedPayload(f"{what}: expected one list of {of_what} per row, got JSON Value: {shown(wrong)}")
    return list(map(len, rows))


def dense_array(name: str, value: Any, tensor: TensorSpec) -> Array:
    """Converts nested JSON lists to an array of the tensor's dtype, and a single value to one of rank 0.

    Strings are accepted for ids with a vocabulary of strings; they stay strings here.

    Raises MalformedPayload and InputMismatch.
    """
    shape: list[int] = []
    level = [value]
    while level and type(level[0]) is list:
        size = len(level[0])
        for position, item in enumerate(level):
            if type(item) is not list:
                raise MalformedPayload(
                    f'input "{name}": Encountered list at unexpected level: JSON Value: {shown(item)} beside '
                    f"{shown(level[0])}"
                )
            if len(item) != size:
                raise MalformedPayload(
                    f'input "{name}": Expecting tensor size: {size} but got: {len(item)} (list {position} of its level)'
                )
        shape.append(size)
        if len(shape) > MAX_RANK:
            raise MalformedPayload(f'input "{name}": lists are nested over {MAX_RANK} deep.')
        level = list(chain.from_iterable(level))
    return _leaves(name, level, tensor).reshape(shape)


def _leaves(name: str, flat: Sequence[Any], tensor: TensorSpec) -> Array:
    types, dtype = set(map(type, flat)), tensor.dtype
    if types and types <= {str, dict} and tensor.takes_strings:
        return np.array([_as_bytes(name, item) for item in flat], object)
    if dtype not in _ALLOWED:
        raise InputMismatch(f'input "{name}": dtype {dtype} has no JSON form.')
    for item in flat:
        if type(item) not in _ALLOWED[dtype]:
            raise MalformedPayload(
                f'input "{name}": JSON Value: {shown(item)} is not of expected type: {graph_dtype(dtype)}'
            )
    if dtype == "string":
        return np.empty(0, object)
    if dtype in _FLOATS:
        exact = np.array([float(number) for number in flat], np.float64)
        with np.errstate(over="ignore"):
            return exact.astype(dtype)
    try:
        return np.array(flat, dtype)
    except OverflowError as error:
        raise MalformedPayload(f'input "{name}": a number does not fit {dtype}.') from error


def _is_base64(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str


def _as_bytes(name: str, item: Any) -> bytes:
    if type(item) is str:
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise MalformedPayload(f'input "{name}": a string has a lone surrogate, which UTF-8 lacks.') from error
    if not _is_base64(item):
        raise MalformedPayload(f"JSON Value: {shown(item)} not formatted correctly for base64 data")
    # As in TensorFlow Serving, white space is skipped, and the padding "=" is whole or missing.
    text = "".join(item["b64"].split())
    letters = text.rstrip("=")
    padding = "=" * (-len(letters) % 4)
    try:
        if text not in (letters, letters + padding):
            raise ValueError("padding")
        return base64.b64decode(letters + padding, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedPayload("Unable to base64 decode") from error


def predict_answer(outputs: Mapping[str, Array], *, by_row: bool, strict: bool) -> bytes:
    """Writes {"predictions": [...]} by row or {"outputs": ...} by column; a single output is written without its name.

    Raises InputMismatch if rows are wanted, and the outputs differ in their number of rows or are scalars.
    """
    plain = {name: _plain(name, array) for name, array in outputs.items()}
    if not by_row:
        return dump({"outputs": next(iter(plain.values())) if len(plain) == 1 else plain}, strict=strict)
    sizes = {name: array.shape[0] for name, array in outputs.items() if array.ndim}
    for name in outputs:
        if name not in sizes:
            raise InputMismatch(f"Tensor name: {name} has no shape information ")
        if sizes[name] != (expected := next(iter(sizes.values()))):
            raise InputMismatch(f"Tensor name: {name} has inconsistent batch size: {sizes[name]} expecting: {expected}")
    if len(plain) == 1:
        return dump({"predictions": next(iter(plain.values()))}, strict=strict)
    rows = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return dump({"predictions": rows}, strict=strict)


def lookup_answer(outputs: Mapping[str, Array], *, strict: bool) -> bytes:
    return dump({"embeddings": {name: _plain(name, array) for name, array in outputs.items()}}, strict=strict)


def _plain(name: str, array: Array) -> Any:
    """Converts an output to a list, whose numbers are numpy scalars or Python's, or to one value."""
    if array.dtype.kind in "OSU":
        return _texts(array.tolist(), as_bytes=name.endswith("_bytes"))
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise InputMismatch(f"Failed to write JSON value for tensor type: {graph_dtype(array.dtype.name)}")
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _texts(value: Any, *, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_texts(item, as_bytes=as_bytes) for item in value]
    data = value.encode() if isinstance(value, str) else value
    try:
        if not as_bytes:
            return data.decode()
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(data).decode()}


def dump(value: Any, *, strict: bool) -> bytes:
    """Writes a value with arrays as JSON: float32 with its fewest digits, NaN and infinity as bare words.

    Args:
      strict: writes null for numbers that are not finite.

    >>> dump({"a": np.float32([0.1, np.inf])}, strict=False), dump([np.float32("nan")], strict=True)
    (b'{"a":[0.1,Infinity]}', b'[null]')
    """
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if strict or b"null" not in text or not isinstance(value, (dict, list, np.ndarray, float, np.floating)):
        return text
    if isinstance(value, dict):
        return b"{" + b",".join(orjson.dumps(k) + b":" + dump(v, strict=False) for k, v in value.items()) + b"}"
    if isinstance(value, (list, np.ndarray)):
        return b"[" + b",".join(dump(item, strict=False) for item in value) + b"]"
    return b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
