"""Checks the names, features, policies and keys that a user may give for a table file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.importers.import_tables import read_keys
from model_export.importers.table_copy import CopiedTable, OovPolicy, check_name, choose_features, model_spec
from model_export.spec.features import FeatureSpec


@pytest.mark.parametrize(
    ("name", "better"),
    [("user-id", "user_id"), ("1st", "table_1st"), ("a__b", "a_b"), ("é", "table"), ("a.b/c", "a_b_c")],
)
def test_names_that_can_not_be_inputs(name: str, better: str) -> None:
    with pytest.raises(ExportError, match=f"can not be an input .*; call it '{better}'"):
        check_name("table", name)
    check_name("table", better)


def test_features() -> None:
    assert choose_features({"tags": "tag:mean", "first": "tag"}, ["tag", "user"]) == (
        FeatureSpec("tags", "tag", is_ragged=True, combiner="mean"),
        FeatureSpec("first", "tag"),
        FeatureSpec("user", "user"),
    )
    for features, message in (
        ({"tags": "film:mean"}, "reads table 'film'; the tables are tag, user"),
        ({"tags": "tag:max"}, "'max' combines nothing; use sum, mean, sqrtn"),
        ({"user": "tag"}, "two features have the same name"),
        ({"a-b": "tag"}, "call it 'a_b'"),
    ):
        with pytest.raises(ExportError, match=message):
            choose_features(features, ["tag", "user"])


@pytest.mark.parametrize("text", ["zeros", "row", "row:-1", "row:x", "mean:1", ""])
def test_policies_at_fault(text: str) -> None:
    with pytest.raises(ExportError, match="expected error, zero, mean or row:N"):
        OovPolicy.parse("user", text)


def spec_of(oov: str, keys: Any, *, combiner: Any = None) -> Any:
    """Returns feature `user` of a table of 4 rows; if the policy `oov` is "mean", row 3 is the mean row."""
    mean_row = 3 if oov == "mean" else None
    table = CopiedTable("user", 4, 2, keys, "user.npy", "float32", 0, "tables/user", mean_row=mean_row)
    spec = model_spec(
        [table],
        [FeatureSpec("user", "user", is_ragged=combiner is not None, combiner=combiner)],
        {"user": OovPolicy.parse("user", oov)},
    )
    return spec.feature("user")


@pytest.mark.parametrize(
    ("oov", "bad_id", "default_id", "oov_id", "on_oov"),
    [
        ("error", "error", 0, None, "error"),
        ("zero", "drop", 0, None, "drop"),
        ("row:2", "default_row", 2, 2, "error"),
        ("mean", "default_row", 3, 3, "error"),
    ],
)
def test_policies(oov: str, bad_id: str, default_id: int, oov_id: int | None, on_oov: str) -> None:
    by_id = spec_of(oov, None, combiner="sum")
    assert (by_id.on_bad_id, by_id.default_id, by_id.vocabulary, by_id.combiner) == (bad_id, default_id, None, "sum")
    by_key = spec_of(oov, ["a", "b", "c"]).vocabulary
    assert (by_key.keys, by_key.oov_id, by_key.on_oov) == (("a", "b", "c"), oov_id, on_oov)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["a", "b", "a"],
            r"rows 0 and 2 have the same key 'a'; keep one of them, or add \?duplicates=first or \?duplicates=last",
        ),
        ([7, 8, 8], "rows 1 and 2 have the same key 8"),
        (["a", "", "c"], "the key of row 1 is empty"),
        (["a", "b", "c\nd"], r"the key of row 2 is 'c\\nd', and a line feed ends a line of a vocabulary file"),
        (
            ["a", "b\r"],
            r"the key of row 1 is 'b\\r', and readers of vocabulary files drop a carriage return at the end",
        ),
        (["a", "b\ud83d"], r"the key of row 1 is 'b\\ud83d', and half of a surrogate pair is no UTF-8"),
        (
            [1, 2, 2**63],
            r"the key of row 2 is 9223372036854775808, beyond int64, which ends at 2\^63 - 1; .* \?key_dtype=string",
        ),
    ],
)
def test_keys_at_fault(keys: Any, message: str) -> None:
    with pytest.raises(ExportError, match=f"table 'user'.*{message}"):
        spec_of("error", keys)


def test_a_policys_row_must_be_there() -> None:
    for keys in (None, ["a", "b", "c"]):
        with pytest.raises(ExportError, match="oov of table 'user' is row 4, it has 4 rows"):
            spec_of("row:4", keys)


def test_keys_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_text("a\nb c\nü\n", encoding="utf-8")
    assert read_keys(tmp_path / "k.txt") == ["a", "b c", "ü"]
    (tmp_path / "k.txt").write_text("a\x0bb\r\n\u2028\r\n", encoding="utf-8-sig")
    assert read_keys(tmp_path / "k.txt") == ["a\x0bb", "\u2028"]
    (tmp_path / "empty.txt").write_bytes(b"")
    assert read_keys(tmp_path / "empty.txt") == []
    for array in (np.array(["a", "ü"]), np.array([b"a", "ü".encode()])):
        np.save(tmp_path / "k.npy", array)
        assert read_keys(tmp_path / "k.npy") == ["a", "ü"]
    np.save(tmp_path / "k.npy", np.array([5, -(2**63)]))
    assert read_keys(tmp_path / "k.npy") == [5, -(2**63)]


def test_keys_of_a_file_at_fault(tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_bytes(b"\xff\n")
    with pytest.raises(ExportError, match="keys are UTF-8 text, one a line"):
        read_keys(tmp_path / "k.txt")
    with pytest.raises(ExportError, match="cannot read keys from .*nowhere"):
        read_keys(tmp_path / "nowhere.txt")
    np.save(tmp_path / "k.npy", np.array([1.5]))
    with pytest.raises(ExportError, match=r"holds float64 \[1\]; keys are one row of whole numbers or strings"):
        read_keys(tmp_path / "k.npy")
    np.save(tmp_path / "k.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(ExportError, match="cannot read keys"):
        read_keys(tmp_path / "k.npy")
