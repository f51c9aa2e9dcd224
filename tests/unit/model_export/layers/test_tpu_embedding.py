"""Tests the TPUEmbedding layer, its arguments and private fields, on a CPU, against TensorFlow and numpy."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.late import Late, TPUEmbedding, embedding, keras, legacy, tables, tf, tfrs
from tests.unit.model_export.layers.reference import (
    combined,
    film_batch,
    film_config,
    film_head,
    functional_model,
    labels,
    loss,
    subclass_model,
)

pytestmark = pytest.mark.tf

ROWS = [[1, 1, 2], [], [7]]
WEIGHTS = [[0.5, 2.0, 1.5], [], [0.25]]


def values(layer: Any, table: str) -> Any:
    """Returns a table's numbers."""
    return tables(layer)[table].parameters.numpy()


def test_a_nest_of_dicts_gives_the_same_nest_of_vectors() -> None:
    layer = TPUEmbedding(film_config(tf), optimizer=None)
    vectors = layer(film_batch(tf))
    users, films = values(layer, "users"), values(layer, "films")
    np.testing.assert_array_equal(vectors["user"], users[[1, 9, 1]])
    np.testing.assert_allclose(vectors["film"]["seen"], combined(films, ROWS, "mean"), atol=1e-6)
    expected = np.zeros((3, 3, 2), np.float32)
    expected[0, 0] = films[0]
    expected[1] = films[[1, 2, 3]]
    np.testing.assert_array_equal(vectors["film"]["clicks"], expected)


@pytest.mark.parametrize("nest", [list, tuple], ids=["list", "tuple"])
def test_lists_and_tuples_are_nests_too(nest: Any) -> None:
    table = embedding.TableConfig(10, 4, name="t")
    layer = TPUEmbedding(nest([embedding.FeatureConfig(table=table), embedding.FeatureConfig(table=table)]), None)
    vectors = layer(nest([tf.constant([1]), tf.constant([2, 3])]))
    assert isinstance(vectors, nest)
    np.testing.assert_array_equal(vectors[1], values(layer, "t")[[2, 3]])


def test_one_feature_needs_no_nest() -> None:
    layer = TPUEmbedding(embedding.FeatureConfig(table=embedding.TableConfig(10, 4, name="t")), None)
    np.testing.assert_array_equal(layer(tf.constant([3])), values(layer, "t")[[3]])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("is_weighted", [False, True], ids=["plain", "weighted"])
def test_rows_are_combined_with_their_weights(combiner: str, kind: str, is_weighted: bool) -> None:
    table = embedding.TableConfig(8, 2, name="films", combiner=combiner)
    layer = TPUEmbedding({"seen": embedding.FeatureConfig(table=table)}, None)
    ids, weights = tf.ragged.constant(ROWS, dtype=tf.int64), tf.ragged.constant(WEIGHTS, dtype=tf.float32)
    if kind == "sparse":
        ids, weights = ids.to_sparse(), weights.to_sparse()
    vectors = layer({"seen": ids}, {"seen": weights} if is_weighted else None)["seen"]
    expected = combined(values(layer, "films"), ROWS, combiner, WEIGHTS if is_weighted else None)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_a_sparse_sequence_is_cut_and_padded_too() -> None:
    layer = TPUEmbedding(film_config(tf), None)
    batch = film_batch(tf)
    expected = layer(batch)["film"]["clicks"]
    batch["film"]["clicks"] = batch["film"]["clicks"].to_sparse()
    batch["film"]["seen"] = batch["film"]["seen"].to_sparse()
    np.testing.assert_array_equal(layer(batch)["film"]["clicks"], expected)


def test_weights_of_another_type_or_of_a_sequence_are_refused() -> None:
    layer = TPUEmbedding(film_config(tf), None)
    batch = film_batch(tf)
    ones = tf.ragged.map_flat_values(lambda ids: tf.ones_like(ids, tf.float32), batch["film"]["clicks"])
    with pytest.raises(ValueError, match="this is a sequence feature"):
        layer(batch, {"user": None, "film": {"seen": None, "clicks": ones}})


def test_serving_config_looks_up_some_of_the_features() -> None:
    config = film_config(tf)
    layer = TPUEmbedding(config, None)
    batch = film_batch(tf)
    vectors = layer({"who": batch["user"]}, serving_config={"who": config["user"]})
    np.testing.assert_array_equal(vectors["who"], layer(batch)["user"])


def test_serving_config_with_another_table_is_refused() -> None:
    layer = TPUEmbedding(film_config(tf), None)
    with pytest.raises(ValueError, match="does not match any of the TableConfigs"):
        layer({"user": tf.constant([1])}, serving_config=film_config(tf))


