"""A CrossShardOptimizer trains as the optimizer in it does; arguments that one replica can not honour are refused."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.estimator.cross_shard_optimizer import unwrapped
from model_export.estimator.run_config import RunConfig, TPUConfig
from model_export.tensorflow_setup import tf
from service.artifact.manifest import MANIFEST_PATH
from tests.unit.model_export.estimator.small_model import column, estimator_of, input_fn, model_fn_of

pytestmark = pytest.mark.tf

ROOT = Path(__file__).parents[4]
WRAPPER = tf.compat.v1.tpu.CrossShardOptimizer
SUM = tf.compat.v1.losses.Reduction.SUM


def momentum() -> Any:
    """Returns a momentum optimizer: its slot is saved too, so that tests can compare it."""
    return tf.compat.v1.train.MomentumOptimizer(0.05, 0.9)


def wrapped(**arguments: Any) -> Any:
    """Returns the momentum optimizer in a CrossShardOptimizer."""
    return WRAPPER(momentum(), **arguments)


class GroupByHand:
    """Calls compute_gradients and apply_gradients itself, as scripts that clip gradients do."""

    def minimize(self, loss: Any, step: Any) -> Any:
        """Returns the op that trains one step."""
        optimizer = wrapped()
        pairs = [(gradient, variable) for gradient, variable in optimizer.compute_gradients(loss)]
        return optimizer.apply_gradients(pairs, global_step=step, name="train")


class InsideCond:
    """Applies gradients inside tf.cond, whose branches are separate graphs, as scripts that accumulate gradients do."""

    def minimize(self, loss: Any, step: Any) -> Any:
        """Returns the train op."""
        optimizer = wrapped()
        pairs = optimizer.compute_gradients(loss)
        return tf.cond(step >= 0, lambda: tf.group(optimizer.apply_gradients(pairs, step)), tf.no_op)


def values_after(folder: Path, optimizer: Callable[[], Any], **arguments: Any) -> dict[str, Any]:
    """Returns every variable of the small model after three steps."""
    arguments.setdefault("model_fn", model_fn_of([column()], optimizer))
    estimator = estimator_of(folder, **arguments).train(input_fn, steps=3)
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.mark.parametrize(
    "optimizer",
    [wrapped, lambda: wrapped(reduction=SUM), lambda: wrapped(group_assignment=[[0]]), GroupByHand, InsideCond],
    ids=["mean", "sum", "one group", "gradients by hand", "inside cond"],
)
@pytest.mark.parametrize("has_tables", [True, False])
def test_it_trains_as_the_optimizer_inside(tmp_path: Path, optimizer: Callable[[], Any], has_tables: bool) -> None:
    # Without an EmbeddingConfigSpec, this optimizer trains the tables too, so it gets their sparse gradients.
    arguments = {} if has_tables else {"embedding_config_spec": None}
    plain = values_after(tmp_path / "plain", momentum, **arguments)
    through = values_after(tmp_path / "wrapped", optimizer, **arguments)
    assert "weight/Momentum" in plain and set(through) == set(plain)
    for name, value in plain.items():
        np.testing.assert_allclose(through[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_the_log_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        values_after(tmp_path, wrapped)
    said = [record.getMessage() for record in caplog.records if "CrossShardOptimizer" in record.getMessage()]
    assert said == ["CrossShardOptimizer is not needed here: the estimator trains with the MomentumOptimizer inside it"]


@pytest.mark.parametrize(
    ("arguments", "num_shards", "text"),
    [
        (
            {"group_assignment": [[0, 1], [2, 3]]},
            None,
            (
                "CrossShardOptimizer has group_assignment=[[0, 1], [2, 3]], but this estimator trains one replica: "
                "leave group_assignment out"
            ),
        ),
        (
            {"reduction": SUM},
            8,
            (
                "CrossShardOptimizer has reduction=SUM, which adds up the gradients of TPUConfig's num_shards=8 "
                "shards, but this estimator computes one gradient, of the whole batch. Leave reduction out if the "
                "loss is the mean of the batch; set num_shards=1 if the loss is the sum of the batch"
            ),
        ),
        # TensorFlow's own text.
        ({"reduction": "none"}, None, "Argument `reduction` should be one of"),
    ],
)
def test_what_one_replica_can_not_honour_is_refused(
    tmp_path: Path, arguments: dict[str, Any], num_shards: int | None, text: str
) -> None:
    config = RunConfig(tpu_config=TPUConfig(num_shards=num_shards))
    with pytest.raises(ValueError, match=re.escape(text)):
        values_after(tmp_path, lambda: wrapped(**arguments), config=config)


def test_the_mean_of_shards_is_the_gradient_of_the_batch(tmp_path: Path) -> None:
    config = RunConfig(tpu_config=TPUConfig(num_shards=8))
    assert values_after(tmp_path, wrapped, config=config)["global_step"] == 3


def test_tensorflows_class_is_as_before_outside_and_in_other_threads() -> None:
    before = (WRAPPER.compute_gradients, WRAPPER.apply_gradients)

    def operations(found: list[str]) -> None:
        with tf.Graph().as_default() as graph:
            variable = tf.compat.v1.get_variable("x", [2])
            wrapped().minimize(tf.reduce_sum(variable * variable))
            found += [operation.type for operation in graph.get_operations()]

    inside: list[str] = []
    elsewhere: list[str] = []
    with unwrapped(None):
        operations(inside)
        with unwrapped(None):
            pass
        thread = threading.Thread(target=operations, args=[elsewhere])
        thread.start()
        thread.join()
        operations(inside)
    assert "CrossReplicaSum" not in inside
    assert "CrossReplicaSum" in elsewhere
    assert (WRAPPER.compute_gradients, WRAPPER.apply_gradients) == before
    with pytest.raises(RuntimeError, match="^model_fn failed$"), unwrapped(None):
        raise RuntimeError("model_fn failed")
    assert (WRAPPER.compute_gradients, WRAPPER.apply_gradients) == before


def test_the_script_in_the_documents_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/migration.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "CrossShardOptimizer" in script
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    (version,) = (tmp_path / "models/ratings").iterdir()
    assert (version / "saved_model.pb").is_file() and (version / MANIFEST_PATH).is_file()
    assert "CrossShardOptimizer is not needed here" in done.stderr
    assert "Traceback" not in done.stderr
