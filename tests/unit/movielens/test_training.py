"""Training improves the model, and a resumed run ends with the same numbers as one without a stop."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from movielens.rating_model import TrainConfig
from movielens.ratings import RatingData, synthetic_ratings

pytestmark = pytest.mark.tf

CONFIG = TrainConfig(epochs=2, batch_size=32)


@pytest.fixture(scope="module")
def run_folder(ratings: RatingData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains a model with CONFIG; tests must not change the folder."""
    from movielens.run import train

    folder = tmp_path_factory.mktemp("training") / "whole"
    train(ratings, CONFIG, folder)
    return folder


def test_resuming_gives_what_training_in_one_go_gives(ratings: RatingData, run_folder: Path, tmp_path: Path) -> None:
    from model_export.tensorflow_setup import tf
    from movielens.run import Run, train

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
    from model_export.tensorflow_setup import tf

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
    from movielens.run import train

    assert CONFIG.unknown_rate > 0
    train(ratings, dataclasses.replace(CONFIG, epochs=1, unknown_rate=0.0), tmp_path / "without")
    # No rating has user 0, so only ids that training replaced by 0 at random can have changed row 0.
    assert not np.array_equal(_row_0(tmp_path / "without"), _row_0(run_folder))


def test_it_beats_user_and_film_biases_on_the_synthetic_ratings(tmp_path: Path) -> None:
    from movielens.run import train

    run = train(synthetic_ratings(), TrainConfig(epochs=10, batch_size=32), tmp_path / "run")
    assert run.held_out_rmse < run.baselines["user_film_bias"] < run.baselines["global_mean"]


def test_a_run_is_not_overwritten_nor_mixed_with_another(ratings: RatingData, run_folder: Path, tmp_path: Path) -> None:
    from movielens.run import Run, train

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
    from model_export.tensorflow_setup import tf

    reader = tf.train.load_checkpoint(str(folder / "checkpoints"))
    key = next(k for k in reader.get_variable_to_shape_map() if k.endswith("/user/.ATTRIBUTES/VARIABLE_VALUE"))
    return np.asarray(reader.get_tensor(key)[0])
