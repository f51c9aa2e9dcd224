"""Training steps agree with numpy: which optimizer changes which variables, when, and what checkpoints then contain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters, StochasticGradientDescentParameters
from tests.unit.model_export.estimator.small_model import (
    DENSE_RATE,
    TABLE,
    TABLE_NAME,
    WEIGHT,
    column,
    estimator_of,
    gradients,
    input_fn,
    model_fn_of,
    one_epoch,
    recorder,
)
from tests.unit.model_export.late import late

with late():
    from model_export.estimator.run_config import RunConfig

pytestmark = pytest.mark.tf

Update = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def sgd(rate: Callable[[int], float], limit: float = np.inf) -> Update:
    """Returns plain gradient descent: a learning rate by step, and gradients clipped to a limit."""
    return lambda table, gradient, step: table - rate(step) * np.clip(gradient, -limit, limit)


def by_numpy(update: Update, steps: int, *, pipelined: bool = False) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Computes training with numpy: table, weight and losses after steps. pipelined: updates come a step later."""
    table, weight, losses, held = TABLE.copy(), WEIGHT.copy(), [], None
    for step in range(steps):
        loss, by_table, by_weight = gradients(table, weight)
        losses.append(loss)
        if pipelined:
            table = table if held is None else update(table, *held)
            held = (by_table, step)
        else:
            table = update(table, by_table, step)
        weight = weight - DENSE_RATE * by_weight
    return (table if held is None else update(table, *held)), weight, losses


def spec_of(**arguments: Any) -> EmbeddingConfigSpec:
    """Returns a spec of the table, trained by SGD at 0.5 unless arguments say otherwise."""
    rate_fn = arguments.pop("learning_rate_fn", None)
    parameters = arguments.pop("parameters", StochasticGradientDescentParameters(0.5))
    return EmbeddingConfigSpec([column(learning_rate_fn=rate_fn)], parameters, **arguments)