def test_embedding_tables_are_keyed_by_the_users_own_configs() -> None:
    config = film_config(tf, optimizers=(None, tf.keras.optimizers.SGD(0.1)))
    layer = TPUEmbedding(config, tf.keras.optimizers.Adagrad(0.1))
    layer(film_batch(tf))
    assert set(layer.embedding_tables) == {config["user"].table, config["film"]["seen"].table}
    assert layer.embedding_tables[config["user"].table].shape == (10, 4)


def test_the_users_config_is_left_alone() -> None:
    given = tf.keras.optimizers.SGD(0.1)
    config = film_config(tf, optimizers=(None, given))
    TPUEmbedding(config, "adagrad")
    assert config["user"].table.optimizer is None
    assert config["film"]["seen"].table.optimizer is given


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (None, set()),
        ("sgd", set()),
        ("adagrad", {"accumulators"}),
        ("adam", {"momenta", "velocities"}),
        ("ftrl", {"accumulators", "linears"}),
        (lambda: embedding.Adagrad(0.1), {"accumulators"}),
    ],
    ids=["None", "sgd", "adagrad", "adam", "ftrl", "tf.tpu"],
)
def test_the_layer_holds_the_slots_of_a_tpu_optimizer(optimizer: Any, slots: set[str]) -> None:
    layer = TPUEmbedding(film_config(tf), optimizer() if callable(optimizer) else optimizer)
    layer(film_batch(tf))
    assert {name: set(held.slots) for name, held in tables(layer).items()} == {"users": slots, "films": slots}


@pytest.mark.parametrize("kind", [legacy, keras], ids=["legacy", "new"])
def test_a_keras_optimizer_holds_its_own_slots(kind: Any) -> None:
    layer = TPUEmbedding(film_config(tf), kind.Adagrad(0.1))
    layer(film_batch(tf))
    used = layer.table_optimizers["users"]
    slot = used.get_slot(tables(layer)["users"].parameters, "accumulator")
    np.testing.assert_array_equal(slot, np.full((10, 4), 0.1, np.float32))
    assert not tables(layer)["users"].slots


def test_a_tables_optimizer_goes_before_the_layers() -> None:
    own, shared = tf.keras.optimizers.SGD(0.5), legacy.Adagrad(0.1)
    layer = TPUEmbedding(film_config(tf, optimizers=(None, own)), shared)
    assert layer.table_optimizers["users"] is shared
    assert isinstance(layer.table_optimizers["films"], legacy.SGD)
    assert [type(held.optimizer) for held in tables(layer).values()] == [embedding.SGD, embedding.Adagrad]


def test_tables_that_share_an_optimizer_share_what_it_becomes() -> None:
    shared = tf.keras.optimizers.SGD(0.5)
    layer = TPUEmbedding(film_config(tf, optimizers=(shared, shared)), None)
    assert layer.table_optimizers["users"] is layer.table_optimizers["films"]


def test_an_optimizer_that_a_tpu_has_not_is_named_with_its_table() -> None:
    with pytest.raises(ValueError, match="optimizer of films: a TPU has no optimizer RMSprop"):
        TPUEmbedding(film_config(tf, optimizers=(None, legacy.RMSprop())), None)
    with pytest.raises(ValueError, match="optimizer of the layer: optimizer is 'lamb'"):
        TPUEmbedding(film_config(tf), "lamb")


