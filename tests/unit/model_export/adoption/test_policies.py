"""The policy for ids without a row is found from the model's answers."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.adoption.policies import IdPolicy, Outcome, find_policy, row_of

V = 10


def outcome_of(policy: str) -> dict[int, Outcome]:
    """Returns, for each tested id, what a policy does with it; worked out by hand."""
    low, high = (-1, -2, -10, -11), (10, 15, 999)
    found: dict[str, dict[int, Outcome]] = {
        "error": {bad: "refused" for bad in low + high},
        "drop": {bad: "dropped" for bad in low + high},
        "drop_negative": {**{bad: "dropped" for bad in low}, **{bad: "refused" for bad in high}},
        "clamp": {**{bad: 0 for bad in low}, **{bad: 9 for bad in high}},
        "wrap": {-1: 9, -2: 8, -10: 0, -11: "refused", 10: "refused", 15: "refused", 999: "refused"},
        "default_row": {bad: 4 for bad in low + high},
    }
    return found[policy]


@pytest.mark.parametrize("policy", ["error", "drop", "drop_negative", "clamp", "wrap", "default_row"])
def test_each_policy_is_told_by_its_outcomes(policy: str) -> None:
    outcomes = outcome_of(policy)
    found = find_policy(lambda bad: outcomes[bad], V, 999)
    assert found is not None and found.on_bad_id == policy
    assert found.default_row == (4 if policy == "default_row" else 0)


@pytest.mark.parametrize("changed", [{-1: 3}, {10: 0}, {-11: 9}, {15: None}])
def test_outcomes_that_no_policy_has_are_no_policy(changed: dict[int, Outcome | None]) -> None:
    outcomes = {**outcome_of("wrap"), **changed}
    assert find_policy(lambda bad: outcomes[bad], V, 999) is None


def test_a_table_of_one_row_has_a_default_row() -> None:
    outcomes = {bad: 0 for bad in (-1, -2, 1, 6, 999)}
    assert find_policy(lambda bad: outcomes[bad], 1, 999) == IdPolicy("default_row", 0)


def test_a_vector_is_found_among_rows() -> None:
    rows = np.array([[1, 2], [3, 4]], np.float32)
    assert row_of(np.array([3, 4], np.float32), rows) == 1
    assert row_of(np.array([3, 5], np.float32), rows) is None
