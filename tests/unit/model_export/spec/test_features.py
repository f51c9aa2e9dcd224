"""Features and tables are checked when they are declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec

TABLE = TableSpec("film", 4, 2)


def with_vocabulary(keys: tuple[str, ...], **options: Any) -> ModelSpec:
    """Returns a model with one feature, which has a vocabulary."""
    return ModelSpec((TABLE,), (FeatureSpec("a", "film", vocabulary=VocabularySpec(keys, **options)),))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TableSpec("a/b", 4, 2), "letters, digits and _"),
        (lambda: TableSpec("film", 0, 2), "holds no numbers"),
        (lambda: TableSpec("film", 4, 0), "holds no numbers"),
        (lambda: TableSpec("film", 4, 2, combiner="max"), "combiner is 'max'"),  # type: ignore[arg-type]
        (lambda: VocabularySpec(("a", "a")), "rows 0 and 1 have the same key 'a'"),
        (lambda: VocabularySpec(("a\nb",)), "a line feed ends a line"),
        (lambda: VocabularySpec(("a", "b\ud83d"), 4), r"the key of row 5 is 'b.ud83d', and half of a surrogate pair"),
        (lambda: VocabularySpec((4, 7, 4), 1), "rows 1 and 3 have the same key 4"),
        (lambda: VocabularySpec(("",)), "empty"),
        (lambda: VocabularySpec(()), "at least one"),
        (lambda: VocabularySpec(("a", 1)), "all strings or all integers"),
        (lambda: VocabularySpec(("a",), oov_id=0, num_oov_buckets=1), "either oov_id or num_oov_buckets"),
        (lambda: with_vocabulary(("a", "b", "c", "d", "e")), "reaches row 4, table 'film' has 4 rows"),
        (lambda: with_vocabulary(("a", "b"), num_oov_buckets=3), "reaches row 4"),
        (lambda: with_vocabulary(("a",), on_oov="drop"), "on_bad_id must too, not 'error'"),
        (lambda: FeatureSpec("a", "film", vocabulary=VocabularySpec((1, 2)), sends_rows=True), "vocabulary of strings"),
        (lambda: FeatureSpec("a", "film", max_sequence_length=2), "max_sequence_length is 2"),
        (lambda: FeatureSpec("a", "film", on_bad_id="ignore"), "on_bad_id is 'ignore', expected one of"),
        (lambda: ModelSpec((TABLE,), (FeatureSpec("a", "film", default_id=4),)), "default_id 4 is not in its table"),
        (lambda: FeatureSpec("1st", "film"), "letters, digits and _"),
        (lambda: FeatureSpec("a__values", "film"), "__ separates"),
        (lambda: FeatureSpec("a", "film", max_ids_per_row=2), "max_ids_per_row is 2"),
        (lambda: FeatureSpec("a", "film", is_ragged=True, max_ids_per_row=0), "max_ids_per_row is 0"),
        (lambda: ModelSpec((TABLE,), (FeatureSpec("a", "user"),)), "'user', which is not declared"),
        (lambda: ModelSpec((TABLE,), ()), "no feature uses"),
        (lambda: ModelSpec((TABLE, TABLE), (FeatureSpec("a", "film"),)), "same name"),
        (lambda: ModelSpec((TABLE,), (FeatureSpec("a", "film"), FeatureSpec("a", "film"))), "same name"),
    ],
)
def test_a_bad_declaration_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_input_names() -> None:
    single, bag = FeatureSpec("a", "film"), FeatureSpec("b", "film", is_ragged=True)
    assert (single.ids_input, single.row_splits_input, single.weights_input) == ("a", None, None)
    assert (bag.ids_input, bag.row_splits_input, bag.weights_input) == ("b__values", "b__row_splits", "b__weights")
