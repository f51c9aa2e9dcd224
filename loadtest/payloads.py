"""Generates requests for any served model: seeded ids with Zipf frequencies, from the tables that the server lists."""

from __future__ import annotations

import random
from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

ZIPF_EXPONENT = 1.05
MAX_IDS_PER_ROW = 8


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature whose ids are drawn for requests. cumulative: running sums of the Zipf weights of the feature's ids."""

    name: str
    is_ragged: bool
    cumulative: tuple[float, ...]

    def draw(self, source: random.Random) -> int:
        """Draws a random id; small ids are the most frequent."""
        return bisect(self.cumulative, source.random() * self.cumulative[-1])


def features_of(tables: list[dict[str, Any]], signature: dict[str, Any]) -> list[Feature]:
    """Returns the features of a signature, each with the Zipf weights of the ids of its table.

    Args:
      tables: the answer of `GET /v1/models/M/tables`.
      signature: a signature of `GET /v1/models/M/metadata`.
    """
    inputs = signature["inputs"]
    found = []
    for table in tables:
        weights = (1 / rank**ZIPF_EXPONENT for rank in range(1, table["vocabulary_size"] + 1))
        cumulative = tuple(accumulate(weights))
        for name in table["features"]:
            if f"{name}__row_splits" in inputs or name in inputs:
                found.append(Feature(name, f"{name}__row_splits" in inputs, cumulative))
    return found


def rows(features: list[Feature], num_rows: int, source: random.Random) -> dict[str, list[Any]]:
    """Draws num_rows rows of ids for each feature; a ragged row holds 0 to MAX_IDS_PER_ROW ids."""
    return {
        feature.name: [
            [feature.draw(source) for _ in range(source.randint(0, MAX_IDS_PER_ROW))]
            if feature.is_ragged
            else feature.draw(source)
            for _ in range(num_rows)
        ]
        for feature in features
    }


def as_tensors(features: list[Feature], ids: dict[str, list[Any]]) -> dict[str, list[int]]:
    """Converts rows to flat int64 tensors for gRPC, named NAME, or NAME__values and NAME__row_splits."""
    tensors: dict[str, list[int]] = {}
    for feature in features:
        if not feature.is_ragged:
            tensors[feature.name] = ids[feature.name]
            continue
        tensors[f"{feature.name}__values"] = [i for row in ids[feature.name] for i in row]
        tensors[f"{feature.name}__row_splits"] = [0, *accumulate(len(row) for row in ids[feature.name])]
    return tensors
