"""Optimizers of tables on a CPU train as numpy and TensorFlow say, also beside one for the dense part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    StochasticGradientDescentParameters,
)
from tests.unit.model_export.late import Late, TPUEmbedding, embedding, keras, legacy, tables, tf, tfrs
from tests.unit.model_export.layers.reference import (
    film_batch,
    film_config,
    functional_model,
    labels,
    loss,
    subclass_model,
)
from tests.unit.model_export.training import optimizer_oracle

pytestmark = pytest.mark.tf

embedding_optimizer = Late("model_export.layers.tpu_embedding", "embedding_optimizer")


def trained(optimizer: Any) -> Any:
    """Returns a [6, 2] table after five steps of an optimizer; in each, row 3 and others get gradients, row 3 twice."""
    rng = np.random.default_rng(5)
    table = tf.Variable(rng.normal(size=(6, 2)).astype(np.float32))
    for _ in range(5):
        ids = tf.constant([0, 3, 3, int(rng.integers(6))])
        gradient = tf.IndexedSlices(tf.constant(rng.normal(size=(4, 2)), tf.float32), ids, tf.constant([6, 2]))
        optimizer.apply_gradients([(gradient, table)])
    return table.numpy()


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.SGD(0.3),
        lambda: keras.Adagrad(0.3, initial_accumulator_value=0.2),
        lambda: keras.Adam(0.3, beta_1=0.8, beta_2=0.9, epsilon=1e-5),
        lambda: keras.Adagrad(keras.schedules.ExponentialDecay(0.5, 2, 0.5)),
    ],
    ids=["SGD", "Adagrad", "Adam", "schedule"],
)
def test_a_new_optimizer_and_what_it_becomes_train_alike(make: Any) -> None:
    converted = embedding_optimizer(make())
    assert isinstance(converted, legacy.Optimizer)
    np.testing.assert_allclose(trained(converted), trained(make()), rtol=5e-6, atol=5e-6)


def test_what_the_layer_takes_comes_back_itself() -> None:
    for given in (None, "adagrad", embedding.FTRL(0.1), legacy.Ftrl(0.1)):
        assert embedding_optimizer(given) is given


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "rmsprop", "optimizer is 'rmsprop', expected one of"),
        (lambda: keras.Ftrl(0.1), "use tf.keras.optimizers.legacy.Ftrl"),
        (lambda: keras.RMSprop(0.1), "a TPU has no optimizer RMSprop for tables; use"),
        (lambda: keras.SGD(0.1, momentum=0.9), "SGD: momentum=0.9 is not supported"),
        (lambda: keras.SGD(0.1, nesterov=True), "SGD: nesterov=True is not supported"),
        (lambda: keras.Adam(0.1, amsgrad=True), "Adam: amsgrad=True is not supported"),
        (lambda: keras.Adam(0.1, clipnorm=1.0), "Adam: clipnorm=1.0 is not supported"),
        (lambda: keras.Adam(0.1, global_clipnorm=1.0), "Adam: global_clipnorm=1.0 is not supported"),
        (lambda: keras.Adam(0.1, weight_decay=0.1), "Adam: weight_decay=0.1 is not supported"),
        (lambda: keras.Adam(0.1, use_ema=True), "Adam: use_ema=True is not supported"),
        (lambda: legacy.RMSprop(0.1), "a TPU has no optimizer RMSprop"),
        (lambda: legacy.SGD(0.1, global_clipnorm=1.0), "global_clipnorm is not supported"),
        (lambda: legacy.Adagrad(0.1, decay=0.5), "decay is not supported for tables on a TPU; use a learning rate"),
        (lambda: embedding.AdagradMomentum(0.1, momentum=0.9), "optimizer AdagradMomentum can not train"),
        (lambda: 0.1, "optimizer float can not train"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_what_a_tpu_has_not_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        embedding_optimizer(make())


def test_a_keras_3_optimizer_is_told_apart() -> None:
    keras_3 = pytest.importorskip("keras", reason="Keras 3 is not installed")
    with pytest.raises(ValueError, match="optimizer Adagrad is of Keras 3, the layer is of Keras 2"):
        embedding_optimizer(keras_3.optimizers.Adagrad(0.1))


MODULE = "model_export.layers.separate_optimizers"
split_variables, train_step, apply_gradients = (
    Late(MODULE, name) for name in ("split_variables", "train_step", "apply_gradients")
)


def built(layer: Any, build: Any = subclass_model) -> Any:
    """Builds a model and calls it once, so that it has its variables."""
    model = build(tf, layer)
    model(film_batch(tf))
    return model


def seeded(optimizer: Any, layer_kind: Any = TPUEmbedding, optimizers: Any = (None, None)) -> Any:
    """Returns a model whose initial numbers are the same at every call."""
    tf.keras.utils.set_random_seed(11)
    return built(layer_kind(film_config(tf, optimizers, "sum"), optimizer))


def state(model: Any) -> list[Any]:
    """Returns the numbers of all trainable variables."""
    return [variable.numpy() for variable in model.trainable_variables]


def step_of(optimizer: Any, table: str = "users", optimizers: Any = (None, None)) -> tuple[Any, Any, Any]:
    """Returns a table before and after one train_step, and the gradient in between as a dense array."""
    model = seeded(optimizer, optimizers=optimizers)
    variable = tables(model.embedding_layer)[table].parameters
    with tf.GradientTape() as tape:
        value = loss(tf)(labels(tf), model(film_batch(tf)))
    gradient = tf.convert_to_tensor(tape.gradient(value, variable)).numpy()
    before = variable.numpy()
    train_step(model, loss(tf), legacy.SGD(0.0))(film_batch(tf), labels(tf))
    return before, variable.numpy(), gradient


@pytest.mark.parametrize("build", [functional_model, subclass_model], ids=["functional", "subclass"])
def test_variables_are_split_into_tables_and_the_rest(build: Any) -> None:
    layer = TPUEmbedding(film_config(tf), "sgd")
    model = built(layer, build)
    of_tables, dense = split_variables(model)
    assert {id(v) for v in of_tables} == {id(held.parameters) for held in tables(layer).values()}
    assert [v.shape.as_list() for v in dense] == [[12, 1], [1]]
    assert len(of_tables) + len(dense) == len(model.trainable_variables)


def test_a_model_without_the_layer_is_refused() -> None:
    with pytest.raises(ExportError, match="has no TPUEmbedding layer"):
        split_variables(tf.keras.Sequential([tf.keras.layers.Dense(1)]))


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "the layer's"])
def test_a_train_step_is_the_recipe_of_tensorflow_recommenders(is_given: bool) -> None:
    schedule = keras.schedules.ExponentialDecay(0.5, 2, 0.5)
    ours, theirs = [], []
    for found, is_ours in ((theirs, False), (ours, True)):
        tables_by, dense_by = legacy.Adagrad(schedule), legacy.Adam(0.01)
        model = seeded(tables_by)
        if is_ours:
            step = train_step(model, loss(tf), dense_by, tables_by if is_given else None)
            losses = [float(step(film_batch(tf), labels(tf))) for _ in range(4)]
        else:
            losses = [by_hand(model, dense_by, tables_by) for _ in range(4)]
        found += [losses, *state(model), tables_by.get_slot(model.trainable_variables[0], "accumulator").numpy()]
        assert int(tables_by.iterations) == 4
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def by_hand(model: Any, dense_by: Any, tables_by: Any) -> float:
    """Makes one training step by hand, as the documentation of tensorflow_recommenders writes it; returns the loss."""
    with tf.GradientTape() as tape:
        value = loss(tf)(labels(tf), model(film_batch(tf)))
    gradients = tape.gradient(value, model.trainable_variables)
    of_layer = [id(variable) for variable in model.embedding_layer.trainable_variables]
    pairs = list(zip(gradients, model.trainable_variables, strict=True))
    dense_by.apply_gradients([(g, v) for g, v in pairs if id(v) not in of_layer])
    tables_by.apply_gradients([(g, v) for g, v in pairs if id(v) in of_layer])
    return float(value)


def test_each_table_is_trained_by_its_own_optimizer() -> None:
    own = (legacy.SGD(0.5), embedding.SGD(0.25))
    for table, rate in (("users", 0.5), ("films", 0.25)):
        before, after, gradient = step_of(None, table, own)
        np.testing.assert_allclose(after, before - rate * gradient, atol=1e-6)


def test_a_new_keras_optimizer_trains_as_the_legacy_one_it_became() -> None:
    before, after, gradient = step_of(keras.SGD(0.5))
    np.testing.assert_allclose(after, before - 0.5 * gradient, atol=1e-6)


def test_the_learning_rate_may_be_a_callable_of_a_step_variable() -> None:
    for make in (embedding.SGD, legacy.SGD):
        step = tf.Variable(0, dtype=tf.int64)

        def rate(step: Any = step) -> Any:
            return 0.5 / (1.0 + tf.cast(step, tf.float32))

        model = seeded(make(rate))
        train = train_step(model, loss(tf), legacy.SGD(0.0))
        users = tables(model.embedding_layer)["users"].parameters
        for number in range(3):
            step.assign(number)
            with tf.GradientTape() as tape:
                value = loss(tf)(labels(tf), model(film_batch(tf)))
            gradient = tf.convert_to_tensor(tape.gradient(value, users)).numpy()
            before = users.numpy()
            train(film_batch(tf), labels(tf))
            np.testing.assert_allclose(users.numpy(), before - 0.5 / (1 + number) * gradient, atol=1e-6)


def test_one_optimizer_for_both_counts_a_step_once() -> None:
    both = legacy.Adagrad(0.1)
    model = seeded(both)
    train_step(model, loss(tf), both)(film_batch(tf), labels(tf))
    assert int(both.iterations) == 1


def test_losses_of_the_model_count() -> None:
    model = seeded("sgd")
    model.add_loss(lambda: 100.0 * tf.reduce_sum(model.dense.bias))
    value = train_step(model, loss(tf), legacy.SGD(0.01))(film_batch(tf), labels(tf))
    np.testing.assert_allclose(model.dense.bias.numpy(), [-1.0], atol=0.1)
    assert np.isfinite(float(value))


def test_training_mode_is_passed_on_where_a_model_has_one() -> None:
    inputs = tf.keras.Input((), dtype=tf.int32)
    layer = TPUEmbedding(embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name="t")), "sgd")
    model = tf.keras.Model(inputs, tf.keras.layers.Dropout(1.0 - 1e-9)(layer(inputs)))
    value = train_step(model, lambda labels, vectors: tf.reduce_max(tf.abs(vectors)), legacy.SGD(0.0))
    assert float(value(tf.constant([1, 2]), tf.constant(0.0))) == 0.0


def test_a_table_without_optimizer_is_not_trained_in_silence() -> None:
    model = seeded(None)
    with pytest.raises(ExportError, match="has no optimizer, so it can not be trained"):
        train_step(model, loss(tf), legacy.SGD(0.1))(film_batch(tf), labels(tf))


def test_slots_of_a_keras_optimizer_that_only_recommenders_layer_knows_are_asked_for() -> None:
    model = seeded(legacy.Adagrad(0.1), tfrs.layers.embedding.TPUEmbedding)
    with pytest.raises(ExportError, match="belong to a Keras optimizer: give it as embedding_optimizer"):
        train_step(model, loss(tf), legacy.SGD(0.1))(film_batch(tf), labels(tf))


def test_a_new_keras_optimizer_is_not_taken_for_the_tables() -> None:
    given = keras.Adagrad(0.1)
    model = seeded(given)
    gradients = [tf.zeros_like(variable) for variable in model.trainable_variables]
    with pytest.raises(ExportError, match="leave embedding_optimizer out"):
        apply_gradients(model, gradients, legacy.SGD(0.1), given)


apply_tpu_optimizer, optimization_parameters = (
    Late(MODULE, name) for name in ("apply_tpu_optimizer", "optimization_parameters")
)
IDS = [0, 3, 3]
GRADIENT = np.array([[1.0, -2.0], [0.5, 0.25], [1.5, 0.25]], np.float32)
SUMMED = np.array([[1.0, -2.0], [2.0, 0.5]])


def one_step(optimizer: Any) -> tuple[Any, Any]:
    """Trains one step by IDS and GRADIENT; returns the table before it, and the table's variables after it."""
    table = embedding.TableConfig(5, 2, name="t")
    layer = TPUEmbedding(embedding.FeatureConfig(table=table), optimizer)
    layer(tf.constant([0]))
    held = tables(layer)["t"]
    before = held.parameters.numpy()
    apply_tpu_optimizer(held, tf.IndexedSlices(tf.constant(GRADIENT), tf.constant(IDS), tf.constant([5, 2])))
    return before, held


