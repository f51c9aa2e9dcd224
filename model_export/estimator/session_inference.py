"""Evaluates a checkpoint of an estimator, and yields its predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from model_export.estimator.checkpoints import WarmStartSettings, warm_start
from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys, call_on_host
from model_export.estimator.model_graph import Model, build_model_graph
from model_export.estimator.session_training import host_call_hooks, start_graph
from model_export.tensorflow_setup import tf


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
