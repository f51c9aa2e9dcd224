"""Optimizers of tables and what they do to rows and slots, against numpy."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    StochasticGradientDescentParameters,
)
from model_export.spec.table_config import FeatureConfig, TableConfig
from tests.unit.model_export.late import Late, tf
from tests.unit.model_export.training import optimizer_oracle
from tests.unit.model_export.training.table_runs import START, STEPS, UNTOUCHED, D, V, run_steps, spec_of

pytestmark = pytest.mark.tf

RowGradient = Late("model_export.training.table_updates", "RowGradient")
TrainedTable = Late("model_export.training.table_optimizers", "TrainedTable")
create_slots = Late("model_export.training.table_optimizers", "create_slots")
create_table = Late("model_export.estimator.embedding_tables", "create_table")
train_tables = Late("model_export.training.table_optimizers", "train_tables")

SGD = StochasticGradientDescentParameters(0.1)
ADAGRAD = AdagradParameters(0.1)


def by_oracle(parameters: Any, rates: list[float], scale: list[float], **arguments: Any) -> np.ndarray[Any, Any]:
    """Returns the table computed with numpy, with a learning rate and a factor on the gradient for each step."""
    table, slots = START.copy(), optimizer_oracle.initial_slots(parameters, START.shape)
    for occurrences, rate, factor in zip(STEPS, rates, scale, strict=True):
        scaled = [(row, np.multiply(vector, factor)) for row, vector in occurrences]
        optimizer_oracle.step(parameters, table, slots, scaled, rate=rate, **arguments)
    return table


@pytest.mark.parametrize("accumulates", [True, False])
def test_clipping_limit_cuts_the_gradient_of_a_row_after_it_is_summed(accumulates: bool) -> None:
    parameters = AdagradParameters(0.1, use_gradient_accumulation=accumulates)
    table, _, _ = run_steps(parameters, clipping_limit=0.8)
    expected = by_oracle(parameters, [0.1] * 3, [1.0] * 3, clipping_limit=0.8)
    np.testing.assert_allclose(table, expected, rtol=1e-6)
    assert np.abs(expected - by_oracle(parameters, [0.1] * 3, [1.0] * 3)).max() > 1e-3


def test_the_narrower_of_both_gradient_limits_holds() -> None:
    parameters = AdagradParameters(0.1, clip_gradient_min=-0.5, clip_gradient_max=2.0)
    table, _, _ = run_steps(parameters, clipping_limit=0.8)
    np.testing.assert_allclose(table, by_oracle(parameters, [0.1] * 3, [1.0] * 3, clipping_limit=0.8), rtol=1e-6)


def test_the_gradient_multiplier_is_asked_at_every_step() -> None:
    table, _, _ = run_steps(ADAGRAD, experimental_gradient_multiplier_fn=lambda step: tf.cast(step, tf.float32) + 0.5)
    np.testing.assert_allclose(table, by_oracle(ADAGRAD, [0.1] * 3, [0.5, 1.5, 2.5]), rtol=1e-6)


def test_a_learning_rate_fn_is_asked_at_every_step() -> None:
    table, _, _ = run_steps(ADAGRAD, learning_rate_fn=lambda step: 0.25 * (tf.cast(step, tf.float32) + 1))
    np.testing.assert_allclose(table, by_oracle(ADAGRAD, [0.25, 0.5, 0.75], [1.0] * 3), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_a_tables_own_learning_rate_goes_before_the_parameters(rate: float) -> None:
    table, _, _ = run_steps(ADAGRAD, learning_rate=rate)
    np.testing.assert_allclose(table, by_oracle(ADAGRAD, [rate] * 3, [1.0] * 3), rtol=1e-6)


@pytest.mark.parametrize(
    "parameters",
    [
        ADAGRAD,
        AdagradParameters(0.1, use_gradient_accumulation=False),
        AdamParameters(0.1, lazy_adam=False),
        FtrlParameters(0.1),
        SGD,
    ],
    ids=lambda parameters: type(parameters).__name__,
)
def test_a_pipelined_step_sees_the_table_without_the_step_before_it(parameters: Any) -> None:
    direct, direct_slots, direct_states = run_steps(parameters)
    table, slots, states = run_steps(parameters, pipeline_execution_with_tensor_core=True)
    # A pipelined training makes the same updates one step later, because these gradients do not depend on the rows.
    np.testing.assert_array_equal(states[1], START)
    np.testing.assert_allclose(states[2], direct_states[1])
    np.testing.assert_allclose(table, direct)
    assert set(slots) == set(direct_slots)
    unflushed, _, _ = run_steps(parameters, pipeline_execution_with_tensor_core=True, flush=False)
    np.testing.assert_allclose(unflushed, direct_states[2])


def test_a_pipelined_update_uses_the_rate_of_its_own_step() -> None:
    table, _, _ = run_steps(
        ADAGRAD,
        learning_rate_fn=lambda step: 0.25 * (tf.cast(step, tf.float32) + 1),
        pipeline_execution_with_tensor_core=True,
    )
    np.testing.assert_allclose(table, by_oracle(ADAGRAD, [0.25, 0.5, 0.75], [1.0] * 3), rtol=1e-6)


def test_flushing_twice_applies_once() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        film = v1.get_variable("film", initializer=tf.constant(START))
        gradient = tf.IndexedSlices(tf.constant([[1.0, 2.0]], tf.float64), tf.constant([1]), dense_shape=START.shape)
        spec = spec_of(SGD, pipeline_execution_with_tensor_core=True)
        training = train_tables(spec, [TrainedTable(film, SGD)], [gradient], tf.constant(0))
        assert [variable.op.name for variable in v1.global_variables()] == ["film"]
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(training.flush)
            np.testing.assert_array_equal(session.run(film), START)
            session.run(training.train)
            session.run(training.flush)
            session.run(training.flush)
            np.testing.assert_allclose(session.run(film)[1], START[1] - [0.1, 0.2], rtol=1e-6)


def test_tables_with_the_same_function_share_one_rate_and_others_have_their_own() -> None:
    v1 = tf.compat.v1
    asked = []

    def rate(step: Any) -> Any:
        asked.append(step)
        return 0.5 / (tf.cast(step, tf.float32) + 1)

    with tf.Graph().as_default():
        variables = [v1.get_variable(name, [4, 2], initializer=v1.ones_initializer()) for name in "abcd"]
        tables = [
            TrainedTable(variables[0], SGD, learning_rate_fn=rate),
            TrainedTable(variables[1], SGD, learning_rate_fn=rate),
            TrainedTable(variables[2], SGD),
            TrainedTable(variables[3], SGD, learning_rate=0.25),
        ]
        gradients = [tf.ones_like(variable) for variable in variables]
        training = train_tables(spec_of(SGD), tables, gradients, tf.constant(1))
        assert len(asked) == 1
        assert training.learning_rates["a"] is training.learning_rates["b"]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(training.train)
            assert [float(session.run(v)[0, 0]) for v in variables] == pytest.approx([0.75, 0.75, 0.9, 0.75])


def test_tables_of_the_dicts_are_trained_by_their_own_parameters() -> None:
    v1 = tf.compat.v1
    ones = v1.ones_initializer()
    spec = EmbeddingConfigSpec(
        optimization_parameters=SGD,
        feature_to_config_dict={"a": FeatureConfig("film"), "b": FeatureConfig("user")},
        table_to_config_dict={
            "film": TableConfig(4, 2, ones, optimization_parameters=AdamParameters(0.1)),
            "user": TableConfig(3, 2, ones, learning_rate=0.5),
        },
    )
    with tf.Graph().as_default():
        assert spec.table_to_config_dict is not None
        tables = [
            TrainedTable.of_config(spec, config, create_table(name, config))
            for name, config in spec.table_to_config_dict.items()
        ]
        loss = tf.add_n([tf.reduce_sum(tf.gather(table.variable, [1, 1])) for table in tables])
        gradients = tf.gradients(loss, [table.variable for table in tables])
        training = train_tables(spec, tables, gradients, tf.constant(0))
        assert [v.op.name for v in v1.global_variables()] == ["film", "user", "film/Adam/m", "film/Adam/v"]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(training.train)
            user = session.run(tables[1].variable)
            # row 1 is read twice, each time with gradient 1, at a learning rate of 0.5
            assert user.tolist() == [[1, 1], [0, 0], [1, 1]]
            # Adam's first moments for gradient g = 2 are m = 0.1 g and v = 0.001 g^2, so the step is 0.1 * 0.1 /
            # sqrt(0.001).
            film = session.run(tables[0].variable)
            np.testing.assert_allclose(film[1], 1 - 0.1 * 0.1 / np.sqrt(0.001), rtol=1e-5)


def test_a_table_that_the_loss_does_not_depend_on_keeps_its_rows_and_has_its_slots() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        film = v1.get_variable("film", initializer=tf.constant(START))
        training = train_tables(spec_of(ADAGRAD), [TrainedTable(film, ADAGRAD)], [None], tf.constant(0))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(training.train)
            np.testing.assert_array_equal(session.run(film), START)
        assert [slot.op.name for slot in training.slots["film"]] == ["film/Adagrad"]


def test_gradients_have_to_pair_with_tables() -> None:
    with pytest.raises(ValueError, match="^1 gradients for 0 tables$"):
        train_tables(spec_of(SGD), [], [None], 0)


def test_ftrl_accumulators_of_zero_have_to_be_allowed() -> None:
    with pytest.raises(ValueError, match="^table film: FtrlParameters has initial_accumulator_value 0, which needs"):
        run_steps(FtrlParameters(0.1, initial_accumulator_value=0.0))


PLAIN_SGD = StochasticGradientDescentParameters
Momentum = partial(MomentumParameters, momentum=0.75)
CLASSES: list[Any] = [AdagradParameters, AdamParameters, FtrlParameters, Momentum, PLAIN_SGD]
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


def updated_by_oracle(parameters: Any, **arguments: Any) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """Returns the table and the slots after all steps, computed with numpy."""
    table, slots = START.copy(), optimizer_oracle.initial_slots(parameters, START.shape)
    for occurrences in STEPS:
        optimizer_oracle.step(parameters, table, slots, occurrences, **arguments)
    return table, slots


@pytest.mark.parametrize("parameters", CASES, ids=changed)
def test_tables_and_slots_are_those_of_the_formulas(parameters: Any) -> None:
    expected_table, expected_slots = updated_by_oracle(parameters)
    table, slots, _ = run_steps(parameters)
    np.testing.assert_allclose(table, expected_table, rtol=1e-6, atol=1e-9)
    for slot, expected in zip(slots.values(), expected_slots, strict=True):
        np.testing.assert_allclose(slot, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("parameters", CASES, ids=changed)
def test_an_argument_makes_a_difference(parameters: Any) -> None:
    plain = Momentum(0.1) if isinstance(parameters, MomentumParameters) else type(parameters)(0.1)
    table, slots = updated_by_oracle(parameters)
    plain_table, plain_slots = updated_by_oracle(plain)
    if parameters == plain or (isinstance(parameters, PLAIN_SGD) and not parameters.use_gradient_accumulation):
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
    (PLAIN_SGD(0.1), lambda v1: v1.train.GradientDescentOptimizer(0.1)),
]


@pytest.mark.parametrize(("parameters", "optimizer"), TENSORFLOWS, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensorflows_own_optimizer_gets_to_the_same(parameters: Any, optimizer: Any, dtype: str) -> None:
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


GOLDEN = Path(__file__).parents[4].parent / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"


# The names are those that get_default_slot_variable_names of TensorFlow 2.15.1 gives to the slots.
@pytest.mark.parametrize(
    ("parameters", "initial"),
    [
        (AdagradParameters(0.1, 0.5), {"Adagrad": 0.5}),
        (AdamParameters(0.1), {"Adam/m": 0, "Adam/v": 0}),
        (FtrlParameters(0.1, -0.5, 0.25), {"Ftrl": 0.25, "Ftrl_1": 0}),
        (MomentumParameters(0.1, 0.9), {"Momentum": 0}),
        (StochasticGradientDescentParameters(0.1), {}),
    ],
    ids=lambda case: type(case).__name__,
)
def test_slots_have_names_and_initial_values_of_2_15_whatever_the_scope(
    parameters: Any, initial: dict[str, float]
) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("tower"), v1.name_scope("step"):
            variable = v1.get_variable("film", [3, 2])
            slots = create_slots(variable.op.name, variable, parameters)
        assert [slot.op.name for slot in slots] == [f"tower/film/{name}" for name in initial]
        assert v1.trainable_variables() == [variable]
        assert v1.global_variables() == [variable, *slots]
        session.run(v1.global_variables_initializer())
        for slot, value in zip(slots, initial.values(), strict=True):
            np.testing.assert_array_equal(session.run(slot), np.full((3, 2), value, np.float32))


def test_a_name_that_is_taken_is_refused() -> None:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("film", [3, 2])
        create_slots("film", variable, AdagradParameters(0.1))
        with pytest.raises(ValueError, match="film/Adagrad already exists"):
            create_slots("film", variable, AdagradParameters(0.1))


def test_training_goes_on_from_a_checkpoint_of_tensorflow_2_15() -> None:
    if not GOLDEN.exists():
        pytest.skip("no ../shared/golden: the checkpoint of TensorFlow 2.15 is not part of this repository")
    v1 = tf.compat.v1
    checkpoint = v1.train.latest_checkpoint(str(GOLDEN / "model"))
    written = v1.train.load_checkpoint(checkpoint)
    tables = {"a_b_shared_embedding": [10, 4], "dense_features/c_embedding/embedding_weights": [20, 4]}
    parameters = AdagradParameters(0.5)
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, shape) for name, shape in tables.items()]
        gradients = [tf.IndexedSlices(tf.ones([1, 4]), tf.constant([3]), dense_shape=v.shape) for v in variables]
        trained = [TrainedTable(variable, parameters) for variable in variables]
        training = train_tables(spec_of(parameters), trained, gradients, tf.constant(20))
        ours = {variable.op.name: list(variable.shape) for variable in v1.global_variables()}
        everything = json.loads((GOLDEN / "expected.json").read_text())["checkpoint"]
        assert ours == {name: shape for name, shape in everything.items() if name.startswith(tuple(tables))}

        saver = v1.train.Saver()
        saver.restore(session, checkpoint)
        session.run(training.train)
        for variable in variables:
            before, accumulator = (written.get_tensor(variable.op.name + suffix) for suffix in ("", "/Adagrad"))
            expected = before.copy()
            expected[3] -= 0.5 / np.sqrt(accumulator[3] + 1)
            np.testing.assert_allclose(session.run(variable), expected, rtol=1e-6)


def test_occurrences_are_numbered_in_batch_order() -> None:
    found = RowGradient(tf.constant([7, 2, 7, 7, 2], tf.int64), tf.zeros([5, 1])).occurrences()
    assert found.rows.numpy().tolist() == [7, 2]
    assert found.position.numpy().tolist() == [0, 1, 0, 0, 1]
    assert found.rank.numpy().tolist() == [0, 0, 1, 2, 1]
    assert int(found.rounds) == 3


def test_no_occurrence_makes_no_round() -> None:
    empty = RowGradient(tf.zeros([0], tf.int64), tf.zeros([0, 2]))
    assert int(empty.occurrences().rounds) == 0
    assert empty.summed().values.shape == [0, 2]


def test_ranks_are_those_of_a_loop_over_many_occurrences() -> None:
    rows = np.random.default_rng(0).integers(0, 40, 1000)
    seen: dict[int, int] = {}
    expected = []
    for row in rows.tolist():
        expected.append(seen.get(row, 0))
        seen[row] = expected[-1] + 1
    found = RowGradient(tf.constant(rows), tf.zeros([1000, 1])).occurrences()
    assert found.rank.numpy().tolist() == expected
    assert int(found.rounds) == max(seen.values())


def test_a_dense_gradient_is_of_all_rows() -> None:
    table = tf.Variable(tf.ones([3, 2]))
    gradient = RowGradient.of(tf.constant([[1.0, 2], [3, 4], [5, 6]]), table).scaled(tf.constant(2.0))
    assert gradient.rows.numpy().tolist() == [0, 1, 2]
    assert gradient.values.numpy().tolist() == [[2, 4], [6, 8], [10, 12]]


def test_first_rows_are_a_truncated_normal_that_goes_with_the_dimension() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        with v1.variable_scope("tower"):
            table = create_table("film", TableConfig(4000, 16))
        assert (table.op.name, table.dtype.base_dtype, v1.trainable_variables()) == ("film", tf.float32, [table])
        session.run(v1.global_variables_initializer())
        rows = session.run(table)
    assert rows.shape == (4000, 16)
    assert np.abs(rows).max() <= 2 * 0.25  # cut at two standard deviations
    # A normal distribution cut at two standard deviations has 0.8796 of its standard deviation.
    assert rows.std() == pytest.approx(0.25 * 0.8796, rel=0.01)
    assert abs(rows.mean()) < 0.005


def test_an_initializer_is_used() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        table = create_table("film", TableConfig(3, 2, initializer=v1.constant_initializer(7.0)))
        session.run(v1.global_variables_initializer())
        assert session.run(table).tolist() == [[7, 7]] * 3
