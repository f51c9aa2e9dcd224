"""New Keras optimizers become legacy ones that compute the same; those that a TPU does not have are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.layers.late import Late, embedding, keras, legacy, tf

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
