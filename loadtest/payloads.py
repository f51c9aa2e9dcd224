"""Requests for whatever model is served: seeded Zipf ids, drawn from the tables that the server says it has."""

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
    """A feature to send; cumulative: running sums of its ids' Zipf weights."""

    name: str
    is_ragged: bool
    cumulative: tuple[float, ...]

    def draw(self, source: random.Random) -> int:
        """Returns an id; small ids are popular."""
        return bisect(self.cumulative, source.random() * self.cumulative[-1])


def features_of(tables: list[dict[str, Any]], signature: dict[str, Any]) -> list[Feature]:
    """Finds which features a signature takes and how large their tables are.

    Args:
      tables: what `GET /v1/models/M/tables` lists.
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
    """Returns num_rows of ids by feature; ragged rows hold 0 to MAX_IDS_PER_ROW ids."""
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
    """Returns rows as the flat int64 tensors of the gRPC wire: NAME, or NAME__values and NAME__row_splits."""
    tensors: dict[str, list[int]] = {}
    for feature in features:
        if not feature.is_ragged:
            tensors[feature.name] = ids[feature.name]
            continue
        tensors[f"{feature.name}__values"] = [i for row in ids[feature.name] for i in row]
        tensors[f"{feature.name}__row_splits"] = [0, *accumulate(len(row) for row in ids[feature.name])]
    return tensors
