"""The load test's requests are reproducible by a seed, have ids within the tables, and are alike on both wires."""

from __future__ import annotations

import random
from collections import Counter

from loadtest.payloads import MAX_IDS_PER_ROW, as_tensors, features_of, rows

TABLES = [
    {"name": "user", "vocabulary_size": 50, "features": ["user_id"]},
    {"name": "film", "vocabulary_size": 20, "features": ["film_id", "recent_films"]},
]
SIGNATURE = {"inputs": dict.fromkeys(["user_id", "recent_films__values", "recent_films__row_splits"], {})}


def test_only_features_that_the_signature_takes_are_sent() -> None:
    features = features_of(TABLES, SIGNATURE)
    assert [(f.name, f.is_ragged) for f in features] == [("user_id", False), ("recent_films", True)]


def test_ids_lie_in_their_tables_and_small_ones_are_popular() -> None:
    drawn = rows(features_of(TABLES, SIGNATURE), 5000, random.Random(1))
    users = Counter(drawn["user_id"])
    assert set(users) <= set(range(50))
    assert users[0] > users[10] > users[49] > 0
    assert {i for row in drawn["recent_films"] for i in row} == set(range(20))
    assert {len(row) for row in drawn["recent_films"]} == set(range(MAX_IDS_PER_ROW + 1))


def test_the_same_seed_draws_the_same_requests() -> None:
    features = features_of(TABLES, SIGNATURE)
    assert rows(features, 9, random.Random(7)) == rows(features, 9, random.Random(7))


def test_tensors_hold_the_rows_end_to_end() -> None:
    features = features_of(TABLES, SIGNATURE)
    tensors = as_tensors(features, {"user_id": [3, 4, 5], "recent_films": [[7, 8], [], [9]]})
    assert tensors == {
        "user_id": [3, 4, 5],
        "recent_films__values": [7, 8, 9],
        "recent_films__row_splits": [0, 2, 2, 3],
    }
