"""Converts the lookups of an EmbeddingConfigSpec to a ModelSpec, and finds the rows that a batch reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.columns.embedding_column import embedding_column
from model_export.estimator.embedding_tables import ids_and_splits, looked_up_ids, lookup_spec
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.spec.optimization_parameters import AdagradParameters
from model_export.spec.table_config import FeatureConfig, TableConfig
from model_export.tensorflow_setup import tf
from tests.unit.model_export.estimator.small_model import ROWS, column, sparse

pytestmark = pytest.mark.tf

BY_DICTS = EmbeddingConfigSpec(
    optimization_parameters=AdagradParameters(0.1),
    feature_to_config_dict={
        "one": FeatureConfig("single"),
        "some": FeatureConfig("film/table"),
        "seen": FeatureConfig("film/table", max_sequence_length=3),
    },
    table_to_config_dict={"single": TableConfig(4, 2, combiner=None), "film/table": TableConfig(9, 4)},
)


def test_dicts_become_a_model_spec() -> None:
    assert lookup_spec(BY_DICTS, max_ids_per_row=8) == ModelSpec(
        (TableSpec("single", 4, 2, "mean", 1 / np.sqrt(2)), TableSpec("film_table", 9, 4, "mean", 0.5)),
        (
            FeatureSpec("one", "single"),
            FeatureSpec(
                "some",
                "film_table",
                is_ragged=True,
                max_ids_per_row=8,
                combiner="mean",
                on_bad_id="drop_negative",
                on_nonpositive_weight="drop",
            ),
            FeatureSpec("seen", "film_table", is_ragged=True, max_sequence_length=3),
        ),
    )


def test_columns_become_a_model_spec_without_the_numeric_ones() -> None:
    spec = EmbeddingConfigSpec([column(), tf.feature_column.numeric_column("age")], AdagradParameters(0.1))
    assert [feature.name for feature in lookup_spec(spec).features] == ["c"]
    assert lookup_spec(spec).tables[0].vocabulary_size == 5


def fetched(spec: EmbeddingConfigSpec, features: Any) -> dict[str, Any]:
    """Returns the ids and row splits that a batch looks up, by feature."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ids = looked_up_ids(spec, features())
        session.run(tf.compat.v1.tables_initializer())
        return {name: ids_and_splits(value) for name, value in session.run(ids).items()}


def test_rows_that_a_batch_reads() -> None:
    words = tf.feature_column.categorical_column_with_vocabulary_list("word", ["x", "y"])
    spec = EmbeddingConfigSpec([column(), embedding_column(words, 2)], AdagradParameters(0.1))
    got = fetched(spec, lambda: {"c": sparse(ROWS), "word": tf.constant([["y"], ["z"], ["x"], ["y"]])})
    assert got["c"][0].tolist() == [id for row in ROWS for id in row]
    assert got["c"][1].tolist() == [0, 2, 3, 6, 6]
    assert got["word"][0].tolist() == [1, -1, 0, 1]

    dicts = fetched(
        BY_DICTS, lambda: {"one": tf.constant([3, 0]), "some": sparse([[8], []]), "seen": sparse([[], [1, 2]])}
    )
    assert dicts["one"][0].tolist() == [3, 0] and dicts["one"][1] is None
    assert (dicts["some"][0].tolist(), dicts["some"][1].tolist()) == ([8], [0, 1, 1])
    assert (dicts["seen"][0].tolist(), dicts["seen"][1].tolist()) == ([1, 2], [0, 0, 2])
