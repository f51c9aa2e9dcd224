"""Reads and writes the HTTP bodies of the Open Inference Protocol, written by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from service.errors import InputMismatch, MalformedPayload, ServiceError
from service.types import Array
from service.wire.oip_json import decode_infer, decode_inputs, encode_infer


def tensor(datatype: str, shape: Any, data: Any = None, name: str = "x", **parameters: Any) -> dict[str, Any]:
    """Returns an input of an inference request."""
    result = {"name": name, "datatype": datatype, "shape": shape}
    return result | ({} if data is None else {"data": data}) | ({"parameters": parameters} if parameters else {})


def body(*inputs: Any, **fields: Any) -> bytes:
    """Returns the body of a request without binary data."""
    return json.dumps({"inputs": list(inputs)} | fields).encode()


def arrays(*inputs: Any) -> dict[str, Array]:
    """Decodes an inference request's inputs to arrays by name."""
    return decode_inputs(decode_infer(body(*inputs), None))


def answer(results: dict[str, Array], **fields: Any) -> tuple[bytes, int | None]:
    """Encodes results as the answer to a request with these fields; returns the body, and where its JSON ends."""
    parsed = decode_infer(body(**fields), None)
    return encode_infer(results, parsed, model="m", version=3, signature_name="s")


def test_the_specifications_example() -> None:
    text = b"""{"id": "42", "inputs": [
        {"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]},
        {"name": "input1", "shape": [1], "datatype": "BOOL", "data": [true]}],
        "outputs": [{"name": "output0"}]}"""
    parsed = decode_infer(text, None)
    assert (parsed.id, parsed.signature_name, parsed.outputs) == ("42", "", ("output0",))
    inputs = decode_inputs(parsed)
    assert inputs["input0"].dtype == np.uint32 and inputs["input0"].tolist() == [[1, 2], [3, 4]]
    assert inputs["input1"].dtype == np.bool_ and inputs["input1"].tolist() == [True]
    output = np.array([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]], np.float32)
    data, header_length = encode_infer({"output0": output}, parsed, model="mymodel", version=1, signature_name="s")
    assert header_length is None
    assert json.loads(data) == {
        "model_name": "mymodel",
        "model_version": "1",
        "id": "42",
        "parameters": {"signature_name": "s"},
        "outputs": [
            {"name": "output0", "datatype": "FP32", "shape": [3, 2], "data": [1.0, 1.1, 2.0, 2.1, 3.0, 3.1]},
        ],
    }


def test_the_binary_extensions_example() -> None:
    """Two inputs are binary and one is JSON; of the three outputs the middle one is JSON."""
    head = json.dumps(
        {
            "inputs": [
                tensor("UINT32", [2, 2], name="input0", binary_data_size=16),
                tensor("FP16", [2], [0.5, 1], name="input2"),
                tensor("BOOL", [3], name="input1", binary_data_size=3),
            ],
            "outputs": [{"name": "a", "parameters": {"binary_data": False}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    numbers = b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"
    parsed = decode_infer(head + numbers + b"\1\0\1", str(len(head)))
    inputs = decode_inputs(parsed)
    assert inputs["input0"].tolist() == [[1, 2], [3, 4]]
    assert inputs["input1"].tolist() == [True, False, True]
    assert inputs["input2"].dtype == np.float16 and inputs["input2"].tolist() == [0.5, 1.0]
    outputs = {"n": np.array([1], np.int16), "a": np.array([2], np.int16), "s": np.array([b"\xff", b""], object)}
    data, header_length = encode_infer(outputs, parsed, model="m", version=3, signature_name="s")
    assert header_length is not None
    assert data[header_length:] == b"\1\0" + b"\1\0\0\0\xff\0\0\0\0"
    document = json.loads(data[:header_length])
    assert "id" not in document
    assert document["outputs"] == [
        {"name": "n", "datatype": "INT16", "shape": [1], "parameters": {"binary_data_size": 2}},
        {"name": "a", "datatype": "INT16", "shape": [1], "data": [2]},
        {"name": "s", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}},
    ]


def test_an_output_may_be_binary_by_itself() -> None:
    outputs = {"a": np.array([1], np.int8), "b": np.array([2], np.int8)}
    wanted = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]
    data, header_length = answer(outputs, outputs=wanted)
    assert header_length is not None and data[header_length:] == b"\1"
    assert json.loads(data[:header_length])["outputs"][1]["data"] == [2]


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        *((f"INT{bits}", [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]) for bits in (8, 16, 32, 64)),
        *((f"UINT{bits}", [0, 2**bits - 1]) for bits in (8, 16, 32, 64)),
        ("BOOL", [True, False]),
        ("FP16", [0.5, -2]),
        ("BF16", [0.5, -2]),
        ("FP32", [0.1, -2]),
        ("FP64", [0.1, -1e300]),
        ("BYTES", ["", "é"]),
    ],
)
def test_json_values_of_every_datatype(datatype: str, values: list[Any]) -> None:
    names = {"BOOL": "bool", "BYTES": "object", "FP16": "float16", "BF16": "bfloat16"}
    names |= {"FP32": "float32", "FP64": "float64"}
    array = arrays(tensor(datatype, [2, 1], values))["x"]
    assert (array.dtype.name, array.shape) == (names.get(datatype, datatype.lower()), (2, 1))
    expected = [value.encode() for value in values] if datatype == "BYTES" else values
    assert array.reshape(-1).tolist() == np.array(expected, array.dtype).tolist()
    data, _ = answer({"y": array})
    (output,) = json.loads(data)["outputs"]
    assert output == {"name": "y", "datatype": datatype, "shape": [2, 1], "data": values}


