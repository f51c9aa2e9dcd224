"""Holds a request against its signature before anything runs: names, dtypes, ranks, row splits, ids.

A bad request stops here with a message that names the input, so that backends may trust what reaches them.
"""

from __future__ import annotations

import numpy as np

from service.core.errors import IdOutOfRange, InputMismatch
from service.core.types import (
    ROW_SPLITS_SUFFIX,
    VALUES_SUFFIX,
    WEIGHTS_SUFFIX,
    Array,
    SignatureSpec,
    Tensors,
    TensorSpec,
)

_ID_DTYPES = ("int64", "int32")


def dtype_name(array: Array) -> str:
    """Returns the name that TensorSpec.dtype uses.

    >>> import numpy as np
    >>> dtype_name(np.array([b"x"], object)), dtype_name(np.zeros(1, np.float32))
    ('string', 'float32')
    """
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def checked(spec: SignatureSpec, inputs: Tensors) -> tuple[dict[str, Array], int]:
    """Returns the inputs as the backend wants them, strings turned into ids, and the number of rows B.

    A lookup may send any of its features, each with its own B (the largest is returned); a predict sends all required
    inputs, and where its ids are described by a manifest they must agree on B.

    Raises:
      InputMismatch: names, dtypes, ranks, row splits or row counts do not fit.
      IdOutOfRange: an id of a predict signature has no row (a lookup checks while it reads), or a string has none.
    """
    _check_names(spec, inputs)
    result = {name: _check_tensor(spec.inputs[name], array, spec) for name, array in inputs.items()}
    for feature in spec.ragged:
        if feature + VALUES_SUFFIX in result:
            _check_ragged(feature, result)
    return result, _count_rows(spec, result)


def _check_names(spec: SignatureSpec, inputs: Tensors) -> None:
    extra = sorted(name for name in inputs if name not in spec.inputs)
    missing = sorted(name for name, tensor in spec.inputs.items() if not tensor.is_optional and name not in inputs)
    for feature in spec.ragged:
        parts = [feature + VALUES_SUFFIX, feature + ROW_SPLITS_SUFFIX]
        if sum(part in inputs for part in parts) == 1:
            missing += [part for part in parts if part not in inputs and part not in missing]
        if feature + WEIGHTS_SUFFIX in inputs and parts[0] not in inputs:
            missing += [part for part in parts if part not in inputs and part not in missing]
    if not extra and not missing:
        if not inputs and spec.kind == "lookup":
            raise InputMismatch(f'signature "{spec.name}" needs at least one feature of: {_join(_features(spec))}.')
        return
    required = [name for name, tensor in spec.inputs.items() if not tensor.is_optional]
    if spec.kind == "lookup":
        raise InputMismatch(
            f'Inputs do not fit signature "{spec.name}". Sent extra: {{{_join(extra)}}}. '
            f"Missing but required: {{{_join(missing)}}}. Features it takes: {{{_join(_features(spec))}}}."
        )
    raise InputMismatch(
        f"input size does not match signature: {len(inputs)}!={len(required)} "
        f"len({{{_join(sorted(inputs))}}}) != len({{{_join(sorted(required))}}}). "
        f"Sent extra: {{{_join(extra)}}}. Missing but required: {{{_join(missing)}}}."
    )


def _check_tensor(tensor: TensorSpec, array: Array, spec: SignatureSpec) -> Array:
    sent = dtype_name(array)
    if tensor.vocabulary is not None and sent == "string":
        array = tensor.vocabulary.ids_of(array, tensor.name)
        sent = "int64"
    if sent != tensor.dtype:
        if not (tensor.dtype in _ID_DTYPES and sent in _ID_DTYPES and spec.ragged | _ids(spec)):
            raise InputMismatch(f'input "{tensor.name}": expected {tensor.dtype}, got {sent}.')
        array = _as_dtype(array, tensor)
    described = spec.kind == "lookup" or tensor.vocabulary_size is not None
    if described and tensor.shape is not None and array.ndim != len(tensor.shape):
        raise InputMismatch(
            f'input "{tensor.name}": expected shape {_shape(tensor)}, got {list(array.shape)} (rank {array.ndim}).'
        )
    if spec.kind == "predict" and tensor.vocabulary_size is not None and array.size:
        _check_ids(tensor, array)
    return array


