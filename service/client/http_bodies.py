"""JSON bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from service.client.errors import invalid
from service.client.inputs import Ids
from service.codecs.json_document import dump
from service.codecs.json_tensor import plain_array
from service.core.errors import InputMismatch
from service.core.types import Array, RaggedIds


def lookup_body(ids: Mapping[str, Ids], signature: str) -> bytes:
    """Returns the body of `:lookup`."""
    features: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for name, value in ids.items():
        if isinstance(value, RaggedIds):
            features[name] = _nested(name, value.values, value.row_splits)
            if value.weights is not None:
                weights[name] = _nested(name, value.weights, value.row_splits)
        else:
            features[name] = _plain(name, value)
    return dump({"signature_name": signature, "features": features, "weights": weights})


def predict_body(inputs: Mapping[str, Array], signature: str) -> bytes:
    """Returns the body of `:predict`, by column."""
    columns = {name: _plain(name, array) for name, array in inputs.items()}
    return dump({"signature_name": signature, "inputs": columns})


def rows_body(ids: Array) -> bytes:
    """Returns the body of `tables/T:rows`."""
    return dump({"ids": np.ascontiguousarray(ids)})


def _plain(name: str, array: Array) -> Any:
    # The server reads decimals as float64 and rounds to float32, so only float64's digits arrive as they were.
    if array.dtype.kind == "f":
        array = array.astype(np.float64, copy=False)
    try:
        return plain_array(name, array)
    except InputMismatch as error:
        raise invalid(f'input "{name}": dtype {array.dtype} has no JSON form; use gRPC.') from error


def _nested(name: str, values: Array, row_splits: Array) -> list[Any]:
    flat = _plain(name, values)
    if isinstance(flat, list):
        leaves = flat
    elif flat.dtype.kind == "f" and not np.isfinite(flat).all():
        # Of NaN and infinity, dump writes numpy's as tokens and Python's as null.
        leaves = list(flat)
    else:
        leaves = flat.tolist()
    splits = row_splits.tolist()
    return list(map(leaves.__getitem__, map(slice, splits, splits[1:])))
