"""What is remembered of a request's head, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from service.transports.http.hot_answers import Asked, Target
from service.transports.http.known_heads import KnownHeads

from service.core.types import ModelRef

HEAD = b"POST /x HTTP/1.1\r\ncontent-length: 4\r\n\r\n"
ASKED = Asked(Target(ModelRef("m"), "lookup"), "", b"", b"", 100, False)


def test_a_head_that_came_before_is_known_with_any_body_of_its_length() -> None:
    heads = KnownHeads()
    assert heads.find(HEAD + b"abcd") is None
    heads.learn(HEAD + b"abcd", ASKED, b"abcd")
    assert heads.find(HEAD + b"efgh") == (ASKED, b"efgh")


@pytest.mark.parametrize(
    "data", [b"", HEAD, HEAD + b"efg", HEAD + b"efghi", HEAD[1:] + b"efgh", b"\r\n" + HEAD + b"efgh"]
)
def test_other_data_is_not(data: bytes) -> None:
    heads = KnownHeads()
    heads.learn(HEAD + b"abcd", ASKED, b"abcd")
    assert heads.find(data) is None


@pytest.mark.parametrize(
    ("data", "asked", "body"),
    [
        # A second request in front, or bytes behind.
        (HEAD + b"abcd" + HEAD + b"efgh", ASKED, b"efgh"),
        (HEAD + b"abcd\r\n", ASKED, b"abcd"),
        (b"\r\n\r\n" + HEAD + b"abcd", ASKED, b"abcd"),
        (HEAD.replace(b"/x", b"/" + b"x" * 2048) + b"abcd", ASKED, b"abcd"),
        (HEAD + b"abcd", ASKED._replace(request_id=b"1"), b"abcd"),
    ],
)
def test_what_is_not_one_request_that_may_come_again_is_not_remembered(data: bytes, asked: Any, body: bytes) -> None:
    heads = KnownHeads()
    heads.learn(data, asked, body)
    assert heads.find(data) is None
    assert heads.find(HEAD + b"abcd") is None


def test_they_are_not_remembered_without_end() -> None:
    heads = KnownHeads()
    several = [b"%d" % i + HEAD + b"abcd" for i in range(3000)]
    for data in several:
        heads.learn(data, ASKED, b"abcd")
    assert heads.find(several[-1]) is not None
    assert sum(heads.find(data) is not None for data in several) <= 1024
