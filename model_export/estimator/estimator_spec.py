"""The contract of model_fn and input_fn: their arguments, modes, EstimatorSpec and heads (named outputs).

Each head of an exported model becomes one signature. TensorFlow 2.16 removed its classes of this contract.

Source: tensorflow_estimator/python/estimator/model_fn.py and tpu/tpu_estimator.py at 2.15; names of inputs and outputs:
tensorflow/python/saved_model/model_utils/export_output.py.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model_export.tensorflow_setup import tf


class ModeKeys:
    """The values of model_fn's argument `mode`; the strings are the same as in TensorFlow's Estimator."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ExportSavedModelApiVersion(enum.Enum):
    """The API version of an export: it decides who places the {serve,tpu} graph on the TPU.

    V1: the estimator wraps the whole model_fn, called with params["use_tpu"] = True.
    V2: model_fn itself places ops on the TPU if params["use_tpu"] is True; its graph is written unchanged.
    """

    V1 = 1
    V2 = 2


_MODEL_FN_ARGUMENTS = {"features", "labels", "mode", "params", "config"}


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    if isinstance(function, functools.partial):
        bound = {*argument_names(function.func)[: len(function.args)], *function.keywords}
        return tuple(name for name in argument_names(function.func) if name not in bound)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds)


def check_model_fn(model_fn: Any) -> None:
    """Raises ValueError unless model_fn takes features and params, and besides them only labels, mode and config."""
    if not callable(model_fn):
        raise ValueError(f"model_fn must be provided and callable, got {model_fn!r}")
    names = argument_names(model_fn)
    if "features" not in names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if "params" not in names:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument; the batch size comes as params['batch_size']"
        )
    unexpected = sorted(set(names) - _MODEL_FN_ARGUMENTS)
    if unexpected:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {unexpected}")


def call_input_fn(input_fn: Callable[..., Any], *, params: dict[str, Any], config: Any, mode: str) -> Any:
    """Calls input_fn with those of params, config and mode that it declares; raises ValueError if it lacks `params`."""
    names = argument_names(input_fn)
    if "params" not in names:
        raise ValueError(
            f"input_fn ({input_fn}) does not include params argument; the batch size comes as params['batch_size']"
        )
    return input_fn(**_chosen(names, {"params": params, "config": config, "mode": mode}))


def call_model_fn(
    model_fn: Callable[..., Any], features: Any, labels: Any, *, params: dict[str, Any], config: Any, mode: str
) -> Any:
    names = argument_names(model_fn)
    if labels is not None and "labels" not in names:
        raise ValueError("model_fn does not take labels, but input_fn returns labels.")
    optional = {"labels": labels, "mode": mode, "params": params, "config": config}
    return model_fn(features=features, **_chosen(names, optional))