@pytest.mark.parametrize(
    ("make", "parameters", "slots"),
    [
        (lambda: embedding.SGD(0.5), StochasticGradientDescentParameters(0.5), []),
        (
            lambda: embedding.Adagrad(0.5, initial_accumulator_value=0.2),
            AdagradParameters(0.5, 0.2),
            ["accumulators"],
        ),
        (
            lambda: embedding.Adam(0.5, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
            AdamParameters(0.5, 0.8, 0.9, 1e-3),
            ["momenta", "velocities"],
        ),
        (
            lambda: embedding.Adam(0.5, sum_inside_sqrt=False, epsilon=0.1, lazy_adam=False),
            AdamParameters(0.5, sum_inside_sqrt=False, epsilon=0.1, lazy_adam=False),
            ["momenta", "velocities"],
        ),
        (
            lambda: embedding.FTRL(
                0.5,
                initial_accumulator_value=0.3,
                learning_rate_power=-0.75,
                l1_regularization_strength=0.1,
                l2_regularization_strength=0.2,
                beta=0.5,
                multiply_linear_by_learning_rate=True,
            ),
            FtrlParameters(0.5, -0.75, 0.3, 0.1, 0.2, beta=0.5, multiply_linear_by_learning_rate=True),
            ["accumulators", "linears"],
        ),
        (
            lambda: embedding.SGD(0.5, clipvalue=0.75, clip_weight_min=-0.1, clip_weight_max=0.1),
            StochasticGradientDescentParameters(
                0.5, clip_gradient_min=-0.75, clip_gradient_max=0.75, clip_weight_min=-0.1, clip_weight_max=0.1
            ),
            [],
        ),
        (
            lambda: embedding.SGD(0.5, weight_decay_factor=0.5, multiply_weight_decay_factor_by_learning_rate=True),
            StochasticGradientDescentParameters(
                0.5, weight_decay_factor=0.5, multiply_weight_decay_factor_by_learning_rate=True
            ),
            [],
        ),
    ],
    ids=["sgd", "adagrad", "adam", "adam, not lazy", "ftrl", "limits", "decay"],
)
def test_an_optimizer_of_the_layer_trains_by_its_constants(make: Any, parameters: Any, slots: list[str]) -> None:
    before, held = one_step(make())
    table, state = before.astype(np.float64), optimizer_oracle.initial_slots(parameters, before.shape)
    optimizer_oracle.step(parameters, table, state, list(zip(IDS, GRADIENT.tolist(), strict=True)))
    np.testing.assert_allclose(held.parameters, table, atol=1e-5)
    for name, slot in zip(slots, state, strict=True):
        np.testing.assert_allclose(held.slots[name], slot, rtol=1e-5, atol=1e-6)


def test_a_callable_rate_is_asked_at_each_step() -> None:
    rates = iter([0.5, 0.25])
    optimizer = embedding.SGD(lambda: tf.constant(next(rates)))
    before, held = one_step(optimizer)
    apply_tpu_optimizer(held, tf.ones([5, 2]))
    expected = before[[0, 3]] - 0.5 * SUMMED - 0.25
    np.testing.assert_allclose(held.parameters.numpy()[[0, 3]], expected, atol=1e-6)


def test_a_table_without_optimizer_and_one_without_its_slots_are_refused() -> None:
    with pytest.raises(ExportError, match="has no optimizer"):
        one_step(None)
    with pytest.raises(ExportError, match=r"slots \['momenta', 'velocities'\] of table .* belong to a Keras optimizer"):
        one_step(legacy.Adam(0.1))


def test_an_optimizer_without_rules_is_refused() -> None:
    with pytest.raises(ExportError, match="AdagradMomentum can not train tables on a CPU"):
        optimization_parameters(embedding.AdagradMomentum(0.1, momentum=0.9))
