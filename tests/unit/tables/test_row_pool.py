"""Lookups are shared out among threads, with the same answers, counts and first fault as in one thread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.manifest import LookupFeature, SignatureEntry
from service.errors import ServiceError
from service.tables.plan import SignaturePlan, compile_signature
from service.tables.row_pool import RowPool, RowRunner, in_one_piece, row_runner
from service.types import TableCounts, Tensors
from tests import oracle
from tests.stored_tables import DTYPES, store

FEATURES = {
    "one": LookupFeature("one", output="one", on_bad_id="drop"),
    "strict": LookupFeature("strict", output="strict"),
    "bag": LookupFeature(
        "bag__values",
        "bag__row_splits",
        "bag__weights",
        output="bag",
        combiner="mean",
        on_bad_id="drop_negative",
        max_ids_per_row=4,
    ),
    "path": LookupFeature("path__values", "path__row_splits", output="path", max_sequence_length=2),
}
TABLE = store(np.random.default_rng(0).normal(size=(6, 9)))


def plan(runner: RowRunner, dtype: str = "float32") -> SignaturePlan:
    """Compiles a signature's plan with all features over one table."""
    table = store(TABLE.numbers, dtype).mapped
    entry = SignatureEntry("lookup", FEATURES, "cpu")
    return compile_signature(entry, dict.fromkeys(FEATURES, "tag"), {"tag": table}, runner)


def outcome(run: SignaturePlan, inputs: Tensors) -> tuple[object, dict[str, TableCounts]]:
    """Returns the answers' bytes or the error's type and text, and the counts of the tables."""
    try:
        answers = run.run(inputs, tuple(FEATURES))
    except ServiceError as error:
        return (type(error), error.message), _totals(run)
    return {name: array.tobytes() for name, array in answers.items()}, _totals(run)


def _totals(run: SignaturePlan) -> dict[str, TableCounts]:
    return {str(number): counts for number, (_, counts) in enumerate(run.counts())}


IDS = st.sampled_from([0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0, -1, 6])


@given(
    st.sampled_from(DTYPES),
    st.integers(2, 5),
    st.lists(IDS, max_size=12),
    st.lists(st.lists(IDS, max_size=5), max_size=9),
    st.sampled_from(sorted(FEATURES)),
)
def test_shared_out_or_not_is_the_same(
    dtype: str, threads: int, ids: list[int], rows: list[list[int]], feature: str
) -> None:
    lookup = FEATURES[feature]
    values, splits = oracle.ragged(rows)
    inputs = {lookup.ids: np.array(ids, np.int64)}
    if lookup.row_splits is not None:
        inputs = {lookup.ids: values, lookup.row_splits: splits}
        if lookup.weights is not None:
            inputs[lookup.weights] = np.arange(len(values), dtype=np.float32) - 1
    # A thread gets work for each byte, so every lookup is shared out.
    pool = RowPool(threads, 1)
    assert outcome(plan(pool, dtype), inputs) == outcome(plan(in_one_piece, dtype), inputs)


def test_parts_are_even_by_ids_and_small_lookups_stay_whole() -> None:
    seen: list[tuple[int, int]] = []

    def part(begin: int, end: int) -> int:
        seen.append((begin, end))
        return -1

    pool = RowPool(2, 100)
    assert pool(part, 10, None, 199) == -1
    assert seen == [(0, 10)]
    seen.clear()
    pool(part, 10, None, 200)
    assert sorted(seen) == [(0, 5), (5, 10)]
    seen.clear()
    # Nine of the twelve ids are in the first row, so one thread gets that row and the other one all others.
    pool(part, 4, np.array([0, 9, 10, 11, 12]), 200)
    assert sorted(seen) == [(0, 1), (1, 4)]


@pytest.mark.parametrize("threads", [1, 3])
def test_one_thread_needs_no_pool(threads: int) -> None:
    assert isinstance(row_runner(threads), RowPool) == (threads > 1)
