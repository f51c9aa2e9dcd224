"""Slots have the names and shapes of a TPU checkpoint; training continues from a checkpoint of TensorFlow 2.15."""

from __future__ import annotations

import json
from pathlib import Path
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
from tests.unit.model_export.training.table_runs import spec_of

pytestmark = pytest.mark.tf

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
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import create_slots

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
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import create_slots

    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("film", [3, 2])
        create_slots("film", variable, AdagradParameters(0.1))
        with pytest.raises(ValueError, match="film/Adagrad already exists"):
            create_slots("film", variable, AdagradParameters(0.1))


def test_training_goes_on_from_a_checkpoint_of_tensorflow_2_15() -> None:
    if not GOLDEN.exists():
        pytest.skip("no ../shared/golden: the checkpoint of TensorFlow 2.15 is not part of this repository")
    from model_export.tensorflow_setup import tf
    from model_export.training.table_optimizers import TrainedTable, train_tables

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
