"""Predicts with an estimator's checkpoint, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_export.estimator.call_arguments import call_input_fn
from model_export.estimator.inputs import features_and_labels
from model_export.estimator.model_graph import Model, build_model_graph
from model_export.estimator.modes import ModeKeys
from model_export.estimator.warm_start import WarmStartSettings, warm_start
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
    """Yields an estimator's predictions, one row or one batch at a time, until the input ends."""
    # The caller may change the default graph between two items of this generator, so each step enters the generator's
    # graph again.
    v1 = tf.compat.v1
    config = model.config
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(config.tf_random_seed)
        v1.train.create_global_step(graph)
        with tf.device("/cpu:0"):
            result = call_input_fn(
                input_fn, params=model.params_for(ModeKeys.PREDICT, use_tpu=None), config=config, mode=ModeKeys.PREDICT
            )
            features, _, input_hooks = features_and_labels(result)
        spec = build_model_graph(model, features, None, ModeKeys.PREDICT).spec
        if checkpoint is None and warm_start_settings is not None:
            warm_start(warm_start_settings)
        predictions = _chosen(spec.predictions, predict_keys)
        creator = v1.train.ChiefSessionCreator(
            spec.scaffold_fn() if spec.scaffold_fn else v1.train.Scaffold(),
            config=config.session_config,
            checkpoint_filename_with_path=checkpoint,
        )
        session = v1.train.MonitoredSession(creator, [*input_hooks, *hooks, *spec.prediction_hooks])
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
