"""The estimator's training loop: a v1 session that writes checkpoints into model_dir and calls all hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_export.estimator import checkpoints
from model_export.estimator.checkpoints import WarmStartSettings, warm_start
from model_export.estimator.embedding_tables import ids_and_splits, looked_up_ids, lookup_spec
from model_export.estimator.estimator_spec import ModeKeys, call_input_fn, call_on_host
from model_export.estimator.model_graph import Model, ModelGraph, build_model_graph
from model_export.estimator.run_config import RunConfig
from model_export.estimator.training_processes import OneProcess
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.statistics.files import LookupStatistics
from model_export.tensorflow_setup import tf


def features_and_labels(result: Any) -> tuple[Any, Any, list[Any]]:
    """Splits what input_fn returned into features, labels (or None), and session hooks that initialize a data set's
    iterator.

    Args:
      result: a tf.data.Dataset of features or of (features, labels), or such tensors.

    Raises:
      ValueError: the result is a tuple or list that does not have two elements.
    """
    hooks: list[Any] = []
    if isinstance(result, tf.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks.append(_InitializeDataset(iterator.initializer))
        result = iterator.get_next()
    if not isinstance(result, (list, tuple)) or hasattr(result, "_fields"):
        return result, None, hooks
    if len(result) != 2:
        raise ValueError(f"input_fn should return (features, labels) as a len 2 tuple, got {len(result)} elements")
    features, labels = result
    return features, labels, hooks


def start_graph(model: Model, input_fn: Callable[..., Any], mode: str) -> tuple[Any, Any, list[Any]]:
    tf.compat.v1.set_random_seed(model.config.tf_random_seed)
    tf.compat.v1.train.create_global_step()
    with tf.device("/cpu:0"):
        params = model.params_for(mode, use_tpu=None)
        return features_and_labels(call_input_fn(input_fn, params=params, config=model.config, mode=mode))


class _InitializeDataset(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)


_LOGGER = logging.getLogger(__name__)


def train(
    model: Model,
    input_fn: Callable[..., Any],
    *,
    model_dir: str,
    hooks: Sequence[Any],
    saving_listeners: Sequence[Any],
    warm_start_settings: WarmStartSettings | None,
    processes: OneProcess,
) -> None:
    v1 = tf.compat.v1
    config = model.config
    if processes.is_chief:
        checkpoints.remove_unfinished(model_dir)
    with tf.Graph().as_default() as graph, graph.device(config.device_fn), processes.placing():
        features, labels, input_hooks = start_graph(model, input_fn, ModeKeys.TRAIN)
        seen = dict(features) if isinstance(features, dict) else {}
        built = build_model_graph(model, features, labels, ModeKeys.TRAIN, processes=processes)
        spec = built.spec
        if warm_start_settings is not None and checkpoints.latest_checkpoint(model_dir) is None:
            warm_start(warm_start_settings)
        scaffold = spec.scaffold_fn() if spec.scaffold_fn else v1.train.Scaffold()
        _add_saver(scaffold, config)
        _add_loss_summary(spec.loss)
        all_hooks = [
            *processes.hooks(),
            *input_hooks,
            *hooks,
            v1.train.NanTensorHook(spec.loss),
            *_log_hooks(spec.loss, config),
            *spec.training_hooks,
            *host_call_hooks(spec),
            *(_statistics_hooks(model.embedding, seen) if processes.is_chief else ()),
        ]
        savers = [hook for hook in all_hooks if isinstance(hook, v1.train.CheckpointSaverHook)]
        chief_hooks = []
        if config.log_step_count_steps is not None:
            chief_hooks.append(StepRateHook(every_n_steps=config.log_step_count_steps, output_dir=model_dir))
        if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
            savers = [
                v1.train.CheckpointSaverHook(
                    model_dir,
                    save_secs=config.save_checkpoints_secs,
                    save_steps=config.save_checkpoints_steps,
                    scaffold=scaffold,
                    save_graph_def=config.checkpoint_save_graph_def,
                )
            ]
            chief_hooks += savers
        if saving_listeners and not savers:
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the "
                "RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        # TensorFlow's CheckpointSaverHook has no public method that adds a listener.
        if saving_listeners:
            savers[0]._listeners += saving_listeners
        if built.training is not None:
            # Write pending gradients into the tables before the saver and all other listeners read the tables.
            for saver in savers:
                saver._listeners.insert(0, _Flush(built.training.flush))
            all_hooks.append(_TableSteps(built))
        arguments = {
            "checkpoint_dir": model_dir,
            "scaffold": scaffold,
            "hooks": all_hooks,
            "chief_only_hooks": chief_hooks if processes.is_chief else (),
            # The session adds no saver hook of its own, because that hook would not call the saving listeners.
            "save_checkpoint_secs": 0,
            "save_summaries_steps": config.save_summary_steps,
            "max_wait_secs": config.session_creation_timeout_secs,
            # StepRateHook logs the steps per second, so the session must not add its own hook for this.
            "log_step_count_steps": None,
            "save_graph_def": config.checkpoint_save_graph_def,
            **processes.session_arguments(),
        }
        loss = None
        with v1.train.MonitoredTrainingSession(**arguments) as session:
            try:
                while not session.should_stop():
                    _, loss = session.run([built.train_op, spec.loss])
            except tf.errors.OutOfRangeError:
                _LOGGER.debug("the input of the training has ended")
            processes.finish_steps()
    if loss is None:
        _LOGGER.warning("training made no step: the input is empty, or the steps are done")


class _TableSteps(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook that feeds the global step to the tables' optimizers, and applies their pending gradients at the end."""

    def __init__(self, built: ModelGraph) -> None:
        self._placeholder, self._training = built.step, built.training
        self._global_step = tf.compat.v1.train.get_global_step()
        self._step = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = session.run(self._global_step)

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(None, {self._placeholder: self._step})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        # A separate session run reads the global step: fetched together with train_op, it could be the value before or
        # after the increment.
        self._step = run_context.session.run(self._global_step)

    def end(self, session: Any) -> None:
        # The training loop adds this hook, which applies pending gradients, only if there are tables to train.
        assert self._training is not None
        session.run(self._training.flush)


