"""The policy for ids outside a table follows from the pieces of the ids' function, with hand-worked outcomes."""

from __future__ import annotations

import pytest

from model_export.adoption.key_graph import (
    NO_PART,
    Fixed,
    IdPolicy,
    Known,
    NotRead,
    Outcome,
    Piece,
    Shifted,
    Within,
    find_policy,
)

V = 10
LEAST, MOST = -(2**31), 2**31 - 1
INSIDE = Piece((0, V - 1), (Shifted(),))


def outside(below: Known, beyond: Known) -> list[Piece]:
    """Returns pieces of two values for ids below 0 and from V on, and of the id itself for the ids of the table."""
    return [Piece((LEAST, -1), (below,)), INSIDE, Piece((V, MOST), (beyond,))]


@pytest.mark.parametrize(
    ("pieces", "dropped", "policy"),
    [
        (outside(Shifted(), Shifted()), (), IdPolicy("error")),
        (outside(Shifted(), Shifted()), ((LEAST, -1), (V, MOST)), IdPolicy("drop")),
        (outside(Shifted(), Shifted()), ((LEAST, -1),), IdPolicy("drop_negative")),
        (outside(Fixed(0), Fixed(V - 1)), (), IdPolicy("clamp")),
        (outside(Fixed(4), Fixed(4)), (), IdPolicy("default_row", 4)),
        (
            [
                Piece((LEAST, -V - 1), (Shifted(V),)),
                Piece((-V, -1), (Shifted(V),)),
                INSIDE,
                Piece((V, MOST), (Shifted(),)),
            ],
            (),
            IdPolicy("wrap"),
        ),
        (outside(Within(-9, -1, "FloorDiv"), Within(V, 99, "FloorDiv")), (), IdPolicy("error")),
        # Ids of no part of a table are refused, unless the graph drops them before it computes the part.
        (outside(NO_PART, NO_PART), (), IdPolicy("error")),
        (outside(NO_PART, NO_PART), ((LEAST, -1),), IdPolicy("drop_negative")),
    ],
)
def test_each_policy_is_told_by_its_pieces(
    pieces: list[Piece], dropped: tuple[tuple[int, int], ...], policy: IdPolicy
) -> None:
    assert find_policy(pieces, V, outcome_of(pieces, dropped)) == policy


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        # One id is retired.
        ([Piece((LEAST, -1), (Shifted(),)), Piece((0, 3), (Shifted(),)), Piece((4, 4), (Fixed(2),)),
          Piece((5, V - 1), (Shifted(),)), Piece((V, MOST), (Shifted(),))], "id 4 reads row 2"),
        # Ids count from 1.
        ([Piece((LEAST, -1), (Shifted(-1),)), Piece((0, 0), (Shifted(-1),)), Piece((1, V - 1), (Shifted(-1),)),
          Piece((V, V), (Shifted(-1),)), Piece((V + 1, MOST), (Shifted(-1),))], "id 0 is refused"),
        # Below the table row 1, beyond it row 2.
        (outside(Fixed(1), Fixed(2)), "reads row 1, and no policy"),
        (outside(Shifted(), Within(0, V - 1, "FloorMod")), "FloorMod maps several ids to one row"),
    ],
)  # fmt: skip
def test_what_no_policy_says_is_told_with_an_id(pieces: list[Piece], message: str) -> None:
    with pytest.raises(NotRead, match=message):
        find_policy(pieces, V, outcome_of(pieces, ()))


def test_a_trial_that_differs_from_the_ops_is_no_policy() -> None:
    pieces = outside(Shifted(), Shifted())
    answers = outcome_of(pieces, ())
    with pytest.raises(NotRead, match="id 9 reads 8 in a trial, and row 9 by the graph's ops"):
        find_policy(pieces, V, lambda key: 8 if key == 9 else answers(key))


def outcome_of(pieces: list[Piece], dropped: tuple[tuple[int, int], ...]):  # type: ignore[no-untyped-def]
    """Returns what a graph of these pieces does with an id; ids of the intervals `dropped` are dropped."""

    def outcome(key: int) -> Outcome | None:
        if any(low <= key <= high for low, high in dropped):
            return "dropped"
        (value,) = next(p.values for p in pieces if p.keys and p.keys[0] <= key <= p.keys[1])
        row = key + value.by if isinstance(value, Shifted) else value.value if isinstance(value, Fixed) else -1
        return row if 0 <= row < V else "refused"

    return outcome
