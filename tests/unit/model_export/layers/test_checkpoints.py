"""Restores checkpoints of layer models: CPU to CPU with slots, TensorFlow's keys, stacks that SparseCores wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.late import Late, TPUEmbedding, keras, legacy, tables, tf, tfrs
from tests.unit.model_export.layers.reference import (
    film_batch,
    film_config,
    film_head,
    functional_model,
    labels,
    loss,
    subclass_model,
)
from tests.unit.model_export.layers.stacked import write_stacked

pytestmark = pytest.mark.tf

MODULE = "model_export.layers.checkpoints"
restore, restore_layer, is_stacked = (Late(MODULE, name) for name in ("restore", "restore_layer", "is_stacked"))
train_step = Late("model_export.layers.separate_optimizers", "train_step")


def trained(optimizer: Any) -> tuple[Any, Any]:
    """Returns a model after two steps of training, and the optimizer of its dense layers."""
    model, dense_by = subclass_model(tf, TPUEmbedding(film_config(tf), optimizer)), legacy.Adam(0.01)
    model(film_batch(tf))
    step = train_step(model, loss(tf), dense_by)
    for _ in range(2):
        step(film_batch(tf), labels(tf))
    return model, dense_by


def keys(path: str) -> set[str]:
    """Returns the names of a checkpoint's variables, without those of TensorFlow's own book-keeping."""
    found = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key, _ in tf.train.list_variables(path)}
    return {key for key in found if not key.startswith("_CHECKPOINTABLE") and not key.startswith("save_counter")}


@pytest.mark.parametrize("kind", [legacy, keras], ids=["legacy", "new"])
def test_tables_dense_part_and_slots_come_back(kind: Any, tmp_path: Path) -> None:
    model, dense_by = trained(kind.Adagrad(0.5))
    tables_by = model.embedding_layer.table_optimizers["users"]
    path = tf.train.Checkpoint(model=model, tables_by=tables_by, dense_by=dense_by).save(str(tmp_path / "c"))

    again = subclass_model(tf, TPUEmbedding(film_config(tf), kind.Adagrad(0.1)))
    again_by = again.embedding_layer.table_optimizers["users"]
    restore(path, model=again, tables_by=again_by, build=lambda: again(film_batch(tf)))

    np.testing.assert_array_equal(again(film_batch(tf)), model(film_batch(tf)))
    for name, held in tables(again.embedding_layer).items():
        before = tables_by.get_slot(tables(model.embedding_layer)[name].parameters, "accumulator")
        assert before.numpy().max() > 0.1
        np.testing.assert_array_equal(again_by.get_slot(held.parameters, "accumulator"), before)
    assert int(again_by.iterations) == 2


def test_slots_of_a_tpu_optimizer_are_the_layers(tmp_path: Path) -> None:
    model, _ = trained("adagrad")
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    again = subclass_model(tf, TPUEmbedding(film_config(tf), "adagrad"))
    restore(path, model=again, build=lambda: again(film_batch(tf)))
    for name, held in tables(model.embedding_layer).items():
        assert held.slots["accumulators"].numpy().max() > 0.1
        np.testing.assert_array_equal(
            tables(again.embedding_layer)[name].slots["accumulators"], held.slots["accumulators"]
        )


def test_keys_are_those_of_tensorflow_recommenders(tmp_path: Path) -> None:
    written = []
    for kind in (TPUEmbedding.found(), tfrs.layers.embedding.TPUEmbedding):
        tables_by = legacy.Adagrad(0.1)
        model = subclass_model(tf, kind(film_config(tf), tables_by))
        model(film_batch(tf))
        path = tf.train.Checkpoint(model=model, tables_by=tables_by).save(str(tmp_path / str(len(written))))
        written.append(keys(path))
    assert written[0] == written[1]
    held = "model/embedding_layer/_tpu_embedding"
    assert {f"{held}/users", f"{held}/users/.OPTIMIZER_SLOT/tables_by/accumulator"} <= written[0]


def test_a_variable_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    model, _ = trained("sgd")
    path = tf.train.Checkpoint(other=model).save(str(tmp_path / "c"))
    again = subclass_model(tf, TPUEmbedding(film_config(tf), "sgd"))
    with pytest.raises(ExportError, match=r"does not fit \['model'\]: it lacks \[.*users"):
        restore(path, model=again)


def test_slots_that_the_checkpoint_lacks_are_missed(tmp_path: Path) -> None:
    model, _ = trained("sgd")
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    again_by = legacy.Adagrad(0.1)
    again = subclass_model(tf, TPUEmbedding(film_config(tf), again_by))
    with pytest.raises(ExportError, match="it lacks"):
        restore(path, model=again, tables_by=again_by)


def test_another_shape_and_no_checkpoint_are_refused(tmp_path: Path) -> None:
    model, _ = trained("sgd")
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    config = film_config(tf)
    config["user"].table.vocabulary_size = 11
    with pytest.raises(ExportError, match=r"does not fit \['model'\]"):
        restore(path, model=subclass_model(tf, TPUEmbedding(config, "sgd")))
    with pytest.raises(ExportError, match="no checkpoint"):
        restore(tmp_path / "nothing", model=model)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Writes a stacked checkpoint; returns its path, and the tables in it by name."""
    rng = np.random.default_rng(4)
    values = {"users": rng.normal(size=(10, 4)), "films": rng.normal(size=(8, 2))}
    values = {name: table.astype(np.float32) for name, table in values.items()}
    dense = {"kernel": np.ones((12, 1), np.float32), "bias": np.ones(1, np.float32)}
    return write_stacked(tf, tmp_path_factory.mktemp("stack") / "c", values, dense), values


