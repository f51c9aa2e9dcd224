"""The reference server's flags and lookups."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from service.artifact.manifest import LookupFeature
from service.configuration.settings import Settings, StartError
from service.errors import IdOutOfRange, IdsTooMany
from service.reference.lookups import look_up
from service.reference.models import FOLLOWED, REFUSED, check_models, check_settings
from service.reference.rows import Table, combined
from service.types import TableInfo
from service.versions.model_config import ModelConfig, RequestLogConfig


def settings(**given: Any) -> Settings:
    """Returns settings with a base path."""
    return Settings(model_base_path="m", **given)


def test_the_lists_name_settings_and_none_twice() -> None:
    known = {field.name for field in dataclasses.fields(Settings)}
    assert known >= FOLLOWED | REFUSED.keys()
    assert not FOLLOWED & REFUSED.keys()


def test_each_refused_setting_is_named_in_one_sentence() -> None:
    given = {
        "auth_config": "a.toml",
        "ssl_config_file": "s",
        "enable_batching": True,
        "remote_tables": "t=valkey://h:1",
    }
    with pytest.raises(StartError) as error:
        check_settings(settings(**given))
    text = str(error.value)
    assert text.count(".") == 1 and text.endswith(".")
    for name, what in (
        ("auth_config", "callers and rights"),
        ("ssl_config_file", "TLS"),
        ("enable_batching", "batching"),
        ("remote_tables", "tables in clusters"),
    ):
        assert f"{what} (--{name})" in text


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_setting_stops_the_start(name: str) -> None:
    values = {"table_lock": "require", "verify_tables": "before_available", "tracing": "otlp", "max_drift": 5.0}
    default = next(field.default for field in dataclasses.fields(Settings) if field.name == name)
    other = values.get(name, True if default is False else 1 if default == 0 else "x")
    with pytest.raises(StartError, match=f"--{name}"):
        check_settings(settings(**{name: other}))


def test_a_setting_that_asks_for_what_the_reference_does_is_none() -> None:
    check_settings(settings(verify_tables="off", table_lock="off"))
    with pytest.raises(StartError, match=r"graphs for a TPU \(--saved_model_tags\)"):
        check_settings(settings(saved_model_tags="serve,tpu"))


def test_other_settings_without_effect_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_settings(settings(port=1, max_queue_ms=7, hot_rows=False))
    (record,) = caplog.records
    assert record.flags == ["--max_queue_ms", "--hot_rows"]  # type: ignore[attr-defined]
    caplog.clear()
    check_settings(settings(grpc_max_threads=2))
    assert not caplog.records


def test_a_list_of_models_may_not_ask_for_logs_or_clusters() -> None:
    check_models([ModelConfig("m", "/m")])
    with pytest.raises(StartError, match="m has a logging_config"):
        check_models([ModelConfig("m", "/m", request_log=RequestLogConfig("/log", 1.0))])
    with pytest.raises(StartError, match="m has remote_tables"):
        check_models([ModelConfig("m", "/m", remote_tables=("t=valkey://h:1",))])


# Row i is [i, i * i].
NUMBERS = np.array([[i, i * i] for i in range(5)], np.float32)


def table(numbers: np.ndarray = NUMBERS, dtype: str = "float32", scales: np.ndarray | None = None) -> Table:
    """Returns a table of some numbers as they are stored."""
    dim = 3 if dtype == "int4" else numbers.shape[1]
    return Table(TableInfo("t", numbers.shape[0], dim, dtype, numbers.nbytes, ()), numbers, scales)


def found(rows: list[list[int]], weights: list[float] | None = None, **policies: Any) -> Any:
    """Looks up ragged ids, with a sum if the policies name no other reduction; returns lists."""
    given = {"combiner": "sum"} if "max_sequence_length" not in policies else {}
    lookup = LookupFeature.from_json({"ids": "i", "row_splits": "s", "weights": None, **given, **policies})
    inputs = {
        "i": np.array([one for row in rows for one in row], np.int64),
        "s": np.cumsum([0, *map(len, rows)]),
    }
    if weights is not None:
        lookup = LookupFeature.from_json({"ids": "i", "row_splits": "s", "weights": "w", **given, **policies})
        inputs["w"] = np.array(weights, np.float32)
    return look_up(lookup, table(), inputs).tolist()


def one_each(ids: list[int], **policies: Any) -> Any:
    """Looks up one id per row; returns lists."""
    lookup = LookupFeature.from_json({"ids": "i", **policies})
    return look_up(lookup, table(), {"i": np.array(ids, np.int64)}).tolist()


def test_the_combiners() -> None:
    assert found([[1, 2], [], [3, 3, 3]]) == [[3, 5], [0, 0], [9, 27]]
    assert found([[1, 2], [], [3, 3, 3]], combiner="mean") == [[1.5, 2.5], [0, 0], [3, 9]]
    assert found([[2, 2, 2, 2]], combiner="sqrtn") == [[4, 8]]


def test_weights() -> None:
    assert found([[1, 2], [3]], [2, 0.5, -1]) == [[3, 4], [-3, -9]]
    assert found([[1, 2]], [1, 3], combiner="mean") == [[7 / 4, 13 / 4]]
    assert found([[4, 2]], [3, 4], combiner="sqrtn") == [[4, np.float32(64 / 5)]]
    assert found([[1, 2]], []) == [[3, 5]]
    # Weights that add up to 0 give zeros; at_least_one divides by 1 in place of 0.5.
    assert found([[1, 2]], [1, -1], combiner="mean") == [[0, 0]]
    assert found([[2]], [0.5], combiner="mean", mean_divisor="at_least_one") == [[1, 2]]
    assert found([[2], [3]], [0, 1], on_nonpositive_weight="drop", combiner="mean") == [[0, 0], [3, 9]]
    assert found([[9], [3, -1]], [0, 1, -1], on_nonpositive_weight="drop") == [[0, 0], [3, 9]]
    with pytest.raises(IdOutOfRange, match="id 8 at position 1"):
        found([[9], [8]], [0, 1], on_nonpositive_weight="drop")


def test_ids_without_a_row() -> None:
    with pytest.raises(IdOutOfRange, match='"i": id 5 at position 1 is out of range, its table has ids 0 to 4'):
        found([[1], [5], [-1]])
    assert found([[1, 5, -7]], on_bad_id="drop", combiner="mean") == [[1, 1]]
    assert found([[2, -7]], on_bad_id="drop_negative", combiner="mean") == [[2, 4]]
    with pytest.raises(IdOutOfRange, match="id 5"):
        found([[-1, 5]], on_bad_id="drop_negative")
    assert found([[5, -1]], on_bad_id="default_row", default_row=3) == [[6, 18]]
    assert one_each([9, -9, 2], on_bad_id="clamp") == [[4, 16], [0, 0], [2, 4]]
    assert one_each([-1, -5], on_bad_id="wrap") == [[4, 16], [0, 0]]
    with pytest.raises(IdOutOfRange, match="id -6"):
        one_each([-6], on_bad_id="wrap")
    assert one_each([9, 1], on_bad_id="drop") == [[0, 0], [1, 1]]


def test_rows_that_are_too_long() -> None:
    with pytest.raises(IdsTooMany, match='"i": row 1 has 3 ids, this signature takes at most 2'):
        found([[1], [1, 2, 3], [9]], max_ids_per_row=2)
    # The first fault is told: a bad id of a row before, and none behind.
    with pytest.raises(IdOutOfRange):
        found([[9], [1, 2, 3]], max_ids_per_row=2)
    assert found([[1, 2, 9]], max_ids_per_row=2, on_too_many_ids="truncate") == [[3, 5]]


def test_sequences() -> None:
    assert found([[1, 2, 9], [3], []], max_sequence_length=2) == [
        [[1, 1], [2, 4]],
        [[3, 9], [0, 0]],
        [[0, 0], [0, 0]],
    ]


def test_max_norm() -> None:
    lookup = LookupFeature.from_json({"ids": "i", "max_norm": 5.0})
    rows = look_up(lookup, table(np.float32([[3, 4], [6, 8], [0, 0]])), {"i": np.array([0, 1, 2])})
    assert rows.tolist() == [[3, 4], [3, 4], [0, 0]]


@pytest.mark.tf
@pytest.mark.parametrize("dim", [1, 5, 8, 37, 107, 20_003])
@pytest.mark.parametrize("max_norm", [0.25, 2.0, 100.0])
def test_max_norm_has_the_bits_of_tensorflow(tf: Any, dim: int, max_norm: float) -> None:
    numbers = np.random.default_rng(dim).normal(size=(14, dim)).astype(np.float32)
    numbers[9], numbers[10], numbers[11, 0] = 0, np.float32(1e-39), 2.0
    lookup = LookupFeature.from_json({"ids": "i", "max_norm": max_norm})
    # Eigen halves rows of over 8192 numbers at places that depend on the row's place among all rows read; the
    # reference, as the core, takes those of the first row.
    ids = np.array([3, 3, 11, *range(14)]) if dim < 8192 else np.array([3])
    found = look_up(lookup, table(numbers), {"i": ids})
    wanted = tf.nn.embedding_lookup(numbers, ids, max_norm=max_norm).numpy()
    assert found.view(np.uint32).tolist() == wanted.view(np.uint32).tolist()


def test_empty_rows() -> None:
    empty = {"on_empty_row": "default_row", "default_row": 2, "on_bad_id": "drop"}
    assert found([[], [9], [1]], **empty) == [[2, 4], [2, 4], [1, 1]]
    assert np.isnan(found([[]], on_empty_row="nan")).all()
    assert found([[1], [], [2], [], []], trailing_empty_rows="cut") == [[1, 1], [0, 0], [2, 4]]
    assert found([[], []], trailing_empty_rows="cut") == []


def test_quantized_tables() -> None:
    ids = np.array([1, 0])
    scales = np.float32([[0.5], [2]])
    assert table(np.int8([[1, -2], [3, 4]]), "int8", scales).rows(ids).tolist() == [[6, 8], [0.5, -1]]
    # The low half of a byte is the number of an even column, in two's complement.
    octets = np.array([[0x2F, 0x07], [0x81, 0x03]], np.uint8)
    assert table(octets, "int4", scales).rows(ids).tolist() == [[2, -16, 6], [-0.5, 1, 3.5]]
    assert table(np.array([[0x3F80, 0xC000]], np.uint16), "bfloat16").rows(np.array([0])).tolist() == [[1, -2]]
    assert table(np.array([[0.1]], np.float64), "float64").rows(np.array([0])).tolist() == [[float(np.float32(0.1))]]


def test_rows_are_copied_in_the_dtype_of_the_table() -> None:
    lookup = LookupFeature.from_json({"ids": "i", "on_bad_id": "drop"})
    rows = look_up(lookup, table(np.array([[0.1, 0.2]], np.float64), "float64"), {"i": np.array([0, 7])}, "float64")
    assert rows.dtype == np.float64 and rows.tolist() == [[0.1, 0.2], [0, 0]]


def ordered(terms: list[float], summation: Any) -> float:
    """Returns the sum of numbers in one column, in an order of additions."""
    column = np.array(terms, np.float32)[:, None]
    lengths = np.array([len(terms)])
    return float(combined(column, lengths, None, combiner="sum", summation=summation, at_least_one=False)[0, 0])


def test_the_orders_of_additions() -> None:
    # 2**24 + 1 is no float32, so each 1 that is added to 2**24 by itself is lost.
    large = float(1 << 24)
    terms = [large, *[1.0] * 8]
    assert ordered(terms, "in_order") == large == ordered(terms, "segment_mean")
    # Of 10 terms, a block of eight follows the first two; of 9, all are in one block.
    assert ordered([large, *[1.0] * 9], "blocks_of_8") == large + 8
    assert ordered(terms, "blocks_of_8") == large
    # A packet of 8 columns is added in four lanes from 16 terms on; only lane 0 has the large number.
    rows = np.full((16, 9), 1, np.float32)
    rows[0] = large
    lanes = combined(rows, np.array([16]), None, combiner="sum", summation="four_lanes", at_least_one=False)[0]
    assert lanes.tolist() == [large + 12] * 8 + [large]
    # The lanes' sum is a negative denormal number, so -0.0; the row behind the lanes, -0.0, is added as it is.
    bits = np.uint32([0x00A355E6, 0x8082AB1E, 0x80000000])[[0, 1, 0, 0, 2, 1, 1, 0, 1, 1, 2, 1, 2, 0, 2, 2, 2]]
    rows = np.repeat(bits.view(np.float32)[:, None], 8, axis=1)
    behind = combined(rows, np.array([17]), None, combiner="sum", summation="four_lanes", at_least_one=False)[0]
    assert behind.view(np.uint32).tolist() == [0x80000000] * 8


def test_denormal_numbers_count_as_zeros_but_are_copied() -> None:
    numbers = np.float32([[1e-39], [-0.0]])
    assert table(numbers).rows(np.array([0])).tolist() == numbers[:1].tolist()
    assert ordered([1e-39, 1e-39], "in_order") == 0
    # Only the order "in_order" turns the -0.0 of a row with one id into 0.0.
    assert str(ordered([-0.0], "in_order")) == "0.0" and str(ordered([-0.0], "blocks_of_8")) == "-0.0"
