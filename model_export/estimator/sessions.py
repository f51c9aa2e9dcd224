"""Trains, evaluates and predicts in v1 sessions: the training writes checkpoints into model_dir and calls all hooks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_export.estimator import checkpoints
from model_export.estimator.checkpoints import WarmStartSettings, warm_start
from model_export.estimator.embedding_tables import ids_and_splits, looked_up_ids, lookup_spec
from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys, call_input_fn, call_on_host
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


def predict(
    model: Model,
    input_fn: Callable[..., Any],
    *,
    predict_keys: Sequence[str] | None,
    hooks: Sequence[Any],
    checkpoint: str | None,
    warm_start_settings: WarmStartSettings | None,
    yield_single_examples: bool,
) -> Iterator[Any]:
    # The caller may change the default graph between two items of this generator, so each step enters the generator's
    # graph again.
    graph = tf.Graph()
    with graph.as_default():
        features, _, input_hooks = start_graph(model, input_fn, ModeKeys.PREDICT)
        spec = build_model_graph(model, features, None, ModeKeys.PREDICT).spec
        predictions = _chosen(spec.predictions, predict_keys)
        creator = _session_creator(model, spec, checkpoint, warm_start_settings)
        all_hooks = [*input_hooks, *hooks, *spec.prediction_hooks]
        session = tf.compat.v1.train.MonitoredSession(creator, all_hooks)
    try:
        while not session.should_stop():
            with graph.as_default():
                try:
                    batch = session.run(predictions)
                except tf.errors.OutOfRangeError:
                    break
            if yield_single_examples:
                yield from _rows(batch)
            else:
                yield batch
    finally:
        with graph.as_default():
            session.close()


def _session_creator(
    model: Model, spec: EstimatorSpec, checkpoint: str | None, warm_start_settings: WarmStartSettings | None
) -> Any:
    if checkpoint is None and warm_start_settings is not None:
        warm_start(warm_start_settings)
    v1 = tf.compat.v1
    return v1.train.ChiefSessionCreator(
        spec.scaffold_fn() if spec.scaffold_fn else v1.train.Scaffold(),
        config=model.config.session_config,
        checkpoint_filename_with_path=checkpoint,
    )


def _chosen(predictions: Any, keys: Sequence[str] | None) -> Any:
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    chosen = {name: tensor for name, tensor in predictions.items() if name in keys}
    if not chosen:
        raise ValueError(f"Expected to run at least one output from {sorted(predictions)}, provided {list(keys)}.")
    return chosen


def _rows(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, dict):
        yield from batch
        return
    sizes = {name: len(values) for name, values in batch.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"Batch length of predictions should be same; got {sizes}. Or yield_single_examples=False.")
    for row in range(next(iter(sizes.values()))):
        yield {name: values[row] for name, values in batch.items()}


GLOBAL_STEP = "global_step"
LOSS = "loss"


def evaluate(
    model: Model,
    input_fn: Callable[..., Any],
    *,
    steps: int | None,
    hooks: Sequence[Any],
    checkpoint: str | None,
    warm_start_settings: WarmStartSettings | None,
    summary_dir: str,
) -> dict[str, Any]:
    """Evaluates a checkpoint; returns its metrics by name, with the mean loss as "loss", and "global_step"."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        features, labels, input_hooks = start_graph(model, input_fn, ModeKeys.EVAL)
        spec = build_model_graph(model, features, labels, ModeKeys.EVAL).spec
        metrics = _metrics(spec)
        values_of = {name: value for name, (value, _) in metrics.items()}
        final = v1.train.FinalOpsHook({**values_of, GLOBAL_STEP: v1.train.get_global_step()})
        updates = tf.group(*(update for _, update in metrics.values()))
        creator = _session_creator(model, spec, checkpoint, warm_start_settings)
        all_hooks = [*input_hooks, *hooks, *spec.evaluation_hooks, *host_call_hooks(spec), final]
        done = 0
        with v1.train.MonitoredSession(creator, all_hooks) as session:
            while not session.should_stop() and (steps is None or done < steps):
                session.run(updates)
                done += 1
        values: dict[str, Any] = dict(final.final_ops_values)
        _write_summaries(summary_dir, values)
    return values


def _metrics(spec: EstimatorSpec) -> dict[str, tuple[Any, Any]]:
    v1 = tf.compat.v1
    metrics: dict[str, tuple[Any, Any]] = {}
    given = {} if spec.eval_metrics is None else call_on_host(spec.eval_metrics)
    if not isinstance(given, dict):
        raise TypeError(f"eval_metrics must return a dict, given: {given}")
    for name, metric in given.items():
        if name in (GLOBAL_STEP, LOSS):
            raise ValueError(f"Metric with name `{name}` is not allowed, because the estimator reports one itself.")
        if isinstance(metric, tf.keras.metrics.Metric):
            metric = _of_keras(name, metric)
        if not isinstance(metric, tuple) or len(metric) != 2:
            raise TypeError(
                f"Values of eval_metrics must be (metric_value, update_op) tuples, given: {metric} for key: {name}"
            )
        metrics[name] = metric
    metrics[LOSS] = v1.metrics.mean(spec.loss)
    return metrics


def _of_keras(name: str, metric: Any) -> tuple[Any, Any]:
    if not metric.updates:
        raise ValueError(f'Please call update_state(...) on the "{name}" metric')
    local = tf.compat.v1.GraphKeys.LOCAL_VARIABLES
    known = {variable.ref() for variable in tf.compat.v1.get_collection(local)}
    for variable in metric.variables:
        if variable.ref() not in known:
            tf.compat.v1.add_to_collection(local, variable)
    return metric.result(), tf.group(*metric.updates)


def _write_summaries(folder: str, values: dict[str, Any]) -> None:
    summary = tf.compat.v1.Summary()
    for name, value in values.items():
        if name != GLOBAL_STEP and np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            summary.value.add(tag=name, simple_value=float(value))
    os.makedirs(folder, exist_ok=True)
    with tf.compat.v1.summary.FileWriter(folder) as writer:
        writer.add_summary(summary, int(values[GLOBAL_STEP]))
