"""The demo's exports and its commands."""

from __future__ import annotations

import argparse
import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.__main__ import main
from model_export.errors import ExportError
from movielens import commands
from movielens.ratings import Film, RatingData, User, rating_data, read_ratings, write_ratings
from service.artifact.bundle import read_bundle
from tests.toy_model import manifest_of
from tests.unit.model_export.late import Late, tf
from tests.unit.movielens.tower_oracle import predicted

export = Late("model_export.export_model", "export")
read_predictions = Late("model_export.parity.prediction_log", "read_predictions")

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def test_the_oracle_adds_up_and_clips() -> None:
    vectors = {name: np.ones((2, 2)) for name in ("user_id", "film_id", "recent_films")}
    vectors |= {name: np.zeros((2, 1)) for name in ("genres", "occupation")}
    vectors["user_id"] = np.array([[0.25, 2.0], [-9.0, 2.0]])
    tower = {
        "hidden/0/kernel": np.zeros((8, 1)),
        "hidden/0/bias": np.array([2.0]),
        "output/kernel": np.array([[0.5]]),
        "output/bias": np.array([-1.5]),
        "taste": np.array([[0.5], [-1.0]]),
        "mean_rating": np.array(1.5),
        "rating_range": np.array([1.0, 5.0]),
    }
    # mean 1.5, biases 0.25 and 1, taste (2 - 0.5) * 1, dense layers 2 * 0.5 - 1.5: 3.75 together
    np.testing.assert_allclose(predicted(tower, vectors), [3.75, 1.0])


@pytest.mark.tf
def test_predictions_are_the_oracles_on_the_saved_variables(rating_version: Path) -> None:
    from model_export.graphs.source import RECORDED_PATH

    reader = tf.train.load_checkpoint(str(rating_version / "variables/variables"))
    saved = {
        key.removesuffix(SUFFIX): np.asarray(reader.get_tensor(key), np.float64)
        for key in reader.get_variable_to_shape_map()
        if key.endswith(SUFFIX)
    }
    tower = {name.removeprefix("tower/"): value for name, value in saved.items() if name.startswith("tower/")}
    tables = {
        "user_id": "user",
        "film_id": "film",
        "occupation": "occupation",
        "genres": "genre",
        "recent_films": "film",
    }
    compared = 0
    for prediction in read_predictions(rating_version / RECORDED_PATH):
        if prediction.signature == "serving_default":
            vectors = {
                name: _vectors(saved[f"tables/{table}"], name, prediction.inputs) for name, table in tables.items()
            }
            assert prediction.outputs is not None
            np.testing.assert_allclose(prediction.outputs["rating"], predicted(tower, vectors), rtol=1e-5)
            compared += len(prediction.outputs["rating"])
    assert compared == 1 + 17 + 64


@pytest.mark.tf
def test_the_tpu_meta_graph_holds_the_padded_lookup(rating_version: Path, rating_run: Path, tmp_path: Path) -> None:
    from model_export.parity.verify import verify_artifact

    lowered = verify_artifact(rating_version).lowered
    assert list(lowered) == ["lookup_tpu_tensor_core"] and lowered["lookup_tpu_tensor_core"].max_relative_error < 1e-5
    with pytest.raises(ExportError, match="needs lookup_device='tpu_tensor_core'"):
        export(rating_run, tmp_path, export_to_tpu=True)


def _vectors(table: np.ndarray, name: str, inputs: Any) -> np.ndarray:
    if name in inputs:
        return np.asarray(table[inputs[name]])
    splits = inputs[f"{name}__row_splits"]
    bags = [table[inputs[f"{name}__values"][i:j]] for i, j in zip(splits[:-1], splits[1:], strict=True)]
    return np.array([bag.mean(axis=0) if len(bag) else np.zeros(table.shape[1]) for bag in bags])


@pytest.mark.tf
@pytest.mark.parametrize("signatures", [None, ["lookup"]])
def test_tables_of_fewer_bits_beside_the_trained_ones_or_alone(
    rating_run: Path, tmp_path: Path, signatures: list[str] | None
) -> None:
    artifact = export(rating_run, tmp_path, table_dtype="int8", signatures=signatures)
    manifest = manifest_of(artifact)
    trained = [key for key, entry in read_bundle(artifact / "variables/variables").items() if "trained/" in key]
    # Only predictions read the trained float32 tables, so an export without predictions does not have them.
    assert len(trained) == (len(manifest.tables) if signatures is None else 0)


def shard_checkpoint(rating_run: Path, target: Path, shards: int) -> None:
    """Copies a run, but writes the tables in the copy's checkpoint as ShardedVariables."""
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    from movielens.loop import restore_weights
    from movielens.model import RatingTower
    from movielens.run import CHECKPOINTS_FOLDER, RATING_RANGE, Run

    run, model = Run.read(rating_run), tf.Module()
    model.tower = RatingTower.of_spec(run.spec, run.config, mean_rating=0.0, rating_range=RATING_RANGE)
    epoch, prefix = restore_weights(rating_run / CHECKPOINTS_FOLDER, model)
    reader = tf.train.load_checkpoint(str(prefix))
    model.embedding = tf.Module()
    model.embedding._tpu_embedding = tf.Module()
    for table in run.spec.tables:
        rows = reader.get_tensor(f"model/embedding/_tpu_embedding/{table.name}{SUFFIX}")
        parts = [tf.Variable(part) for part in np.array_split(rows, shards)]
        setattr(model.embedding._tpu_embedding, table.name, ShardedVariable(parts, name=table.name))
    target.mkdir()
    run.write(target)
    saved = tf.train.Checkpoint(model=model, epoch=tf.Variable(epoch, dtype=tf.int64))
    saved.save(str(target / CHECKPOINTS_FOLDER / "ckpt"))


