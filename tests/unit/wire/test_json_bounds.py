"""The parser limits the keys, lists and strings of one JSON document."""

import pytest

from service.errors import PayloadTooLarge
from service.wire.json_body import MAX_KEYS, MAX_LISTS, MAX_STRINGS, parse_object


def document(keys: int, lists: int) -> bytes:
    """Returns a JSON object with `lists` empty lists under the key "a", and `keys` further keys."""
    return b'{"a":[%s],%s}' % (b",".join([b"[]"] * lists), b",".join(b'"%d":1' % number for number in range(keys)))


@pytest.mark.slow
def test_as_many_as_may_be_are_read() -> None:
    assert len(parse_object("A body", document(MAX_KEYS - 1, 9))) == MAX_KEYS
    assert len(parse_object("A body", document(1, MAX_LISTS - 2))["a"]) == MAX_LISTS - 2


@pytest.mark.parametrize(("keys", "lists", "word"), [(MAX_KEYS, 9, "keys"), (1, MAX_LISTS - 1, "lists")])
def test_one_more_is_refused(keys: int, lists: int, word: str) -> None:
    with pytest.raises(PayloadTooLarge, match=word):
        parse_object("A body", document(keys, lists))


def test_a_document_of_more_strings_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="strings"):
        parse_object("A body", b'{"a":[' + b'"",' * MAX_STRINGS + b'""]}')
