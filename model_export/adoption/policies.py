"""Finds a graph's policy for ids outside the table from the pieces of its ids' function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from model_export.adoption.key_graph import Fixed, NotRead, Piece, Shifted, Within
from service.artifact.manifest import BadIdPolicy

# The graph's reaction to one id: it refused the request, dropped the id, or read the row with this number.
Outcome = Literal["refused", "dropped"] | int

# The row of ids that belong to no part of a table. Unless the graph drops them before, TensorFlow casts the number of a
# part to int32, and so reads an arbitrary row for ids whose number wraps, some 2^31 times the rows of a part. The
# server refuses them.
NO_PART = Within(-1, -1, "DynamicPartition")


@dataclass(frozen=True, slots=True)
class IdPolicy:
    """A policy for ids outside of a table; its fields mean the same as in manifest.LookupFeature."""

    on_bad_id: BadIdPolicy
    default_row: int = 0


def find_policy(pieces: Sequence[Piece], vocabulary_size: int, outcome: Callable[[int], Outcome | None]) -> IdPolicy:
    """Returns the policy that describes what the graph does with every id outside [0, V), and reads row i for id i.

    Args:
      pieces: intervals of ids that the graph treats alike; a piece's first value is the row. Each row number lies in
        the table or outside it for a whole piece.
      outcome: sends the graph one id; None if its vector is neither the row of `pieces` nor that of a dropped id.

    Raises:
      NotRead: the graph maps ids to rows in another way; the message names an id.
    """
    size = vocabulary_size
    seen = []
    for piece in sorted(pieces, key=lambda piece: piece.keys or (0, 0)):
        low, high = piece.keys or (0, 0)
        row = piece.values[0]
        inside = 0 <= low and high < size
        for end in sorted({low, high}):
            found = outcome(end)
            if row == NO_PART and found != "dropped":
                found = "refused"
            if found != "dropped" and found != (wanted := row_at(row, end, size)):
                raise NotRead(f"id {end} reads {found!r} in a trial, and row {wanted!r} by the graph's ops")
            if inside and found != end:
                raise NotRead(f"id {end} {_said(found)}")
            if not inside:
                seen.append((end, found))
    for policy in (
        IdPolicy("error"),
        IdPolicy("drop"),
        IdPolicy("drop_negative"),
        IdPolicy("wrap"),
        IdPolicy("clamp"),
        *(IdPolicy("default_row", row) for row in sorted({found for _, found in seen if isinstance(found, int)})),
    ):
        if all(found == expected(policy, bad, size) for bad, found in seen):
            return policy
    told = next((bad, found) for bad, found in seen if found != "refused")
    raise NotRead(f"id {told[0]} {_said(told[1])}, and no policy does so for the ids outside the table")


def expected(policy: IdPolicy, bad: int, size: int) -> Outcome:
    if policy.on_bad_id == "drop" or (policy.on_bad_id == "drop_negative" and bad < 0):
        return "dropped"
    if policy.on_bad_id == "wrap" and -size <= bad < 0:
        return bad + size
    if policy.on_bad_id == "clamp":
        return 0 if bad < 0 else size - 1
    return policy.default_row if policy.on_bad_id == "default_row" else "refused"


def row_at(value: object, key: int, size: int) -> Outcome:
    """Returns the row that a value of a piece means for one key; "refused" for a row that the table lacks."""
    if isinstance(value, Within):
        if value.high < 0 or value.low >= size:
            return "refused"
        raise NotRead(f"{value.op} maps several ids to one row")
    if not isinstance(value, (Fixed, Shifted)):
        raise NotRead("rows are hashes of integers")
    row = key + value.by if isinstance(value, Shifted) else int(value.value)
    return row if 0 <= row < size else "refused"


def _said(outcome: Outcome | None) -> str:
    if isinstance(outcome, int):
        return f"reads row {outcome}"
    return "is refused" if outcome == "refused" else "is dropped" if outcome == "dropped" else "reads no row"
