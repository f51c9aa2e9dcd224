"""Heads (named outputs) of an exported model, one signature each; TensorFlow 2.16 removed these classes.

Source of the names of inputs and outputs: tensorflow/python/saved_model/model_utils/export_output.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_export.tensorflow_setup import tf

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
            if not _is_any_tensor(tensor):
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
        if scores is not None and not (_is_tensor(scores) and scores.dtype.is_floating):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {scores}")
        if classes is not None and not (_is_tensor(classes) and classes.dtype == tf.string):
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
        if not (_is_tensor(value) and value.dtype.is_floating):
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


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor)


def _is_any_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor))