class _Flush(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    def __init__(self, flush: Any) -> None:
        self._flush = flush

    def before_save(self, session: Any, global_step_value: int) -> None:
        session.run(self._flush)


class RunEachStep(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, fetches: Any) -> None:
        self._fetches = fetches

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._fetches)


def host_call_hooks(spec: Any) -> list[Any]:
    return [] if spec.host_call is None else [RunEachStep(call_on_host(spec.host_call))]


def _add_saver(scaffold: Any, config: RunConfig) -> None:
    v1 = tf.compat.v1
    if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
        saver = v1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


def _add_loss_summary(loss: Any) -> None:
    v1 = tf.compat.v1
    if not any(summary.op.name == "loss" for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)):
        v1.summary.scalar("loss", loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)


def _log_hooks(loss: Any, config: RunConfig) -> list[Any]:
    if config.log_step_count_steps is None:
        return []
    logged = {"loss": loss, "step": tf.compat.v1.train.get_global_step()}
    return [tf.compat.v1.train.LoggingTensorHook(logged, config.log_step_count_steps)]


def _statistics_hooks(spec: EmbeddingConfigSpec | None, features: Mapping[str, Any]) -> list[Any]:
    if spec is None or spec.profile_data_directory is None:
        return []
    model = lookup_spec(spec)
    statistics = LookupStatistics.for_model(
        Path(spec.profile_data_directory), model, partition_strategy=spec.partition_strategy
    )
    rows = {feature.name: model.table_of(feature.name).vocabulary_size for feature in model.features}
    return [_Observe(statistics, looked_up_ids(spec, features), rows)]


class _Observe(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, statistics: LookupStatistics, ids: Mapping[str, Any], rows: Mapping[str, int]) -> None:
        self._statistics, self._ids, self._rows = statistics, dict(ids), rows
        self._global_step = tf.compat.v1.train.get_global_step()
        self._step = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = int(session.run(self._global_step))

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._ids if self._statistics.wants(self._step) else {})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        seen = {name: self._rows_read(name, ids) for name, ids in (run_values.results or {}).items()}
        self._statistics.observe(self._step, seen)
        self._step += 1

    def end(self, session: Any) -> None:
        self._statistics.save()

    def _rows_read(self, name: str, ids: Any) -> tuple[Any, Any]:
        values, splits = ids_and_splits(ids)
        # Only ids of rows of the table are counted. An unknown key has the id -1, whose lookup reads no row.
        is_row = (values >= 0) & (values < self._rows[name])
        if splits is None:
            return values[is_row], None
        return values[is_row], np.concatenate([[0], np.cumsum(is_row)])[splits]


class StepRateHook(tf.compat.v1.train.StepCounterHook):  # type: ignore[misc]
    """A StepCounterHook that warns only if the global step does not increase over two runs of the session.

    TensorFlow fetches the step in the same run that increments it, so it gets the value before or after the increment.
    "After" followed by "before" then looks like a step that did not increase. Over two runs the values always differ if
    the step increases.
    """

    _last_global_step: int | None
    _earlier: int | None = None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Compares the global steps of two session runs, so that a warning is logged only if the step stood still."""
        newest, self._last_global_step = self._last_global_step, self._earlier
        super().after_run(run_context, run_values)
        self._earlier = newest
