"""The demo's model trains, also in shards."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.spec.features import ModelSpec, TableSpec
from movielens.rating_model import TrainConfig, rating_model_spec
from movielens.ratings import RatingData, synthetic_ratings
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

Run = Late("movielens.run", "Run")
train = Late("movielens.run", "train")

CONFIG = TrainConfig(epochs=2, batch_size=32)


@pytest.fixture(scope="module")
def run_folder(ratings: RatingData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains a model with CONFIG; tests must not change the folder."""
    folder = tmp_path_factory.mktemp("training") / "whole"
    train(ratings, CONFIG, folder)
    return folder


def test_resuming_gives_what_training_in_one_go_gives(ratings: RatingData, run_folder: Path, tmp_path: Path) -> None:
    whole = Run.read(run_folder)
    first = train(ratings, dataclasses.replace(CONFIG, epochs=1), tmp_path / "parts")
    both = train(ratings, CONFIG, tmp_path / "parts", is_resumed=True)

    assert Run.read(tmp_path / "parts") == both
    assert both.history[0] == first.history[0]
    assert both.step == whole.step
    assert [epoch.epoch for epoch in both.history] == [1, 2]
    assert both.history[1].held_out_rmse == pytest.approx(whole.history[1].held_out_rmse, rel=1e-5)
    read = [tf.train.load_checkpoint(str(folder / "checkpoints")) for folder in (run_folder, tmp_path / "parts")]
    shapes = read[0].get_variable_to_shape_map()
    assert shapes == read[1].get_variable_to_shape_map()
    for key in shapes:
        if "OBJECT_GRAPH" not in key and "save_counter" not in key:
            np.testing.assert_allclose(read[0].get_tensor(key), read[1].get_tensor(key), rtol=1e-4, atol=1e-6)


def test_tables_and_tower_have_an_optimizer_each(run_folder: Path) -> None:
    slots = [name for name, _ in tf.train.list_variables(str(run_folder / "checkpoints")) if "SLOT" in name]
    accumulators = [name for name in slots if "/table_optimizer/accumulator" in name]
    moments = [name for name in slots if "/dense_optimizer/" in name]
    assert sorted(name.split("/.OPTIMIZER_SLOT")[0].split("/")[-1] for name in accumulators) == [
        "film",
        "genre",
        "occupation",
        "user",
    ]
    assert moments and all(name.startswith("model/tower/") for name in moments)
    assert len(accumulators) + len(moments) == len(slots)


def test_row_0_is_trained(ratings: RatingData, run_folder: Path, tmp_path: Path) -> None:
    assert CONFIG.unknown_rate > 0
    train(ratings, dataclasses.replace(CONFIG, epochs=1, unknown_rate=0.0), tmp_path / "without")
    # No rating has user 0, so only ids that training replaced by 0 at random can have changed row 0.
    assert not np.array_equal(_row_0(tmp_path / "without"), _row_0(run_folder))


def test_it_beats_user_and_film_biases_on_the_synthetic_ratings(tmp_path: Path) -> None:
    run = train(synthetic_ratings(), TrainConfig(epochs=10, batch_size=32), tmp_path / "run")
    assert run.held_out_rmse < run.baselines["user_film_bias"] < run.baselines["global_mean"]


def test_a_run_is_not_overwritten_nor_mixed_with_another(ratings: RatingData, run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is it a folder"):
        train(ratings, CONFIG, tmp_path / "none", is_resumed=True)
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    with pytest.raises(ExportError, match="already holds a run"):
        train(ratings, CONFIG, folder)
    with pytest.raises(ExportError, match="other settings"):
        train(ratings, dataclasses.replace(CONFIG, seed=5), folder, is_resumed=True)
    with pytest.raises(ExportError, match="more than 1"):
        train(ratings, dataclasses.replace(CONFIG, epochs=1), folder, is_resumed=True)
    with pytest.raises(ExportError, match="other data"):
        train(synthetic_ratings(num_users=20, num_films=30, num_ratings=400, seed=9), CONFIG, folder, is_resumed=True)
    assert Run.read(folder) == Run.read(run_folder)


@pytest.mark.parametrize(
    "settings", [{"epochs": 0}, {"batch_size": 0}, {"dropout": 1.0}, {"unknown_rate": -0.1}, {"held_out": "all"}]
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TrainConfig(**settings)  # type: ignore[arg-type]


def _row_0(folder: Path) -> np.ndarray:
    reader = tf.train.load_checkpoint(str(folder / "checkpoints"))
    key = next(k for k in reader.get_variable_to_shape_map() if k.endswith("/user/.ATTRIBUTES/VARIABLE_VALUE"))
    return np.asarray(reader.get_tensor(key)[0])


@pytest.fixture(scope="module")
def spec(ratings: RatingData) -> ModelSpec:
    return rating_model_spec(ratings)


def features() -> dict[str, Any]:
    return {
        "user_id": tf.constant([3, 3, 0], tf.int64),
        "film_id": tf.constant([5, 1, 5], tf.int64),
        "occupation": tf.constant([1, 0, 1], tf.int64),
        "genres": tf.ragged.constant([[1, 1], [], [2]], dtype=tf.int64, row_splits_dtype=tf.int64),
        "recent_films": tf.ragged.constant([[5, 7, 7], [1], []], dtype=tf.int64, row_splits_dtype=tf.int64),
    }


def test_lookups_in_distinct_rows_are_those_in_the_table_to_the_bit(spec: ModelSpec) -> None:
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