def _chosen(names: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


SERVING_DEFAULT = "serving_default"


class ExportOutput:
    """One head (named group of outputs) of a model. A subclass defines method_name and outputs."""

    method_name: str
    outputs: dict[str, Any]

    def signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns the head's SignatureDef; raises ValueError if the head's method does not allow `receiver_tensors`."""
        saved_model = tf.compat.v1.saved_model
        return saved_model.build_signature_def(
            {name: saved_model.build_tensor_info(tensor) for name, tensor in receiver_tensors.items()},
            {name: saved_model.build_tensor_info(tensor) for name, tensor in self.outputs.items()},
            self.method_name,
        )


class PredictOutput(ExportOutput):
    """A head with any output tensors, for the method tensorflow/serving/predict.

    Args:
      outputs: name -> tensor; a single tensor gets the name "output".

    Raises:
      ValueError: a name is no string, or a value no tensor.
    """

    method_name = "tensorflow/serving/predict"

    def __init__(self, outputs: Any) -> None:
        if not isinstance(outputs, Mapping):
            outputs = {"output": outputs}
        for name, tensor in outputs.items():
            if not isinstance(name, str):
                raise ValueError(f"Prediction output key must be a string; got {name}.")
            if not isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
                raise ValueError(f"Prediction output value must be a Tensor; got {tensor}.")
        self.outputs = dict(outputs)


class _ExamplesOutput(ExportOutput):
    # Classify and Regress requests hold tf.Examples, so the head's only input is a string tensor named "inputs".
    def signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        if len(receiver_tensors) != 1:
            raise ValueError(
                f"{type(self).__name__} takes a single input of serialized tf.Examples; "
                f"got the inputs {sorted(receiver_tensors)}."
            )
        (examples,) = receiver_tensors.values()
        if getattr(examples, "dtype", None) != tf.string:
            raise ValueError(f"{type(self).__name__} takes serialized tf.Examples; its input is {examples}.")
        return super().signature_def({"inputs": examples})


class ClassificationOutput(_ExamplesOutput):
    """A head whose outputs are scores, classes or both, for the method tensorflow/serving/classify.

    Args:
      scores: [B, C] float, one score per class.
      classes: [B, C] string, labels in the order of scores.

    Raises:
      ValueError: neither is given, or one has another dtype.
    """

    method_name = "tensorflow/serving/classify"

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is None and classes is None:
            raise ValueError("Cannot create a ClassificationOutput with empty arguments. At least one is required.")
        if scores is not None and not (isinstance(scores, tf.Tensor) and scores.dtype.is_floating):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {scores}")
        if classes is not None and not (isinstance(classes, tf.Tensor) and classes.dtype == tf.string):
            raise ValueError(f"Classification classes must be a string Tensor; got {classes}")
        self.scores, self.classes = scores, classes
        named = {"scores": scores, "classes": classes}
        self.outputs = {name: tensor for name, tensor in named.items() if tensor is not None}


class RegressionOutput(_ExamplesOutput):
    """A head whose output is one number per row, for the method tensorflow/serving/regress.

    Args:
      value: [B] or [B, 1] float.

    Raises:
      ValueError: the value is no float tensor.
    """

    method_name = "tensorflow/serving/regress"

    def __init__(self, value: Any) -> None:
        if not (isinstance(value, tf.Tensor) and value.dtype.is_floating):
            raise ValueError(f"Regression output value must be a float32 Tensor; got {value}")
        self.value = value
        self.outputs = {"outputs": value}


def checked_export_outputs(export_outputs: Any, predictions: Any) -> dict[str, ExportOutput]:
    """Returns the heads of a spec in mode PREDICT: export_outputs, or if it is None one head of all predictions.

    One of the heads is named serving_default.

    Raises:
      TypeError: export_outputs is no dict, or a value in it is no ExportOutput.
      ValueError: there are several heads, and none is named serving_default.
    """
    if export_outputs is None:
        return {SERVING_DEFAULT: PredictOutput(predictions)}
    if not isinstance(export_outputs, dict):
        raise TypeError(f"export_outputs must be dict, given: {export_outputs}")
    for name, output in export_outputs.items():
        if not isinstance(output, ExportOutput):
            raise TypeError(f"Values in export_outputs must be ExportOutput objects. Given: {{{name!r}: {output}}}")
    if SERVING_DEFAULT in export_outputs:
        return dict(export_outputs)
    if len(export_outputs) != 1:
        raise ValueError(
            f"Multiple export_outputs were provided, but none of them is specified as the default: name one of "
            f"{sorted(export_outputs)} {SERVING_DEFAULT!r}."
        )
    return {**export_outputs, SERVING_DEFAULT: next(iter(export_outputs.values()))}


def signature_defs(
    export_outputs: Mapping[str, ExportOutput], receiver_tensors: Mapping[str, Any], alternatives: Any = None
) -> dict[str, Any]:
    """Returns the SignatureDefs of all heads by name: for the receiver tensors, and for each alternative of them.

    A head is left out for receiver tensors that it can not have as inputs. The signature of an alternative is named
    <alternative>:<head>.
    """
    definitions = {}
    for alternative, tensors in ((None, receiver_tensors), *(alternatives or {}).items()):
        for head, output in export_outputs.items():
            name = head if alternative is None else f"{alternative}:{head}"
            try:
                definitions[name] = output.signature_def(tensors)
            except ValueError:
                # As in TensorFlow, a classify or regress head gets no signature if its inputs are not tf.Examples;
                # other heads accept raw inputs. If the model has only this head, the error is raised.
                if len(export_outputs) == 1 and alternative is None:
                    raise
    return definitions


_Fields = namedtuple(
    "_Fields",
    "mode predictions loss train_op eval_metrics export_outputs scaffold_fn host_call training_hooks evaluation_hooks "
    "prediction_hooks",
)


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
    if isinstance(tensors, dict) or any(
        one.kind is inspect.Parameter.VAR_POSITIONAL for one in inspect.signature(function).parameters.values()
    ):
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
