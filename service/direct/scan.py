"""Finds what a PredictRequest says without building any object: one compiled pass over its bytes.

Source: tensorflow_serving/apis/predict.proto, tensorflow/core/framework/{tensor,tensor_shape}.proto.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from service.direct.memory import INTS_2D, OCTETS, entry_point, ints_2d_at, octets_at

# A request of more inputs, or in which anything is repeated, unknown or oddly encoded, is not for this path.
MAX_INPUTS = 64
# Room for what a request names, see scan.
SKELETON_BYTES = 4096

# Columns of the inputs that a scan found.
# MISSING is of the feature of the row's number, and written by who reads its ids: how many of them have no row.
NAME_AT, NAME_END, DTYPE, SIZE, KIND, VALUES_AT, VALUES_LENGTH, MISSING = range(8)
COLUMNS = 8
# Kinds: nothing sent, packed varints, tensor_content, packed float_val.
NONE, VARINTS, CONTENT, FLOATS = range(4)

# tensorflow/core/framework/types.proto
INT32, INT64, FLOAT = 3, 9, 1

_UNUSUAL = -1
_LENGTH_DELIMITED = 2

_INT = types.int64
_PAIR: Any = types.Tuple((_INT, _INT))  # type: ignore[no-untyped-call]


@njit(_PAIR(OCTETS, _INT, _INT), cache=True, nogil=True)
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    # Returns (value, where it ends), or where it ends is -1. A tag or a length of more than 63 bits is refused.
    value = 0
    shift = 0
    while at < end:
        byte = int(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 56:
            break
    return 0, -1


@njit(_PAIR(OCTETS, _INT, _INT), cache=True, nogil=True)
def _field(data, at, end):  # type: ignore[no-untyped-def]
    # Reads a length; returns (where the field's bytes begin, where they end), or the end is -1.
    length, at = _varint(data, at, end)
    if at < 0 or length > end - at:
        return 0, -1
    return at, at + length


@njit(_INT(OCTETS, _INT, _INT), cache=True, nogil=True)
def _shape(data, at, end):  # type: ignore[no-untyped-def]
    # Returns the size of a shape of rank 1, or -1.
    if at >= end or data[at] != 0x12:
        return _UNUSUAL
    at, dim_end = _field(data, at + 1, end)
    if dim_end != end:
        return _UNUSUAL
    if at == dim_end:
        return 0
    if data[at] != 0x08:
        return _UNUSUAL
    size, at = _varint(data, at + 1, end)
    return size if at == end else _UNUSUAL


@njit(types.boolean(OCTETS, _INT, _INT, INTS_2D, _INT), cache=True, nogil=True)
def _tensor(data, at, end, found, k):  # type: ignore[no-untyped-def]
    # Fills row k of found from the bytes of a TensorProto; False where it is not a plain one of rank 1.
    dtype = size = -1
    kind = NONE
    values_at = values_end = 0
    field_of_values = 0
    while at < end:
        tag = data[at]
        at += 1
        if tag == 0x08:
            if dtype >= 0:
                return False
            dtype, at = _varint(data, at, end)
            if at < 0:
                return False
            continue
        if tag & 7 != _LENGTH_DELIMITED or tag >= 0x80:
            return False
        begin, stop = _field(data, at, end)
        if stop < 0:
            return False
        at = stop
        if tag == 0x12:
            if size >= 0:
                return False
            size = _shape(data, begin, stop)
            if size < 0:
                return False
            continue
        if kind != NONE:
            return False
        field_of_values = tag >> 3
        values_at, values_end = begin, stop
        if field_of_values == 4:
            kind = CONTENT
        elif field_of_values == 5:
            kind = FLOATS
        elif field_of_values == 7 or field_of_values == 10:
            kind = VARINTS
        else:
            return False
    if size < 0:
        return False
    length = values_end - values_at
    if dtype == INT64 or dtype == INT32:
        if kind == VARINTS:
            if field_of_values != (10 if dtype == INT64 else 7):
                return False
            # Counted when they are read; a varint has 1 to 10 bytes.
            count = size if size <= length <= 10 * size else -1
        elif kind == FLOATS:
            return False
        else:
            width = 8 if dtype == INT64 else 4
            if length % width:
                return False
            count = length // width
    elif dtype == FLOAT:
        if kind == VARINTS or length % 4:
            return False
        count = length // 4
        kind = CONTENT if kind == FLOATS else kind
    else:
        return False
    # Fewer values than the shape asks for are spread by the general path.
    if count != size:
        return False
    found[k, DTYPE] = dtype
    found[k, SIZE] = size
    found[k, KIND] = kind
    found[k, VALUES_AT] = values_at
    found[k, VALUES_LENGTH] = length
    return True


@njit(_INT(OCTETS, _INT, _INT, OCTETS, _INT), cache=True, nogil=True)
def _append(data, begin, end, skeleton, at):  # type: ignore[no-untyped-def]
    # Adds a length and bytes to the skeleton; returns where they end, or -1 where they do not fit.
    length = end - begin
    if at + 2 + length > skeleton.shape[0]:
        return _UNUSUAL
    skeleton[at] = length & 0xFF
    skeleton[at + 1] = length >> 8
    for i in range(length):
        skeleton[at + 2 + i] = data[begin + i]
    return at + 2 + length


@njit(_INT(_INT, _INT, _INT, _INT), cache=True, nogil=True)
def _scan(data_at, num_bytes, found_at, skeleton_at):  # type: ignore[no-untyped-def]
    data = octets_at(data_at, num_bytes)
    found = ints_2d_at(found_at, 1 + MAX_INPUTS, COLUMNS)
    skeleton = octets_at(skeleton_at, SKELETON_BYTES)
    at = 0
    count = 0
    spec_at = spec_end = -1
    while at < num_bytes:
        tag = data[at]
        begin, stop = _field(data, at + 1, num_bytes)
        if stop < 0:
            return _UNUSUAL
        at = stop
        if tag == 0x0A:
            if spec_at >= 0:
                return _UNUSUAL
            spec_at, spec_end = begin, stop
        elif tag == 0x12:
            # An entry of a map: {key = 1, value = 2}, in the order in which everybody writes it.
            if count == MAX_INPUTS or begin >= stop or data[begin] != 0x0A:
                return _UNUSUAL
            name_at, name_end = _field(data, begin + 1, stop)
            if name_end < 0 or name_end >= stop or data[name_end] != 0x12:
                return _UNUSUAL
            tensor_at, tensor_end = _field(data, name_end + 1, stop)
            if tensor_end != stop:
                return _UNUSUAL
            count += 1
            if not _tensor(data, tensor_at, tensor_end, found, count):
                return _UNUSUAL
            found[count, NAME_AT] = name_at
            found[count, NAME_END] = name_end
        else:
            return _UNUSUAL
    if spec_at < 0:
        return _UNUSUAL
    length = _append(data, spec_at, spec_end, skeleton, 0)
    for k in range(1, count + 1):
        if length < 0:
            return _UNUSUAL
        length = _append(data, found[k, NAME_AT], found[k, NAME_END], skeleton, length)
    return length


# Fills found, and returns how many bytes of skeleton it wrote, or -1 for a PredictRequest that is not plain.
#
# Plain is: one model_spec, no output_filter, each input a tensor of int32, int64 or float of rank 1 with all its values
# in one packed field or in tensor_content.
#
# Args, all int64: the address of the message and how many bytes it has, the address of found: [1 + MAX_INPUTS, COLUMNS]
# int64, whose row 1 + i is the i-th input, and that of the skeleton: SKELETON_BYTES, into which go the model_spec and
# the names of the inputs, in their order, each behind its length (two bytes, little end first).
scan = entry_point(_scan)


def fields_of(skeleton: bytes) -> list[bytes]:
    """Returns the model_spec and the names of the inputs that a skeleton holds.

    >>> fields_of(b"\\x01\\x00a\\x02\\x00bc")
    [b'a', b'bc']
    """
    fields, at = [], 0
    while at < len(skeleton):
        end = at + 2 + int.from_bytes(skeleton[at : at + 2], "little")
        fields.append(skeleton[at + 2 : end])
        at = end
    return fields
