"""Every field of EmbeddingConfigSpec and TableConfig about training has its effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    StochasticGradientDescentParameters,
)
from model_export.spec.table_config import FeatureConfig, TableConfig
from tests.unit.model_export.training import optimizer_oracle
from tests.unit.model_export.training.table_runs import START, STEPS, run_steps, spec_of

pytestmark = pytest.mark.tf

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
    from model_export.tensorflow_setup import tf

    table, _, _ = run_steps(ADAGRAD, experimental_gradient_multiplier_fn=lambda step: tf.cast(step, tf.float32) + 0.5)
    np.testing.assert_allclose(table, by_oracle(ADAGRAD, [0.1] * 3, [0.5, 1.5, 2.5]), rtol=1e-6)


def test_a_learning_rate_fn_is_asked_at_every_step() -> None:
    from model_export.tensorflow_setup import tf

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
    from model_export.tensorflow_setup import tf

    table, _, _ = run_steps(
        ADAGRAD,
        learning_rate_fn=lambda step: 0.25 * (tf.cast(step, tf.float32) + 1),
        pipeline_execution_with_tensor_core=True,
    )
    np.testing.assert_allclose(table, by_oracle(ADAGRAD, [0.25, 0.5, 0.75], [1.0] * 3), rtol=1e-6)


def test_flushing_twice_applies_once() -> None:
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import TrainedTable, train_tables

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
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import TrainedTable, train_tables

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
    from model_export.estimator.embedding_tables import create_table
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import TrainedTable, train_tables

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
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import TrainedTable, train_tables

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
    from model_export.training.table_optimizers import train_tables

    with pytest.raises(ValueError, match="^1 gradients for 0 tables$"):
        train_tables(spec_of(SGD), [], [None], 0)


def test_ftrl_accumulators_of_zero_have_to_be_allowed() -> None:
    with pytest.raises(ValueError, match="^table film: FtrlParameters has initial_accumulator_value 0, which needs"):
        run_steps(FtrlParameters(0.1, initial_accumulator_value=0.0))
