"""Converts the tensors of signature "neighbors", good and bad ones, and the outputs of an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.engine.neighbors import NeighborAnswer
from service.errors import InputMismatch, UnknownOutput
from service.wire.neighbor_tensors import decode_search, encode_answer

TABLE = np.array(b"t", object)


def test_a_search_with_everything() -> None:
    table, query = decode_search(
        {
            "table": np.array([b"t"], object),
            "vectors": np.array([[1, 2]], np.float64),
            "k": np.array([3], np.int32),
            "metric": np.array(b"cosine", object),
            "feature": np.array(b"f", object),
            "filter_ids": np.array([1], np.int32),
            "filter_keys": np.array([b"a"], object),
            "exclude_ids": np.array([2]),
            "exclude_keys": np.array([7]),
            "include_self": np.array(True),
        }
    )
    assert (table, query.k, query.metric, query.feature, query.include_self) == ("t", 3, "cosine", "f", True)
    assert query.vectors is not None and query.vectors.dtype == np.float32
    assert (query.allowed.size, query.denied.size) == (2, 2)
    assert query.allowed.ids is not None and query.allowed.ids.dtype == np.int64


def test_defaults_are_those_of_json() -> None:
    _, query = decode_search({"table": TABLE, "ids": np.array([1, 2], np.int32)})
    assert (query.k, query.metric, query.include_self) == (10, "dot", False)
    assert query.rows.ids is not None and query.rows.ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"ids": np.array([1])}, 'input "table" is missing. Its inputs are: table, ids,'),
        ({"table": TABLE, "id": np.array([1])}, "unknown inputs: id. Its inputs are"),
        ({"table": TABLE}, 'send one of "ids", "keys" and "vectors"'),
        ({"table": TABLE, "ids": np.array([1]), "keys": np.array([1])}, 'send one of "ids"'),
        (
            {"table": TABLE, "ids": np.array(1)},
            'input "ids": got int64 of rank 0, signature "neighbors" takes int32 or',
        ),
        ({"table": TABLE, "ids": np.array([1.0])}, 'input "ids": got float64 of rank 1'),
        ({"table": np.array(3), "ids": np.array([1])}, 'input "table": got int64 of rank 0'),
        ({"table": TABLE, "ids": np.array([1]), "k": np.array([1, 2])}, 'input "k": got int64 of rank 1'),
        ({"table": TABLE, "ids": np.array([1]), "metric": np.array(b"ip", object)}, "expected one of: dot, cosine, l2"),
    ],
)
def test_what_is_wrong_is_named(inputs: dict[str, Any], text: str) -> None:
    with pytest.raises(InputMismatch) as caught:
        decode_search(inputs)
    assert text in caught.value.message


def test_keys_are_strings_whatever_the_vocabulary() -> None:
    answer = NeighborAnswer(np.array([[3, -1]]), np.array([[1, np.nan]], np.float32), None, 1, 4)
    assert list(encode_answer(answer)) == ["ids", "scores"]
    for key, text in ((b"x", b"x"), (-7, b"-7")):
        keys = np.array([[key, None]], object)
        assert encode_answer(answer._replace(keys=keys))["keys"].tolist() == [[text, b""]]
    assert list(encode_answer(answer, ("scores",))) == ["scores"]
    with pytest.raises(UnknownOutput, match="keys Outputs expected to be in the set {ids,scores}"):
        encode_answer(answer, ("keys",))
