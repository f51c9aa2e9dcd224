"""Sends every dtype in every form that TensorProto and JSON have for it through a graph that returns its input."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.hashes import masked_of
from service.artifact.protos import message_class
from service.artifact.tf_record import read_records
from tests.conformance.contract_calls import FIELDS, Refused
from tests.conformance.contract_models import DTYPES
from tests.conformance.wires import HttpClient
from tests.integration.process import server_of, until

pytestmark = pytest.mark.tf

# Values of each dtype that conversions often change: ends of the range, signs, infinities.
VALUES: dict[str, list[Any]] = {
    "bool": [True, False, True],
    "complex64": [1 + 2j, -0.5j, 3.0],
    "complex128": [1e300 + 1j, -2j, 0.25],
    "bfloat16": [1.5, -2.0, float("inf")],
    "half": [1.5, 65504.0, float("-inf")],
    "float": [0.1, -3.4e38, float("inf")],
    "double": [0.1, 1.7e308, -5e-324],
    "int8": [-128, 0, 127],
    "int16": [-32768, 0, 32767],
    "int32": [-(2**31), 0, 2**31 - 1],
    "int64": [-(2**63), 0, 2**63 - 1],
    "uint8": [0, 1, 255],
    "uint16": [0, 1, 65535],
    "uint32": [0, 1, 2**32 - 1],
    "uint64": [0, 1, 2**64 - 1],
    "string": [b"", b"a\0b\0", "é€".encode()],
}
# Name of a dtype -> its number in DataType, and the field of TensorProto that has its values.
PROTO_FIELDS = {
    **{dtype: (number, name) for dtype, (number, name, _) in FIELDS.items()},
    "complex64": (8, "scomplex_val"),
    "complex128": (18, "dcomplex_val"),
    "bfloat16": (14, "half_val"),
    "half": (19, "half_val"),
    "int8": (6, "int_val"),
    "int16": (5, "int_val"),
    "uint8": (4, "int_val"),
    "uint16": (17, "int_val"),
    "uint32": (22, "uint32_val"),
    "uint64": (23, "uint64_val"),
}


def array_of(tf: Any, dtype: str, values: Any) -> np.ndarray:
    """Returns numpy's array of a dtype by TensorFlow's name."""
    if dtype == "string":
        return np.array(values, object)
    return np.array(values, tf.as_dtype(dtype).as_numpy_dtype)


def in_field(tf: Any, tensor: Any, dtype: str, values: list[Any]) -> Any:
    """Fills a TensorProto with values in the field of its dtype."""
    tensor.dtype, field = PROTO_FIELDS[dtype]
    tensor.tensor_shape.dim.add().size = len(values)
    array = array_of(tf, dtype, values)
    if field == "half_val":
        array = array.view(np.uint16)
    elif dtype.startswith("complex"):
        array = array.view(array.real.dtype)
    getattr(tensor, field).extend(array.tolist())
    return tensor


def in_content(tf: Any, tensor: Any, dtype: str, values: list[Any]) -> Any:
    """Fills a TensorProto with values in tensor_content."""
    tensor.dtype = PROTO_FIELDS[dtype][0]
    tensor.tensor_shape.dim.add().size = len(values)
    array = array_of(tf, dtype, values)
    if dtype == "string":
        tensor.tensor_content = bytes(map(len, values)) + b"".join(values)
    else:
        tensor.tensor_content = array.tobytes()
    return tensor


def predict(channel: grpc.Channel, dtype: str, tensor: Any, *, metadata: Any = (), more: bytes = b"") -> Any:
    """Sends a tensor to the signature of model "kinds" for its dtype; returns the output's TensorProto, or Refused.

    more: bytes of further fields of the request.
    """
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "kinds", dtype
    request.inputs["x"].CopyFrom(tensor)
    try:
        data = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(
            request.SerializeToString() + more, timeout=60, metadata=metadata
        )
    except grpc.RpcError as error:
        return Refused(error.code().name, error.details())
    return message_class("tensorflow.serving.PredictResponse").FromString(data).outputs["y"]


def new_tensor() -> Any:
    """Returns an empty TensorProto."""
    return message_class("tensorflow.TensorProto")()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [in_field, in_content])
def test_a_dtype_comes_back_as_it_was_sent(tf: Any, contract_channel: grpc.Channel, dtype: str, fill: Any) -> None:
    values = VALUES[dtype]
    sent = fill(tf, new_tensor(), dtype, values)
    assert predict(contract_channel, dtype, sent) == in_field(tf, new_tensor(), dtype, values)
    as_content = predict(contract_channel, dtype, sent, metadata=(("x-tensor-encoding", "content"),))
    assert as_content == in_content(tf, new_tensor(), dtype, values)
    as_values = predict(contract_channel, dtype, sent, metadata=(("x-tensor-encoding", "values"),))
    assert as_values == in_field(tf, new_tensor(), dtype, values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [in_field, in_content])
def test_fields_that_the_server_ignores_change_no_value(
    tf: Any, contract_channel: grpc.Channel, dtype: str, fill: Any
) -> None:
    sent = fill(tf, new_tensor(), dtype, VALUES[dtype])
    # The fields 5 (predict_streamed_options) and 6 (client_id) of PredictRequest.
    answer = predict(contract_channel, dtype, sent, more=b"\x2a\x02\x08\x00\x32\x01a")
    assert answer == in_field(tf, new_tensor(), dtype, VALUES[dtype])


def test_the_request_log_has_the_values_of_each_dtype(tf: Any, contract_models: Path, tmp_path: Path) -> None:
    kinds = f"""config {{ name: "kinds" base_path: "{contract_models / "kinds"}" model_platform: "tensorflow"
      logging_config {{ log_collector_config {{ filename_prefix: "{tmp_path / "log"}" }}
                       sampling_config {{ sampling_rate: 1 }} }} }}"""
    with server_of({"half": contract_models / "half"}, tmp_path, more=kinds) as server:
        until(lambda: server.http.get("/v2/models/kinds/ready").status_code == 200)
        sent = {dtype: in_field(tf, new_tensor(), dtype, VALUES[dtype]) for dtype in DTYPES}
        for dtype, tensor in sent.items():
            assert predict(server.channel, dtype, tensor) == tensor
        server.signal(15)
        assert server.exit_code() == 0
    logged = {}
    for path in tmp_path.glob("log-*"):
        with path.open("rb") as file:
            for record in read_records(file, masked_of):
                log = message_class("tensorflow.serving.PredictionLog").FromString(record).predict_log
                logged[log.request.model_spec.signature_name] = log.request.inputs["x"], log.response.outputs["y"]
    assert logged == {dtype: (tensor, tensor) for dtype, tensor in sent.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_stock_tensorflow_writes_and_reads_them(tf: Any, contract_channel: grpc.Channel, dtype: str) -> None:
    array = array_of(tf, dtype, VALUES[dtype]).reshape(3, 1)
    sent = new_tensor()
    sent.ParseFromString(tf.make_tensor_proto(array, dtype=dtype).SerializeToString())
    answer = predict(contract_channel, dtype, sent)
    stock = type(tf.make_tensor_proto(0.0)).FromString(answer.SerializeToString())
    np.testing.assert_array_equal(tf.make_ndarray(stock), array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[0], [2, 0, 3], []], ids=["empty", "zero-size", "scalar"])
def test_shapes_without_a_list(tf: Any, contract_channel: grpc.Channel, dtype: str, shape: list[int]) -> None:
    sent = new_tensor()
    sent.dtype = PROTO_FIELDS[dtype][0]
    sent.tensor_shape.SetInParent()
    for size in shape:
        sent.tensor_shape.dim.add().size = size
    if not shape:
        one = in_field(tf, new_tensor(), dtype, VALUES[dtype][:1])
        getattr(sent, PROTO_FIELDS[dtype][1]).MergeFrom(getattr(one, PROTO_FIELDS[dtype][1]))
    assert predict(contract_channel, dtype, sent) == sent


@pytest.mark.parametrize(("dtype", "number"), [("bfloat16", 14), ("half", 19)])
def test_halves_travel_in_half_val(tf: Any, contract_channel: grpc.Channel, dtype: str, number: int) -> None:
    answer = predict(contract_channel, dtype, in_field(tf, new_tensor(), dtype, [1.0, -2.0]))
    assert answer.dtype == number
    # bfloat16 (14) has the upper 16 bits of a float32; half (19) is the 16-bit format of IEEE 754.
    assert list(answer.half_val) == {14: [0x3F80, 0xC000], 19: [0x3C00, 0xC000]}[number]


def test_few_values_are_spread_and_none_is_zero(contract_channel: grpc.Channel) -> None:
    sent = new_tensor()
    sent.dtype = 1
    sent.tensor_shape.dim.add().size = 4
    assert list(predict(contract_channel, "float", sent).float_val) == [0.0] * 4
    sent.float_val.extend([1.0, 2.0])
    assert list(predict(contract_channel, "float", sent).float_val) == [1.0, 2.0, 2.0, 2.0]


def undecodable() -> dict[str, Any]:
    """Returns TensorProtos that can not be decoded, by what is wrong with them."""
    tensors = {what: new_tensor() for what in ("no dtype", "reference", "rank", "negative", "short", "lengths", "long")}
    for what, tensor in tensors.items():
        tensor.dtype = {"no dtype": 0, "reference": 101, "lengths": 7}.get(what, 1)
        tensor.tensor_shape.dim.add().size = -1 if what == "negative" else 2
    tensors["rank"].tensor_shape.unknown_rank = True
    tensors["short"].tensor_content = bytes(7)
    tensors["long"].tensor_content = bytes(9)
    tensors["lengths"].tensor_content = b"\x05a"
    return tensors


@pytest.mark.parametrize("what", undecodable())
def test_a_tensor_that_can_not_be_read(contract_channel: grpc.Channel, what: str) -> None:
    dtype = "string" if what == "lengths" else "float"
    sizes = {"short": 7, "long": 9}
    why = f": tensor_content has {sizes[what]} bytes, its shape and dtype take 8." if what in sizes else ""
    assert predict(contract_channel, dtype, undecodable()[what]) == Refused(
        "INVALID_ARGUMENT", f"tensor parsing error: x{why}"
    )


JSON_VALUES: dict[str, tuple[str, str]] = {
    # Sent, answered.
    "bool": ("[true, false]", "[true,false]"),
    "bfloat16": ("[1.5, 2, NaN]", "[1.5,2.0,NaN]"),
    "half": ("[1.5, 65504, -Infinity]", "[1.5,65504.0,-Infinity]"),
    "float": ("[0.1, 1, 16777216, 1e39, -1e39, NaN]", "[0.1,1.0,16777216.0,Infinity,-Infinity,NaN]"),
    "double": ("[0.1, 1, 1e300, -Infinity]", "[0.1,1.0,1e+300,-Infinity]"),
    "int8": ("[-128, 127]", "[-128,127]"),
    "int16": ("[-32768, 32767]", "[-32768,32767]"),
    "int32": ("[-2147483648, 2147483647]", "[-2147483648,2147483647]"),
    "int64": ("[-9223372036854775808, 9223372036854775807]", "[-9223372036854775808,9223372036854775807]"),
    "uint8": ("[0, 255]", "[0,255]"),
    "uint16": ("[0, 65535]", "[0,65535]"),
    "uint32": ("[0, 4294967295]", "[0,4294967295]"),
    "uint64": ("[0, 18446744073709551615]", "[0,18446744073709551615]"),
    "string": ('["", "a\\u0000b", {"b64": "4oKs"}]', '["","a\\u0000b","€"]'),
}


@pytest.mark.parametrize("dtype", JSON_VALUES)
@pytest.mark.parametrize("keys", [("inputs", "outputs"), ("instances", "predictions")])
def test_json_values_to_the_letter(contract_http: HttpClient, dtype: str, keys: tuple[str, str]) -> None:
    sent, answered = JSON_VALUES[dtype]
    body = f'{{"signature_name": "{dtype}", "{keys[0]}": {sent}}}'
    response = contract_http.exchange("POST", "/v1/models/kinds:predict", body.encode())
    assert (response.status_code, response.text) == (200, f'{{"{keys[1]}":{answered}}}')


# Dtype of the input, the value in the request's JSON, and the value with the name of its JSON type in TensorFlow
# Serving's error.
WRONG_VALUES = [
    ("int32", "1.5", "1.5 Type: Number"),
    ("int32", "1.0", "1.0 Type: Number"),
    ("int32", "2147483648", "2147483648 Type: Number"),
    ("int64", "9223372036854775808", "9223372036854775808 Type: Number"),
    ("uint8", "-1", "-1 Type: Number"),
    ("uint32", "4294967296", "4294967296 Type: Number"),
    ("int32", "true", "true Type: True"),
    ("bool", "1", "1 Type: Number"),
    ("bool", '"true"', '"true" Type: String'),
    ("float", "null", "null Type: Null"),
    ("float", "false", "false Type: False"),
    ("float", '"1"', '"1" Type: String'),
    ("string", "1", "1 Type: Number"),
    ("float", '{"a": 1}', '{\n    "a": 1\n} Type: Object'),
]


@pytest.mark.parametrize(("dtype", "sent", "shown"), WRONG_VALUES)
def test_a_json_value_of_another_type(contract_http: HttpClient, dtype: str, sent: str, shown: str) -> None:
    body = f'{{"signature_name": "{dtype}", "inputs": [{sent}]}}'
    status, answer = contract_http.post("/v1/models/kinds:predict", body)
    assert (status, answer["error"]) == (400, f"JSON Value: {shown} is not of expected type: {dtype}")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_what_json_has_no_form_for(contract_http: HttpClient, dtype: str) -> None:
    body = json.dumps({"signature_name": dtype, "inputs": [1]})
    status, answer = contract_http.post("/v1/models/kinds:predict", body)
    assert (status, answer["error"]) == (501, f"Conversion of JSON Value: 1 to type: {dtype}")
    body = json.dumps({"signature_name": dtype, "instances": [1]})
    status, answer = contract_http.post("/v1/models/kinds:predict", body)
    assert (status, answer["error"]) == (
        400,
        "Failed to process element: 0 of 'instances' list. Error: UNIMPLEMENTED: Conversion of JSON Value: 1 to type: "
        + dtype,
    )


def test_base64_on_input_and_on_outputs_that_end_in_bytes(contract_http: HttpClient) -> None:
    raw = b"\x00\xff\xfe"
    body = {"signature_name": "texts", "instances": [{"text": {"b64": base64.b64encode(raw).decode()}}]}
    status, answer = contract_http.post("/v1/models/half:predict", json.dumps(body))
    # JSON can not hold bytes that are no UTF-8, so they are answered in base64, whatever the name of the output.
    assert (status, answer) == (200, {"predictions": [{"plain": {"b64": "AP/+"}, "raw_bytes": {"b64": "AP/+"}}]})
    body = {"signature_name": "texts", "inputs": "plain"}
    status, answer = contract_http.post("/v1/models/half:predict", json.dumps(body))
    assert (status, answer) == (200, {"outputs": {"plain": "plain", "raw_bytes": {"b64": "cGxhaW4="}}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((f'{{"b64": "{text}"}}', "Unable to base64 decode") for text in ("!", "A", "=", "AA=", "AAA==", "AA==AA==")),
        ('{"b64": 1}', 'JSON Value: {\n    "b64": 1\n} not formatted correctly for base64 data'),
        ('{"a": "b"}', 'JSON Value: {\n    "a": "b"\n} not formatted correctly for base64 data'),
    ],
)
def test_what_is_no_base64(contract_http: HttpClient, value: str, text: str) -> None:
    body = f'{{"signature_name": "texts", "inputs": {{"text": {value}}}}}'
    status, answer = contract_http.post("/v1/models/half:predict", body)
    assert (status, answer["error"]) == (400, text)
