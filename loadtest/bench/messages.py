"""Encodes the requests and decodes the answers of each workload, for gRPC and for each JSON form."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from loadtest.bench.workloads import LOOKUP, MODEL, Arrays, key_of, signature_of
from loadtest.wire import DT_STRING, INFER_METHOD, PREDICT_METHOD, message_class, message_classes, predict_request

JSON_TYPE = ("content-type", "application/json")


@dataclass(frozen=True, slots=True)
class Wire:
    """One form of requests and answers, such as gRPC messages or a JSON form.

    path: workload -> path of the method or route.
    encode: (workload, inputs) -> body and headers of a request.
    decode: (body, headers with lower-case names) -> arrays by name; raises if the body is no valid answer.
    """

    is_grpc: bool
    path: Callable[[str], str]
    encode: Callable[[str, Arrays], tuple[bytes, tuple[tuple[str, str], ...]]]
    decode: Callable[[bytes, dict[str, str]], Arrays]


def _encode_grpc(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    values = {name: array.tolist() for name, array in inputs.items()}
    message = predict_request(message_classes()[0], MODEL, signature_of(workload), values)
    return message.SerializeToString(), ()


def decode_grpc(body: bytes, _headers: dict[str, str]) -> Arrays:
    """Decodes the outputs in a PredictResponse, which must all be float32 values in float_val."""
    answer = message_classes()[1].FromString(body)
    return {
        name: np.array(tensor.float_val, np.float32).reshape([dim.size for dim in tensor.tensor_shape.dim])
        for name, tensor in answer.outputs.items()
    }


def _by_row(inputs: Arrays) -> dict[str, Any]:
    found: dict[str, Any] = {name: inputs[name].tolist() for name in ("user", "item") if name in inputs}
    if "tags__values" in inputs:
        values, splits = inputs["tags__values"].tolist(), inputs["tags__row_splits"].tolist()
        found["tags"] = [values[a:b] for a, b in zip(splits[:-1], splits[1:], strict=True)]
    return found


def _encode_json(_workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    return orjson.dumps({"features": _by_row(inputs)}), (JSON_TYPE,)


def _decode_json(body: bytes, _headers: dict[str, str]) -> Arrays:
    return {name: np.array(rows, np.float32) for name, rows in json.loads(body)["embeddings"].items()}


def _encode_rest(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    columns = _by_row(inputs)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return orjson.dumps({"signature_name": signature_of(workload), "instances": rows}), (JSON_TYPE,)


def _decode_rest(body: bytes, _headers: dict[str, str]) -> Arrays:
    rows = json.loads(body)["predictions"]
    if not isinstance(rows[0], dict):
        # If a signature has one output, the JSON answer has no name of the output.
        return {"score": np.array(rows, np.float32)}
    return {name: np.array([row[name] for row in rows], np.float32) for name in rows[0]}


def _encode_grpc_keys(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    splits = {name: array.tolist() for name, array in inputs.items() if name.endswith("__row_splits")}
    message = predict_request(message_classes()[0], MODEL, signature_of(workload), splits)
    for name in inputs.keys() - splits.keys():
        tensor = message.inputs[name]
        tensor.dtype = DT_STRING
        tensor.tensor_shape.dim.add().size = len(inputs[name])
        tensor.string_val.extend(key_of(row).encode() for row in inputs[name].tolist())
    return message.SerializeToString(), ()


def _encode_json_keys(_workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    features = {
        name: [[key_of(id_) for id_ in row] if isinstance(row, list) else key_of(row) for row in rows]
        for name, rows in _by_row(inputs).items()
    }
    return orjson.dumps({"features": features}), (JSON_TYPE,)


def _encode_infer(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    message = message_class("inference.ModelInferRequest")(model_name=MODEL)
    message.parameters["signature_name"].string_param = signature_of(workload)
    for name, ids in inputs.items():
        message.inputs.add(name=name, datatype="INT64", shape=[len(ids)])
        message.raw_input_contents.append(ids.astype("<i8").tobytes())
    return message.SerializeToString(), ()


def _decode_infer(body: bytes, _headers: dict[str, str]) -> Arrays:
    answer = message_class("inference.ModelInferResponse").FromString(body)
    return {
        output.name: np.frombuffer(raw, "<f4").reshape(output.shape)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def _encode_infer_json(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    described = [
        {"name": name, "datatype": "INT64", "shape": [len(ids)], "data": ids.tolist()} for name, ids in inputs.items()
    ]
    return orjson.dumps({"inputs": described, "parameters": {"signature_name": signature_of(workload)}}), (JSON_TYPE,)


def _decode_infer_json(body: bytes, _headers: dict[str, str]) -> Arrays:
    return {o["name"]: np.array(o["data"], np.float32).reshape(o["shape"]) for o in json.loads(body)["outputs"]}


def _encode_binary(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    described = [
        {"name": name, "datatype": "INT64", "shape": [len(ids)], "parameters": {"binary_data_size": ids.nbytes}}
        for name, ids in inputs.items()
    ]
    parameters = {"signature_name": signature_of(workload), "binary_data_output": True}
    head = orjson.dumps({"inputs": described, "parameters": parameters})
    body = b"".join([head, *(ids.astype("<i8").tobytes() for ids in inputs.values())])
    return body, (JSON_TYPE, ("inference-header-content-length", str(len(head))))


def _decode_binary(body: bytes, headers: dict[str, str]) -> Arrays:
    at = int(headers["inference-header-content-length"])
    found = {}
    for output in json.loads(body[:at])["outputs"]:
        nbytes = output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(body, "<f4", nbytes // 4, at).reshape(output["shape"])
        at += nbytes
    return found


GRPC = Wire(True, lambda _: PREDICT_METHOD, _encode_grpc, decode_grpc)
JSON = Wire(False, lambda _: f"/v1/models/{MODEL}:{LOOKUP}", _encode_json, _decode_json)
REST = Wire(False, lambda _: f"/v1/models/{MODEL}:predict", _encode_rest, _decode_rest)
GRPC_KEYS = Wire(True, lambda _: PREDICT_METHOD, _encode_grpc_keys, decode_grpc)
JSON_KEYS = Wire(False, JSON.path, _encode_json_keys, _decode_json)
INFER = Wire(True, lambda _: INFER_METHOD, _encode_infer, _decode_infer)
INFER_JSON = Wire(False, lambda _: f"/v2/models/{MODEL}/infer", _encode_infer_json, _decode_infer_json)
BINARY = Wire(False, INFER_JSON.path, _encode_binary, _decode_binary)


def grpc_answer(arrays: Arrays) -> bytes:
    """Encodes arrays as the PredictResponse that a baseline server sends to every lookup."""
    answer = message_classes()[1]()
    answer.model_spec.name = MODEL
    answer.model_spec.signature_name = LOOKUP
    answer.model_spec.version.value = 1
    for name, array in arrays.items():
        tensor = answer.outputs[name]
        tensor.dtype = 1
        for size in array.shape:
            tensor.tensor_shape.dim.add().size = size
        # Packed floats are little-endian bytes, so the whole message is parsed from bytes; appending the floats one by
        # one takes seconds.
        packed = array.astype("<f4").tobytes()
        tensor.MergeFromString(b"\x2a" + varint(len(packed)) + packed)
    return answer.SerializeToString()


def json_answer(arrays: Arrays) -> bytes:
    """Encodes arrays as the JSON answer that a baseline server sends to every lookup."""
    return orjson.dumps({"embeddings": arrays}, option=orjson.OPT_SERIALIZE_NUMPY)


def varint(value: int) -> bytes:
    """Encodes a number as a protobuf varint."""
    found = b""
    while value > 0x7F:
        found += struct.pack("B", value & 0x7F | 0x80)
        value >>= 7
    return found + struct.pack("B", value)


def check(found: Arrays, expected: Arrays, *, exact: bool) -> None:
    """Raises AssertionError if an answer differs from numpy's by more than 1e-6, or more than 1e-4 if not `exact`."""
    assert set(found) == set(expected), f"outputs {sorted(found)}, expected {sorted(expected)}"
    for name, array in expected.items():
        tolerance = 1e-6 if exact else 1e-4
        assert found[name].shape == array.shape, f"{name}: {found[name].shape}, expected {array.shape}"
        assert np.allclose(found[name], array, rtol=tolerance, atol=tolerance), f"{name} differs"
