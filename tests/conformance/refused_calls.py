"""Requests with faults, for every form of a data request: hand-written ones, and random ones that are spoilt."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import text_format

from service.artifact.protos import message_class
from tests.conformance.oip_wires import INFER
from tests.conformance.random_calls import Call, RandomCalls
from tests.conformance.wires import PREDICT

# JSON texts that are faults wherever a document is expected.
_BAD_JSON: tuple[bytes, ...] = (
    *(b"", b" ", b"null", b"[1]", b'"x"', b"{", b"{1", b'{"a" 1}', b'{"a": x}', b'{"a": tru}', b'{"a": 1.}'),
    *(b'{"a": 1e}', b'{"a": 1e999}', b'{"a": -}', b'{"a": 01}', b'{"a": "', b'{"a": "\n"}', b'{"a": "\\x"}'),
    *(b'{"a": "\\u12g4"}', b'{"a": "\\ud800"}', b'{"a": "\xff"}', b'{"a": "\xe2\x82"}', b'{"a": [1 2]}'),
    *(b'{"a": 1', b'{"a": 1, "a": 2}', b'{"a": {"b": 1, "b": 2}}', b"[" * 2000, b"[" * 2000 + b"]" * 2000),
)
# Values that fit no feature of integers.
_BAD_VALUES: tuple[Any, ...] = (
    *(None, True, 1, 1.5, "red", "", [], [[]], [None], [True], [1.5], ["red"], [1, "red"], [1, [2]], [[1], 2]),
    *([[1], [2, 3]], [[[1]]], [[1], []], [99], [-1], [2**63], [2**64], [-(2**63) - 1], [10**30], {}),
    *({"b64": "AQ=="}, {"b64": 1}, [{"b64": "AQ=="}], [{"b64": "*"}], [{"a": 1}], [1, 2, {"b64": "x", "a": 1}]),
    *(["x" * 300], [[1, 2, 3, 4, 5]]),
)


def _posts(wire: str, path: str, bodies: Iterable[Any]) -> Iterator[Call]:
    """Yields POSTs of bytes, or of documents as JSON."""
    for body in bodies:
        yield Call(wire, False, path, body if isinstance(body, bytes) else json.dumps(body).encode())


def _spoilt(message: Any, cleared: str, text: str) -> None:
    """Clears fields of a message, and merges others in protobuf's text format."""
    for name in cleared.split():
        message.ClearField(name)
    text_format.Merge(text, message)


def lookup_calls(model: str, features: dict[str, Any]) -> Iterator[Call]:
    """Yields `:lookup` requests with faults; `features` has a valid value for each feature of signature "lookup"."""
    path = f"/v1/models/{model}:lookup"
    yield from _posts("lookup", path, _BAD_JSON)
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
    yield from _posts("lookup", path, documents)
    good = json.dumps({"features": features}).encode()
    yield from _places(model, ":lookup", good)
    # Rare forms without a fault.
    escaped = good.replace(b'"features"', b'"feat\\u0075res"')
    yield from _posts("lookup", path, [good + b" trailing", b"\xef\xbb\xbf" + good, escaped])


def rows_calls(model: str, table: str) -> Iterator[Call]:
    """Yields requests for rows of a table with faults."""
    path = f"/v1/models/{model}/tables/{table}:rows"
    yield from _posts("rows", path, _BAD_JSON)
    documents = [{}, {"ids": [1], "more": 1}, {"Ids": [1]}, *({"ids": bad} for bad in _BAD_VALUES)]
    yield from _posts("rows", path, documents)
    good = b'{"ids": [1]}'
    yield Call("rows", False, f"/v1/models/{model}/tables/absent:rows", good)
    yield from _places(model, f"/tables/{table}:rows", good)


def predict_calls(model: str, signature: str, inputs: dict[str, Any]) -> Iterator[Call]:
    """Yields REST predict requests with faults; `inputs` has a valid column, such as a list, for each input."""
    path = f"/v1/models/{model}:predict"
    yield from _posts("predict", path, _BAD_JSON)
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
    yield from _posts("predict", path, documents)
    good = json.dumps({"inputs": {first: inputs[first]}, **named}).encode()
    yield from _places(model, ":predict", good)


