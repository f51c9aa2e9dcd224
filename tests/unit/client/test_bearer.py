"""Requests carry a bearer token in their headers."""

from __future__ import annotations

import pytest

from embedding_client import EmbeddingClient
from embedding_client.bearer import NO_TOKEN, Bearer


def test_a_token_goes_into_the_header_of_each_wire() -> None:
    bearer = Bearer("abc.DEF-_~+/=")
    assert bearer.headers({"A": "b"}) == {"A": "b", "Authorization": "Bearer abc.DEF-_~+/="}
    assert bearer.metadata((("a", "b"),)) == (("a", "b"), ("authorization", "Bearer abc.DEF-_~+/="))


def test_a_callable_is_asked_each_time() -> None:
    tokens = iter(["a", "b"])
    bearer = Bearer(lambda: next(tokens))
    assert [bearer.value(), bearer.value()] == ["Bearer a", "Bearer b"]


def test_without_a_token_nothing_is_sent() -> None:
    headers = {"A": "b"}
    assert NO_TOKEN.headers(headers) is headers and NO_TOKEN.metadata() == ()


@pytest.mark.parametrize("token", ["", "a b", "secret\r\nX-Other: 1", "s\xe9cret", "secret\n"])
def test_what_could_end_the_header_is_refused_and_not_shown(token: str) -> None:
    for make in (lambda: Bearer(token), lambda: Bearer(lambda: token).value()):
        with pytest.raises(ValueError, match="token: expected") as caught:
            make()
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="token: expected"):
        EmbeddingClient("localhost:8500", model="m", token=token)
