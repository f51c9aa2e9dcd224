"""Checks the names, dtypes, ranks, row splits and ids of a request's inputs against its signature, before it runs.

A bad request is refused here with a message that names the input, so that backends may trust their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.errors import IdOutOfRange, InputMismatch, id_out_of_range
from service.types import Array, RaggedNames, SignatureSpec, Tensors, TensorSpec

_ID_DTYPES = ("int64", "int32")
_GRAPH_DTYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def dtype_name(array: Array) -> str:
    """Returns the name of an array's dtype, spelt as in TensorSpec.dtype.

    >>> import numpy as np
    >>> dtype_name(np.array([b"x"], object)), dtype_name(np.zeros(1, np.float32))
    ('string', 'float32')
    """
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def checked(spec: SignatureSpec, inputs: Tensors) -> tuple[dict[str, Array], int]:
    """Checks a request's inputs; returns the arrays for the backend, converted if needed, and the number of rows B.

    A lookup may send any of its features, each with its own B, and the largest is returned. Ids of shape [B, K] count
    as B * K rows if the signature leaves K open. Keys become ids. A predict must send all required inputs; inputs that
    a manifest describes must agree on B. Keys stay keys if the graph takes keys; strings become ids if it takes ids.

    Raises:
      InputMismatch: names, dtypes, ranks, row splits or row counts do not fit.
      IdOutOfRange: an id of a predict has no row (a lookup checks its ids while it reads rows), or a key has no row.
    """
    check_names(spec, inputs)
    result = {name: _check_tensor(spec.inputs[name], array, spec) for name, array in inputs.items()}
    rows = {name: _num_rows(spec, name, array) for name, array in result.items() if name in spec.row_inputs}
    for names in spec.ragged_names:
        if names.values in result:
            rows[names.feature] = _check_ragged(names, result)
    # Only inputs that the manifest describes: an adopted graph may take others, such as indices, that are no rows.
    described = {name: n for name, n in rows.items() if name in spec.ragged or spec.inputs[name].vocabulary_size}
    if spec.kind == "predict" and spec.ragged and len(set(described.values())) > 1:
        counts = ", ".join(f'"{name}" has {n}' for name, n in sorted(described.items()))
        raise InputMismatch(f"inputs differ in their number of rows: {counts}.")
    num_rows = max(rows.values(), default=0)
    if spec.kind == "predict" and spec.defaults:
        return {**spec.defaults, **result}, num_rows
    return result, num_rows


def _shape_fault(tensor: TensorSpec, array: Array) -> str:
    """Returns the sentence for an input whose shape contradicts the signature; "" if the shape agrees with it."""
    wanted = tensor.shape
    if wanted is None or (
        len(wanted) == array.ndim and all(size in (None, sent) for size, sent in zip(wanted, array.shape, strict=True))
    ):
        return ""
    declared = ", ".join("?" if size is None else str(size) for size in wanted)
    return f'input "{tensor.name}": the signature declares [{declared}], the request has {list(array.shape)}.'


def _num_rows(spec: SignatureSpec, name: str, array: Array) -> int:
    if spec.kind == "lookup" and array.ndim == 2 and (spec.inputs[name].shape or (None, 1))[1] is None:
        # If a lookup's ids have the shape [B, K] with an unknown K, spec.row_bytes is the size of one id's vector, so
        # each id counts as one row.
        return array.size
    return array.shape[0] if array.ndim else 1


def check_names(spec: SignatureSpec, inputs: Mapping[str, object]) -> None:
    """Raises InputMismatch if the names of a request's inputs do not fit the signature."""
    sent = inputs.keys()
    if sent <= spec.inputs.keys() and spec.required <= sent and (sent or spec.kind == "predict"):
        for names in spec.ragged_names:
            if (names.values in sent) != (names.row_splits in sent) or (
                names.weights in sent and names.values not in sent
            ):
                break
        else:
            return
    _raise_names(spec, inputs)