def test_data_may_be_nested_empty_or_of_a_scalar() -> None:
    result = arrays(
        tensor("INT64", [2, 2], [[1, 2], [3, 4]], "nested"),
        tensor("INT64", [4], [[1, 2], [3, 4]], "flat"),
        tensor("FP32", [0, 2], [], "empty"),
        tensor("FP32", [], [5], "scalar"),
    )
    assert result["nested"].tolist() == [[1, 2], [3, 4]] and result["flat"].tolist() == [1, 2, 3, 4]
    assert result["empty"].shape == (0, 2) and result["scalar"].shape == ()


def test_nan_and_infinity_are_bare_tokens_both_ways() -> None:
    text = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [NaN, -Infinity]}]}'
    array = decode_inputs(decode_infer(text, None))["x"]
    assert np.isnan(array[0]) and array[1] == -np.inf
    data, _ = answer({"y": array})
    assert b'"data":[NaN,-Infinity]' in data
    assert b'"data":[NaN,1.0]' in answer({"y": np.array([np.nan, 1], bfloat16)})[0]


def test_an_id_comes_back_whatever_it_says() -> None:
    assert json.loads(answer({}, id="")[0])["id"] == ""
    assert json.loads(answer({}, id='null ":\n')[0])["id"] == 'null ":\n'


def test_parameters_choose_the_signature_and_others_are_ignored() -> None:
    text = body(parameters={"signature_name": "lookup", "priority": 1, "sequence_id": 3, "own": "x"})
    assert decode_infer(text, None).signature_name == "lookup"


def test_bytes_that_are_no_text_need_the_binary_form() -> None:
    with pytest.raises(InputMismatch, match='output "y": it holds bytes that are not UTF-8'):
        answer({"y": np.array([b"\xff"], object)})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "JSON Parse error"),
        (b"[]", "Is not object"),
        (b'{"inputs": [', "JSON Parse error"),
        (b"{}", 'expected "inputs" to be a list of objects, got JSON Value: null Type: Null'),
        (b'{"inputs": {}}', 'expected "inputs" to be a list of objects'),
        (b'{"inputs": [1]}', 'expected "inputs" to be a list of objects'),
        (b'{"inputs": [], "inputs": []}', 'has the key "inputs" twice'),
        (b'{"inputs": [{"name": "x", "name": "y"}]}', 'has the key "name" twice'),
        (body(outputs=["y"]), 'expected "outputs" to be a list of objects'),
        (body(outputs=[{}]), 'an output: expected "name" to be a string'),
        (body(id=42), 'the request: expected "id" to be a string, got JSON Value: 42 Type: Number'),
        (body(parameters=[]), 'the request: expected "parameters" to be an object'),
        (body(parameters={"signature_name": 1}), 'expected "signature_name" to be a string'),
        (body(parameters={"binary_data_output": 1}), 'expected "binary_data_output" to be true or false'),
        (body({"datatype": "INT8", "shape": [0], "data": []}), 'an input: expected "name" to be a string'),
        (body({"name": "x", "shape": [0], "data": []}), 'input "x": expected "datatype" to be a string'),
        (body({"name": "x", "datatype": "INT8", "data": []}), 'input "x": expected "shape" to be a list of integers'),
        (body(tensor("INT8", [True], [1])), 'expected "shape" to be a list of integers'),
        (body(tensor("INT8", [1.0], [1])), 'expected "shape" to be a list of integers'),
        (body(tensor("INT8", "1", [1])), 'expected "shape" to be a list of integers'),
        (body(tensor("INT8", [2**63], [1])), 'expected "shape" to be a list of integers of 64 bits'),
        (body(tensor("INT8", [-1], [1])), 'input "x": its shape [-1] has a negative size.'),
        (body(tensor("INT8", [2**40], [1])), "1 values, its shape [1099511627776] needs 1099511627776."),
        (body(tensor("INT8", [2], [1])), 'input "x": 1 values, its shape [2] needs 2.'),
        (body(tensor("INT8", [2], [[1], [2, 3]])), "Expecting tensor size: 1 but got: 2"),
        (body(tensor("INT8", [1])), 'input "x": expected "data" to be a list'),
        (body(tensor("INT8", [1], 1)), 'input "x": expected "data" to be a list'),
        (body(tensor("INT8", [1], [128])), 'input "x": 128 does not fit int8.'),
        (body(tensor("INT8", [1], [1.0])), "is not of expected type: int8"),
        (body(tensor("INT8", [1], [True])), "is not of expected type: int8"),
        (body(tensor("BOOL", [1], [1])), "is not of expected type: bool"),
        (body(tensor("FP32", [1], ["1"])), "is not of expected type: float32"),
        (body(tensor("FP32", [1], [None])), "is not of expected type: float32"),
        (body(tensor("BYTES", [1], [1])), "is not of expected type: string"),
        (body(tensor("INT4", [1], [1])), 'unknown datatype "INT4". Datatypes:'),
        (body(tensor("INT8", [1], [1]), tensor("INT8", [1], [1])), 'input "x" was sent twice.'),
        (body(tensor("INT8", [1], binary_data_size=1)), "needs the header Inference-Header-Content-Length."),
        (body(tensor("INT8", [1], [1], binary_data_size=1)), 'it has both "data" and binary_data_size.'),
        (body(tensor("INT8", [1], shared_memory_region="r")), 'the parameter "shared_memory_region" is not supported.'),
        (
            body(outputs=[{"name": "y", "parameters": {"classification": 3}}]),
            'output "y": the parameter "classification" is not supported.',
        ),
        (b'{"id": "\\ud800", "inputs": []}', ""),
        (b"[" * 100_000, "JSON Parse error"),
    ],
)
def test_what_does_not_fit_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decode_inputs(decode_infer(text, None))
    assert reason in caught.value.message


