"""Sharded tables have the same first values, lookups and updates as a table that is not sharded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.spec.features import ModelSpec, TableSpec
from movielens.rating_model import rating_model_spec
from movielens.ratings import RatingData

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def spec(ratings: RatingData) -> ModelSpec:
    """The ModelSpec of the demo's rating model."""
    return rating_model_spec(ratings)


def features() -> dict[str, Any]:
    """Returns the features of three rows, with repeated ids and an empty row."""
    from model_export.tensorflow_setup import tf

    return {
        "user_id": tf.constant([3, 3, 0], tf.int64),
        "film_id": tf.constant([5, 1, 5], tf.int64),
        "occupation": tf.constant([1, 0, 1], tf.int64),
        "genres": tf.ragged.constant([[1, 1], [], [2]], dtype=tf.int64, row_splits_dtype=tf.int64),
        "recent_films": tf.ragged.constant([[5, 7, 7], [1], []], dtype=tf.int64, row_splits_dtype=tf.int64),
    }


def test_lookups_in_distinct_rows_are_those_in_the_table_to_the_bit(spec: ModelSpec) -> None:
    from model_export.tensorflow_setup import tf
    from movielens.model import feature_config
    from movielens.sharded_tables import DistinctRows

    rng = np.random.default_rng(0)
    tables = {t.name: rng.normal(size=(t.vocabulary_size, t.embedding_dim)).astype("f4") for t in spec.tables}
    config = feature_config(spec)
    whole = tf.tpu.experimental.embedding.serving_embedding_lookup(
        features(), None, {f.table: tf.Variable(tables[f.table.name]) for f in config.values()}, config
    )
    distinct = DistinctRows.of(spec, features())
    assert sorted(distinct.rows["film"].numpy()) == [1, 5, 7]
    assert all(len(rows) <= DistinctRows.most(spec, 3)[name] for name, rows in distinct.rows.items())
    got = distinct.look_up(
        {name: tf.constant(tables[name][rows.numpy()]) for name, rows in distinct.rows.items()}, config
    )
    for name, vectors in whole.items():
        assert vectors.numpy().tobytes() == got[name].numpy().tobytes(), name


@pytest.mark.parametrize("block", [1 << 16, 4])
def test_first_values_do_not_depend_on_the_shards(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from model_export.tensorflow_setup import tf
    from movielens import sharded_tables

    monkeypatch.setattr(sharded_tables, "_BLOCK_ROWS", block)
    table = TableSpec("t", 10, 3)
    whole = sharded_tables.initial_rows(table, 5, 0, 10).numpy()
    for cut in (1, 4, 7):
        halves = [sharded_tables.initial_rows(table, 5, *ends).numpy() for ends in ((0, cut), (cut, 10))]
        assert np.concatenate(halves).tobytes() == whole.tobytes()
    assert len(np.unique(whole)) == whole.size
    if block > 10:
        drawn = tf.initializers.TruncatedNormal(stddev=table.initial_stddev, seed=5)([10, 3])
        assert drawn.numpy().tobytes() == whole.tobytes()


def test_an_update_is_kerass_adagrad_on_every_shard() -> None:
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    from model_export.tensorflow_setup import tf
    from movielens.sharded_tables import ShardedTable

    table = ShardedTable(TableSpec("t", 7, 2), 1)
    first = table.table.numpy()
    expected, rows = tf.Variable(first), tf.constant([6, 0, 3], tf.int64)
    gradients = tf.constant([[1.0, -2.0], [0.5, 0.0], [3.0, 4.0]])
    optimizer = tf.keras.optimizers.legacy.Adagrad(0.3)
    table.table = ShardedVariable([tf.Variable(part) for part in np.array_split(first, 3)])
    table.accumulator = ShardedVariable([tf.Variable(tf.fill(part.shape, 0.1)) for part in table.table.variables])
    for _ in range(2):
        optimizer.apply_gradients([(tf.IndexedSlices(gradients, rows), expected)])
        table.update(rows, gradients, 0.3, most_rows=7)
    assert np.concatenate([part.numpy() for part in table.table.variables]).tobytes() == expected.numpy().tobytes()
    np.testing.assert_array_equal(table.gather(rows), expected.numpy()[[6, 0, 3]])