def test_two_tables_of_one_name_are_refused() -> None:
    features = [embedding.FeatureConfig(table=embedding.TableConfig(size, 4, name="t")) for size in (3, 4)]
    with pytest.raises(ValueError, match=r"different tables are named \['t'\]"):
        TPUEmbedding(features, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pipeline_execution_with_tensor_core", lambda: True),
        ("batch_size", lambda: 3),
        ("embedding_feature", lambda: tf.tpu.experimental.HardwareFeature.EmbeddingFeature.V1),
        ("sparse_core_embedding_config", lambda: embedding.SparseCoreEmbeddingConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_for_a_tpu_change_nothing_on_a_cpu(name: str, value: Any) -> None:
    answers = []
    for extra in ({}, {name: value()}):
        tf.keras.utils.set_random_seed(7)
        layer = TPUEmbedding(film_config(tf), legacy.SGD(0.5), **extra)
        model = subclass_model(tf, layer)
        model.compile(legacy.SGD(0.5), loss(tf))
        model.train_on_batch(film_batch(tf), labels(tf))
        answers.append(model(film_batch(tf)).numpy())
    np.testing.assert_array_equal(*answers)


def test_it_answers_as_tensorflow_recommenders_own_layer() -> None:
    answers = []
    for kind in (TPUEmbedding.found(), tfrs.layers.embedding.TPUEmbedding):
        tf.keras.utils.set_random_seed(3)
        layer = kind(film_config(tf), legacy.Adagrad(0.1))
        answers.append(film_head(tf, layer(film_batch(tf))).numpy())
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("build", [functional_model, subclass_model], ids=["functional", "subclass"])
def test_fit_does_gradient_descent_on_the_tables(build: Any) -> None:
    layer = TPUEmbedding(film_config(tf, combiner="sum"), legacy.SGD(0.5))
    model = build(tf, layer)
    before = model(film_batch(tf)).numpy()
    users, films = values(layer, "users"), values(layer, "films")
    kernel = next(v for v in model.trainable_variables if "kernel" in v.name).numpy()[:, 0]
    model.compile(legacy.SGD(0.5), loss(tf))
    model.fit(tf.data.Dataset.from_tensors((film_batch(tf), labels(tf))), verbose=0)
    # slope: the gradient of the loss by each prediction. The chain rule gives the gradients of the rows that the batch
    # looked up.
    slope = 2 * (before - labels(tf).numpy())[:, 0] / 3
    users[1] -= 0.5 * (slope[0] + slope[2]) * kernel[:4]
    users[9] -= 0.5 * slope[1] * kernel[:4]
    films[1] -= 0.5 * (2 * slope[0] * kernel[4:6] + slope[1] * kernel[6:8])
    films[2] -= 0.5 * (slope[0] * kernel[4:6] + slope[1] * kernel[8:10])
    films[3] -= 0.5 * slope[1] * kernel[10:12]
    films[7] -= 0.5 * slope[2] * kernel[4:6]
    films[0] -= 0.5 * slope[0] * kernel[6:8]
    np.testing.assert_allclose(values(layer, "users"), users, atol=1e-6)
    np.testing.assert_allclose(values(layer, "films"), films, atol=1e-6)


MODULE = "model_export.layers.introspection"
embedding_layers, feature_config, is_built = (
    Late(MODULE, name) for name in ("embedding_layers", "feature_config", "is_built")
)


def kinds() -> list[Any]:
    """Returns our layer class and the class that it extends."""
    return [TPUEmbedding.found(), tfrs.layers.embedding.TPUEmbedding]


def test_layers_are_found_in_models_and_alone() -> None:
    for kind in kinds():
        layer = kind(film_config(tf), None)
        model = subclass_model(tf, layer)
        assert embedding_layers(model) == embedding_layers(layer) == [layer]
        assert embedding_layers(tf.keras.Sequential([model])) == [layer]
    with pytest.raises(ExportError, match="Dense 'none' has no TPUEmbedding layer"):
        embedding_layers(tf.keras.layers.Dense(1, name="none"))


def test_config_tables_and_slots_are_told() -> None:
    for kind in kinds():
        layer = kind(film_config(tf), embedding.Adagrad(0.1))
        assert not is_built(layer)
        layer(film_batch(tf))
        assert is_built(layer)
        assert feature_config(layer)["film"]["clicks"].max_sequence_length == 3
        held = tables(layer)
        assert {name: part.parameters.shape.as_list() for name, part in held.items()} == {
            "users": [10, 4],
            "films": [8, 2],
        }
        assert held["users"].slots["accumulators"].shape == (10, 4)


tpu_strategy = Late("model_export.layers.tpu_embedding", "tpu_strategy")


@pytest.fixture
def _no_tpu() -> None:
    if tf.config.list_physical_devices("TPU"):
        pytest.skip("a TPU is attached to this machine")


@pytest.mark.usefixtures("_no_tpu")
def test_without_a_tpu_the_default_strategy_trains_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    strategy = tpu_strategy()
    assert strategy is tf.distribute.get_strategy()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["no TPU is attached"]
    with strategy.scope():
        layer = TPUEmbedding(film_config(tf), "sgd")
    assert layer(film_batch(tf))["user"].shape == (3, 4)


@pytest.mark.usefixtures("_no_tpu")
def test_a_local_tpu_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    with pytest.raises(ExportError, match="TPU 'local' can not be used: no TPU is attached to this machine"):
        tpu_strategy("local")


def test_an_address_where_nobody_answers_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ExportError, match=f"no answer of 127.0.0.1:{port} within 3 s"):
        tpu_strategy(f"grpc://127.0.0.1:{port}")


def test_a_listener_that_is_no_tpu_is_an_error_and_not_a_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(ExportError, match="no answer of .* within 3 s"):
            tpu_strategy(f"grpc://127.0.0.1:{silent.getsockname()[1]}")


def test_a_named_tpu_needs_a_metadata_server_that_answers() -> None:
    try:
        socket.create_connection(("metadata.google.internal", 80), timeout=3).close()
    except OSError:
        with pytest.raises(ExportError, match="TPU 'mine' can not be used: no answer of metadata.google.internal:80"):
            tpu_strategy("mine")
    else:
        pytest.skip("this machine has a metadata server")


def test_an_address_without_a_number_for_a_port_is_an_error() -> None:
    with pytest.raises(ExportError, match="can not be used"):
        tpu_strategy("grpc://127.0.0.1:tpu")
