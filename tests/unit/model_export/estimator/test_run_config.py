"""RunConfig and TPUConfig have the defaults of TensorFlow 2.15 and refuse the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_export.estimator.run_config import InputPipelineConfig, RunConfig, TPUConfig
from model_export.tensorflow_setup import tf

pytestmark = pytest.mark.tf


def test_defaults_are_tensorflows() -> None:
    config = RunConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.save_summary_steps, config.log_step_count_steps, config.keep_checkpoint_max) == (100, 100, 5)
    assert (config.master, config.evaluation_master, config.is_chief, config.task_type) == ("", "", True, "worker")
    assert config.tpu_config == TPUConfig()
    assert TPUConfig().iterations_per_loop == 2
    assert TPUConfig().per_host_input_for_training == InputPipelineConfig.PER_HOST_V1
    assert TPUConfig(per_host_input_for_training=False).per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"save_checkpoints_steps": 5}, (5, None)),
        ({"save_checkpoints_secs": 7}, (None, 7)),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, (None, None)),
    ],
)
def test_one_interval_of_checkpoints(given: dict[str, Any], expected: tuple[Any, Any]) -> None:
    config = RunConfig(**given)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, "cannot be both set"),
        ({"save_checkpoints_steps": -1}, "save_checkpoints_steps should be >= 0"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max should be >= 0"),
        ({"save_summary_steps": -1}, "save_summary_steps should be >= 0"),
        ({"log_step_count_steps": 0}, "log_step_count_steps should be > 0"),
        ({"keep_checkpoint_every_n_hours": 0}, "keep_checkpoint_every_n_hours should be > 0"),
        ({"session_creation_timeout_secs": 0}, "session_creation_timeout_secs should be > 0"),
        ({"model_dir": ""}, "model_dir should be non-empty"),
        ({"session_config": 3}, "session_config must be instance of ConfigProto"),
        ({"tf_random_seed": 1.5}, "tf_random_seed must be integer"),
        ({"tpu_config": 3}, "tpu_config must be a TPUConfig"),
        ({"master": "grpc://10.0.0.1:8470"}, "sessions run in this process only"),
        ({"cluster": object()}, "cluster is set: TF_CONFIG and train_distribute name"),
        ({"train_distribute": object()}, "train_distribute must be a tf.distribute.MultiWorkerMirroredStrategy"),
    ],
)
def test_run_config_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig(**given)


def test_a_copy_with_changes() -> None:
    session = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config = RunConfig(TPUConfig(7), model_dir=Path("m"), save_checkpoints_steps=3, session_config=session)
    changed = config.replace(model_dir="n", tf_random_seed=4)
    assert (config.model_dir, changed.model_dir, changed.tf_random_seed) == ("m", "n", 4)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs) == (3, None)
    assert changed.tpu_config.iterations_per_loop == 7
    assert changed.session_config.allow_soft_placement


@pytest.mark.parametrize("given", [5, "5", "60s", "2m", "1h"])
def test_iterations_per_loop_is_a_number_or_a_time(given: Any) -> None:
    assert TPUConfig(given).iterations_per_loop == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterations_per_loop": 0}, "Invalid TPUConfig `iterations_per_loop` value 0"),
        ({"iterations_per_loop": "5d"}, "Invalid TPUConfig `iterations_per_loop` value '5d'"),
        ({"num_shards": 0}, "num_shards must be positive, got 0"),
        ({"num_cores_per_replica": 3}, "num_cores_per_replica must be one of"),
        ({"initial_infeed_sleep_secs": -1}, "initial_infeed_sleep_secs must be positive"),
        ({"eval_training_input_configuration": 4}, "must be PER_HOST_V1 or SLICED; got 4"),
        ({"input_partition_dims": [1, 2, 3]}, "one or two elements"),
        ({"input_partition_dims": [[1, 2]]}, "only supported in PER_HOST_V2 mode"),
        (
            {"input_partition_dims": [[1, 2]], "per_host_input_for_training": InputPipelineConfig.PER_HOST_V2},
            "requires setting num_cores_per_replica",
        ),
    ],
)
def test_tpu_config_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TPUConfig(**given)
