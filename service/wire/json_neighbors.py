"""Decodes the JSON body of a search for nearest rows, and encodes its answer.

>>> decode_neighbors(b'{"ids": [7], "k": 2}').rows.ids.tolist()
[7]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.engine.neighbors import (
    DEFAULT_K,
    DEFAULT_METRIC,
    METRICS,
    Named,
    NeighborAnswer,
    NeighborQuery,
)
from service.errors import MalformedPayload
from service.wire.json_body import (
    check_keys,
    dump_plain,
    id_list,
    key_list,
    parse_body,
    row_list,
    shown,
    text_or_base64,
)

_QUERIES = frozenset({"ids", "keys", "vectors"})
_KEYS = _QUERIES | {"k", "metric", "feature", "filter", "include_self", "exact", "labels"}
_FILTER_KEYS = frozenset({"ids", "keys", "exclude_ids", "exclude_keys"})


def decode_neighbors(body: bytes) -> NeighborQuery:
    """Parses {"ids": [...] or "keys": [...] or "vectors": [[...]], "k": 10, "metric": "dot", "filter": {...}, ...}.

    "labels": a list is a query, too, by labels of rows; true only asks for the labels of the rows in the answer.

    Raises:
      MalformedPayload: the body is not JSON, or has an unknown key, not exactly one kind of query, or a value of the
        wrong type.
      PayloadTooLarge: the body has too many keys, lists or strings.
    """
    document = parse_body("A search", body, _KEYS)
    labels = document.get("labels", False)
    by_label = type(labels) is list
    if len(_QUERIES & document.keys()) + by_label != 1:
        raise MalformedPayload('Expected one of "ids", "keys", "vectors" and "labels".')
    if not all(type(one) is str for one in labels) if by_label else type(labels) is not bool:
        raise MalformedPayload(
            f'"labels" is {shown(labels)}, expected a list of labels, or true for the labels of the found rows.'
        )
    k, metric = document.get("k", DEFAULT_K), document.get("metric", DEFAULT_METRIC)
    feature, include_self = document.get("feature", ""), document.get("include_self", False)
    exact = document.get("exact", False)
    if type(k) is not int:
        raise MalformedPayload(f'"k" is {shown(k)}, expected a number of neighbours.')
    if metric not in METRICS:
        raise MalformedPayload(f'"metric" is {shown(metric)}, expected one of: {", ".join(METRICS)}.')
    if type(feature) is not str or type(include_self) is not bool or type(exact) is not bool:
        raise MalformedPayload('"feature" is a string; "include_self" and "exact" are true or false.')
    chosen = document.get("filter", {})
    if type(chosen) is not dict:
        raise MalformedPayload(f'"filter" is {shown(chosen)}, expected an object.')
    check_keys("A filter", chosen, _FILTER_KEYS)
    return NeighborQuery(
        rows=_named(document, ""),
        vectors=row_list("vectors", document["vectors"]) if "vectors" in document else None,
        k=k,
        metric=metric,
        feature=feature,
        allowed=_named(chosen, ""),
        denied=_named(chosen, "exclude_"),
        include_self=include_self,
        exact=exact,
        labels=labels if by_label else None,
        wants_labels=bool(labels),
    )


def encode_neighbors(answer: NeighborAnswer) -> bytes:
    """Encodes {"ids": [[...]], "keys": [[...]], "labels": [[...]], "scores": [[...]]}: a list for each query.

    The nearest row is first. "recall" is there too if an index named the rows that were compared. An infinite score is
    null.
    """
    counts = (answer.ids >= 0).sum(axis=1).tolist()
    document: dict[str, Any] = {"ids": [row[:count].tolist() for row, count in zip(answer.ids, counts, strict=True)]}
    if answer.keys is not None:
        rows = zip(answer.keys.tolist(), counts, strict=True)
        document["keys"] = [[_key(key) for key in row[:count]] for row, count in rows]
    if answer.labels is not None:
        document["labels"] = [row[:count] for row, count in zip(answer.labels, counts, strict=True)]
    document["scores"] = [row[:count] for row, count in zip(answer.scores, counts, strict=True)]
    if answer.recall is not None:
        document["recall"] = round(answer.recall, 4)
    return dump_plain(document)


def _key(key: Any) -> Any:
    return text_or_base64(key) if isinstance(key, bytes) else key


def _named(values: Mapping[str, Any], prefix: str) -> Named:
    ids, keys = prefix + "ids", prefix + "keys"
    return Named(
        id_list(ids, values[ids]) if ids in values else None,
        key_list(keys, values[keys]) if keys in values else None,
    )
