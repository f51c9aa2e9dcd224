"""Every argument of the parameter classes works as its formula says, like numpy and like TensorFlow's kernels."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest

from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    StochasticGradientDescentParameters,
)
from tests.unit.model_export.training import optimizer_oracle
from tests.unit.model_export.training.table_runs import START, STEPS, UNTOUCHED, D, V, run_steps

pytestmark = pytest.mark.tf

SGD = StochasticGradientDescentParameters
Momentum = partial(MomentumParameters, momentum=0.75)
CLASSES: list[Any] = [AdagradParameters, AdamParameters, FtrlParameters, Momentum, SGD]
SHARED: list[dict[str, Any]] = [
    {},
    {"use_gradient_accumulation": False},
    {"clip_weight_min": -0.25},
    {"clip_weight_max": 0.3},
    {"weight_decay_factor": 0.25},
    {"weight_decay_factor": 0.25, "multiply_weight_decay_factor_by_learning_rate": True},
    {"clip_gradient_min": -0.75},
    {"clip_gradient_max": 0.6},
]
OWN: list[Any] = [
    AdagradParameters(0.1, initial_accumulator=2.0),
    AdamParameters(0.1, beta1=0.5),
    AdamParameters(0.1, beta2=0.75),
    AdamParameters(0.1, epsilon=0.5),
    AdamParameters(0.1, epsilon=0.5, sum_inside_sqrt=False),
    AdamParameters(0.1, lazy_adam=False),
    AdamParameters(0.1, lazy_adam=False, weight_decay_factor=0.25),
    FtrlParameters(0.1, learning_rate_power=-0.75),
    FtrlParameters(0.1, learning_rate_power=0.0),
    FtrlParameters(0.1, initial_accumulator_value=2.0),
    FtrlParameters(0.1, l1_regularization_strength=1.0),
    FtrlParameters(0.1, l2_regularization_strength=3.0),
    FtrlParameters(0.1, beta=1.5),
    FtrlParameters(0.1, multiply_linear_by_learning_rate=True),
    FtrlParameters(
        0.1,
        l1_regularization_strength=1.0,
        l2_regularization_strength=3.0,
        beta=1.5,
        multiply_linear_by_learning_rate=True,
    ),
    FtrlParameters(0.1, initial_accumulator_value=0.0, allow_zero_accumulator=True),
    FtrlParameters(0.1, l1_regularization_strength=1.0, use_gradient_accumulation=False),
    Momentum(0.1, use_nesterov=True),
    Momentum(0.1, use_nesterov=True, use_gradient_accumulation=False),
    MomentumParameters(0.1, 0.0),
]
CASES = [cls(0.1, **shared) for cls in CLASSES for shared in SHARED] + OWN


def changed(parameters: Any) -> str:
    """Returns a case's name: the parameters that are not at their defaults."""
    values = {
        field.name: getattr(parameters, field.name)
        for field in dataclasses.fields(parameters)
        if field.default is not dataclasses.MISSING and getattr(parameters, field.name) != field.default
    }
    return f"{type(parameters).__name__}({', '.join(f'{name}={value}' for name, value in values.items())})"


def by_oracle(parameters: Any, **arguments: Any) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """Returns the table and the slots after all steps, computed with numpy."""
    table, slots = START.copy(), optimizer_oracle.initial_slots(parameters, START.shape)
    for occurrences in STEPS:
        optimizer_oracle.step(parameters, table, slots, occurrences, **arguments)
    return table, slots


@pytest.mark.parametrize("parameters", CASES, ids=changed)
def test_tables_and_slots_are_those_of_the_formulas(parameters: Any) -> None:
    expected_table, expected_slots = by_oracle(parameters)
    table, slots, _ = run_steps(parameters)
    np.testing.assert_allclose(table, expected_table, rtol=1e-6, atol=1e-9)
    for slot, expected in zip(slots.values(), expected_slots, strict=True):
        np.testing.assert_allclose(slot, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("parameters", CASES, ids=changed)
def test_an_argument_makes_a_difference(parameters: Any) -> None:
    plain = Momentum(0.1) if isinstance(parameters, MomentumParameters) else type(parameters)(0.1)
    table, slots = by_oracle(parameters)
    plain_table, plain_slots = by_oracle(plain)
    if parameters == plain or (isinstance(parameters, SGD) and not parameters.use_gradient_accumulation):
        # SGD is linear: one step with the sum of the gradients equals the steps with each of them.
        np.testing.assert_allclose(table, plain_table, rtol=1e-9)
    else:
        # The results differ at least in the slots: Adam's first step is the same whatever the gradient's size.
        assert np.abs(np.array([table, *slots]) - [plain_table, *plain_slots]).max() > 1e-3


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: getattr(cls, "__name__", "Momentum"))
@pytest.mark.parametrize("accumulates", [True, False])
def test_rows_that_are_not_in_the_batch_stay_bit_by_bit(cls: Any, accumulates: bool) -> None:
    parameters = cls(0.1, use_gradient_accumulation=accumulates, weight_decay_factor=0.5, clip_weight_max=-0.5)
    table, slots, _ = run_steps(parameters)
    np.testing.assert_array_equal(table[UNTOUCHED], START[UNTOUCHED])
    for slot, initial in zip(slots.values(), optimizer_oracle.initial_slots(parameters, START.shape), strict=True):
        np.testing.assert_array_equal(slot[UNTOUCHED], initial[UNTOUCHED])


def test_adam_that_is_not_lazy_moves_rows_that_came_before() -> None:
    first = STEPS[:1]
    lazy, _, _ = run_steps(AdamParameters(0.1), [*first, []])
    eager, _, _ = run_steps(AdamParameters(0.1, lazy_adam=False), [*first, []])
    after_one, _, _ = run_steps(AdamParameters(0.1), first)
    np.testing.assert_array_equal(lazy, after_one)
    assert np.all(eager[3] != after_one[3])