def _raise_names(spec: SignatureSpec, inputs: Mapping[str, object]) -> None:
    if spec.kind == "predict":
        _raise_predict_names(spec, inputs)
    if not inputs:
        raise InputMismatch(f'signature "{spec.name}" needs at least one feature of: {_join(_features(spec))}.')
    extra = sorted(name for name in inputs if name not in spec.inputs)
    missing = {name for name in spec.required if name not in inputs}
    for names in spec.ragged_names:
        if any(name in inputs for name in names[1:]):
            missing |= {name for name in (names.values, names.row_splits) if name not in inputs}
    faults = {"Sent extra": extra, "Missing but required": sorted(missing), "Features it takes": _features(spec)}
    told = " ".join(f"{fault}: {{{_join(names)}}}." for fault, names in faults.items() if names)
    raise InputMismatch(f'Inputs do not fit signature "{spec.name}". {told}')


def _raise_predict_names(spec: SignatureSpec, inputs: Mapping[str, object]) -> None:
    """Raises the error that TensorFlow Serving has for wrong input names of a predict request.

    Source: tensorflow_serving/servables/tensorflow/predict_util.cc (9d981c5) VerifyRequestInputsSize;
    tensorflow/cc/saved_model/util.cc (2.21) GetInputValues.
    """
    sent, known = sorted(inputs), sorted(spec.inputs)
    optional = sorted(spec.inputs.keys() - spec.required)
    extra = [name for name in sent if name not in spec.inputs]
    if len(sent) > len(known) or (len(sent) < len(known) and not optional):
        missing = [name for name in known if name not in inputs]
        raise InputMismatch(
            f"input size does not match signature: {len(sent)}!={len(known)} len({{{','.join(sent)}}}) != "
            f"len({{{','.join(known)}}}). Sent extra: {{{','.join(extra)}}}. "
            f"Missing but required: {{{','.join(missing)}}}.{_json_names(spec, missing)}"
        )
    for name in known:
        if name not in inputs and name in spec.required:
            raise InputMismatch(
                f"Signature input alias: {name}(feed name: {spec.inputs[name].tensor_name}) not found in request and "
                f"no default value provided. Inputs expected to be in the request {{{','.join(sent)}}}, or default "
                f"input alias set: {','.join(optional)}"
            )
    if extra:
        used = ",".join(name for name in sent if name in spec.inputs)
        raise InputMismatch(
            f"Inputs contains invalid name. Used request inputs: {used}, request input: {','.join(sent)}"
        )
    for names in spec.ragged_names:
        if any(name in inputs for name in names[1:]):
            raise InputMismatch(f'feature "{names.feature}": send both "{names.values}" and "{names.row_splits}".')


def _json_names(spec: SignatureSpec, missing: list[str]) -> str:
    """Returns a sentence for error texts: which name in JSON stands for missing ragged inputs; "" for other inputs."""
    ragged = [names for names in spec.ragged_names if names.values in missing and names.row_splits in missing]
    told = [f'"{names.feature}" stands for {names.values} and {names.row_splits}' for names in ragged]
    return f" In JSON, {', '.join(told)}." if told else ""


def _check_tensor(tensor: TensorSpec, array: Array, spec: SignatureSpec) -> Array:
    # tensor.numpy_dtype is tested for None, because numpy takes None for float64 when it compares dtypes.
    if tensor.numpy_dtype is None or array.dtype != tensor.numpy_dtype:
        array = _converted(tensor, array, spec)
    described = spec.kind == "lookup" or tensor.vocabulary_size is not None
    if described and tensor.shape is not None and array.ndim != len(tensor.shape):
        raise InputMismatch(_shape_fault(tensor, array))
    if array.ndim > 1 and spec.kind == "lookup" and tensor.shape is not None and tensor.shape[1:] != array.shape[1:]:
        _check_sizes(tensor, array)
    if tensor.takes_keys:
        if spec.kind == "lookup" and tensor.vocabulary is not None:
            return tensor.vocabulary.ids_of(array, tensor.name)
        return array
    if spec.kind == "predict" and tensor.vocabulary_size is not None and tensor.bounds != "none" and array.size:
        _check_ids(tensor, array)
    return array


