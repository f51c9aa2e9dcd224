"""Decodes the JSON body of a search for nearest rows, and encodes its answer.

>>> decode_neighbors(b'{"ids": [7], "k": 2}').rows.ids.tolist()
[7]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from service.engine.neighbors import (
    DEFAULT_K,
    DEFAULT_METRIC,
    METRICS,
    Named,
    NeighborAnswer,
    NeighborQuery,
)
from service.errors import MalformedPayload
from service.types import Array, TensorSpec
from service.wire.json_arrays import dense_array
from service.wire.json_document import dump, parse_object
from service.wire.json_tensor import text_or_base64
from service.wire.json_text import shown
from service.wire.json_upsert import keys_spec

_QUERIES = frozenset({"ids", "keys", "vectors"})
_KEYS = _QUERIES | {"k", "metric", "feature", "filter", "include_self", "exact"}
_FILTER_KEYS = frozenset({"ids", "keys", "exclude_ids", "exclude_keys"})


def decode_neighbors(body: bytes, *, strict: bool = False) -> NeighborQuery:
    """Parses {"ids": [...] or "keys": [...] or "vectors": [[...]], "k": 10, "metric": "dot", "filter": {...}, ...}.

    Args:
      strict: refuses bare NaN and Infinity.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, not exactly one kind of query, or a value of the
        wrong type.
    """
    document = parse_object(body, strict=strict)
    _check_keys("A search", document, _KEYS)
    if len(_QUERIES & document.keys()) != 1:
        raise MalformedPayload('Expected one of "ids", "keys" and "vectors".')
    k, metric = document.get("k", DEFAULT_K), document.get("metric", DEFAULT_METRIC)
    feature, include_self = document.get("feature", ""), document.get("include_self", False)
    exact = document.get("exact", False)
    if type(k) is not int:
        raise MalformedPayload(f'"k" is {shown(k)}, expected a number of neighbours.')
    if metric not in METRICS:
        raise MalformedPayload(f'"metric" is {shown(metric)}, expected one of: {", ".join(METRICS)}.')
    if type(feature) is not str or type(include_self) is not bool or type(exact) is not bool:
        raise MalformedPayload('"feature" is a string; "include_self" and "exact" are true or false.')
    vectors = document.get("vectors")
    chosen = document.get("filter", {})
    if type(chosen) is not dict:
        raise MalformedPayload('"filter" is not an object.')
    _check_keys("A filter", chosen, _FILTER_KEYS)
    return NeighborQuery(
        rows=_named(document, ""),
        vectors=None if vectors is None else _array("vectors", vectors, TensorSpec("vectors", "float32", None), 2),
        k=k,
        metric=metric,
        feature=feature,
        allowed=_named(chosen, ""),
        denied=_named(chosen, "exclude_"),
        include_self=include_self,
        exact=exact,
    )


def encode_neighbors(answer: NeighborAnswer, *, strict: bool = False) -> bytes:
    """Encodes {"ids": [[...]], "keys": [[...]], "scores": [[...]]}: a list for each query, the nearest row first.

    "recall" is there too if an index named the rows that were compared.

    Args:
      strict: writes null for infinity, which plain JSON lacks.
    """
    counts = (answer.ids >= 0).sum(axis=1).tolist()
    document: dict[str, Any] = {"ids": [row[:count].tolist() for row, count in zip(answer.ids, counts, strict=True)]}
    if answer.keys is not None:
        rows = zip(answer.keys.tolist(), counts, strict=True)
        document["keys"] = [[_key(key) for key in row[:count]] for row, count in rows]
    document["scores"] = [row[:count] for row, count in zip(answer.scores, counts, strict=True)]
    if answer.recall is not None:
        document["recall"] = round(answer.recall, 4)
    return dump(document, strict=strict)


def _key(key: Any) -> Any:
    return text_or_base64(key) if isinstance(key, bytes) else key


def _named(values: Mapping[str, Any], prefix: str) -> Named:
    ids, keys = values.get(prefix + "ids"), values.get(prefix + "keys")
    return Named(
        None if ids is None else _array(prefix + "ids", ids, TensorSpec(prefix + "ids", "int64", (None,)), 1),
        None if keys is None else _array(prefix + "keys", keys, keys_spec(prefix + "keys", keys), 1),
    )


def _array(name: str, value: Any, spec: TensorSpec, rank: int) -> Array:
    array = dense_array(name, value, spec)
    if array.ndim != rank:
        what = "a list of lists of numbers, one for each query" if rank == 2 else "a flat list"
        raise MalformedPayload(f'"{name}" is not {what}.')
    return np.ascontiguousarray(array)


def _check_keys(what: str, document: Mapping[str, Any], known: frozenset[str]) -> None:
    if not document.keys() <= known:
        unknown = ", ".join(sorted(document.keys() - known))
        raise MalformedPayload(f"Unknown keys: {unknown}. {what} has: {', '.join(sorted(known))}.")
