"""Mutations of a JSON document depend on a seed, do not change the document, and often give valid JSON."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from random import Random
from typing import Any

from loadtest.fuzz.mutations import mutated_json

DOCUMENTS: list[Any] = [{"inputs": {"user": [1, 2], "tags": [["red"], []]}, "signature_name": "lookup"}]


def bodies(count: int) -> list[bytes]:
    """Returns mutated bodies, decompressed where they are compressed and can be read."""
    found = []
    for number in range(count):
        body, headers = mutated_json(Random(number), DOCUMENTS)
        if headers == {"Content-Encoding": "gzip"}:
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error):
                continue
        else:
            assert headers == {}
        found.append(body)
    return found


def test_the_same_seed_gives_the_same_bodies_and_the_documents_stay() -> None:
    before = copy.deepcopy(DOCUMENTS)
    assert bodies(300) == bodies(300)
    assert before == DOCUMENTS


def test_about_half_is_json_and_hardly_any_is_the_document_itself() -> None:
    found = bodies(2000)
    parsed = []
    for body in found:
        try:
            parsed.append(json.loads(body))
        except (ValueError, RecursionError):
            continue
    assert 0.3 * len(found) < len(parsed) < 0.9 * len(found)
    assert sum(document == DOCUMENTS[0] for document in parsed) < 0.15 * len(found)


def test_tokens_that_are_no_json_stand_where_values_stand() -> None:
    assert any(b"NaN" in body for body in bodies(1000))
    assert not any(b"token goes here" in body for body in bodies(1000))
