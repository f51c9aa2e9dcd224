"""EmbeddingEstimator: trains, evaluates, predicts and exports a model_fn, with TPUEstimator's arguments.

Source: tensorflow_estimator/python/estimator/tpu/tpu_estimator.py and estimator.py at 2.15.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_export.distribution.cluster import number_of_processes
from model_export.distribution.failures import named_failures
from model_export.environment import tf_config
from model_export.estimator import checkpoints, sessions
from model_export.estimator.checkpoints import warm_start_settings
from model_export.estimator.estimator_spec import ExportSavedModelApiVersion, ModeKeys, check_model_fn
from model_export.estimator.model_graph import Model
from model_export.estimator.run_config import InputPipelineConfig, RunConfig, check_positive_integer
from model_export.estimator.training_processes import MirroredWorkers, OneProcess, ParameterServers
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.tensorflow_setup import tf

_RESERVED_PARAMS = ("batch_size", "context")


class EmbeddingEstimator:
    """Estimator of a model with feature columns or configured tables: trains on the local CPU as a TPU would.

    Tables of embedding_config_spec are trained by its optimization parameters, everything else by model_fn's optimizer.
    Checkpoints have the names and shapes that TPUEstimator gave them, and each continues the other's.

    model_fn(features, labels, mode, config, params) gets those of these arguments that it declares, and returns an
    EstimatorSpec. input_fn(params, config, mode) returns a tf.data.Dataset, or tensors: features, or (features,
    labels). Both run in a v1 graph. params["batch_size"] is the batch size of the mode, params["use_tpu"] False but in
    {serve,tpu} exports.

    Args:
      model_dir: folder of checkpoints and summaries; None: that of config, or a temporary one.
      config: RunConfig; needed.
      params: dict of which input_fn and model_fn get a copy.
      use_tpu: True checks that the batch sizes suit a TPU. Nothing runs on a TPU.
      train_batch_size, eval_batch_size, predict_batch_size: passed on in params; input_fn decides the true size.
      batch_axis, eval_on_tpu: how a TPU splits a batch, and whether it evaluates; without effect here.
      export_to_tpu, export_to_cpu: whether export_saved_model writes a {serve,tpu} and a {serve} MetaGraph.
      warm_start_from: checkpoint, its folder, a SavedModel, or WarmStartSettings; read if model_dir has no checkpoint.
      embedding_config_spec: EmbeddingConfigSpec; None lets model_fn's optimizer train everything.
      export_saved_model_api_version: ExportSavedModelApiVersion, or 1 or 2.

    Raises:
      ValueError, TypeError: as TPUEstimator for the same arguments.

    Concurrency: one caller at a time; model_dir belongs to one estimator while it trains.

    Attributes:
      model: the functions, params and batch sizes from which the estimator builds its graphs.
      api_version: ExportSavedModelApiVersion. export_to_tpu, export_to_cpu: as in the arguments.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        embedding_config_spec: EmbeddingConfigSpec | None = None,
        export_saved_model_api_version: ExportSavedModelApiVersion | int = ExportSavedModelApiVersion.V1,
    ) -> None:
        if not isinstance(config, RunConfig):
            raise ValueError("`config` must be provided with type `RunConfig`")
        if params is not None and any(name in params for name in _RESERVED_PARAMS):
            raise ValueError(f"{list(_RESERVED_PARAMS)} are reserved keys but existed in params {params}.")
        sizes = {
            ModeKeys.TRAIN: ("train_batch_size", train_batch_size),
            ModeKeys.EVAL: ("eval_batch_size", eval_batch_size),
            ModeKeys.PREDICT: ("predict_batch_size", predict_batch_size),
        }
        _check_shares(config, train_batch_size, embedding_config_spec)
        if use_tpu:
            _check_for_tpu(config, dict(sizes.values()), embedding_config_spec)
        check_model_fn(model_fn)
        if embedding_config_spec is not None and not isinstance(embedding_config_spec, EmbeddingConfigSpec):
            raise ValueError(f"embedding_config_spec must be an EmbeddingConfigSpec, got {type(embedding_config_spec)}")
        self._config = config.replace(model_dir=_model_dir(model_dir, config))
        self.model = Model(
            model_fn=model_fn,  # type: ignore[arg-type]  # checked
            params=copy.deepcopy(dict(params or {})),
            config=self._config,
            embedding=embedding_config_spec,
            batch_sizes={mode: size for mode, (_, size) in sizes.items() if size is not None},
        )
        self._warm_start = warm_start_settings(warm_start_from)
        # Whether this estimator has begun a training in several processes, which it can do only once.
        self._is_used = False
        self.export_to_tpu, self.export_to_cpu = export_to_tpu, export_to_cpu
        self.api_version = _api_version(export_saved_model_api_version)

    @property
    def model_dir(self) -> str:
        """Folder of the estimator's checkpoints and summaries."""
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """A copy of the estimator's RunConfig."""
        return copy.copy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of params."""
        return copy.deepcopy(dict(self.model.params))

    @property
    def warm_start_checkpoint(self) -> str | None:
        """The checkpoint with whose values a first training starts; None without warm_start_from."""
        if self._warm_start is None:
            return None
        path = self._warm_start.ckpt_to_initialize_from
        return checkpoints.latest_checkpoint(path) if os.path.isdir(path) else path

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> EmbeddingEstimator:
        """Trains the model from the newest checkpoint on, and saves a checkpoint at the end. Returns this estimator.

        Args:
          steps: number of steps to train; None: until the input ends.
          max_steps: global step to stop at, which counts the checkpoint's steps too; excludes `steps`.
          saving_listeners: CheckpointSaverListeners.

        Raises:
          ValueError: steps and max_steps are both given, or one is not positive. Or TF_CONFIG lists several processes,
            but neither parameter servers nor RunConfig's train_distribute says how they train together; or a training
            in several processes is started a second time.
          TypeError: a hook or listener is of another type.
          NanLossDuringTrainingError: the loss is NaN.
          ExportError: another process of the training is lost.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        for name, number in (("steps", steps), ("max_steps", max_steps)):
            if number is not None and number <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {number}")
        hooks = _checked(hooks, tf.compat.v1.train.SessionRunHook, "Hooks must be a SessionRunHook")
        listeners = _checked(
            saving_listeners,
            tf.compat.v1.train.CheckpointSaverListener,
            "saving_listeners must be a list of CheckpointSaverListener",
        )
        is_done = max_steps is not None and checkpoints.global_step(self.latest_checkpoint()) >= max_steps
        if steps is not None or max_steps is not None:
            hooks.append(tf.compat.v1.train.StopAtStepHook(steps, max_steps))
        with self._training_processes() as processes:
            if isinstance(processes, ParameterServers) and self._config.task_type == "ps":
                processes.serve()
                return self
            if not is_done:
                sessions.train(
                    self.model,
                    input_fn,
                    model_dir=self.model_dir,
                    hooks=hooks,
                    saving_listeners=listeners,
                    warm_start_settings=self._warm_start,
                    processes=processes,
                )
            processes.finish()
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint; returns its metrics by name, with "loss", the mean over batches, and "global_step".

        Args:
          steps: number of batches; None: until the input ends.
          checkpoint_path: None: the newest checkpoint, or initial values if there is none.
          name: suffix of the summaries' folder, eval_<name>.

        Raises:
          ValueError: steps is not positive, or a metric is named loss or global_step.
        """
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        return sessions.evaluate(
            self.model,
            input_fn,
            steps=steps,
            hooks=_checked(hooks, tf.compat.v1.train.SessionRunHook, "Hooks must be a SessionRunHook"),
            checkpoint=checkpoint_path or self.latest_checkpoint(),
            warm_start_settings=self._warm_start,
            summary_dir=self.eval_dir(name),
        )

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields this estimator's predictions until the input ends. Exhaust or close the generator: it holds a session.

        Args:
          predict_keys: names of predictions; None: all.
          checkpoint_path: None: the newest checkpoint, or initial values if there is none.
          yield_single_examples: False yields whole batches.

        Raises:
          ValueError: none of predict_keys exists, or predictions that shall be split into rows differ in length.
        """
        return sessions.predict(
            self.model,
            input_fn,
            predict_keys=predict_keys,
            hooks=_checked(hooks, tf.compat.v1.train.SessionRunHook, "Hooks must be a SessionRunHook"),
            checkpoint=checkpoint_path or self.latest_checkpoint(),
            warm_start_settings=self._warm_start,
            yield_single_examples=yield_single_examples,
        )

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> str:
        """Exports the model into the new folder export_dir_base/<seconds since 1970>/, and returns that folder.

        The version holds the heads of model_fn and the lookups of embedding_config_spec's tables, checked and described
        by a manifest as model_export.export() does; export() has more options.

        Args:
          assets_extra: path within assets.extra/ -> file to copy there.
          as_text: True is refused; only saved_model.pb is written.
          checkpoint_path: None: the newest checkpoint.
          experimental_mode: ModeKeys.PREDICT; other modes are refused.

        Raises:
          ValueError: there is no receiver function or no checkpoint, or export_to_cpu and export_to_tpu are both False.
          ExportError: the model can not be exported with these arguments.
        """
        from model_export.estimator.export_source import export_timestamped

        return export_timestamped(
            self,
            Path(export_dir_base),
            serving_input_receiver_fn,
            assets_extra=assets_extra or {},
            as_text=as_text,
            checkpoint_path=checkpoint_path,
            mode=experimental_mode,
        )

    @contextmanager
    def _training_processes(self) -> Iterator[OneProcess]:
        config = self._config
        if config.task is None:
            if number_of_processes(tf_config()) > 1:
                raise ValueError(
                    "TF_CONFIG lists several processes. Set RunConfig's train_distribute to a "
                    "tf.distribute.MultiWorkerMirroredStrategy, list parameter servers (ps), or unset TF_CONFIG and "
                    "start one process (docs/distributed-training.md)"
                )
            yield OneProcess(config)
            return
        if self._is_used:
            raise ValueError(
                "a training in several processes can be started once in a process: start the processes again to train "
                "on from the newest checkpoint"
            )
        self._is_used = True
        with named_failures(config.task):
            kind = ParameterServers if config.distribution == "parameter_server" else MirroredWorkers
            yield kind(config, config.task)

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest checkpoint in model_dir, without ".index"; None if there is no checkpoint."""
        return checkpoints.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the variable names of model_dir's newest checkpoint; raises ValueError if there is no checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._trained_checkpoint())]

    def get_variable_value(self, name: str) -> Any:
        """Returns the array of a variable in model_dir's newest checkpoint; raises ValueError if either is missing."""
        reader = tf.train.load_checkpoint(self._trained_checkpoint())
        if not reader.has_tensor(name):
            known = sorted(reader.get_variable_to_shape_map())
            raise ValueError(f"{name!r} is not in the checkpoint, which has {known}")
        return reader.get_tensor(name)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the path of the folder for the summaries of the evaluation with the given name."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def _trained_checkpoint(self) -> str:
        if (path := self.latest_checkpoint()) is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}.")
        return path


