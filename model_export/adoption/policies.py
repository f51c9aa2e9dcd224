"""Finds a graph's policy for ids outside the table by trying a few such ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.artifact.manifest import BadIdPolicy
from service.types import Array

# The graph's reaction to one id: it refused the request, dropped the id, or read the row with this number.
Outcome = Literal["refused", "dropped"] | int


@dataclass(frozen=True, slots=True)
class IdPolicy:
    """A policy for ids outside of a table, as adopt found it; its fields mean the same as in manifest.LookupFeature."""

    on_bad_id: BadIdPolicy
    default_row: int = 0


def find_policy(outcome: Callable[[int], Outcome | None], vocabulary_size: int, largest: int) -> IdPolicy | None:
    """Returns the policy that explains how the graph reacts to ids outside [0, V); None if no policy does.

    Args:
      outcome: tries one id. It returns None if the vector is neither a row of the table nor the vector of an empty row.
      largest: the largest id to try, beyond the table.
    """
    size = vocabulary_size
    below = [outcome(bad) for bad in (-1, -2, -size, -size - 1)]
    beyond = [outcome(bad) for bad in (size, size + 5, largest)]
    seen = {*below, *beyond}
    if seen == {"refused"}:
        return IdPolicy("error")
    if seen == {"dropped"}:
        return IdPolicy("drop")
    if set(beyond) == {"refused"} and set(below) == {"dropped"}:
        return IdPolicy("drop_negative")
    if set(beyond) == {"refused"} and below == [size - 1, size - 2, 0, "refused"]:
        return IdPolicy("wrap")
    if size > 1 and set(below) == {0} and set(beyond) == {size - 1}:
        return IdPolicy("clamp")
    if len(seen) == 1 and isinstance(row := seen.pop(), int):
        return IdPolicy("default_row", row)
    return None


def row_of(vector: Array, rows: Array) -> int | None:
    """Returns the number of the first row of a [V, D] table that equals a [D] vector; None if no row does."""
    found = np.flatnonzero((rows == vector).all(axis=1))
    return int(found[0]) if found.size else None
