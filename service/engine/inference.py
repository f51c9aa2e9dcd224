"""Checks that a signature fits Classify or Regress, and converts its outputs to their results.

Both take serialized tf.Examples in one input. A request may name any signature with fitting inputs and outputs: like
TensorFlow Serving, the check ignores method_name, because all signatures of TensorFlow 2 have "predict" there.

Source of the rules and of each text: tensorflow_serving/servables/tensorflow/{classifier,regressor,multi_inference}.cc
(9d981c5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from service.engine.validation import graph_dtype_name
from service.errors import InputMismatch, UnfitSignature, Unimplemented
from service.types import Array, SignatureSpec

INPUTS = "inputs"
CLASSES = "classes"
SCORES = "scores"
OUTPUTS = "outputs"
CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"
# Error text of Classify and Regress for an unknown signature; Predict and MultiInference have another text for this.
UNKNOWN_SIGNATURE = "No signature was found with the name: {}"

_CLASSIFY_RANK = 2


@dataclass(frozen=True, slots=True)
class Classification:
    """The result of classifying B examples: classes and scores.

    labels: [B, C] object (bytes), or None if the signature has no such output.
    scores: [B, C] float32, or None if the signature has no such output.
    """

    labels: Array | None
    scores: Array | None


@dataclass(frozen=True, slots=True)
class Regression:
    """The result of a regression: one value for each of B examples.

    values: [B] float32.
    """

    values: Array


def wanted_outputs(spec: SignatureSpec, method_name: str) -> tuple[str, ...]:
    """Returns the names of a signature's outputs that Classify or Regress needs.

    Raises:
      UnfitSignature: the signature's inputs or outputs do not fit the method.
      Unimplemented: the method is neither classification nor regression.
    """
    if method_name == CLASSIFY_METHOD:
        return _classify_outputs(spec)
    if method_name == REGRESS_METHOD:
        return _regress_outputs(spec)
    raise Unimplemented(f"Unsupported signature method_name: {method_name}")


def result_of(method_name: str, outputs: Mapping[str, Array], num_examples: int) -> Classification | Regression:
    """Converts a run's outputs to a Classification or Regression; raises InputMismatch if a shape or dtype is wrong."""
    if method_name == REGRESS_METHOD:
        return _regression(outputs[OUTPUTS], num_examples)
    return _classification(outputs.get(CLASSES), outputs.get(SCORES), num_examples)


def _classify_outputs(spec: SignatureSpec) -> tuple[str, ...]:
    if len(spec.inputs) != 1:
        raise UnfitSignature("Expected one input Tensor.")
    if len(spec.outputs) not in (1, 2):
        raise UnfitSignature(f"Expected one or two output Tensors, found {len(spec.outputs)}")
    if INPUTS not in spec.inputs:
        raise UnfitSignature(f"No classification inputs found in SignatureDef: {spec.definition()}")
    outputs = tuple(name for name in (CLASSES, SCORES) if name in spec.outputs)
    if not outputs:
        raise UnfitSignature(
            f'Expected classification signature outputs to contain at least one of "{CLASSES}" or "{SCORES}". '
            f"Signature was: {spec.definition()}"
        )
    return outputs


def _regress_outputs(spec: SignatureSpec) -> tuple[str, ...]:
    if len(spec.inputs) != 1:
        raise UnfitSignature("Expected one input Tensor.")
    if len(spec.outputs) != 1:
        raise UnfitSignature("Expected one output Tensor.")
    if INPUTS not in spec.inputs:
        raise UnfitSignature(f"No regression inputs found in SignatureDef: {spec.definition()}")
    if OUTPUTS not in spec.outputs:
        raise UnfitSignature(f"No regression outputs found in SignatureDef: {spec.definition()}")
    return (OUTPUTS,)


def _classification(labels: Array | None, scores: Array | None, num_examples: int) -> Classification:
    for name, array, wanted, is_wanted in (
        (CLASSES, labels, "DT_STRING", _is_string),
        (SCORES, scores, "DT_FLOAT", _is_float),
    ):
        if array is None:
            continue
        if array.ndim != _CLASSIFY_RANK:
            raise InputMismatch(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}")
        if not is_wanted(array):
            raise InputMismatch(f"Expected {name} Tensor of {wanted}. Got: {_dtype(array)}")
        if array.shape[0] != num_examples:
            raise InputMismatch(f"Expected {name} output batch size of {num_examples}. Got: {array.shape[0]}")
    if labels is not None and scores is not None and labels.shape[1] != scores.shape[1]:
        raise InputMismatch(
            f"Tensors class and score should match in dim_size(1). Got {labels.shape[1]} vs. {scores.shape[1]}"
        )
    return Classification(labels, scores)


def _regression(values: Array, num_examples: int) -> Regression:
    if values.ndim not in (1, 2) or values.shape[1:] not in ((), (1,)):
        raise InputMismatch(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {_shape(values)}"
        )
    if values.shape[0] != num_examples:
        raise InputMismatch(f"Input batch size did not match output batch size: {num_examples} vs. {values.shape[0]}")
    if not _is_float(values):
        raise InputMismatch(f"Expected output Tensor of DT_FLOAT.  Got: {_dtype(values)}")
    return Regression(values.reshape(-1))


def _is_string(array: Array) -> bool:
    return array.dtype.kind in "OSU"


def _is_float(array: Array) -> bool:
    return array.dtype == np.float32


def _shape(array: Array) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"


def _dtype(array: Array) -> str:
    return "DT_" + ("string" if _is_string(array) else graph_dtype_name(array.dtype.name)).upper()
