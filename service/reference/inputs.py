"""Checks a request's inputs against its signature, before it runs: names, dtypes, ranks, row splits, ids."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.errors import IdOutOfRange, InputMismatch, UnknownOutput, id_out_of_range
from service.types import Array, RaggedNames, SignatureSpec, Tensors, TensorSpec

_ID_DTYPES = ("int64", "int32")
_GRAPH_DTYPES = {"float16": "half", "float32": "float", "float64": "double"}


def check_names(spec: SignatureSpec, sent: Mapping[str, object]) -> None:
    """Raises InputMismatch if the names of a request's inputs do not fit its signature."""
    if spec.kind == "lookup" and not sent:
        raise InputMismatch(f'signature "{spec.name}" needs at least one feature of: {", ".join(_features(spec))}.')
    names_sent = set(sent)
    extra = sorted(names_sent - spec.inputs.keys())
    missing = set(spec.required - names_sent)
    for names in spec.ragged_names:
        if not extra and names_sent & {*names[1:]} == {names.weights}:
            raise InputMismatch(f'feature "{names.feature}": weights were sent without ids.')
        if names_sent & {*names[1:]}:
            missing |= {names.values, names.row_splits} - names_sent
    faults = {"Sent extra": extra, "Missing but required": sorted(missing), "Features it takes": _features(spec)}
    if extra or missing:
        told = " ".join(f"{fault}: {{{', '.join(names)}}}." for fault, names in faults.items() if names)
        raise InputMismatch(f'Inputs do not fit signature "{spec.name}". {told}')


