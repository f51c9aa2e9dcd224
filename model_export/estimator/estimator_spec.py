"""Defines EstimatorSpec, the result of a model_fn: it has the fields of TPUEstimatorSpec, and checks them.

Source: tensorflow_estimator/python/estimator/model_fn.py and tpu/tpu_estimator.py at 2.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from model_export.estimator.call_arguments import argument_names, takes_any_number
from model_export.estimator.export_outputs import checked_export_outputs
from model_export.estimator.modes import ModeKeys
from model_export.tensorflow_setup import tf


class _Fields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metrics: Any
    export_outputs: Any
    scaffold_fn: Any
    host_call: Any
    training_hooks: tuple[Any, ...]
    evaluation_hooks: tuple[Any, ...]
    prediction_hooks: tuple[Any, ...]


class EstimatorSpec(_Fields):
    """The tensors and ops that one call of model_fn returns; a named tuple whose `_replace` checks the fields again.

    Args:
      mode: the mode that model_fn was called with.
      predictions: tensor or dict of tensors; needed to predict and export.
      loss: scalar, or one number in any shape; needed to train and evaluate. Embedding tables that the estimator trains
        (EmbeddingConfigSpec) follow the gradient of this tensor.
      train_op: op or tensor that trains one step and increments the global step; needed to train.
      eval_metrics: (metric_fn, tensors): metric_fn is called with the tensors, by position if they are a list and by
        name if they are a dict, and returns name -> (value, update op) or Keras metric.
      export_outputs: name -> ExportOutput, one of them "serving_default"; None exports all predictions.
      scaffold_fn: function without arguments that returns a tf.compat.v1.train.Scaffold.
      host_call: (function, tensors): the function is called like metric_fn; the ops that it returns run with every
        training and evaluation step.
      training_hooks, evaluation_hooks, prediction_hooks: SessionRunHooks.

    Raises:
      ValueError: a field that the mode needs is missing, a tensor is of another graph, or loss is not one number.
      TypeError: an argument is of another type.
      RuntimeError: metric_fn or host_call's function takes another number of tensors.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metrics: Any = None,
        export_outputs: Any = None,
        scaffold_fn: Any = None,
        host_call: Any = None,
        training_hooks: Sequence[Any] | None = None,
        evaluation_hooks: Sequence[Any] | None = None,
        prediction_hooks: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        if mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"mode is {mode!r}, expected a value of ModeKeys")
        for name, call in (("eval_metrics", eval_metrics), ("host_call", host_call)):
            if call is not None:
                _check_call(name, call)
        if scaffold_fn is not None and not callable(scaffold_fn):
            raise TypeError(f"scaffold_fn must be callable, given: {scaffold_fn}")
        predictions = _predictions(predictions, mode)
        if mode == ModeKeys.PREDICT:
            export_outputs = checked_export_outputs(export_outputs, predictions)
        return super().__new__(
            cls,
            mode,
            predictions,
            _loss(loss, mode),
            _train_op(train_op, mode),
            eval_metrics,
            export_outputs,
            scaffold_fn,
            host_call,
            _hooks(training_hooks),
            _hooks(evaluation_hooks),
            _hooks(prediction_hooks),
        )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        if changes.get("mode", self.mode) != self.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed.")
        return EstimatorSpec(**{**self._asdict(), **changes})


def call_on_host(call: Any) -> Any:
    """Calls the function of an eval_metrics or host_call pair with the pair's tensors, and returns its result."""
    function, tensors = call
    return function(**tensors) if isinstance(tensors, dict) else function(*tensors)


def _check_call(name: str, call: Any) -> None:
    if not isinstance(call, (tuple, list)):
        raise ValueError(f"{name} should be tuple or list")
    if len(call) != 2:
        raise ValueError(f"{name} should have two elements.")
    function, tensors = call
    if not callable(function):
        raise TypeError(f"{name}[0] should be callable.")
    if not isinstance(tensors, (tuple, list, dict)):
        raise ValueError(f"{name}[1] should be tuple or list, or dict.")
    if isinstance(tensors, dict) or takes_any_number(function):
        return
    wanted = argument_names(function)
    if len(tensors) != len(wanted):
        raise RuntimeError(
            f"In EstimatorSpec.{name}, length of tensors {len(tensors)} does not match method args of the function, "
            f"which takes {len(wanted)}."
        )


def _train_op(train_op: Any, mode: str) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not isinstance(train_op, (tf.Operation, tf.Tensor)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op}")
    _check_graph(train_op, "train_op")
    return train_op


def _loss(loss: Any, mode: str) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        return None
    _check_tensor(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}")
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def _predictions(predictions: Any, mode: str) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions.")
        return {}
    if not isinstance(predictions, dict):
        _check_tensor(predictions, "predictions")
    else:
        for name, tensor in predictions.items():
            _check_tensor(tensor, f"predictions[{name}]")
    return predictions


def _hooks(hooks: Sequence[Any] | None) -> tuple[Any, ...]:
    for hook in hooks or ():
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"All hooks must be SessionRunHook instances, given: {hook}")
    return tuple(hooks or ())


def _check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, tf.Tensor):
        raise TypeError(f"{name} must be Tensor, given: {value}")
    _check_graph(value, name)


def _check_graph(value: Any, name: str) -> None:
    if not tf.executing_eagerly() and value.graph is not tf.compat.v1.get_default_graph():
        raise ValueError(f'{name} with "{value.name}" must be from the default graph: build it within this model_fn')
