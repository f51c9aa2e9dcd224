"""Decodes bodies of searches for nearest rows, good and bad, and encodes answers with missing neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from service.engine.neighbors import NeighborAnswer
from service.errors import MalformedPayload
from service.wire.json_body import decode_neighbors, encode_neighbors


def test_a_body_with_everything() -> None:
    query = decode_neighbors(
        b'{"keys": ["a", {"b64": "/w=="}], "k": 3, "metric": "l2", "feature": "f", "include_self": true,'
        b' "filter": {"ids": [4], "keys": ["b"], "exclude_ids": [5, 6], "exclude_keys": []}}'
    )
    assert query.rows.keys is not None and query.rows.keys.tolist() == [b"a", b"\xff"]
    assert (query.k, query.metric, query.feature, query.include_self) == (3, "l2", "f", True)
    assert query.allowed.ids is not None and query.allowed.ids.tolist() == [4]
    assert query.allowed.keys is not None and query.allowed.keys.tolist() == [b"b"]
    assert query.denied.ids is not None and query.denied.ids.tolist() == [5, 6]
    assert query.denied.size == 2


def test_defaults() -> None:
    query = decode_neighbors(b'{"vectors": [[1, 2.5]]}')
    assert query.vectors is not None and query.vectors.tolist() == [[1.0, 2.5]]
    assert (query.k, query.metric, query.include_self) == (10, "dot", False)
    assert not query.rows.is_given and not query.allowed.is_given and not query.denied.is_given
    assert decode_neighbors(b'{"ids": [1], "filter": {"ids": []}}').allowed.is_given


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "A search is a JSON object, the body is []."),
        (b"{}", 'Expected one of "ids", "keys", "vectors" and "labels".'),
        (b'{"ids": [1], "vectors": [[1]]}', 'Expected one of "ids", "keys", "vectors" and "labels".'),
        (b'{"ids": [1], "top": 3}', "Unknown keys: top. A search has: exact, feature, filter, ids,"),
        (b'{"ids": [1], "labels": ["a"]}', 'Expected one of "ids", "keys", "vectors" and "labels".'),
        (b'{"labels": true}', 'Expected one of "ids", "keys", "vectors" and "labels".'),
        (b'{"labels": [1]}', '"labels" is [1], expected a list of labels, or true for the labels of the found rows.'),
        (b'{"ids": 1}', '"ids" is 1, expected a flat list.'),
        (b'{"ids": [7, "a"]}', '"ids"[1] is "a", expected an integer.'),
        (b'{"ids": [true]}', '"ids"[0] is true, expected an integer.'),
        (b'{"vectors": [1, 2]}', '"vectors" is not a list of lists of numbers.'),
        (b'{"vectors": [[1], [2, 3]]}', '"vectors"[1] has 2 numbers, "vectors"[0] has 1.'),
        (b'{"vectors": null}', '"vectors" is not a list of lists of numbers.'),
        (b'{"ids": [1], "k": 2.5}', '"k" is 2.5, expected a number of neighbours.'),
        (b'{"ids": [1], "k": true}', '"k" is true'),
        (b'{"ids": [1], "metric": "ip"}', '"metric" is "ip", expected one of: dot, cosine, l2.'),
        (b'{"ids": [1], "metric": ["l2"]}', '"metric" is ["l2"], expected'),
        (b'{"ids": [1], "feature": 3}', '"feature" is a string'),
        (b'{"ids": [1], "filter": [1]}', '"filter" is [1], expected an object.'),
        (b'{"ids": [1], "filter": {"not": []}}', "Unknown keys: not. A filter has: exclude_ids,"),
        (b'{"ids": [1], "filter": {"ids": [[1]]}}', '"ids"[0] is [1], expected an integer.'),
        (b'{"vectors": [[NaN]]}', "JSON has no NaN and no Infinity."),
    ],
)
def test_what_is_wrong_is_named(body: bytes, text: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decode_neighbors(body)
    assert text in caught.value.message


def test_an_answer_ends_each_list_with_the_last_neighbor() -> None:
    ids = np.array([[3, 0], [1, -1], [-1, -1]])
    scores = np.array([[2.5, np.inf], [0.1, np.nan], [np.nan, np.nan]], np.float32)
    keys = np.array([[b"x", None], [b"\xff", None], [None, None]], object)
    answer = NeighborAnswer(ids, scores, keys, 1, 4)
    plain = b'{"ids":[[3,0],[1],[]],"keys":[["x",null],[{"b64":"/w=="}],[]],"scores":[[2.5,%s],[0.1],[]]}'
    assert encode_neighbors(answer) == plain % b"null"
    assert encode_neighbors(answer._replace(keys=None)) == b'{"ids":[[3,0],[1],[]],"scores":[[2.5,null],[0.1],[]]}'
