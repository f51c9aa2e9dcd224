"""Encodes the JSON bodies of HTTP requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from embedding_client.errors import invalid
from embedding_client.inputs import Ids
from embedding_client.types import Array, RaggedIds


def lookup_body(ids: Mapping[str, Ids], signature: str) -> bytes:
    """Encodes the JSON body of a `:lookup` request."""
    features: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for name, value in ids.items():
        if isinstance(value, RaggedIds):
            features[name] = _nested(name, value.values, value.row_splits)
            if value.weights is not None:
                weights[name] = _nested(name, value.weights, value.row_splits)
        else:
            features[name] = _plain(name, value)
    return _dump({"signature_name": signature, "features": features, "weights": weights})


def predict_body(inputs: Mapping[str, Array], signature: str) -> bytes:
    """Encodes the JSON body of a `:predict` request, in the columnar form ("inputs")."""
    columns = {name: _plain(name, array) for name, array in inputs.items()}
    return _dump({"signature_name": signature, "inputs": columns})


def rows_body(ids: Array) -> bytes:
    """Encodes the JSON body of a `tables/T:rows` request."""
    return _dump({"ids": ids.tolist()})


def neighbors_body(search: Mapping[str, Array]) -> bytes:
    """Encodes the JSON body of a `tables/T:neighbors` request; takes the inputs of the gRPC signature "neighbors"."""
    document: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    for name, array in search.items():
        value = _plain(name, array)
        if name.startswith(("filter_", "exclude_")):
            chosen[name.removeprefix("filter_")] = value
        elif name != "table":
            document[name] = value
    return _dump(document | ({"filter": chosen} if chosen else {}))


def _dump(document: dict[str, Any]) -> bytes:
    # json.dumps() writes NaN and infinity as the bare tokens NaN and Infinity, which TensorFlow Serving reads and
    # writes too.
    return json.dumps(document, separators=(",", ":")).encode()


def _plain(name: str, array: Array) -> Any:
    """Converts an array to lists. A float32 becomes the float64 of the same value, which the server rounds back
    exactly.
    """
    if array.dtype == object:
        flat = np.empty(array.size, object)
        flat[:] = [_text(item) for item in array.reshape(-1).tolist()]
        return flat.reshape(array.shape).tolist()
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise invalid(f'input "{name}": dtype {array.dtype} has no JSON form; use gRPC.')
    return array.tolist()


def _text(item: bytes) -> Any:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(item).decode()}


def _nested(name: str, values: Array, row_splits: Array) -> list[Any]:
    leaves, splits = _plain(name, values), row_splits.tolist()
    return list(map(leaves.__getitem__, map(slice, splits, splits[1:])))
