"""Converts JSON bodies of predict requests ("instances" or "inputs") to arrays, and outputs to JSON answers.

A ragged feature is sent under its own name, as one list of ids per row:

>>> decode_predict(b'{"instances": [{"user": 1, "genres": [1, 5]}], "signature_name": "s"}').signature_name
's'

Source: tensorflow_serving/util/json_tensor.cc (9d981c5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from service.engine.validation import graph_dtype_name
from service.errors import InputMismatch, InvalidRequest, MalformedPayload
from service.types import Array, RaggedNames, SignatureSpec
from service.wire.json_arrays import add_ragged, dense_array, feature_names, ragged_owner
from service.wire.json_body import text_or_base64
from service.wire.json_document import describe, dump, parse_object
from service.wire.json_refusals import is_base64, refuse_columns, refuse_rows
from service.wire.json_text import shown

Layout = Literal["row", "columnar"]


@dataclass(frozen=True, slots=True)
class PredictBody:
    """A parsed predict body, whose tensors are still JSON lists. signature_name: "" if the client named none."""

    signature_name: str
    document: Mapping[str, Any]

    @property
    def layout(self) -> Layout:
        """The form of the JSON answer: "row" if the predict body has "instances", "columnar" if it has "inputs"."""
        return "row" if "instances" in self.document else "columnar"


def decode_predict(body: bytes, *, strict: bool = False) -> PredictBody:
    """Parses a predict body, but leaves its tensors as JSON, because only the signature has their dtypes.

    Args:
      strict: refuses bare NaN and Infinity.

    Raises:
      MalformedPayload: the body is not JSON or not an object, or its signature_name is no string.
    """
    document = parse_object(body, strict=strict)
    return PredictBody(read_signature_name(document, ""), document)


def read_signature_name(document: Mapping[str, Any], default: str) -> str:
    """Returns the signature_name of a JSON body, or the default if it is missing or ""; raises MalformedPayload."""
    name = document.get("signature_name", default)
    if type(name) is not str:
        raise MalformedPayload(
            f"JSON Value: {shown(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name or default


def decode_inputs(body: PredictBody, spec: SignatureSpec) -> dict[str, Array]:
    """Converts the tensors of a parsed predict body to arrays; returns input name -> array.

    Other top-level keys and unknown names of columns are ignored, as in TensorFlow Serving. An unknown name in rows of
    a lookup gets an empty array, so that engine.validation raises the same error as over gRPC.

    Raises:
      MalformedPayload: not exactly one of "instances" and "inputs", a value of the wrong type or shape, instances that
        differ in their keys, a feature sent twice.
      InputMismatch: a dtype without a JSON form, or bare values where the signature has several features.
    """
    payload = _payload(body, spec)
    try:
        arrays = _decode(body.layout, payload, spec)
    except InvalidRequest:
        if not _is_described(spec):
            _refuse(body.layout, payload, spec)
        raise
    if not spec.required <= arrays.keys() <= spec.inputs.keys() and not _is_described(spec):
        _refuse(body.layout, payload, spec)
        return {name: array for name, array in arrays.items() if name in spec.inputs}
    return arrays


def _is_described(spec: SignatureSpec) -> bool:
    """Says whether a signature has what TensorFlow Serving lacks: it is a lookup, or has ragged features, vocabularies
    or inputs with a known table.
    """
    return (
        spec.kind == "lookup"
        or bool(spec.ragged)
        or any(tensor.vocabulary or tensor.vocabulary_size is not None for tensor in spec.inputs.values())
    )


def _payload(body: PredictBody, spec: SignatureSpec) -> Any:
    document = body.document
    if not spec.inputs:
        raise MalformedPayload(f"Failed to get input map for signature: {body.signature_name or 'DEFAULT'}")
    if "instances" not in document:
        if "inputs" not in document:
            raise MalformedPayload("Missing 'inputs' or 'instances' key")
        return document["inputs"]
    instances = document["instances"]
    if "inputs" in document:
        problem = "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
    elif type(instances) is not list:
        problem = "Expecting 'instances' to be an list/array"
    elif not instances:
        problem = "No values in 'instances' array"
    else:
        return instances
    raise MalformedPayload(f"JSON Value: {shown(document)} {problem}")


def _refuse(layout: Layout, payload: Any, spec: SignatureSpec) -> None:
    if layout == "row":
        refuse_rows(payload, spec)
    else:
        refuse_columns(payload, spec)


def _decode(layout: Layout, payload: Any, spec: SignatureSpec) -> dict[str, Array]:
    if layout == "row":
        columns = _columns(payload, spec)
    elif type(payload) is dict and not is_base64(payload):
        columns = payload
    else:
        columns = {_only_feature(spec, "inputs is a plain value/list, but expecting an object"): payload}
    arrays: dict[str, Array] = {}
    for name, value in columns.items():
        tensor = spec.inputs.get(name)
        ragged = _nested(name, columns, spec)
        if ragged is not None:
            _refuse_double(ragged, columns)
            add_ragged(arrays, ragged, value, spec, columns.get(ragged.weights))
        elif _is_weights_of(name, columns, spec):
            # A column of weights is skipped here, because add_ragged() converts the weights together with their ids.
            continue
        elif tensor is None:
            arrays[name] = np.empty(0)
        elif layout == "row" and (owner := ragged_owner(name, spec)) is not None and _has_suffixes(spec.ragged[owner]):
            raise MalformedPayload(f'input "{name}": in instances, send "{owner}" as a list of ids.')
        else:
            arrays[name] = dense_array(name, value, tensor)
    return arrays


def _nested(name: str, columns: Mapping[str, Any], spec: SignatureSpec) -> RaggedNames | None:
    """Returns the ragged feature that a request sends as nested lists under this name; None if it sends an input."""
    names = spec.ragged.get(name)
    if names is None or (name in spec.inputs and names.row_splits in columns):
        # The input of ids has the ragged feature's name, and the request also has row splits: so the value is the flat
        # list of ids, no nested lists.
        return None
    return names


def encode_predict(outputs: Mapping[str, Array], layout: Layout, *, strict: bool = False) -> bytes:
    """Encodes a predict answer {"predictions": [...]} or {"outputs": ...}; a single output is written without its name.

    Args:
      strict: writes null for NaN and infinity, which plain JSON lacks.

    Raises:
      InputMismatch: the layout is "row", but the outputs differ in their number of rows or are scalars.
    """
    plain = {name: plain_array(name, array) for name, array in outputs.items()}
    if layout == "columnar":
        return dump({"outputs": next(iter(plain.values())) if len(plain) == 1 else plain}, strict=strict)
    _check_rows(outputs)
    if len(plain) == 1:
        return dump({"predictions": next(iter(plain.values()))}, strict=strict)
    names = list(plain)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return dump({"predictions": rows}, strict=strict)


def plain_array(name: str, array: Array) -> Any:
    """Converts an output to a value that json_document.dump can write: an array, a numpy scalar, or lists of strings.

    Bytes become {"b64": ...} if the output's name ends in "_bytes", or if they are not UTF-8.
    """
    if array.dtype.kind in "OSU":
        as_bytes = name.endswith("_bytes")
        texts = np.empty(array.size, object)
        texts[:] = [text_or_base64(item, as_bytes=as_bytes) for item in array.reshape(-1).tolist()]
        return texts.reshape(array.shape).tolist()
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise InputMismatch(f"Failed to write JSON value for tensor type: {graph_dtype_name(array.dtype.name)}")
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _check_rows(outputs: Mapping[str, Array]) -> None:
    expected: int | None = None
    for name, array in outputs.items():
        if array.ndim == 0:
            raise InputMismatch(f"Tensor name: {name} has no shape information ")
        if expected is not None and array.shape[0] != expected:
            raise InputMismatch(
                f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} expecting: {expected}"
            )
        expected = array.shape[0]


def _columns(instances: list[Any], spec: SignatureSpec) -> dict[str, Any]:
    first = instances[0]
    if type(first) is not dict or is_base64(first):
        return {_only_feature(spec, "instances is a plain list, but expecting list of objects"): instances}
    types = set(map(type, instances))
    if types != {dict}:
        position = next(i for i, item in enumerate(instances) if type(item) is not dict)
        raise MalformedPayload(f"Expecting object but got list at item {position} of input list")
    if len(set(map(len, instances))) == 1:
        try:
            return {name: list(map(itemgetter(name), instances)) for name in first}
        except KeyError:
            pass
    position = next(i for i, item in enumerate(instances) if item.keys() != first.keys())
    raise MalformedPayload(
        f"Failed to process element: {position} of 'instances' list. JSON object: {describe(instances[position])} "
        f"keys must be equal to: {','.join(sorted(first))}"
    )


def _only_feature(spec: SignatureSpec, problem: str) -> str:
    features = feature_names(spec)
    if len(features) != 1:
        raise InputMismatch(f"{problem} as multiple input tensors required: {', '.join(features)}")
    return features[0]


def _has_suffixes(names: RaggedNames) -> bool:
    return names == RaggedNames.by_suffix(names.feature)


def _is_weights_of(name: str, columns: Mapping[str, Any], spec: SignatureSpec) -> bool:
    return any(
        name == names.weights and names.feature in columns and _nested(names.feature, columns, spec) is not None
        for names in spec.ragged_names
    )


def _refuse_double(names: RaggedNames, columns: Mapping[str, Any]) -> None:
    feature = names.feature
    for part in (names.values, names.row_splits):
        if part in columns and part != feature:
            raise MalformedPayload(f'feature "{feature}" was sent both as "{feature}" and as "{part}".')
