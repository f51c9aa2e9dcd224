"""Tables on a CPU train with the optimizers of tf.tpu.experimental.embedding as numpy and TensorFlow's kernels say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, TPUEmbedding, embedding, legacy, tables, tf

pytestmark = pytest.mark.tf

MODULE = "model_export.layers.separate_optimizers"
apply_tpu_optimizer, optimization_parameters = (
    Late(MODULE, name) for name in ("apply_tpu_optimizer", "optimization_parameters")
)
IDS = [0, 3, 3]
GRADIENT = np.array([[1.0, -2.0], [0.5, 0.25], [1.5, 0.25]], np.float32)


def one_step(optimizer: Any) -> tuple[Any, Any, Any]:
    """Trains one step; returns rows 0 and 3 before it, the table's variables after it, and all rows before it."""
    table = embedding.TableConfig(5, 2, name="t")
    layer = TPUEmbedding(embedding.FeatureConfig(table=table), optimizer)
    layer(tf.constant([0]))
    held = tables(layer)["t"]
    before = held.parameters.numpy()
    apply_tpu_optimizer(held, tf.IndexedSlices(tf.constant(GRADIENT), tf.constant(IDS), tf.constant([5, 2])))
    np.testing.assert_array_equal(held.parameters.numpy()[[1, 2, 4]], before[[1, 2, 4]])
    return before[[0, 3]], held, before


SUMMED = np.array([[1.0, -2.0], [2.0, 0.5]])


def test_sgd_goes_down_the_summed_gradient() -> None:
    before, held, _ = one_step(embedding.SGD(0.5))
    np.testing.assert_allclose(held.parameters.numpy()[[0, 3]], before - 0.5 * SUMMED, atol=1e-6)


def test_adagrad_divides_by_the_root_of_its_accumulator() -> None:
    before, held, _ = one_step(embedding.Adagrad(0.5, initial_accumulator_value=0.2))
    accumulator = 0.2 + SUMMED**2
    np.testing.assert_allclose(held.slots["accumulators"].numpy()[[0, 3]], accumulator, rtol=1e-6)
    np.testing.assert_allclose(held.parameters.numpy()[[0, 3]], before - 0.5 * SUMMED / np.sqrt(accumulator), atol=1e-6)


def test_adam_is_lazy_and_uncorrected() -> None:
    before, held, _ = one_step(embedding.Adam(0.5, beta_1=0.8, beta_2=0.9, epsilon=1e-3))
    m, v = 0.2 * SUMMED, 0.1 * SUMMED**2
    np.testing.assert_allclose(held.slots["momenta"].numpy()[[0, 3]], m, rtol=1e-5)
    np.testing.assert_allclose(held.slots["velocities"].numpy()[[0, 3]], v, rtol=1e-5)
    np.testing.assert_allclose(held.parameters.numpy()[[0, 3]], before - 0.5 * m / np.sqrt(v + 1e-6), atol=1e-5)


def test_ftrl_is_what_tensorflows_kernel_computes() -> None:
    settings = {"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2}
    _, held, before = one_step(embedding.FTRL(0.5, initial_accumulator_value=0.3, **settings))
    var, accum, linear = tf.Variable(before), tf.Variable(tf.fill([5, 2], 0.3)), tf.Variable(tf.zeros([5, 2]))
    tf.raw_ops.ResourceSparseApplyFtrl(
        var=var.handle,
        accum=accum.handle,
        linear=linear.handle,
        grad=tf.constant(SUMMED, tf.float32),
        indices=tf.constant([0, 3]),
        lr=0.5,
        l1=0.1,
        l2=0.2,
        lr_power=-0.5,
    )
    np.testing.assert_allclose(held.parameters, var, atol=1e-6)
    np.testing.assert_allclose(held.slots["accumulators"], accum, rtol=1e-6)
    np.testing.assert_allclose(held.slots["linears"], linear, atol=1e-6)


def test_limits_and_decay_of_the_optimizer_hold() -> None:
    optimizer = embedding.SGD(0.5, clipvalue=0.75, clip_weight_min=-0.1, clip_weight_max=0.1, weight_decay_factor=0.5)
    before, held, _ = one_step(optimizer)
    expected = np.clip(before * 0.5 - 0.5 * np.clip(SUMMED, -0.75, 0.75), -0.1, 0.1)
    np.testing.assert_allclose(held.parameters.numpy()[[0, 3]], expected, atol=1e-6)


def test_a_callable_rate_is_asked_at_each_step() -> None:
    rates = iter([0.5, 0.25])
    optimizer = embedding.SGD(lambda: tf.constant(next(rates)))
    before, held, _ = one_step(optimizer)
    apply_tpu_optimizer(held, tf.ones([5, 2]))
    expected = before - 0.5 * SUMMED - 0.25
    np.testing.assert_allclose(held.parameters.numpy()[[0, 3]], expected, atol=1e-6)


def test_a_table_without_optimizer_and_one_without_its_slots_are_refused() -> None:
    with pytest.raises(ExportError, match="has no optimizer"):
        one_step(None)
    with pytest.raises(ExportError, match=r"slots \['momenta', 'velocities'\] of table .* belong to a Keras optimizer"):
        one_step(legacy.Adam(0.1))


def test_an_optimizer_without_rules_is_refused() -> None:
    with pytest.raises(ExportError, match="AdagradMomentum can not train tables on a CPU"):
        optimization_parameters(embedding.AdagradMomentum(0.1, momentum=0.9))
