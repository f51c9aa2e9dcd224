"""Encodes and decodes binary tensors as the specification says, and refuses bytes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from service.errors import InputMismatch, MalformedPayload, ServiceError
from service.wire import oip_tensors
from service.wire.oip_tensors import checked_shape, datatype_name, datatype_of, decode_binary, encode_binary

# Datatype of the Open Inference Protocol -> (numpy's dtype, values, their bytes: little-endian, floats by IEEE 754).
FORMS = {
    "BOOL": (np.bool_, [True, False], "01 00"),
    "UINT8": (np.uint8, [1, 255], "01 ff"),
    "UINT16": (np.uint16, [1, 65535], "0100 ffff"),
    "UINT32": (np.uint32, [1, 2**32 - 1], "01000000 ffffffff"),
    "UINT64": (np.uint64, [1, 2**64 - 1], "0100000000000000 ffffffffffffffff"),
    "INT8": (np.int8, [1, -1], "01 ff"),
    "INT16": (np.int16, [258, -1], "0201 ffff"),
    "INT32": (np.int32, [258, -1], "02010000 ffffffff"),
    "INT64": (np.int64, [258, -1], "0201000000000000 ffffffffffffffff"),
    "FP16": (np.float16, [1.0, -2.0], "003c 00c0"),
    "BF16": (bfloat16, [1.0, -2.0], "803f 00c0"),
    "FP32": (np.float32, [1.0, -2.0], "0000803f 000000c0"),
    "FP64": (np.float64, [1.0, -2.0], "000000000000f03f 00000000000000c0"),
    "BYTES": (object, [b"a\0b", b""], "03000000 610062 00000000"),
}
forms = pytest.mark.parametrize("datatype", FORMS)


@forms
def test_an_array_of_bytes(datatype: str) -> None:
    dtype, values, text = FORMS[datatype]
    array = decode_binary("x", datatype, [2, 1], bytes.fromhex(text))
    assert (array.dtype, array.shape) == (np.dtype(dtype), (2, 1))
    assert array.reshape(-1).tolist() == values


@forms
def test_bytes_of_an_array(datatype: str) -> None:
    dtype, values, text = FORMS[datatype]
    array = np.array(values, dtype).reshape(2, 1)
    pieces, num_bytes = encode_binary(array)
    assert b"".join(pieces) == bytes.fromhex(text)
    assert num_bytes == len(bytes.fromhex(text))
    assert datatype_of("x", array) == datatype


@forms
def test_no_elements_and_a_scalar(datatype: str) -> None:
    dtype, values, text = FORMS[datatype]
    assert decode_binary("x", datatype, [0, 3], b"").shape == (0, 3)
    assert encode_binary(np.empty((0, 3), dtype)) in (([b""], 0), ([], 0))
    element = bytes.fromhex(text.split()[0] + (text.split()[1] if datatype == "BYTES" else ""))
    scalar = decode_binary("x", datatype, [], element)
    assert scalar.shape == () and scalar.item() == values[0]


def test_numbers_are_not_copied() -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    assert np.shares_memory(decode_binary("x", "FP32", [4], data), np.frombuffer(data, np.uint8))
    array = np.arange(4, dtype=np.float32)
    ((piece,), _) = encode_binary(array)
    assert np.shares_memory(np.frombuffer(piece, np.uint8), array)


def test_numbers_at_an_odd_address_are_put_right() -> None:
    data = b"?" + np.arange(4, dtype=np.int64).tobytes()
    array = decode_binary("x", "INT64", [4], memoryview(data)[1:])
    assert array.flags.aligned and array.tolist() == [0, 1, 2, 3]


def test_any_byte_but_0_is_true() -> None:
    assert decode_binary("x", "BOOL", [3], b"\x02\x00\xff").tolist() == [True, False, True]


def test_an_array_that_is_no_piece_of_memory_is_written_row_by_row() -> None:
    pieces, _ = encode_binary(np.array([[1, 2], [3, 4]], np.uint8).T)
    assert b"".join(pieces) == b"\1\3\2\4"


def test_strings_are_written_as_utf_8() -> None:
    pieces, num_bytes = encode_binary(np.array(["é"], object))
    assert (b"".join(pieces), num_bytes) == (b"\2\0\0\0\xc3\xa9", 6)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "text"),
    [
        ("FP32", [2], b"\0" * 7, "7 bytes of data, FP32 of shape [2] needs 8."),
        ("FP32", [2], b"\0" * 12, "12 bytes of data, FP32 of shape [2] needs 8."),
        ("FP32", [], b"", "0 bytes of data, FP32 of shape [] needs 4."),
        ("INT8", [2**40], b"\0", "1 bytes of data, INT8 of shape [1099511627776] needs 1099511627776."),
        ("INT8", [-1], b"\0", "its shape [-1] has a negative size."),
        ("INT8", [0, 2**62], b"", "its shape [0, 4611686018427387904] is too large."),
        ("INT8", [2**62, 2**62], b"", "is too large."),
        ("INT8", [1] * 65, b"\0", "its shape has 65 dimensions, the limit is 64."),
        ("FLOAT", [1], b"\0" * 4, 'unknown datatype "FLOAT". Datatypes: BF16, BOOL, BYTES, FP16, FP32,'),
        ("", [1], b"\0", 'unknown datatype "".'),
        ("BYTES", [2], b"\0" * 7, "7 bytes of data are too few for 2 elements of BYTES"),
        ("BYTES", [2**40], b"\0" * 7, "are too few for 1099511627776 elements"),
        ("BYTES", [1], b"\2\0\0\0x", "element 0 of BYTES ends beyond its 5 bytes of data."),
        ("BYTES", [1], b"\xff\xff\xff\xffx", "element 0 of BYTES ends beyond its 5 bytes of data."),
        ("BYTES", [2], b"\3\0\0\0xyz\0", "element 1 of BYTES ends beyond its 8 bytes of data."),
        ("BYTES", [1], b"\1\0\0\0xy", "1 bytes of data are left after the last element."),
        ("BYTES", [0], b"\0", "1 bytes of data are left after the last element."),
    ],
)
def test_what_does_not_fit_is_refused(datatype: str, shape: list[int], data: bytes, text: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decode_binary("x", datatype, shape, data)
    assert caught.value.message.startswith('input "x": ')
    assert text in caught.value.message


def test_a_size_of_0_beside_others_is_a_shape() -> None:
    assert checked_shape("x", [3, 0, 5]) == ((3, 0, 5), 0)


def test_a_dtype_without_a_datatype() -> None:
    with pytest.raises(InputMismatch, match='output "y": complex64 has no datatype in this protocol'):
        datatype_of("y", np.zeros(1, np.complex64))
    assert datatype_name("qint8") == "DT_QINT8"


def test_bfloat16_needs_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(oip_tensors.NUMPY_DTYPES, "BF16")
    with pytest.raises(ServiceError, match="BF16 needs TensorFlow, and this server runs without it") as caught:
        decode_binary("x", "BF16", [1], b"\0\0")
    assert caught.value.code == "INVALID_ARGUMENT"