def _as_dtype(array: Array, tensor: TensorSpec) -> Array:
    limits = np.iinfo(tensor.dtype)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise IdOutOfRange(f'input "{tensor.name}": a value does not fit {tensor.dtype}.')
    return array.astype(tensor.dtype)


def _check_ids(tensor: TensorSpec, array: Array) -> None:
    assert tensor.vocabulary_size is not None
    bad = np.flatnonzero((array < 0) | (array >= tensor.vocabulary_size))
    if bad.size:
        position = int(bad[0])
        raise id_out_of_range(tensor.name, int(array.reshape(-1)[position]), position, tensor.vocabulary_size)


def id_out_of_range(input_name: str, bad_id: int, position: int, vocabulary_size: int) -> IdOutOfRange:
    """Words the one error that lookups and predicts share."""
    return IdOutOfRange(
        f'input "{input_name}": id {bad_id} at position {position} is out of range, '
        f"its table has ids 0 to {vocabulary_size - 1}."
    )


def _check_ragged(feature: str, inputs: Tensors) -> None:
    values, splits = inputs[feature + VALUES_SUFFIX], inputs[feature + ROW_SPLITS_SUFFIX]
    name = feature + ROW_SPLITS_SUFFIX
    if values.ndim != 1 or splits.ndim != 1:
        raise InputMismatch(f'feature "{feature}": values and row_splits must have rank 1.')
    if splits.size == 0 or splits[0] != 0:
        raise InputMismatch(f'input "{name}": must start with 0, got {splits[:1].tolist()}.')
    if splits[-1] != values.size:
        raise InputMismatch(
            f'input "{name}": ends at {splits[-1]}, but "{feature + VALUES_SUFFIX}" has {values.size} values.'
        )
    if (splits[1:] < splits[:-1]).any():
        row = int(np.flatnonzero(splits[1:] < splits[:-1])[0])
        raise InputMismatch(f'input "{name}": must not decrease, got {splits[row]} then {splits[row + 1]}.')
    weights = inputs.get(feature + WEIGHTS_SUFFIX)
    # An empty weights tensor is the signature's default and means 1 for every id.
    if weights is not None and (weights.ndim != 1 or weights.size not in (0, values.size)):
        raise InputMismatch(
            f'input "{feature + WEIGHTS_SUFFIX}": expected one weight per id ({values.size}), '
            f"got {list(weights.shape)}."
        )


def _count_rows(spec: SignatureSpec, inputs: Tensors) -> int:
    rows: dict[str, int] = {}
    for name, array in inputs.items():
        if name.endswith(ROW_SPLITS_SUFFIX) and name.removesuffix(ROW_SPLITS_SUFFIX) in spec.ragged:
            rows[name.removesuffix(ROW_SPLITS_SUFFIX)] = array.size - 1
        elif not _is_ragged_part(spec, name):
            rows[name] = array.shape[0] if array.ndim else 1
    if spec.kind == "predict" and spec.ragged and len(set(rows.values())) > 1:
        counts = ", ".join(f'"{name}" has {n}' for name, n in sorted(rows.items()))
        raise InputMismatch(f"inputs differ in their number of rows: {counts}.")
    return max(rows.values(), default=0)


def _is_ragged_part(spec: SignatureSpec, name: str) -> bool:
    return any(
        name.endswith(suffix) and name.removesuffix(suffix) in spec.ragged
        for suffix in (VALUES_SUFFIX, WEIGHTS_SUFFIX, ROW_SPLITS_SUFFIX)
    )


def _features(spec: SignatureSpec) -> list[str]:
    return sorted(spec.ragged | {name for name in spec.inputs if not _is_ragged_part(spec, name)})


def _ids(spec: SignatureSpec) -> frozenset[str]:
    return frozenset(name for name, tensor in spec.inputs.items() if tensor.vocabulary_size is not None)


def _shape(tensor: TensorSpec) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in tensor.shape or ()) + "]"


def _join(names: list[str]) -> str:
    return ", ".join(names)
