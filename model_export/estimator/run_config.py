"""RunConfig and TPUConfig, with the same arguments as TPUEstimator's classes of these names.

Training runs on CPUs, in one process or in several (docs/distributed-training.md); all else runs in one process. Other
settings for a TPU or a cluster are checked and kept for model_fn to read, but have no effect; settings that would
change the result are refused.

Source: tensorflow_estimator/python/estimator/run_config.py and tpu/tpu_config.py at 2.15.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import numpy as np

from model_export.distribution.cluster import ClusterTask, Distribution, lists_parameter_servers
from model_export.environment import tf_config
from model_export.tensorflow_setup import tf

_UNSET: Any = object()
_LOOP = re.compile(r"[1-9]\d*[smh]?")
_CORES = (1, 2, 4, 8, 16, 32, 64, 128)


class InputPipelineConfig:
    """Values of TPUConfig.per_host_input_for_training: how a TPU's hosts would call input_fn; no training uses them."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


def check_positive_integer(value: Any, name: str) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name} must be int, got {type(value)}")
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


@dataclass(frozen=True, slots=True)
class TPUConfig:
    """The TPU settings of a RunConfig.

    iterations_per_loop: steps, or a time such as "60s", after which TPUEstimator returned to the host. Checked, but
        without effect, because here every step returns.
    The other fields describe TPU hosts and cores; they are checked, but have no effect.
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Any = None

    def __post_init__(self) -> None:
        if not _LOOP.fullmatch(str(self.iterations_per_loop)):
            raise ValueError(
                f"Invalid TPUConfig `iterations_per_loop` value {self.iterations_per_loop!r}: expected a positive "
                "integer, or one followed by s, m or h"
            )
        if self.num_shards is not None:
            check_positive_integer(self.num_shards, "TPUConfig num_shards")
        if self.initial_infeed_sleep_secs:
            check_positive_integer(self.initial_infeed_sleep_secs, "TPUConfig initial_infeed_sleep_secs")
        legacy = {False: InputPipelineConfig.PER_SHARD_V1, True: InputPipelineConfig.PER_HOST_V1}
        if isinstance(self.per_host_input_for_training, bool):
            object.__setattr__(self, "per_host_input_for_training", legacy[self.per_host_input_for_training])
        if self.input_partition_dims is not None:
            if len(self.input_partition_dims) not in (1, 2):
                raise ValueError("input_partition_dims must be a list/tuple with one or two elements.")
            if self.per_host_input_for_training != InputPipelineConfig.PER_HOST_V2:
                raise ValueError("input_partition_dims is only supported in PER_HOST_V2 mode.")
            if self.num_cores_per_replica is None:
                raise ValueError("input_partition_dims requires setting num_cores_per_replica.")
        if self.num_cores_per_replica is not None and self.num_cores_per_replica not in _CORES:
            raise ValueError(f"num_cores_per_replica must be one of {_CORES}; got {self.num_cores_per_replica}")
        inputs = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED)
        if self.eval_training_input_configuration not in inputs:
            raise ValueError(
                "eval_training_input_configuration must be PER_HOST_V1 or SLICED; "
                f"got {self.eval_training_input_configuration}"
            )


@dataclass(eq=False)
class RunConfig:
    """Settings of an estimator: model folder, random seed, checkpoints, summaries and session.

    Args:
      model_dir: folder of checkpoints and summaries.
      tf_random_seed: seed of every graph; the same seed gives the same initial values.
      save_summary_steps, log_step_count_steps: steps between summaries and between log lines of the loss; None: never.
      save_checkpoints_steps, save_checkpoints_secs: interval of checkpoints, by one of the two; both unset: 600 s;
        both None: no checkpoints.
      session_config: tf.compat.v1.ConfigProto.
      keep_checkpoint_max: how many of the newest checkpoints are kept; None or 0: all.
      keep_checkpoint_every_n_hours, device_fn, session_creation_timeout_secs, checkpoint_save_graph_def: as in
        tf.compat.v1.train.Saver and MonitoredTrainingSession.
      tpu_config: TPUConfig.
      train_distribute: a tf.distribute.MultiWorkerMirroredStrategy, or a
        tf.compat.v1.distribute.experimental.ParameterServerStrategy; None means the latter if TF_CONFIG lists
        parameter servers ("ps"), and else a training in this process.
      master, evaluation_master, cluster, eval_distribute, experimental_distribute: settings of a cluster; refused
        unless they mean this process.
      protocol, experimental_max_worker_delay_secs: settings of a cluster; without effect.

    Raises:
      ValueError: TensorFlow refuses the value too, or a setting asks for a cluster.
      ExportError: TF_CONFIG does not fit train_distribute.
    """

    tpu_config: TPUConfig = field(default_factory=TPUConfig)
    evaluation_master: str | None = None
    master: str | None = None
    cluster: Any = None
    _: KW_ONLY
    model_dir: str | os.PathLike[str] | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = _UNSET
    save_checkpoints_secs: float | None = _UNSET
    session_config: Any = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10000
    log_step_count_steps: int | None = 100
    train_distribute: Any = None
    device_fn: Callable[[Any], str] | None = None
    protocol: str | None = None
    eval_distribute: Any = None
    experimental_distribute: Any = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: int = 7200
    checkpoint_save_graph_def: bool = True

    def __post_init__(self) -> None:
        if self.save_checkpoints_steps is _UNSET and self.save_checkpoints_secs is _UNSET:
            self.save_checkpoints_secs = 600
        for name in ("save_checkpoints_steps", "save_checkpoints_secs"):
            if getattr(self, name) is _UNSET:
                setattr(self, name, None)
        self.tpu_config = self.tpu_config or TPUConfig()
        self.master = self.master or ""
        self.evaluation_master = self.master if self.evaluation_master is None else self.evaluation_master
        self.model_dir = None if self.model_dir is None else os.fspath(self.model_dir)
        self._check()

        self.distribution = self._distribution()
        self.task = self._task()
        # input_fn and model_fn may read the attributes that are set below. If one process trains, there is no task, and
        # this process is the chief.
        cluster = {} if self.task is None else dict(self.task.cluster)
        self.cluster_spec = tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.items()})
        self.is_chief = self.task is None or self.task.is_chief
        self.task_type, self.task_id = ("worker", 0) if self.task is None else (self.task.kind, self.task.index)
        self.num_ps_replicas = len(cluster.get("ps", ()))
        self.num_worker_replicas = 1 if self.task is None else self.task.number_of_workers
        self.global_id_in_cluster = 0 if self.task is None else self.task.number_among_workers

    def replace(self, **changes: Any) -> RunConfig:
        """Returns a changed copy of this RunConfig; setting one checkpoint interval does not unset the other one."""
        same = {one.name: getattr(self, one.name) for one in fields(self)}
        # The tf.distribute strategy is not copied: in code that a strategy's replicas run, TensorFlow gives the
        # original strategy as the current one, never a copy.
        copied = {name: value if name == "train_distribute" else copy.copy(value) for name, value in same.items()}
        return RunConfig(**copied | changes)

    @property
    def workers_of_a_step(self) -> int:
        """The number of workers that share the batch of a training step."""
        return self.num_worker_replicas if self.distribution == "multi_worker" else 1

    def _distribution(self) -> Distribution:
        strategy = self.train_distribute
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return "multi_worker"
        if isinstance(strategy, tf.compat.v1.distribute.experimental.ParameterServerStrategy):
            return "parameter_server"
        if strategy is not None:
            raise ValueError(
                "train_distribute must be a tf.distribute.MultiWorkerMirroredStrategy or a "
                f"tf.compat.v1.distribute.experimental.ParameterServerStrategy, got {type(strategy)}"
            )
        return "parameter_server" if lists_parameter_servers(tf_config()) else "none"

    def _task(self) -> ClusterTask | None:
        if self.distribution == "none":
            return None
        return ClusterTask.parse(tf_config(), self.distribution, f"EmbeddingEstimator ({self.distribution})")

    def _check(self) -> None:
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ValueError("`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set.")
        if not isinstance(self.tpu_config, TPUConfig):
            raise ValueError(f"tpu_config must be a TPUConfig, got {type(self.tpu_config)}")
        for name in ("master", "evaluation_master"):
            if getattr(self, name) not in ("", "local"):
                raise ValueError(f"{name} is {getattr(self, name)!r}: sessions run in this process only")
        for name in ("cluster", "eval_distribute", "experimental_distribute"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is set: TF_CONFIG and train_distribute name the processes of a training "
                    "(docs/distributed-training.md)"
                )
        if self.model_dir == "":
            raise ValueError("model_dir should be non-empty")
        for name in ("save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs", "keep_checkpoint_max"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} should be >= 0")
        for name in ("keep_checkpoint_every_n_hours", "log_step_count_steps", "session_creation_timeout_secs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} should be > 0")
        if self.session_config is not None and not isinstance(self.session_config, tf.compat.v1.ConfigProto):
            raise ValueError("session_config must be instance of ConfigProto")
        if self.tf_random_seed is not None and not isinstance(self.tf_random_seed, int):
            raise ValueError("tf_random_seed must be integer.")