def _check_shares(config: RunConfig, train_batch_size: int | None, spec: EmbeddingConfigSpec | None) -> None:
    workers = config.workers_of_a_step
    if isinstance(train_batch_size, int) and train_batch_size % workers:
        raise ValueError(f"train_batch_size {train_batch_size} can not be divided among {workers} workers")
    if config.task is not None and getattr(spec, "pipeline_execution_with_tensor_core", False):
        raise ValueError("pipeline_execution_with_tensor_core is for a training in one process: set it to False")


def _check_for_tpu(config: RunConfig, sizes: Mapping[str, Any], embedding: EmbeddingConfigSpec | None) -> None:
    if sizes["train_batch_size"] is None:
        raise ValueError("`train_batch_size` cannot be `None`")
    for name, size in sizes.items():
        if size is not None:
            check_positive_integer(size, name)
    tpu = config.tpu_config
    if tpu.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1 and tpu.num_cores_per_replica:
        raise ValueError(
            "Model parallelism only supports per host input for training. Please adjust "
            "TPUConfig.per_host_input_for_training."
        )
    per_host = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.PER_HOST_V2)
    if embedding is not None and tpu.per_host_input_for_training not in per_host:
        raise ValueError(
            "Only PER_HOST_V1 and PER_HOST_V2 is supported when using TPU Embedding; got "
            f"{tpu.per_host_input_for_training}."
        )


def _model_dir(model_dir: str | os.PathLike[str] | None, config: RunConfig) -> str:
    if model_dir is None:
        return os.fspath(config.model_dir or tempfile.mkdtemp())
    path = os.fspath(model_dir)
    if config.model_dir not in (None, path):
        raise ValueError(
            f"`model_dir` are set both in constructor and `RunConfig`, but with different values. In constructor: "
            f"'{path}', in `RunConfig`: '{config.model_dir}'"
        )
    return path


def _api_version(version: ExportSavedModelApiVersion | int) -> ExportSavedModelApiVersion:
    try:
        return ExportSavedModelApiVersion(version)
    except ValueError:
        raise ValueError(f"export_saved_model_api_version should be 1 or 2; got {version}.") from None


def _checked(given: Sequence[Any] | None, kind: type, message: str) -> list[Any]:
    for value in given or ():
        if not isinstance(value, kind):
            raise TypeError(f"{message}, given: {value}")
    return list(given or ())
