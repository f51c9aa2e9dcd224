"""Parts of the demo that need no TensorFlow: baselines, strategies, rows of a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.spec.features import ModelSpec
from movielens.checkpoint_rows import CheckpointRows
from movielens.examples import Examples, baseline_rmse, build_examples, rmse, split
from movielens.rating_model import rating_model_spec
from movielens.ratings import RatingData
from service.artifact.bundle import BundleEntry, BundleSlice, read_bundle
from tests.toy_model import write_bundle
from tests.unit.model_export.late import tf


def _examples(rows: list[tuple[int, int, float]]) -> Examples:
    user, film, rating = zip(*rows, strict=True)
    return Examples({"user_id": np.array(user), "film_id": np.array(film)}, {}, np.array(rating, np.float32))


def test_rmse() -> None:
    assert rmse(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == pytest.approx(2**0.5)


def test_the_global_mean_is_that_of_the_training_part() -> None:
    train, held_out = _examples([(1, 1, 1.0), (1, 2, 3.0)]), _examples([(1, 1, 5.0)])
    assert baseline_rmse(train, held_out)["global_mean"] == pytest.approx(3.0)


def test_strangers_get_the_mean() -> None:
    train, held_out = _examples([(1, 1, 1.0), (1, 2, 3.0)]), _examples([(7, 9, 2.0)])
    assert baseline_rmse(train, held_out)["user_film_bias"] == pytest.approx(0.0)


def test_biases_are_shrunk_means() -> None:
    # The mean is 3. Film 1 is 1 above it in 5 ratings, film 2 is 1 below; ridge 5 halves such biases of 5 ratings.
    train = _examples([(u, 1, 4.0) for u in range(1, 6)] + [(u, 2, 2.0) for u in range(1, 6)])
    assert baseline_rmse(train, _examples([(1, 1, 3.5)]))["user_film_bias"] == pytest.approx(0.0)


def test_biases_beat_the_mean_where_there_are_biases(ratings: RatingData) -> None:
    train, held_out = split(build_examples(ratings, rating_model_spec(ratings)), ratings, "test")
    baselines = baseline_rmse(train, held_out)
    assert baselines["user_film_bias"] < baselines["global_mean"]


def test_a_spec_survives_json(ratings: RatingData) -> None:
    spec = rating_model_spec(ratings)
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_recent_films_share_the_film_table(ratings: RatingData) -> None:
    spec = rating_model_spec(ratings)
    assert spec.table_of("recent_films") is spec.table_of("film_id")
    assert spec.table_of("film_id").vocabulary_size == max(ratings.films) + 1
    assert spec.feature("genres").max_ids_per_row >= max(len(genres) for genres in ratings.film_genres)


@pytest.mark.tf
def test_only_tables_are_split() -> None:
    from movielens.distributed_loop import TablePartitioner

    partitioner = TablePartitioner(3)
    assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [1, 1]
    with partitioner.splitting():
        assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [3, 1]
        assert partitioner(tf.TensorShape([2, 4]), tf.float32) == [2, 1]
        assert partitioner(tf.TensorShape([]), tf.float32) == []
    assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [1, 1]


TABLE = np.arange(21, dtype=np.float32).reshape(7, 3)


def sharded(folder: Path, ends: list[int]) -> BundleEntry:
    """Writes the table in parts that end at these rows; returns an entry with the parts as its slices."""
    folder.mkdir(exist_ok=True)
    starts = [0, *ends[:-1]]
    write_bundle(folder / "parts", {f"part{i}": TABLE[a:b] for i, (a, b) in enumerate(zip(starts, ends, strict=True))})
    parts = read_bundle(folder / "parts")
    slices = tuple(BundleSlice((start, 0), parts[f"part{i}"]) for i, start in enumerate(starts))
    return BundleEntry("float32", TABLE.shape, slices[0].entry.file, 0, 0, 0, slices)


@pytest.mark.parametrize("ends", [[7], [3, 7], [1, 2, 6, 7]])
def test_rows_of_shards_are_those_of_the_table(tmp_path: Path, ends: list[int]) -> None:
    rows = CheckpointRows("t", sharded(tmp_path, ends))
    assert rows.shape == (7, 3)
    for start in range(8):
        for stop in range(start, 8):
            np.testing.assert_array_equal(rows.read(start, stop), TABLE[start:stop])
    np.testing.assert_array_equal(rows.gather(np.array([6, 0, 0, 3])), TABLE[[6, 0, 0, 3]])
    np.testing.assert_array_equal(np.concatenate(list(rows.chunks())), TABLE)
    np.testing.assert_array_equal(
        np.concatenate(list(CheckpointRows("t", sharded(tmp_path / "2", ends), 4).chunks())), TABLE[:4]
    )


def test_shards_that_leave_a_gap_are_refused(tmp_path: Path) -> None:
    entry = sharded(tmp_path, [3, 5, 7])
    with pytest.raises(ExportError, match="each of its rows once"):
        CheckpointRows("t", dataclasses.replace(entry, slices=(entry.slices[0], entry.slices[2])))
    with pytest.raises(ExportError, match="each of its rows once"):
        CheckpointRows("t", dataclasses.replace(entry, slices=entry.slices[:2]))


def test_a_shard_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    rows = CheckpointRows("t", sharded(tmp_path, [3, 7]))
    file = next(tmp_path.glob("parts.data*"))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ExportError, match="ends before a table does"):
        rows.read(3, 7)