def chosen_outputs(spec: SignatureSpec, output_filter: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the outputs that a request wants: those of its output_filter, or all; raises UnknownOutput."""
    for name in output_filter:
        if name not in spec.outputs:
            known = ",".join(sorted(spec.outputs))
            raise UnknownOutput(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set {{{known}}}."
            )
        if output_filter.count(name) > 1:
            raise UnknownOutput(f"duplicate output tensor alias: {name}")
    return output_filter or tuple(spec.outputs)


def checked(spec: SignatureSpec, inputs: Tensors, *, strict_shapes: bool) -> dict[str, Array]:
    """Checks a request's inputs, whose names fit; returns the arrays for the run, with keys as ids where it takes ids.

    The ids of a lookup are checked while their rows are read; those of a predict here.

    Raises InputMismatch and IdOutOfRange.
    """
    result = {name: _checked_tensor(spec.inputs[name], array, spec) for name, array in inputs.items()}
    for names in spec.ragged_names:
        if names.values in result:
            _check_splits(names, result, spec)
    if spec.kind == "lookup":
        return result
    if strict_shapes and (faults := [one for name in inputs if (one := _shape_fault(spec.inputs[name], inputs[name]))]):
        raise InputMismatch(" ".join(faults))
    return {**spec.defaults, **result}


def check_joined(spec: SignatureSpec, inputs: Tensors, selected: tuple[str, ...]) -> None:
    """Raises InputMismatch if a lookup's output joins several features, and the request lacks one of them.

    Args:
      selected: outputs that the request names; none means all outputs whose features were sent.
    """
    lacking = {name: [one for one in ids if one not in inputs] for name, ids in spec.output_ids.items()}
    wrong = [name for name in selected if lacking.get(name) and len(spec.output_ids[name]) > 1]
    if not selected and lacking and all(lacking.values()):
        wrong = sorted((name for name in lacking if len(spec.output_ids[name]) > 1), key=lambda one: len(lacking[one]))
    for name in wrong[:1]:
        features = {one.values: one.feature for one in spec.ragged_names}
        missing = ", ".join(sorted(features.get(one, one) for one in lacking[name]))
        raise InputMismatch(
            f'output "{name}" of signature "{spec.name}" joins several features. Missing but required: {{{missing}}}.'
        )


def graph_dtype(dtype: str) -> str:
    """Returns TensorFlow's own name of a dtype, for error texts.

    >>> graph_dtype("float32"), graph_dtype("int64")
    ('float', 'int64')
    """
    return _GRAPH_DTYPES.get(dtype, dtype)


def _checked_tensor(tensor: TensorSpec, array: Array, spec: SignatureSpec) -> Array:
    if tensor.numpy_dtype is None or array.dtype != tensor.numpy_dtype:
        array = _converted(tensor, array, spec)
    is_described = spec.kind == "lookup" or tensor.vocabulary_size is not None
    if is_described and tensor.shape is not None and array.ndim != len(tensor.shape):
        raise InputMismatch(_shape_fault(tensor, array))
    if spec.kind == "lookup" and tensor.shape is not None:
        sizes = zip(tensor.shape[1:], array.shape[1:], strict=True)
        if any(wanted not in (None, size) for wanted, size in sizes):
            raise InputMismatch(_shape_fault(tensor, array))
    if tensor.takes_keys and spec.kind == "lookup" and tensor.vocabulary is not None:
        return tensor.vocabulary.ids_of(array, tensor.name)
    if spec.kind == "predict" and not tensor.takes_keys and tensor.vocabulary_size is not None:
        lowest = {"both": 0, "upper": -(2**63), "none": None}[tensor.bounds]
        if lowest is not None:
            flat = array.reshape(-1)
            for place in np.flatnonzero((flat >= tensor.vocabulary_size) | (flat < lowest))[:1]:
                raise id_out_of_range(tensor.name, int(flat[place]), int(place), tensor.vocabulary_size)
    return array


def _converted(tensor: TensorSpec, array: Array, spec: SignatureSpec) -> Array:
    if spec.kind == "lookup" and not array.size:
        return np.empty(array.shape, tensor.numpy_dtype)
    sent = "string" if array.dtype.kind in "OSU" else array.dtype.name
    if sent == "string" != tensor.dtype and tensor.takes_strings and tensor.vocabulary is not None:
        array, sent = tensor.vocabulary.ids_of(array, tensor.name), "int64"
    is_id_part = tensor.vocabulary_size is not None or tensor.name not in spec.row_inputs
    if sent != tensor.dtype and is_id_part and sent in _ID_DTYPES and tensor.dtype in _ID_DTYPES:
        limits = np.iinfo(tensor.dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise IdOutOfRange(f'input "{tensor.name}": a value does not fit {tensor.dtype}.')
        return array.astype(tensor.dtype)
    if sent != tensor.dtype and spec.kind == "predict":
        # TensorFlow's texts number the inputs of a run in the order of their tensors' names.
        position = sorted(other.tensor_name for other in spec.inputs.values()).index(tensor.tensor_name)
        raise InputMismatch(
            f"Expects arg[{position}] to be {graph_dtype(tensor.dtype)} but {graph_dtype(sent)} is provided"
        )
    if sent != tensor.dtype:
        raise InputMismatch(f'input "{tensor.name}": expected {tensor.dtype}, got {sent}.')
    return array


def _check_splits(names: RaggedNames, inputs: Tensors, spec: SignatureSpec) -> None:
    """Raises InputMismatch if the parts of a ragged feature do not fit each other."""
    values, splits, weights = inputs[names.values], inputs[names.row_splits], inputs.get(names.weights)
    if values.ndim != 1 or splits.ndim != 1:
        raise InputMismatch(f'feature "{names.feature}": values and row_splits must have rank 1.')
    if splits.size == 0 or splits[0] != 0:
        raise InputMismatch(f'input "{names.row_splits}": must start with 0, got {splits[:1].tolist()}.')
    if splits[-1] != values.size:
        raise InputMismatch(
            f'input "{names.row_splits}": ends at {splits[-1]}, but "{names.values}" has {values.size} values.'
        )
    for row in np.flatnonzero(splits[1:] < splits[:-1])[:1]:
        raise InputMismatch(f'input "{names.row_splits}": must not decrease, got {splits[row]} then {splits[row + 1]}.')
    if weights is None:
        return
    # An empty array of weights means weight 1 for every id only where it is the input's default.
    may_be_empty = spec.kind == "predict" or spec.inputs[names.weights].default is not None
    if weights.ndim != 1 or (weights.size != values.size and (weights.size or not may_be_empty)):
        raise InputMismatch(
            f'input "{names.weights}": expected one weight per id ({values.size}), got {list(weights.shape)}.'
        )


def _shape_fault(tensor: TensorSpec, array: Array) -> str:
    """Returns a text for an input whose shape is not the one that its signature declares, and "" for any other."""
    wanted = tensor.shape
    if wanted is None or (
        len(wanted) == array.ndim and all(size in (None, sent) for size, sent in zip(wanted, array.shape, strict=True))
    ):
        return ""
    declared = ", ".join("?" if size is None else str(size) for size in wanted)
    return f'input "{tensor.name}": the signature declares [{declared}], the request has {list(array.shape)}.'


def _features(spec: SignatureSpec) -> list[str]:
    return sorted(spec.ragged.keys() | spec.row_inputs)