def _check_sizes(tensor: TensorSpec, array: Array) -> None:
    sizes = zip((tensor.shape or ())[1:], array.shape[1:], strict=True)
    if any(wanted not in (None, size) for wanted, size in sizes):
        raise InputMismatch(_shape_fault(tensor, array))


def _converted(tensor: TensorSpec, array: Array, spec: SignatureSpec) -> Array:
    sent = dtype_name(array)
    if sent == "string" and tensor.dtype != "string" and tensor.takes_strings and tensor.vocabulary is not None:
        array = tensor.vocabulary.ids_of(array, tensor.name)
        sent = "int64"
    is_id_part = tensor.vocabulary_size is not None or tensor.name not in spec.row_inputs
    if sent != tensor.dtype and is_id_part and sent in _ID_DTYPES and tensor.dtype in _ID_DTYPES:
        limits = np.iinfo(tensor.dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise IdOutOfRange(f'input "{tensor.name}": a value does not fit {tensor.dtype}.')
        return array.astype(tensor.dtype)
    if sent != tensor.dtype and spec.kind == "predict":
        raise InputMismatch(
            f"Expects arg[{_feed_position(tensor, spec)}] to be {graph_dtype_name(tensor.dtype)} but "
            f"{graph_dtype_name(sent)} is provided"
        )
    if sent != tensor.dtype:
        raise InputMismatch(f'input "{tensor.name}": expected {tensor.dtype}, got {sent}.')
    return array


def _feed_position(tensor: TensorSpec, spec: SignatureSpec) -> int:
    """Returns the N of "arg[N]", as TensorFlow's error texts name an input: its place in order of tensor names."""
    return sorted(other.tensor_name for other in spec.inputs.values()).index(tensor.tensor_name)


def graph_dtype_name(dtype: str) -> str:
    """Returns the name that TensorFlow's error texts use for a dtype.

    >>> graph_dtype_name("float32"), graph_dtype_name("int64")
    ('float', 'int64')
    """
    return _GRAPH_DTYPE_NAMES.get(dtype, dtype)


def _check_ids(tensor: TensorSpec, array: Array) -> None:
    assert tensor.vocabulary_size is not None
    is_bad = array >= tensor.vocabulary_size
    if tensor.bounds == "both":
        is_bad |= array < 0
    bad = np.flatnonzero(is_bad)
    if bad.size:
        position = int(bad[0])
        raise id_out_of_range(tensor.name, int(array.reshape(-1)[position]), position, tensor.vocabulary_size)


def _check_ragged(names: RaggedNames, inputs: Tensors) -> int:
    values, splits = inputs[names.values], inputs[names.row_splits]
    if values.ndim != 1 or splits.ndim != 1:
        raise InputMismatch(f'feature "{names.feature}": values and row_splits must have rank 1.')
    if splits.size == 0 or splits[0] != 0:
        raise InputMismatch(f'input "{names.row_splits}": must start with 0, got {splits[:1].tolist()}.')
    if splits[-1] != values.size:
        raise InputMismatch(
            f'input "{names.row_splits}": ends at {splits[-1]}, but "{names.values}" has {values.size} values.'
        )
    decreases = splits[1:] < splits[:-1]
    if decreases.any():
        row = int(np.flatnonzero(decreases)[0])
        raise InputMismatch(f'input "{names.row_splits}": must not decrease, got {splits[row]} then {splits[row + 1]}.')
    weights = inputs.get(names.weights)
    # An empty weights tensor is allowed: it is the signature's default and means weight 1 for every id.
    if weights is not None and (weights.ndim != 1 or weights.size not in (0, values.size)):
        raise InputMismatch(
            f'input "{names.weights}": expected one weight per id ({values.size}), got {list(weights.shape)}.'
        )
    return splits.size - 1


def _features(spec: SignatureSpec) -> list[str]:
    return sorted(spec.ragged.keys() | spec.row_inputs)


def _join(names: list[str]) -> str:
    return ", ".join(names)