def _places(model: str, end: str, body: bytes) -> Iterator[Call]:
    for place in ("absent", f"{model}/versions/7", f"{model}/labels/absent", "absent/versions/7", "absent/labels/x"):
        yield Call("places", False, f"/v1/models/{place}{end}", body)


# What is cleared in a TensorProto, and what is merged into it.
_VALUES = "int64_val float_val string_val"
_BAD_PROTOS = (
    ("", "dtype: DT_INVALID"),
    ("", "dtype: 109"),
    ("", "dtype: 99"),
    ("", "tensor_shape { unknown_rank: true }"),
    *(("", f"tensor_shape {{ dim {{ size: {size} }} }}") for size in (-1, 1 << 40, 0)),
    (_VALUES, 'tensor_content: "abc"'),
    (f"tensor_shape tensor_content int_val {_VALUES}", "dtype: DT_BOOL tensor_shape { dim { size: 1 } }"),
    ("tensor_shape", "tensor_shape {}"),
)


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
        for cleared, text in _BAD_PROTOS:
            message = request()
            _spoilt(message.inputs[name], cleared, text)
            yield call(message)
    good = request().SerializeToString()
    for bad in (b"\xff", good[:-1], good + b"\x0a", good + b"\x0a\x7f"):
        yield Call("grpc", True, PREDICT, bad)


# What is cleared in a ModelInferRequest or in its tensor "user", and what is merged into it.
_BAD_INFERS = (
    *(("request", "", f'model_name: "{name}"') for name in ("", "absent")),
    *(("request", "", f'model_version: "{version}"') for version in ("7", "absent", "9" * 30)),
    ("request", "", 'parameters { key: "signature_name" value { string_param: "absent" } }'),
    ("request", "", 'parameters { key: "signature_name" value { int64_param: 1 } }'),
    ("tensor", "", 'parameters { key: "shared_memory_region" value { string_param: "x" } }'),
    ("request", "", 'outputs { name: "user" parameters { key: "classification" value { int64_param: 1 } } }'),
    *(("request", "", 'raw_input_contents: "x" ' * count) for count in (1, 3)),
    *(("tensor", "", f'name: "{name}"') for name in ("tags__values", "absent")),
    *(("tensor", "", f'datatype: "{datatype}"') for datatype in ("INT65", "FP16", "FP32", "BYTES")),
    *(("tensor", "shape", f"shape: {shape}") for shape in ([-1], [1] * 65, [1 << 40, 1 << 40], [], [2])),
    ("tensor", "contents", "contents { int64_contents: 99 }"),
    ("tensor", "", 'datatype: "INT8" contents { int_contents: 300 }'),
    ("tensor", "", 'datatype: "UINT16" contents { uint_contents: 70000 }'),
    ("request", "", 'outputs { name: "absent" }'),
    ("request", "", 'outputs { name: "user" } outputs { name: "user" }'),
)


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

    for place, cleared, text in _BAD_INFERS:
        message = request()
        _spoilt(message.inputs[0] if place == "tensor" else message, cleared, text)
        yield Call("oip grpc", True, INFER, message.SerializeToString())
    for missing in (slice(1, 2), slice(None)):
        message = request()
        del message.inputs[missing]
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
    yield from _posts("infer", path, _BAD_JSON)
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
    bad_values: list[Any] = [None, 1, 1.5, "x", [], [1], [-1], ["x"], [1.5], {}, [2**63], [1] * 65, [2**40] * 2, True]
    for key in ("name", "datatype", "shape", "data", "parameters"):
        documents.append({**good, "inputs": [{k: v for k, v in user.items() if k != key}]})
        documents += [{**good, "inputs": [{**user, key: bad}]} for bad in bad_values]
    documents += [{**good, "inputs": bad} for bad in bad_values]
    documents += [{**good, "inputs": [{**user, "data": bad}]} for bad in _BAD_VALUES]
    documents += [{**good, "inputs": [{**user, "datatype": "INT8", "data": [300]}]}]
    for datatype in ("BOOL", "FP32", "BYTES", "UINT8", "FP16", "BF16", "INT65"):
        documents.append({**good, "inputs": [{**user, "datatype": datatype}]})
    yield from _posts("infer", path, documents)
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