def test_ftrl_gives_exact_zeros() -> None:
    table, _, _ = run_steps(FtrlParameters(0.1, l1_regularization_strength=100.0))
    assert np.all(table[[0, 1, 3, 4]] == 0.0)


def test_linear_times_the_rate_stays_finite_at_a_rate_of_zero() -> None:
    table, _, _ = run_steps(FtrlParameters(0.0, multiply_linear_by_learning_rate=True), STEPS[:1])
    assert np.isfinite(table).all()
    plain, _, _ = run_steps(FtrlParameters(0.0), STEPS[:1])
    assert np.isnan(plain[1]).all()


TENSORFLOWS = [
    (AdagradParameters(0.1), lambda v1: v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.1)),
    (FtrlParameters(0.1), lambda v1: v1.train.FtrlOptimizer(0.1)),
    (
        FtrlParameters(
            0.1,
            learning_rate_power=-0.75,
            initial_accumulator_value=0.5,
            l1_regularization_strength=0.5,
            l2_regularization_strength=2.0,
            beta=0.5,
        ),
        lambda v1: v1.train.FtrlOptimizer(
            0.1,
            learning_rate_power=-0.75,
            initial_accumulator_value=0.5,
            l1_regularization_strength=0.5,
            l2_regularization_strength=2.0,
            beta=0.5,
        ),
    ),
    (MomentumParameters(0.1, 0.75), lambda v1: v1.train.MomentumOptimizer(0.1, 0.75)),
    (
        MomentumParameters(0.1, 0.75, use_nesterov=True),
        lambda v1: v1.train.MomentumOptimizer(0.1, 0.75, use_nesterov=True),
    ),
    (SGD(0.1), lambda v1: v1.train.GradientDescentOptimizer(0.1)),
]


@pytest.mark.parametrize(("parameters", "optimizer"), TENSORFLOWS, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensorflows_own_optimizer_gets_to_the_same(parameters: Any, optimizer: Any, dtype: str) -> None:
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        film = v1.get_variable("film", initializer=tf.constant(START, dtype), use_resource=True)
        rows, values = v1.placeholder(tf.int32, [None]), v1.placeholder(dtype, [None, D])
        applied = optimizer(v1).apply_gradients([(tf.IndexedSlices(values, rows, dense_shape=[V, D]), film)])
        slots = [variable for variable in v1.global_variables() if variable is not film]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for occurrences in STEPS:
                feed = {rows: [row for row, _ in occurrences], values: [vector for _, vector in occurrences]}
                session.run(applied, feed)
            expected = session.run(film)
            expected_slots = {slot.op.name: session.run(slot) for slot in slots}
    table, found, _ = run_steps(parameters, dtype=dtype)
    np.testing.assert_allclose(table, expected, rtol=2e-6, atol=1e-7)
    assert set(found) == set(expected_slots)
    for name, slot in found.items():
        np.testing.assert_allclose(slot, expected_slots[name], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("multiply", [False, True])
def test_tensorflows_ftrl_kernel_multiplies_linear_by_the_rate_alike(multiply: bool) -> None:
    from model_export.tensorflow_setup import tf

    film, accumulator, linear = tf.Variable(START), tf.Variable(np.full_like(START, 0.1)), tf.Variable(0 * START)
    gradient = np.array(STEPS[1][0][1])
    for _ in range(3):
        tf.raw_ops.ResourceSparseApplyFtrlV2(
            var=film.handle,
            accum=accumulator.handle,
            linear=linear.handle,
            grad=tf.constant(gradient[np.newaxis]),
            indices=tf.constant([1]),
            lr=np.float64(0.1),
            l1=np.float64(0.5),
            l2=np.float64(0.25),
            l2_shrinkage=np.float64(0),
            lr_power=np.float64(-0.5),
            multiply_linear_by_lr=multiply,
        )
    parameters = FtrlParameters(
        0.1,
        l1_regularization_strength=0.5,
        l2_regularization_strength=0.25,
        multiply_linear_by_learning_rate=multiply,
    )
    table, slots, _ = run_steps(parameters, [[(1, tuple(gradient))]] * 3)
    np.testing.assert_allclose(table, film.numpy(), rtol=1e-6)
    np.testing.assert_allclose(slots["film/Ftrl_1"], linear.numpy(), rtol=1e-6)


def test_lazy_adam_is_tensorflows_adam_once_the_rate_is_corrected() -> None:
    from model_export.tensorflow_setup import tf

    # Each step changes the same single row, for which lazy Adam equals Adam. TensorFlow's Adam corrects the learning
    # rate itself.
    steps = [[(1, (0.5, -2.0))], [(1, (1.5, 0.25))], [(1, (-0.5, 1.0))]]
    film = tf.Variable(START)
    adam = tf.keras.optimizers.legacy.Adam(0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-3)
    for ((row, vector),) in steps:
        adam.apply_gradients([(tf.IndexedSlices(tf.constant([vector], tf.float64), tf.constant([row])), film)])

    def corrected(step: Any) -> Any:
        t = tf.cast(step + 1, tf.float64)
        return 0.1 * tf.sqrt(1 - 0.999**t) / (1 - 0.9**t)

    parameters = AdamParameters(9.0, epsilon=1e-3, sum_inside_sqrt=False)
    table, _, _ = run_steps(parameters, steps, learning_rate_fn=corrected)
    np.testing.assert_allclose(table[1], film.numpy()[1], rtol=1e-6)
