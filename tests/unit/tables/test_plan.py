"""Compiled signatures call the kernels with the right arguments, and turn their refusals into errors with texts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from service.artifact.manifest import LookupFeature, SignatureEntry
from service.errors import IdOutOfRange, IdsTooMany
from service.tables.plan import SignaturePlan, compile_signature
from service.tables.table import MappedTable
from service.types import TableCounts, TableInfo
from tests.toy_model import toy_tables

TAG = toy_tables()["tag"]


def plan(batch_sizes: tuple[int, ...] = (), **features: LookupFeature) -> SignaturePlan:
    """Compiles features over the table `tag`."""
    table = MappedTable(TableInfo("tag", 4, 3, "float32", TAG.nbytes, ()), TAG)
    entry = SignatureEntry("lookup", features, "cpu", batch_sizes)
    return compile_signature(entry, dict.fromkeys(features, "tag"), {"tag": table})


def tags(**options: Any) -> LookupFeature:
    """Returns a ragged LookupFeature `tags` with weights."""
    options = {"combiner": "mean", "output": "tags"} | options
    return LookupFeature("tags__values", "tags__row_splits", "tags__weights", **options)


def ids(*values: int, dtype: str = "int64") -> np.ndarray:
    """Returns ids."""
    return np.array(values, dtype)


def ragged(values: np.ndarray, *splits: int, dtype: str = "int64") -> dict[str, np.ndarray]:
    """Returns the input tensors of the ragged feature."""
    return {"tags__values": values, "tags__row_splits": np.array(splits, dtype)}


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("splits_dtype", ["int64", "int32"])
def test_both_widths_of_ids_and_splits(dtype: str, splits_dtype: str) -> None:
    outputs = plan(tags=tags()).run(ragged(ids(1, 2, 3, dtype=dtype), 0, 2, 3, dtype=splits_dtype), ("tags",))
    assert outputs["tags"].tolist() == [[1.5, 2.5, 1], [3, 9, 1]]
    assert outputs["tags"].dtype == np.float32


@pytest.mark.parametrize("weights", [None, [], [1, 1, 1]])
def test_no_weights_empty_weights_and_ones_are_the_same(weights: list[float] | None) -> None:
    inputs = ragged(ids(1, 2, 3), 0, 3)
    if weights is not None:
        inputs["tags__weights"] = np.array(weights, np.float32)
    np.testing.assert_allclose(plan(tags=tags()).run(inputs, ("tags",))["tags"], [[2, 14 / 3, 1]], rtol=1e-6)


def test_strided_read_only_and_unaligned_arrays_are_taken() -> None:
    inputs = ragged(ids(1, 9, 2, 9)[::2], 0, 2)
    inputs["tags__row_splits"] = ids(0, 9, 2, 9)[::2]
    inputs["tags__weights"] = np.array([1, 9, 3, 9], np.float32)[::2]
    expected = [[1.75, 3.25, 1]]
    assert plan(tags=tags()).run(inputs, ("tags",))["tags"].tolist() == expected
    from_bytes = {
        name: np.frombuffer(b"x" + array.tobytes(), array.dtype, array.size, 1) for name, array in inputs.items()
    }
    assert not any(array.flags.aligned for array in from_bytes.values())
    assert plan(tags=tags()).run(from_bytes, ("tags",))["tags"].tolist() == expected


def test_answers_the_features_that_were_sent_in_the_order_asked_for() -> None:
    two = plan(tags=tags(), user=LookupFeature("user", output="user"), other=LookupFeature("other", output="other"))
    outputs = two.run({"user": ids(3), **ragged(ids(1), 0, 1)}, ("user", "tags", "other"))
    assert list(outputs) == ["user", "tags"]
    assert two.run({"user": ids(3), **ragged(ids(1), 0, 1)}, ("tags",)).keys() == {"tags"}


def test_an_output_may_have_another_name_than_its_feature() -> None:
    outputs = plan(user=LookupFeature("user", output="user_vector")).run({"user": ids(3)}, ("user_vector",))
    assert outputs["user_vector"].tolist() == [[3, 9, 1]]


def test_a_bad_id_is_named_with_its_input_and_place() -> None:
    with pytest.raises(
        IdOutOfRange, match='^input "tags__values": id 4 at position 2 is out of range, .* ids 0 to 3.$'
    ):
        plan(tags=tags()).run(ragged(ids(0, 1, 4), 0, 1, 3), ("tags",))
    with pytest.raises(IdOutOfRange, match='^input "user": id -1 at position 0 is out of range'):
        plan(user=LookupFeature("user", output="user")).run({"user": ids(-1)}, ("user",))


@pytest.mark.parametrize(("count", "is_refused"), [(2, False), (3, False), (4, True)])
def test_k_is_enforced(count: int, is_refused: bool) -> None:
    padded = plan(tags=tags(max_ids_per_row=3))
    inputs = ragged(ids(*range(count)), 0, 0, count)
    if is_refused:
        message = '^input "tags__values": row 1 has 4 ids, this signature takes at most 3.$'
        with pytest.raises(IdsTooMany, match=message):
            padded.run(inputs, ("tags",))
    else:
        assert padded.run(inputs, ("tags",))["tags"].shape == (2, 3)


def test_a_longer_row_is_cut_where_the_manifest_says_so() -> None:
    cut = plan(tags=tags(combiner="sum", max_ids_per_row=2, on_too_many_ids="truncate"))
    assert cut.run(ragged(ids(1, 2, 3), 0, 3), ("tags",))["tags"].tolist() == [[3, 5, 2]]


@pytest.mark.parametrize("feature", ["user", "tags"])
def test_more_rows_than_the_last_batch_size_are_refused(feature: str) -> None:
    padded = plan((1, 4), tags=tags(), user=LookupFeature("user", output="user"))

    def inputs(rows: int) -> dict[str, np.ndarray]:
        return {"user": ids(*[1] * rows)} if feature == "user" else ragged(ids(), *[0] * (rows + 1))

    for rows in (0, 1, 3, 4):
        assert padded.run(inputs(rows), (feature,))[feature].shape == (rows, 3)
    with pytest.raises(IdsTooMany, match=r": 5 rows, this signature takes at most 4\.$"):
        padded.run(inputs(5), (feature,))


def test_policies_of_a_feature_without_rows_of_ids() -> None:
    dropping = plan(user=LookupFeature("user", output="user", on_bad_id="drop"))
    assert dropping.run({"user": ids(9, 1)}, ("user",))["user"].tolist() == [[0, 0, 0], [1, 1, 1]]
    reading = plan(user=LookupFeature("user", output="user", on_bad_id="default_row", default_row=2))
    assert reading.run({"user": ids(-1, 1)}, ("user",))["user"].tolist() == [[2, 4, 1], [1, 1, 1]]
    clamping = plan(user=LookupFeature("user", output="user", on_bad_id="clamp"))
    assert clamping.run({"user": ids(-1, 9)}, ("user",))["user"].tolist() == [[0, 0, 1], [3, 9, 1]]
    negative = plan(user=LookupFeature("user", output="user", on_bad_id="drop_negative"))
    assert negative.run({"user": ids(-1, 1)}, ("user",))["user"].tolist() == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(IdOutOfRange, match="id 4 at position 0"):
        negative.run({"user": ids(4)}, ("user",))


def test_weights_of_zero_or_less_leave_their_ids_out_where_the_manifest_says_so() -> None:
    inputs = ragged(ids(1, 2, 3), 0, 3) | {"tags__weights": np.array([0, 2, -1], np.float32)}
    assert plan(tags=tags()).run(inputs, ("tags",))["tags"].tolist() == [[1, -1, 1]]
    dropping = plan(tags=tags(on_nonpositive_weight="drop"))
    assert dropping.run(inputs, ("tags",))["tags"].tolist() == [[2, 4, 1]]
    without = ragged(ids(1, 2), 0, 2)
    assert dropping.run(without, ("tags",))["tags"].tolist() == [[1.5, 2.5, 1]]


def path(**options: Any) -> LookupFeature:
    """Returns a sequence feature of length two."""
    return LookupFeature("tags__values", "tags__row_splits", output="tags", max_sequence_length=2, **options)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_a_sequence_is_padded_and_cut(dtype: str) -> None:
    inputs = ragged(ids(3, 1, 2, 3, dtype=dtype), 0, 1, 1, 4, dtype=dtype)
    found = plan(tags=path()).run(inputs, ("tags",))["tags"]
    assert found.tolist() == [[[3, 9, 1], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]], [[1, 1, 1], [2, 4, 1]]]
    assert (found.dtype, found.shape) == (np.float32, (3, 2, 3))
    assert plan(tags=path()).run(ragged(ids(), 0), ("tags",))["tags"].shape == (0, 2, 3)


def test_a_bad_id_of_a_sequence_is_named_unless_it_is_cut_off() -> None:
    with pytest.raises(IdOutOfRange, match='^input "tags__values": id 4 at position 2 is out of range'):
        plan(tags=path()).run(ragged(ids(1, 1, 4), 0, 1, 3), ("tags",))
    kept = plan(tags=path()).run(ragged(ids(1, 2, 4), 0, 3), ("tags",))["tags"]
    assert kept.tolist() == [[[1, 1, 1], [2, 4, 1]]]
    dropped = plan(tags=path(on_bad_id="drop")).run(ragged(ids(-1, 2), 0, 2), ("tags",))["tags"]
    assert dropped.tolist() == [[[0, 0, 0], [2, 4, 1]]]


def test_a_sequence_has_as_many_rows_as_its_batch_allows() -> None:
    with pytest.raises(IdsTooMany, match=r": 5 rows, this signature takes at most 4\.$"):
        plan((4,), tags=path()).run(ragged(ids(), *[0] * 6), ("tags",))


@pytest.mark.parametrize(
    ("options", "sent", "counts"),
    [
        ({"on_bad_id": "error"}, (1, 2, 3), (3, 0, 36)),
        ({"on_bad_id": "drop"}, (1, -1, 4, 2), (4, 2, 24)),
        ({"on_bad_id": "clamp"}, (1, -1, 4, 2), (4, 2, 48)),
        ({"on_bad_id": "default_row", "default_row": 3}, (9,), (1, 1, 12)),
        # An id beyond max_ids_per_row counts as an id; the lookup does not look whether it has a row.
        ({"on_bad_id": "drop", "max_ids_per_row": 1, "on_too_many_ids": "truncate"}, (1, -1), (2, 0, 24)),
        ({}, (), (0, 0, 0)),
    ],
)
def test_counts_ids_those_without_a_row_and_bytes(
    options: dict[str, Any], sent: tuple[int, ...], counts: tuple[int, int, int]
) -> None:
    compiled = plan(tags=tags(**options))
    for _ in range(2):
        compiled.run(ragged(ids(*sent), 0, len(sent)), ("tags",))
    ids_sent, missing, read_bytes = (2 * count for count in counts)
    assert list(compiled.counts()) == [("tag", TableCounts(ids_sent, missing, 0, read_bytes))]


def test_a_refused_lookup_counts_the_id_that_has_no_row_and_no_other() -> None:
    compiled = plan(tags=tags(), max_two=tags(output="max_two", max_ids_per_row=2))
    with pytest.raises(IdOutOfRange):
        compiled.run(ragged(ids(1, 4, 9), 0, 3), ("tags",))
    with pytest.raises(IdsTooMany):
        compiled.run(ragged(ids(1, 2, 3), 0, 3), ("max_two",))
    assert list(compiled.counts()) == [("tag", TableCounts(1, 1, 0, 0)), ("tag", TableCounts())]


def test_threads_that_count_at_the_same_time_lose_nothing() -> None:
    compiled = plan(tags=tags(on_bad_id="drop"))
    inputs = ragged(ids(1, 9, 2), 0, 3)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(lambda: [compiled.run(inputs, ("tags",)) for _ in range(500)]) for _ in range(4)]:
            done.result()
    assert list(compiled.counts()) == [("tag", TableCounts(6000, 2000, 0, 48_000))]
