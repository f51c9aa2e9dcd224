"""Requests with faults, for every form of a data request: hand-written ones, and random ones that are spoilt."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from service.artifact.protos import message_class
from tests.conformance.oip_wires import INFER
from tests.conformance.random_calls import Call, RandomCalls
from tests.conformance.wires import PREDICT

# JSON texts that are faults wherever a document is expected.
_BAD_JSON: tuple[bytes, ...] = (
    b"",
    b" ",
    b"null",
    b"[1]",
    b'"x"',
    b"{",
    b"{1",
    b'{"a" 1}',
    b'{"a": x}',
    b'{"a": tru}',
    b'{"a": 1.}',
    b'{"a": 1e}',
    b'{"a": 1e999}',
    b'{"a": -}',
    b'{"a": 01}',
    b'{"a": "',
    b'{"a": "\n"}',
    b'{"a": "\\x"}',
    b'{"a": "\\u12g4"}',
    b'{"a": "\\ud800"}',
    b'{"a": "\xff"}',
    b'{"a": "\xe2\x82"}',
    b'{"a": [1 2]}',
    b'{"a": 1',
    b'{"a": 1, "a": 2}',
    b'{"a": {"b": 1, "b": 2}}',
    b"[" * 2000,
    b"[" * 2000 + b"]" * 2000,
)
# Values that fit no feature of integers.
_BAD_VALUES: tuple[Any, ...] = (
    None,
    True,
    1,
    1.5,
    "red",
    "",
    [],
    [[]],
    [None],
    [True],
    [1.5],
    ["red"],
    [1, "red"],
    [1, [2]],
    [[1], 2],
    [[1], [2, 3]],
    [[[1]]],
    [[1], []],
    [99],
    [-1],
    [2**63],
    [2**64],
    [-(2**63) - 1],
    [10**30],
    {},
    {"b64": "AQ=="},
    {"b64": 1},
    [{"b64": "AQ=="}],
    [{"b64": "*"}],
    [{"a": 1}],
    [1, 2, {"b64": "x", "a": 1}],
    ["x" * 300],
    [[1, 2, 3, 4, 5]],
)


def lookup_calls(model: str, features: dict[str, Any]) -> Iterator[Call]:
    """Yields `:lookup` requests with faults; `features` has a valid value for each feature of signature "lookup"."""
    path = f"/v1/models/{model}:lookup"
    for body in _BAD_JSON:
        yield Call("lookup", False, path, body)
    documents: list[Any] = [
        {},
        {"features": None},
        {"features": []},
        {"features": {}},
        {"features": features, "more": 1, "Features": 2},
        {"features": features, "weights": []},
        {"features": features, "weights": {"absent": [[1.0]]}},
        {"features": features, "signature_name": 1},
        {"features": features, "signature_name": None},
        {"features": features, "signature_name": "absent"},
        {"features": features, "signature_name": "lokup"},
        {"features": features, "signature_name": "serving_default"},
        {"features": features, "signature_name": ""},
        {"features": {"absent": [1]}},
        {"features": {"absent": [1], **features}},
    ]
    for name, value in features.items():
        for bad in _BAD_VALUES:
            documents.append({"features": {name: bad}})
            documents.append({"features": {name: value}, "weights": {name: bad}})
            documents.append({"features": {**features, name: bad}})
        for part in ("values", "row_splits", "weights"):
            documents.append({"features": {f"{name}__{part}": [1]}})
    for document in documents:
        yield Call("lookup", False, path, json.dumps(document).encode())
    good = json.dumps({"features": features}).encode()
    yield from _places(model, ":lookup", good)
    # Rare forms without a fault.
    yield Call("lookup", False, path, good + b" trailing")
    yield Call("lookup", False, path, b"\xef\xbb\xbf" + good)
    yield Call("lookup", False, path, good.replace(b'"features"', b'"feat\\u0075res"'))


def rows_calls(model: str, table: str) -> Iterator[Call]:
    """Yields requests for rows of a table with faults."""
    path = f"/v1/models/{model}/tables/{table}:rows"
    for body in _BAD_JSON:
        yield Call("rows", False, path, body)
    for document in [{}, {"ids": [1], "more": 1}, {"Ids": [1]}, *({"ids": bad} for bad in _BAD_VALUES)]:
        yield Call("rows", False, path, json.dumps(document).encode())
    good = b'{"ids": [1]}'
    yield Call("rows", False, f"/v1/models/{model}/tables/absent:rows", good)
    yield from _places(model, f"/tables/{table}:rows", good)


def predict_calls(model: str, signature: str, inputs: dict[str, Any]) -> Iterator[Call]:
    """Yields REST predict requests with faults; `inputs` has a valid column, such as a list, for each input."""
    path = f"/v1/models/{model}:predict"
    for body in _BAD_JSON:
        yield Call("predict", False, path, body)
    named = {"signature_name": signature}
    first = next(iter(inputs))
    rows = [dict(zip(inputs, values, strict=True)) for values in zip(*inputs.values(), strict=True)]
    documents: list[Any] = [
        {},
        named,
        {"inputs": inputs, "instances": rows, **named},
        {"inputs": None, **named},
        {"inputs": {}, **named},
        {"inputs": 1, **named},
        {"inputs": [1], **named},
        {"inputs": {"absent": [1]}, **named},
        {"inputs": {**inputs, "absent": [1]}, **named},
        {"inputs": inputs, "signature_name": 1},
        {"inputs": inputs, "signature_name": "absent"},
        {"inputs": inputs, "signature_name": signature + "x"},
        {"instances": None, **named},
        {"instances": 1, **named},
        {"instances": [], **named},
        {"instances": {}, **named},
        {"instances": [1], **named},
        {"instances": [[1], [1, 2]], **named},
        {"instances": [1, {}], **named},
        {"instances": [{}], **named},
        {"instances": [*rows, 1], **named},
        {"instances": [*rows, {}], **named},
        {"instances": [*rows, {"absent": 1}], **named},
        {"instances": [{**rows[0], "absent": 1}], **named},
        {"instances": [{"absent": 1}], **named},
        {"instances": [{"b64": "AQ=="}], **named},
    ]
    for name in inputs:
        documents.append({"inputs": {key: value for key, value in inputs.items() if key != name}, **named})
        for bad in _BAD_VALUES:
            documents.append({"inputs": {**inputs, name: bad}, **named})
            documents.append({"instances": [*rows, {**rows[0], name: bad}], **named})
            documents.append({"instances": [{**rows[0], name: bad}], **named})
        for part in ("values", "row_splits", "weights"):
            documents.append({"inputs": {**inputs, f"{name}__{part}": [1]}, **named})
            documents.append({"instances": [{**rows[0], f"{name}__{part}": 1}], **named})
    documents += [{"inputs": bad, **named} for bad in _BAD_VALUES]
    documents += [{"instances": bad, **named} for bad in _BAD_VALUES]
    for document in documents:
        yield Call("predict", False, path, json.dumps(document).encode())
    good = json.dumps({"inputs": {first: inputs[first]}, **named}).encode()
    yield from _places(model, ":predict", good)


def _places(model: str, end: str, body: bytes) -> Iterator[Call]:
    for place in ("absent", f"{model}/versions/7", f"{model}/labels/absent", "absent/versions/7", "absent/labels/x"):
        yield Call("places", False, f"/v1/models/{place}{end}", body)


def grpc_calls(model: str, signature: str, tensors: dict[str, Any]) -> Iterator[Call]:
    """Yields gRPC Predict requests with faults; `tensors` has a valid TensorProto for each input."""

    def call(message: Any) -> Call:
        return Call("grpc", True, PREDICT, message.SerializeToString())

    def request(**spec: Any) -> Any:
        message = message_class("tensorflow.serving.PredictRequest")()
        message.model_spec.name, message.model_spec.signature_name = (
            spec.get("name", model),
            spec.get("signature", signature),
        )
        for name in spec.get("inputs", tensors):
            message.inputs[name].CopyFrom(tensors.get(name) or next(iter(tensors.values())))
        return message

    empty = message_class("tensorflow.serving.PredictRequest")()
    yield call(empty)
    yield call(request(name=""))
    yield call(request(name="absent"))
    yield call(request(signature="absent"))
    yield call(request(signature=signature[:-1] + "x"))
    yield call(request(inputs=[]))
    yield call(request(inputs=["absent"]))
    yield call(request(inputs=[*tensors, "absent"]))
    for version in (7, -1):
        message = request()
        message.model_spec.version.value = version
        yield call(message)
    message = request()
    message.model_spec.version_label = "absent"
    yield call(message)
    for outputs in (["absent"], ["absent", "absent"]):
        message = request()
        message.output_filter.extend(outputs)
        yield call(message)
    for name in tensors:
        yield call(request(inputs=[one for one in tensors if one != name]))
        yield call(request(inputs=[one for one in tensors if one != name] + ["absent"]))
        for spoil in range(9):
            message = request()
            tensor = message.inputs[name]
            match spoil:
                case 0:
                    tensor.dtype = 0
                case 1:
                    tensor.dtype = 109
                case 2:
                    tensor.tensor_shape.unknown_rank = True
                case 3:
                    tensor.tensor_shape.dim.add().size = -1
                case 4:
                    tensor.tensor_shape.dim.add().size = 1 << 40
                case 5:
                    tensor.tensor_shape.dim.add().size = 0
                case 6:
                    tensor.tensor_content = b"abc"
                    tensor.ClearField("int64_val")
                    tensor.ClearField("float_val")
                    tensor.ClearField("string_val")
                case 7:
                    tensor.Clear()
                    tensor.dtype = 10
                    tensor.tensor_shape.dim.add().size = 1
                case 8:
                    tensor.tensor_shape.Clear()
            yield call(message)
    good = request().SerializeToString()
    for bad in (b"\xff", good[:-1], good + b"\x0a", good + b"\x0a\x7f"):
        yield Call("grpc", True, PREDICT, bad)


def infer_grpc_calls(model: str, signature: str) -> Iterator[Call]:
    """Yields ModelInfer requests over gRPC with faults, for a signature with inputs "user" and ragged "tags"."""

    def request() -> Any:
        message = message_class("inference.ModelInferRequest")()
        message.model_name = model
        message.parameters["signature_name"].string_param = signature
        message.inputs.add(name="user", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
        message.inputs.add(name="tags__values", datatype="INT64", shape=[2]).contents.int64_contents.extend([1, 2])
        message.inputs.add(name="tags__row_splits", datatype="INT64", shape=[2]).contents.int64_contents.extend([0, 2])
        return message

    def spoil(message: Any, number: int) -> None:
        tensor = message.inputs[0]
        match number:
            case 0:
                message.model_name = ""
            case 1:
                message.model_name = "absent"
            case 2:
                message.model_version = "7"
            case 3:
                message.model_version = "absent"
            case 4:
                message.model_version = "9" * 30
            case 5:
                message.parameters["signature_name"].string_param = "absent"
            case 6:
                message.parameters["signature_name"].int64_param = 1
            case 7:
                tensor.parameters["shared_memory_region"].string_param = "x"
            case 8:
                message.outputs.add(name="user").parameters["classification"].int64_param = 1
            case 9:
                message.raw_input_contents.append(b"x")
            case 10:
                message.raw_input_contents.extend([b"x"] * 3)
            case 11:
                tensor.name = "tags__values"
            case 12:
                tensor.name = "absent"
            case 13:
                tensor.datatype = "INT65"
            case 14:
                tensor.datatype = "FP16"
            case 15:
                tensor.datatype = "FP32"
            case 16:
                tensor.datatype = "BYTES"
            case 17:
                tensor.shape[0] = -1
            case 18:
                tensor.shape[:] = [1] * 65
            case 19:
                tensor.shape[:] = [1 << 40, 1 << 40]
            case 20:
                tensor.shape[:] = []
            case 21:
                tensor.shape[0] = 2
            case 22:
                tensor.contents.int64_contents[0] = 99
            case 23:
                tensor.datatype = "INT8"
                tensor.contents.int_contents.append(300)
            case 24:
                tensor.datatype = "UINT16"
                tensor.contents.uint_contents.append(70000)
            case 25:
                message.outputs.add(name="absent")
            case 26:
                message.outputs.add(name="user")
                message.outputs.add(name="user")
            case 27:
                del message.inputs[1]
            case 28:
                del message.inputs[:]

    for number in range(29):
        message = request()
        spoil(message, number)
        yield Call("oip grpc", True, INFER, message.SerializeToString())
    for data, datatype, shape in (
        (b"", "INT64", [1]),
        (b"x" * 9, "INT64", [1]),
        (b"", "BYTES", [1]),
        (b"\x05\0\0\0ab", "BYTES", [1]),
        (b"\x01\0\0\0abc", "BYTES", [1]),
        (b"\x01\0\0\0a", "BYTES", [1]),
        (b"\0" * 8, "INT64", [-1]),
    ):
        message = request()
        del message.inputs[1:]
        message.inputs[0].ClearField("contents")
        message.inputs[0].datatype, message.inputs[0].shape[:] = datatype, shape
        message.raw_input_contents.append(data)
        yield Call("oip grpc", True, INFER, message.SerializeToString())
    good = request().SerializeToString()
    for bad in (b"\xff", good[:-1], good + b"\x0a\x7f", good + b"\x0a\x01\xff"):
        yield Call("oip grpc", True, INFER, bad)


def infer_calls(model: str, signature: str) -> Iterator[Call]:
    """Yields infer requests over HTTP with faults, for a signature with inputs "user" and ragged "tags"."""
    path = f"/v2/models/{model}/infer"
    for body in _BAD_JSON:
        yield Call("infer", False, path, body)
    user = {"name": "user", "datatype": "INT64", "shape": [1], "data": [1]}
    parameters = {"signature_name": signature}
    good = {"inputs": [user], "parameters": parameters}
    documents: list[Any] = [
        {},
        {"parameters": parameters},
        {**good, "parameters": 1},
        {**good, "parameters": {"signature_name": 1}},
        {**good, "parameters": {"signature_name": "absent"}},
        {**good, "parameters": {**parameters, "binary_data_output": 1}},
        {**good, "parameters": {**parameters, "classification": 1}},
        {**good, "id": 1},
        {**good, "outputs": 1},
        {**good, "outputs": [1]},
        {**good, "outputs": [{}]},
        {**good, "outputs": [{"name": "absent"}]},
        {**good, "outputs": [{"name": "user"}, {"name": "user"}]},
        {**good, "outputs": [{"name": "user", "parameters": {"binary_data": 1}}]},
        {**good, "outputs": [{"name": "user", "parameters": {"shared_memory_region": "x"}}]},
        {**good, "inputs": [user, user]},
        {**good, "inputs": [user, {**user, "name": "absent"}]},
        {**good, "inputs": [{**user, "parameters": {"binary_data_size": 8}}]},
    ]
    bad_values: tuple[Any, ...] = (
        None,
        1,
        1.5,
        "x",
        [],
        [1],
        [-1],
        ["x"],
        [1.5],
        {},
        [2**63],
        [1] * 65,
        [2**40, 2**40],
        True,
    )
    for key in ("name", "datatype", "shape", "data", "parameters"):
        documents.append({**good, "inputs": [{k: v for k, v in user.items() if k != key}]})
        documents += [{**good, "inputs": [{**user, key: bad}]} for bad in bad_values]
    documents += [{**good, "inputs": bad} for bad in bad_values]
    documents += [{**good, "inputs": [{**user, "data": bad}]} for bad in _BAD_VALUES]
    documents += [{**good, "inputs": [{**user, "datatype": "INT8", "data": [300]}]}]
    for datatype in ("BOOL", "FP32", "BYTES", "UINT8", "FP16", "BF16", "INT65"):
        documents.append({**good, "inputs": [{**user, "datatype": datatype}]})
    for document in documents:
        yield Call("infer", False, path, json.dumps(document).encode())
    whole = json.dumps(good).encode()
    for place in ("absent", f"{model}/versions/7", "absent/versions/7"):
        yield Call("infer", False, f"/v2/models/{place}/infer", whole)
    length = "Inference-Header-Content-Length"
    for value in (0, len(whole) - 1, len(whole) + 1):
        yield Call("infer", False, path, whole, ((length, str(value)),))
    for size, data in ((8, b"\0" * 7), (8, b"\0" * 9), (-1, b""), ("x", b""), (1.5, b""), (7, b"\0" * 7)):
        binary = {k: v for k, v in user.items() if k != "data"} | {"parameters": {"binary_data_size": size}}
        head = json.dumps({**good, "inputs": [binary]}).encode()
        yield Call("infer", False, path, head + data, ((length, str(len(head))),))
        yield Call("infer", False, path, head + data)


def spoilt(calls: RandomCalls, rng: random.Random, count: int) -> Iterator[Call]:
    """Yields `count` calls of each wire from random requests, many of which are spoilt byte by byte."""
    for _ in range(count):
        for call in calls.draw(rng):
            yield call
            if call.body and not call.is_grpc and b"\xff" not in call.body:
                place = rng.randrange(len(call.body))
                byte = rng.choice(b'[]{},:"0-.e\\ tfnxI')
                body = call.body[:place] + bytes([byte]) + call.body[place + rng.randrange(2) :]
                yield Call(call.wire + " spoilt", False, call.path, body, call.headers)