@pytest.mark.parametrize(
    ("arguments", "update"),
    [
        ({}, sgd(lambda step: 0.5)),
        ({"clipping_limit": 0.1}, sgd(lambda step: 0.5, limit=0.1)),
        (
            {"experimental_gradient_multiplier_fn": lambda step: 1.0 / (1.0 + tf.cast(step, tf.float32))},
            sgd(lambda step: 0.5 / (1 + step)),
        ),
        (
            {"learning_rate_fn": lambda step: 0.1 * (1.0 + tf.cast(step, tf.float32))},
            sgd(lambda step: 0.1 * (1 + step)),
        ),
    ],
    ids=["parameters", "clipping_limit", "gradient_multiplier", "learning_rate_fn"],
)
def test_the_specs_parameters_train_the_table_and_model_fns_optimizer_the_rest(
    tmp_path: Path, arguments: dict[str, Any], update: Update
) -> None:
    estimator = estimator_of(tmp_path, spec_of(**arguments)).train(input_fn, steps=4)
    table, weight, _ = by_numpy(update, 4)
    np.testing.assert_allclose(estimator.get_variable_value(TABLE_NAME), table, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(estimator.get_variable_value("weight"), weight, rtol=1e-5, atol=1e-6)


def test_a_pipelined_table_is_updated_one_step_late_and_wholly_in_the_checkpoint(tmp_path: Path) -> None:
    spec = spec_of(
        pipeline_execution_with_tensor_core=True, learning_rate_fn=lambda step: 0.1 * (1.0 + tf.cast(step, tf.float32))
    )
    estimator = estimator_of(tmp_path, spec).train(input_fn, steps=4)
    late, weight, _ = by_numpy(sgd(lambda step: 0.1 * (1 + step)), 4, pipelined=True)
    at_once, _, _ = by_numpy(sgd(lambda step: 0.1 * (1 + step)), 4)
    assert not np.allclose(late, at_once, atol=1e-3)
    np.testing.assert_allclose(estimator.get_variable_value(TABLE_NAME), late, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(estimator.get_variable_value("weight"), weight, rtol=1e-5, atol=1e-6)
    assert estimator.get_variable_names() == [TABLE_NAME, "global_step", "weight"]


def test_a_table_has_the_slots_of_its_parameters_and_the_model_those_of_its_optimizer(tmp_path: Path) -> None:
    spec = spec_of(parameters=AdagradParameters(0.3, initial_accumulator=0.2))
    momentum = model_fn_of(spec.feature_columns, lambda: tf.compat.v1.train.MomentumOptimizer(DENSE_RATE, 0.9))
    estimator = estimator_of(tmp_path, spec, model_fn=momentum).train(input_fn, steps=1)
    assert estimator.get_variable_names() == [
        TABLE_NAME,
        f"{TABLE_NAME}/Adagrad",
        "global_step",
        "weight",
        "weight/Momentum",
    ]
    _, by_table, _ = gradients(TABLE, WEIGHT)
    squares = 0.2 + by_table**2
    np.testing.assert_allclose(estimator.get_variable_value(f"{TABLE_NAME}/Adagrad"), squares, rtol=1e-5)
    expected = TABLE - 0.3 * by_table / np.sqrt(squares)
    np.testing.assert_allclose(estimator.get_variable_value(TABLE_NAME), expected, rtol=1e-5, atol=1e-6)


def test_without_a_spec_model_fns_optimizer_trains_everything(tmp_path: Path) -> None:
    model_fn = model_fn_of([column()])
    estimator = estimator_of(tmp_path, model_fn=model_fn, embedding_config_spec=None).train(input_fn, steps=3)
    table, weight, losses = by_numpy(sgd(lambda step: DENSE_RATE), 3)
    np.testing.assert_allclose(estimator.get_variable_value(TABLE_NAME), table, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(estimator.get_variable_value("weight"), weight, rtol=1e-5, atol=1e-6)
    assert losses[-1] < losses[0]


def test_training_in_two_parts_is_training_at_once(tmp_path: Path) -> None:
    spec = spec_of(parameters=AdagradParameters(0.3), learning_rate_fn=lambda step: 0.1 / tf.cast(step + 1, tf.float32))
    at_once = estimator_of(tmp_path / "a", spec).train(input_fn, steps=6)
    parts = estimator_of(tmp_path / "b", spec).train(input_fn, steps=4)
    parts = estimator_of(tmp_path / "b", spec).train(input_fn, max_steps=6)
    for name in at_once.get_variable_names():
        np.testing.assert_array_equal(at_once.get_variable_value(name), parts.get_variable_value(name), name)
    assert parts.train(input_fn, max_steps=6).get_variable_value("global_step") == 6


KILLED = """
import os, signal, sys
from pathlib import Path
from model_export.tensorflow_setup import tf
from model_export.estimator.run_config import RunConfig
from tests.unit.model_export.estimator.small_model import estimator_of, input_fn

class Kill(tf.compat.v1.train.SessionRunHook):
    steps = 0
    def after_run(self, context, values):
        self.steps += 1
        if self.steps == 7:
            os.kill(os.getpid(), signal.SIGKILL)

config = RunConfig(tf_random_seed=1, save_checkpoints_steps=3)
estimator_of(sys.argv[1], config=config).train(input_fn, hooks=[Kill()], steps=10)
"""


def test_a_killed_training_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    killed = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    unfinished = tmp_path / "model.ckpt-7_temp_0"
    unfinished.mkdir()
    estimator = estimator_of(tmp_path)
    saved_at = int(estimator.get_variable_value("global_step"))
    assert 3 <= saved_at < 7
    estimator.train(input_fn, max_steps=10)
    assert not unfinished.exists()
    table, weight, _ = by_numpy(sgd(lambda step: 0.5), 10)
    np.testing.assert_allclose(estimator.get_variable_value(TABLE_NAME), table, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(estimator.get_variable_value("weight"), weight, rtol=1e-4, atol=1e-5)


def listening() -> Any:
    """Makes a listener that notes the steps at which the session saves a checkpoint."""

    class Listener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.steps: list[int] = []

        def after_save(self, session: Any, global_step_value: int) -> None:
            self.steps.append(int(global_step_value))

    return Listener()


def test_hooks_listeners_intervals_and_the_number_of_checkpoints(tmp_path: Path) -> None:
    hook, listener = recorder(), listening()
    config = RunConfig(save_checkpoints_steps=2, keep_checkpoint_max=2, save_summary_steps=1)
    estimator = estimator_of(tmp_path, config=config)
    estimator.train(input_fn, hooks=[hook], steps=6, saving_listeners=[listener])
    assert (hook.begun, hook.runs, hook.ended) == (1, 6, 1)
    assert listener.steps[0] == 0 and listener.steps[-1] == 6 and len(listener.steps) >= 4
    assert len(list(tmp_path.glob("model.ckpt-*.index"))) == 2
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-6")


def test_without_checkpoints_a_listener_has_nothing_to_listen_to(tmp_path: Path) -> None:
    config = RunConfig(save_checkpoints_secs=None, save_checkpoints_steps=None)
    with pytest.raises(ValueError, match="There should be a CheckpointSaverHook to use saving_listeners"):
        estimator_of(tmp_path, config=config).train(input_fn, steps=1, saving_listeners=[listening()])
    assert estimator_of(tmp_path, config=config).train(input_fn, steps=1).latest_checkpoint() is None


def test_training_ends_with_its_input(tmp_path: Path) -> None:
    estimator = estimator_of(tmp_path).train(one_epoch)
    assert estimator.get_variable_value("global_step") == 1


def test_a_loss_that_is_nan_stops_the_training(tmp_path: Path) -> None:
    spec = spec_of(parameters=StochasticGradientDescentParameters(1e30))
    with pytest.raises(tf.compat.v1.train.NanLossDuringTrainingError):
        estimator_of(tmp_path, spec).train(input_fn, steps=20)