@pytest.mark.tf
@pytest.mark.parametrize("is_large", [False, True])
def test_the_export_of_sharded_tables_is_that_of_whole_ones_to_the_bit(
    rating_version: Path, rating_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    from model_export.exporter import artifact as module
    from model_export.graphs.source import RECORDED_PATH

    shard_checkpoint(rating_run, tmp_path / "run", 3)
    if is_large:
        # A table counts as large here, so TensorFlow runs the graph of a copy with only 5 rows per table.
        monkeypatch.setattr(module, "WHOLE_CHECK_BYTES", 1)
        monkeypatch.setattr(module, "COMPARED_ROWS", 5)
    made = export(tmp_path / "run", tmp_path / "models")
    whole, shards = (read_bundle(folder / "variables/variables") for folder in (rating_version, made))
    assert not any(entry.is_sliced for entry in shards.values())
    compared = 0
    for key, entry in whole.items():
        if key.endswith(SUFFIX):
            data = [e.file.read_bytes()[e.offset : e.offset + e.nbytes] for e in (entry, shards[key])]
            assert (entry.shape, data[0]) == (shards[key].shape, data[1]), key
            compared += 1
    assert compared == 4 + 9
    answers = [list(read_predictions(folder / RECORDED_PATH)) for folder in (rating_version, made)]
    assert len(answers[0]) == len(answers[1]) == 6
    for before, after in zip(*answers, strict=True):
        assert before.outputs is not None and after.outputs is not None
        assert before.outputs["rating"].tobytes() == after.outputs["rating"].tobytes()
    manifest = manifest_of(made)
    assert manifest.provenance.get(module.COMPARED_ROWS_KEY) == (5 if is_large else None)
    assert set(manifest.signatures) == {"serving_default", "serve_examples", "lookup"}


USERS = [User(1, 20, "F", "writer"), User(2, 30, "M", "artist")]
FILMS = [Film(1, 'A "quoted", title', ("drama",)), Film(2, "Éxtasis", ("comedy", "drama")), Film(3, "No genre", ())]
ROWS = [(2, 1, 3.0, 50), (1, 2, 4.5, 20), (1, 1, 5.0, 20), (1, 3, 1.0, 10)]


def test_the_order_of_the_source_does_not_matter() -> None:
    shuffled = random.Random(3).sample(ROWS, len(ROWS))
    assert rating_data("x", shuffled, USERS, FILMS).ratings_csv() == rating_data("x", ROWS, USERS, FILMS).ratings_csv()


def test_rows_are_ordered_by_user_then_time_then_film() -> None:
    text = rating_data("x", ROWS, USERS, FILMS).ratings_csv().decode()
    assert text.splitlines() == ["user_id,film_id,rating,timestamp", "1,3,1,10", "1,1,5,20", "1,2,4.5,20", "2,1,3,50"]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    data = rating_data("x", ROWS, USERS, FILMS)
    write_ratings(data, tmp_path)
    _assert_same(read_ratings(tmp_path, "x"), data)


@pytest.mark.parametrize(
    "rows", [[], [(3, 1, 3.0, 50)], [(1, 4, 3.0, 50)]], ids=["no ratings", "unknown user", "unknown film"]
)
def test_ratings_of_strangers_are_refused(rows: list[tuple[int, int, float, int]]) -> None:
    with pytest.raises(ExportError):
        rating_data("x", rows, USERS, FILMS)


def test_id_0_is_kept_for_the_unknown() -> None:
    with pytest.raises(ExportError, match="below 1"):
        rating_data("x", ROWS, [*USERS, User(0, 1, "F", "writer")], FILMS)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_ratings(rating_data("x", ROWS, USERS, FILMS), tmp_path)
    (tmp_path / "users.csv").write_text("user_id,age,gender,occupation\n1,2\n")
    with pytest.raises(ExportError, match=tmp_path.name):
        read_ratings(tmp_path, "x")


def _assert_same(got: RatingData, wanted: RatingData) -> None:
    for field in dataclasses.fields(RatingData):
        a, b = getattr(got, field.name), getattr(wanted, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name


def test_demo_does_nothing_where_a_version_is_and_none_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "3").mkdir()
    assert main(["demo", "--if_missing", "--out", str(tmp_path)]) == 0
    assert "version 3" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_auto_falls_back_to_synthetic_ratings_and_says_so_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(folder: Path) -> RatingData:
        raise ExportError("nothing is reachable")

    monkeypatch.setattr(commands, "_fetch_movielens", unreachable)
    data = commands._load_data(argparse.Namespace(dataset="auto", data=Path("x")))
    assert data.name == "synthetic"
    text = capsys.readouterr().out
    assert "nothing is reachable" in text and "SYNTHETIC" in text
    with pytest.raises(ExportError, match="nothing is reachable"):
        commands._load_data(argparse.Namespace(dataset="movielens", data=Path("x")))
