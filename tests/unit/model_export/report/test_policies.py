"""The report has words for each lookup policy of a manifest."""

from __future__ import annotations

import pytest

from model_export.report.document import FeatureReport, SignatureReport, TensorReport
from model_export.report.text import bytes_words, lookup_words, signature_words, tensor_words, vocabulary_words
from service.artifact.manifest import LookupFeature, VocabularyEntry


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "x: one id per row, an id outside the table is refused"),
        ({"on_bad_id": "drop"}, "is dropped"),
        ({"on_bad_id": "drop_negative"}, "below 0 is dropped, any other refused"),
        ({"on_bad_id": "default_row", "default_row": 3}, "reads row 3"),
        ({"on_bad_id": "clamp"}, "reads the nearest row"),
        ({"row_splits": "s", "weights": "w", "combiner": "mean"}, "x s w: mean, "),
        ({"row_splits": "s", "combiner": "mean", "mean_divisor": "at_least_one"}, "divided by at least 1"),
        ({"row_splits": "s", "combiner": "sum", "max_ids_per_row": 4}, "at most 4 ids (a longer row is refused)"),
        (
            {"row_splits": "s", "combiner": "sum", "max_ids_per_row": 4, "on_too_many_ids": "truncate"},
            "at most 4 ids (a longer row is cut)",
        ),
        (
            {"row_splits": "s", "combiner": "sum", "on_nonpositive_weight": "drop"},
            "ids of weight 0 or less are left out",
        ),
        ({"row_splits": "s", "max_sequence_length": 5}, "sequence of 5, cut or padded with zeros"),
    ],
)
def test_a_lookup_in_words(fields: dict[str, object], words: str) -> None:
    assert words in lookup_words(LookupFeature(ids="x", **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"first_id": 1, "oov_id": 0}, "9 strings in v.txt, rows from 1; any other is row 0"),
        ({"key_dtype": "int64"}, "9 integers in v.txt, rows from 0; any other is refused"),
        ({"on_oov": "drop"}, "any other is dropped"),
        ({"num_oov_buckets": 3}, "any other falls into one of 3 rows behind them"),
    ],
)
def test_a_vocabulary_in_words(fields: dict[str, object], words: str) -> None:
    entry = VocabularyEntry(file="v.txt", size=9, **fields)  # type: ignore[arg-type]
    assert words in vocabulary_words(FeatureReport("f", "t", "v", entry))
    assert vocabulary_words(FeatureReport("f", "t")) == "rows"


def test_shapes_and_devices_in_words() -> None:
    assert tensor_words(TensorReport("x", "int64", (None, 3))) == "int64 [?, 3]"
    assert tensor_words(TensorReport("x", "float32", (), is_optional=True)) == "float32 [], optional"
    assert tensor_words(TensorReport("x", "string", None)) == "string [...]"
    signature = SignatureReport("s", "lookup", "", (), (), "tpu_tensor_core", (1, 8))
    assert signature_words(signature) == "lookup on tpu_tensor_core, padded to 1, 8 rows"


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (120832, "120.8 kB"), (2_500_000, "2.5 MB"), (7 * 10**12, "7.0 TB")]
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert bytes_words(size) == words
