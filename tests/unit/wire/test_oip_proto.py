"""Reads and writes ModelInfer's messages: bytes by hand, typed and raw contents, and messages that do not fit."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from service.artifact.protos import message_class
from service.errors import InvalidRequest, MalformedPayload, ServiceError
from service.types import Array, ModelRef
from service.wire.oip_proto import decode_infer_inputs, decode_infer_request, encode_infer_response

ROOT = Path(__file__).parents[3]


def encode(**fields: Any) -> bytes:
    """Returns a serialized ModelInferRequest to model "m"."""
    return bytes(message_class("inference.ModelInferRequest")(**({"model_name": "m"} | fields)).SerializeToString())


def arrays(**fields: Any) -> dict[str, Array]:
    """Returns the arrays of a request."""
    return decode_infer_inputs(decode_infer_request(encode(**fields)))


def tensor(datatype: str, shape: list[int], name: str = "x", **contents: Any) -> dict[str, Any]:
    """Returns an input."""
    return {"name": name, "datatype": datatype, "shape": shape} | ({"contents": contents} if contents else {})


# model_name = 1 "m", model_version = 2 "7", id = 3 "a", inputs = 5 {name = 1 "x", datatype = 2 "INT8", shape = 3 [2]},
# raw_input_contents = 7: each field's tag is its number times 8 and 2, then comes its length.
BY_HAND = bytes.fromhex("0a016d 120137 1a0161 2a0c 0a0178 1204494e5438 1a0102 3a02 01ff")


def test_a_request_by_hand() -> None:
    request = decode_infer_request(BY_HAND)
    assert (request.ref, request.id, request.signature_name, request.outputs) == (ModelRef("m", 7), "a", "", ())
    assert decode_infer_inputs(request)["x"].tolist() == [1, -1]


def test_a_response_by_hand() -> None:
    outputs = {"y": np.array([[1.0]], np.float32), "z": np.array([], np.int64)}
    request = decode_infer_request(BY_HAND)
    data = encode_infer_response(outputs, request, model="m", version=7, signature_name="s")
    assert (
        data
        == bytes.fromhex(
            "0a016d 120137 1a0161"  # model_name = 1, model_version = 2, id = 3
            "2215 0a0e"
            + b"signature_name".hex()
            + "1203 1a0173"  # parameters = 4 {key = 1, value = 2 {string_param = 3}}
            "2a0d 0a0179 120446503332 1a020101"  # outputs = 5 {name = 1, datatype = 2 "FP32", shape = 3 [1, 1]}
            "2a0d 0a017a 1205494e543634 1a0100"  # the second output: datatype "INT64", shape [0]
            "3204 0000803f 3200"  # raw_output_contents = 6, twice
        )
    )
    parsed = message_class("inference.ModelInferResponse").FromString(data)
    assert parsed.SerializeToString(deterministic=True) != b"" and list(parsed.outputs[0].shape) == [1, 1]


def test_a_scalar_has_no_sizes() -> None:
    data = encode_infer_response(
        {"y": np.float64(2)[()].reshape(())}, decode_infer_request(BY_HAND), model="m", version=7, signature_name="s"
    )
    (output,) = message_class("inference.ModelInferResponse").FromString(data).outputs
    assert (output.datatype, list(output.shape)) == ("FP64", [])


def test_parameters_outputs_and_a_label() -> None:
    parameters = {"signature_name": {"string_param": "s"}, "priority": {"int64_param": 1}}
    outputs = [{"name": "b"}, {"name": "a"}]
    request = decode_infer_request(encode(model_version="stable", parameters=parameters, outputs=outputs))
    assert request.ref == ModelRef("m", label="stable")
    assert (request.signature_name, request.outputs, request.id) == ("s", ("b", "a"), "")


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 2**16 - 1]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -1.5]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"", b"a\0b"]),
    ],
)
def test_contents(datatype: str, field: str, values: list[Any]) -> None:
    names = {"BOOL": "bool", "FP32": "float32", "FP64": "float64", "BYTES": "object"}
    array = arrays(inputs=[tensor(datatype, [1, 2], **{field: values})])["x"]
    assert (array.shape, array.dtype.name) == ((1, 2), names.get(datatype, datatype.lower()))
    assert array.tolist() == [values]
    empty = arrays(inputs=[tensor(datatype, [0])])["x"]
    assert (empty.shape, empty.dtype) == ((0,), array.dtype)


def test_raw_contents_stand_in_the_order_of_the_inputs() -> None:
    inputs = [tensor("FP16", [1], "a"), tensor("BYTES", [1], "b")]
    result = arrays(inputs=inputs, raw_input_contents=[b"\0\x3c", b"\1\0\0\0z"])
    assert (result["a"].tolist(), result["b"].tolist()) == ([1.0], [b"z"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inputs": [tensor("INT8", [1], int_contents=[128])]}, 'input "x": 128 does not fit INT8.'),
        ({"inputs": [tensor("UINT8", [1], uint_contents=[256])]}, 'input "x": 256 does not fit UINT8.'),
        (
            {"inputs": [tensor("FP32", [3], fp32_contents=[1])]},
            'input "x": 1 values in fp32_contents, FP32 of shape [3] needs 3.',
        ),
        (
            {"inputs": [tensor("FP32", [1], fp64_contents=[1])]},
            'input "x": 0 values in fp32_contents, FP32 of shape [1] needs 1.',
        ),
        ({"inputs": [tensor("FP32", [-1], fp32_contents=[1])]}, 'input "x": its shape [-1] has a negative size.'),
        ({"inputs": [tensor("FP32", [2**62, 2])]}, "is too large."),
        ({"inputs": [tensor("FP16", [1], fp32_contents=[1])]}, "FP16 has no contents field, send it as raw"),
        ({"inputs": [tensor("INT4", [1])]}, 'input "x": unknown datatype "INT4".'),
        ({"inputs": [tensor("INT8", [1])], "raw_input_contents": [b"a", b"b"]}, "2 raw_input_contents were sent for 1"),
        (
            {"inputs": [tensor("INT8", [2])], "raw_input_contents": [b"a"]},
            "1 bytes of data, INT8 of shape [2] needs 2.",
        ),
        (
            {"inputs": [tensor("INT8", [1], int_contents=[1])], "raw_input_contents": [b"a"]},
            'input "x": it has contents beside raw_input_contents; send one of the two.',
        ),
        ({"inputs": [tensor("INT8", [0]), tensor("INT8", [0])]}, 'input "x" was sent twice.'),
        (
            {"inputs": [{"name": "x", "parameters": {"shared_memory_region": {"string_param": "r"}}}]},
            'input "x": the parameter "shared_memory_region" is not supported.',
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": {"int64_param": 3}}}]},
            'output "y": the parameter "classification" is not supported.',
        ),
        ({"parameters": {"signature_name": {"int64_param": 3}}}, '"signature_name" must be a string_param.'),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        arrays(**fields)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x0a\xff", "The request is not a valid inference.ModelInferRequest message."),
        (b"", "The request names no model."),
        (encode(model_version="9" * 20), "is not a number of 64 bits."),
        (encode(model_version="9" * 5000), "is not a number of 64 bits."),
    ],
)
def test_a_request_that_names_nothing(data: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_infer_request(data)
    assert text in caught.value.message


def test_any_bytes_give_an_answer_or_a_refusal() -> None:
    random = np.random.default_rng(5)
    base = encode(
        inputs=[tensor("INT64", [2], "a", int64_contents=[1, 2]), tensor("BYTES", [1], "b", bytes_contents=[b"x"])],
        outputs=[{"name": "y"}],
        parameters={"signature_name": {"string_param": "s"}},
    )
    for _ in range(3000):
        data = bytearray(base)
        for position in random.integers(0, len(data), 3):
            data[position] = random.integers(256)
        try:
            decode_infer_inputs(decode_infer_request(bytes(data)))
        except ServiceError as error:
            assert error.code == "INVALID_ARGUMENT"


def test_the_shipped_descriptors_are_those_of_the_proto_file() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "make_inference_protos.py"))
    assert script["TARGET"].read_bytes() == script["descriptor_set"]()


def test_every_field_is_the_published_one() -> None:
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs: dict[str, descriptor_pb2.DescriptorProto] = {}
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        _collect("", file.message_type, theirs)
    file = descriptor_pb2.FileDescriptorSet.FromString((ROOT / "service/artifact/open_inference.pb").read_bytes()).file[
        0
    ]
    ours: dict[str, descriptor_pb2.DescriptorProto] = {}
    _collect("", file.message_type, ours)
    for name, message in ours.items():
        fields = {field.name: field for field in theirs[name].field}
        for field in message.field:
            assert (field.number, field.type, field.label, field.type_name) == (
                (other := fields[field.name]).number,
                other.type,
                other.label,
                other.type_name,
            ), f"{name}.{field.name}"


def _collect(prefix: str, messages: Any, into: dict[str, descriptor_pb2.DescriptorProto]) -> None:
    for message in messages:
        into[prefix + message.name] = message
        _collect(f"{prefix}{message.name}.", message.nested_type, into)