def test_half_a_surrogate_pair_is_refused_by_every_parser() -> None:
    with pytest.raises(MalformedPayload, match="surrogate"):
        decode_infer(b'{"id": "\\ud800", "inputs": [], "x": NaN}', None)


HEAD = body(tensor("INT8", [2], binary_data_size=2))


@pytest.mark.parametrize(
    ("text", "length", "reason"),
    [
        (HEAD + b"\1\2", "x", "Inference-Header-Content-Length: 'x' is not a length in bytes."),
        (HEAD + b"\1\2", "-1", "'-1' is not a length"),
        (HEAD + b"\1\2", "9" * 20, "is not a length"),
        (HEAD, "999", f"Inference-Header-Content-Length is 999, but the body has {len(HEAD)} bytes."),
        (HEAD + b"\1\2", str(len(HEAD) - 1), "JSON Parse error"),
        (HEAD + b"\1\2", str(len(HEAD) + 1), "binary_data_size is 2, but 1 bytes are left of the body."),
        (HEAD + b"\1\2", "0", "JSON Parse error"),
        (
            HEAD + b"\1",
            str(len(HEAD)),
            'input "x": binary_data_size is 2, but 1 bytes are left of the body.',
        ),
        (HEAD + b"\1\2\3", str(len(HEAD)), "1 bytes of the body belong to no input."),
        (HEAD, None, "needs the header"),
    ],
)
def test_sizes_that_lie_are_refused(text: bytes, length: str | None, reason: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decode_infer(text, length)
    assert reason in caught.value.message


@pytest.mark.parametrize("size", [-1, 1.0, True, "2", 2**70, [], {}])
def test_a_binary_size_is_a_number_of_bytes(size: Any) -> None:
    head = body(tensor("INT8", [2], binary_data_size=size))
    with pytest.raises(MalformedPayload):
        decode_infer(head + b"\1\2", str(len(head)))


def test_a_binary_size_that_the_shape_does_not_have_is_refused() -> None:
    with pytest.raises(MalformedPayload, match=r'input "x": 1 bytes of data, INT8 of shape \[2\] needs 2.'):
        decode_inputs(decode_infer(*with_header(body(tensor("INT8", [2], binary_data_size=1)), b"\1")))


def with_header(head: bytes, binary: bytes) -> tuple[bytes, str]:
    """Returns a body of JSON and binary data, and the value of the header that says where the JSON ends."""
    return head + binary, str(len(head))


def test_any_bytes_give_arrays_or_a_refusal() -> None:
    random = np.random.default_rng(7)
    head = body(
        tensor("INT64", [1], binary_data_size=8, name="a"),
        tensor("BYTES", [1], binary_data_size=5, name="b"),
        tensor("FP32", [2], [1, 2], name="c"),
        id="i",
        outputs=[{"name": "y", "parameters": {"binary_data": True}}],
    )
    base = head + b"\1\0\0\0\0\0\0\0" + b"\1\0\0\0z"
    for _ in range(3000):
        data = bytearray(base)
        for position in random.integers(0, len(data), 2):
            data[position] = random.integers(256)
        try:
            decode_inputs(decode_infer(bytes(data), str(len(head) + int(random.integers(-1, 2)))))
        except ServiceError as error:
            assert error.code == "INVALID_ARGUMENT"