def test_a_stack_of_sparse_cores_comes_apart(stack: tuple[str, dict[str, Any]]) -> None:
    path, values = stack
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    restore(path, model=model, build=lambda: model(film_batch(tf)))
    assert is_stacked(path)
    for name, held in tables(model.embedding_layer).items():
        np.testing.assert_array_equal(held.parameters, values[name])
    np.testing.assert_array_equal(model.dense.kernel, np.ones((12, 1)))


def test_a_stack_does_not_fit_tables_that_are_there(stack: tuple[str, dict[str, Any]]) -> None:
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    model(film_batch(tf))
    with pytest.raises(ExportError, match="holds stacked tables, which layers .* restore before the model is called"):
        restore(stack[0], model=model)


def test_a_dense_variable_that_a_stacked_checkpoint_lacks_is_named(stack: tuple[str, dict[str, Any]]) -> None:
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    model.extra = tf.Variable(1.0, name="extra")
    with pytest.raises(ExportError, match=r"it lacks \['extra:0'\]"):
        restore(stack[0], model=model, build=lambda: model(film_batch(tf)))


def test_a_functional_model_is_made_of_a_restored_layer(stack: tuple[str, dict[str, Any]]) -> None:
    path, values = stack
    layer = TPUEmbedding(film_config(tf), None)
    restore_layer(path, layer)
    model = functional_model(tf, layer)
    kernel, bias = model.get_layer("logit").get_weights()
    head = film_head(tf, layer(film_batch(tf))).numpy()
    np.testing.assert_array_equal(head[:, :4], values["users"][[1, 9, 1]])
    np.testing.assert_allclose(model(film_batch(tf)), head @ kernel + bias, atol=1e-5)


def test_a_layer_is_restored_from_a_plain_checkpoint_too(tmp_path: Path) -> None:
    model, _ = trained("adagrad")
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    layer = TPUEmbedding(film_config(tf), None)
    restore_layer(path, layer)
    np.testing.assert_array_equal(tables(layer)["users"].parameters, tables(model.embedding_layer)["users"].parameters)


def test_a_layer_that_does_not_fit_is_refused(stack: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    built = TPUEmbedding(film_config(tf), None)
    built(film_batch(tf))
    with pytest.raises(ExportError, match="has made its tables already"):
        restore_layer(stack[0], built)
    with pytest.raises(ExportError, match="no feature uses its table 'films'"):
        restore_layer(stack[0], TPUEmbedding({"user": film_config(tf)["user"]}, None))
    plain = tf.train.Checkpoint(x=tf.Variable(1.0)).save(str(tmp_path / "c"))
    with pytest.raises(ExportError, match="holds 0 TPUEmbedding layers, expected one"):
        restore_layer(plain, TPUEmbedding(film_config(tf), None))
