"""Features of lookups, and tables of fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from model_export.errors import ExportError
from model_export.graphs.reduced_table import ReducedTable, TableDtype, chosen_dtypes, reduced, widened
from model_export.graphs.source import id_dtype, lookup_entry, predict_entry
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import LookupFeature
from service.artifact.stored_tables import STEPS, packed, unpacked
from tests.stored_tables import nibbles

WORDS = VocabularySpec(("x", "y"), 1, 0)
SPEC = ModelSpec(
    (TableSpec("t", 9, 2, "sum"),),
    (
        FeatureSpec("one", "t"),
        FeatureSpec(
            "bag",
            "t",
            is_ragged=True,
            max_ids_per_row=4,
            combiner="mean",
            on_bad_id="default_row",
            default_id=3,
            on_nonpositive_weight="drop",
            on_too_many_ids="truncate",
        ),
        FeatureSpec("steps", "t", is_ragged=True, max_sequence_length=5, max_ids_per_row=5, on_bad_id="clamp"),
        FeatureSpec("words", "t", vocabulary=WORDS),
    ),
)


def test_the_cpu_lookup_takes_rows_of_any_length() -> None:
    entry = lookup_entry(SPEC, "cpu")
    assert (entry.kind, entry.device, entry.batch_sizes) == ("lookup", "cpu", ())
    assert entry.features["one"] == LookupFeature("one", output="one")
    assert entry.features["bag"] == LookupFeature(
        "bag__values",
        "bag__row_splits",
        "bag__weights",
        "bag",
        "mean",
        on_bad_id="default_row",
        default_row=3,
        on_nonpositive_weight="drop",
    )
    assert entry.features["steps"] == LookupFeature(
        "steps__values", "steps__row_splits", output="steps", on_bad_id="clamp", max_sequence_length=5
    )


def test_the_tensor_core_lookup_is_padded_and_divides_by_at_least_one() -> None:
    entry = lookup_entry(SPEC, "tpu_tensor_core", batch_sizes=(1, 8))
    assert (entry.device, entry.batch_sizes) == ("tpu_tensor_core", (1, 8))
    bag, steps = entry.features["bag"], entry.features["steps"]
    assert (bag.max_ids_per_row, bag.on_too_many_ids, bag.mean_divisor) == (4, "truncate", "at_least_one")
    assert (steps.max_ids_per_row, steps.max_sequence_length) == (None, 5)


def test_features_can_be_chosen() -> None:
    assert list(lookup_entry(SPEC, "cpu", features=["words"]).features) == ["words"]


@pytest.mark.parametrize("sizes", [(), (0, 1), (4, 4), (8, 1)])
def test_batch_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ExportError, match="ascending"):
        lookup_entry(SPEC, "tpu_tensor_core", batch_sizes=sizes)


def test_predictions_describe_weights_that_the_graph_takes() -> None:
    without = predict_entry(SPEC, ["bag", "one"], ["bag__values", "bag__row_splits", "one"]).features
    assert (without["bag"].weights, without["bag"].output, list(without)) == (None, None, ["bag", "one"])
    assert predict_entry(SPEC, ["bag"], ["bag__weights"]).features["bag"].weights == "bag__weights"


def test_what_ids_travel_as() -> None:
    numbers = FeatureSpec("n", "t", vocabulary=VocabularySpec((1, 2)))
    rows = FeatureSpec("r", "t", vocabulary=WORDS, sends_rows=True)
    assert [id_dtype(SPEC.feature("words"), device) for device in ("cpu", "tpu_tensor_core")] == ["string", "string"]
    assert [id_dtype(numbers, device) for device in ("cpu", "tpu_tensor_core")] == ["int64", "int64"]
    assert [id_dtype(rows, device) for device in ("cpu", "tpu_tensor_core")] == ["int64", "int32"]
    assert id_dtype(SPEC.feature("one"), None) == "int64"


DTYPES: tuple[TableDtype, ...] = ("float16", "bfloat16", "int8", "int4")


def rounded(rows: np.ndarray, dtype: TableDtype) -> ReducedTable:
    """Rounds a table."""
    return reduced("t", dtype, len(rows), lambda start, stop: rows[start:stop])


def read(table: ReducedTable) -> np.ndarray:
    """Returns the float32 numbers for which a reduced table stands."""
    return widened(table.numbers, table.dtype, table.scales, embedding_dim=table.embedding_dim)


def test_int8_by_hand() -> None:
    rows = np.array([[127, -64, 0.5, 1.5], [0, 0, 0, 0], [-2.54, 1.27, 0, 0.01]], np.float32)
    table = rounded(rows, "int8")
    # Half a step is rounded to the even step.
    assert table.numbers.tolist() == [[127, -64, 0, 2], [0, 0, 0, 0], [-127, 64, 0, 0]]
    assert table.scales is not None
    np.testing.assert_allclose(table.scales[:, 0], [1, 0, 0.02], rtol=1e-6)
    assert table.rounding.largest_error == 0.5
    assert table.rounding.error_bound == pytest.approx(0.5, rel=1e-4)


def test_int4_by_hand() -> None:
    rows = np.array([[7, -3, 0.5, 1.5, -6.6], [0, 0, 0, 0, 0], [0.14, 0.065, 0, -0.14, 0.02]], np.float32)
    table = rounded(rows, "int4")
    assert table.scales is not None
    np.testing.assert_allclose(table.scales[:, 0], [1, 0, 0.02], rtol=1e-6)
    np.testing.assert_allclose(read(table), [[7, -3, 0, 2, -7], [0] * 5, [0.14, 0.06, 0, -0.14, 0.02]], rtol=1e-6)
    # Two int4 numbers a byte, the low half first: 7 and -3 (d), 0 and 2, -7 (9) and an unused half.
    assert [f"{byte:02x}" for byte in table.numbers[0]] == ["d7", "20", "09"]
    assert table.rounding.largest_error == 0.5
    assert table.rounding.error_bound == pytest.approx(0.5, rel=1e-5)


def test_bfloat16_by_hand() -> None:
    # Near 1, a step of bfloat16 is 2^-7. 1 + 2^-8 is halfway between two steps and goes to the even one, 1; 1 + 3 *
    # 2^-8 goes to 1 + 2^-6.
    table = rounded(np.array([[1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-7]], np.float32), "bfloat16")
    assert read(table).tolist() == [[1, 1, 1 + 2.0**-6, -1 - 2.0**-7]]
    assert table.numbers.tolist() == [[0x3F80, 0x3F80, 0x3F82, 0xBF81]]
    assert table.rounding.largest_error == table.rounding.error_bound == 2.0**-8


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 5)),
        elements=st.floats(-60000, 60000, width=32, allow_subnormal=False),
    ),
    st.sampled_from(DTYPES),
)
def test_no_number_is_further_off_than_the_bound(rows: np.ndarray, dtype: TableDtype) -> None:
    table = rounded(rows, dtype)
    errors = np.abs(read(table).astype(np.float64) - rows)
    assert errors.max() == table.rounding.largest_error <= table.rounding.error_bound
    if dtype in STEPS:
        assert table.scales is not None
        # The error is bounded for each row, so a row of small numbers has small errors.
        steps = np.abs(rows).max(axis=1, keepdims=True) / STEPS[dtype]
        assert (errors <= np.maximum(steps, 2.0**-126) * 0.50004).all()
    elif dtype == "float16":
        assert np.array_equal(table.numbers, rows.astype(np.float16))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nan_and_infinity_stay_what_they_are(dtype: TableDtype) -> None:
    # Such numbers are exported only with allow_nonfinite. The bits of these NaN must not be rounded up to an infinity.
    odd = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    rows = np.array([[np.nan, np.inf, -np.inf, 1], [*odd, 2, 3]], np.float32)
    assert np.array_equal(read(rounded(rows, dtype)), rows, equal_nan=True)


FAULTS: Mapping[str, tuple[TableDtype, float, str]] = {
    "NaN in int8": ("int8", np.nan, "table 't': row 1 holds NaN or infinity, which int8 has no number for"),
    "infinity in int8": ("int8", -np.inf, "row 1 holds NaN or infinity"),
    "NaN in int4": ("int4", np.nan, "table 't': row 1 holds NaN or infinity, which int4 has no number for"),
    "too large for float16": ("float16", 65520, "row 1 holds 65520, float16 ends at 65504; export it as float32"),
    "too large for bfloat16": ("bfloat16", 3.4e38, r"row 1 holds 3\.4e\+38, bfloat16 ends at 3\.38953e\+38"),
}


@pytest.mark.parametrize(("dtype", "number", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_what_has_no_place_in_a_dtype_is_refused(dtype: TableDtype, number: float, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        rounded(np.array([[1, 2], [3, number]], np.float32), dtype)


def test_dtypes_are_chosen_for_all_tables_or_by_table() -> None:
    assert chosen_dtypes(None, ["a"]) == {}
    assert chosen_dtypes("int8", ["a", "b"]) == {"a": "int8", "b": "int8"}
    assert chosen_dtypes({"a": "float32", "b": "float16"}, ["a", "b", "c"]) == {"b": "float16"}
    with pytest.raises(ExportError, match=r"table_dtype names \['x'\]; the tables are \['a'\]"):
        chosen_dtypes({"x": "int8"}, ["a"])
    with pytest.raises(ExportError, match=r"'a': 'int2'.*expected one of float32, float16, bfloat16, int8, int4"):
        chosen_dtypes("int2", ["a"])


@given(
    arrays.arrays(np.int8, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.integers(-8, 7)),
)
def test_two_numbers_of_four_bits_share_a_byte_and_come_back(numbers: np.ndarray) -> None:
    octets = packed(numbers)
    assert octets.dtype == np.uint8 and octets.shape == (len(numbers), (numbers.shape[1] + 1) // 2)
    assert octets.tobytes() == nibbles(numbers).tobytes()
    assert np.array_equal(unpacked(octets, numbers.shape[1]), numbers)


@pytest.mark.tf
@pytest.mark.parametrize("dim", [1, 2, 5, 8])
def test_a_graph_reads_every_byte_as_numpy_does(tf: Any, dim: int) -> None:
    from model_export.graphs.reduced_graph import GraphTable

    random = np.random.default_rng(dim)
    octets = random.permutation(np.repeat(np.arange(256), (dim + 1) // 2)).astype(np.uint8).reshape(256, -1)
    scales = random.uniform(0.1, 3, (256, 1)).astype(np.float32)
    ids = random.integers(0, 256, (40, 3))
    found = GraphTable(tf.constant(octets), tf.constant(scales), dim).gather(ids)
    expected = unpacked(octets, dim).astype(np.float32) * scales
    assert found.shape == (40, 3, dim) and found.numpy().tobytes() == expected[ids].tobytes()
