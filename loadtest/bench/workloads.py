"""The five workloads of the benchmark: tables, ids and expected answers, computed from seeds with numpy.

W1: one row, three single ids. W2: 128 rows of user, item, and 1 to 20 tags, whose vectors are averaged. W3: W2 with
4096 rows. W4: 10,000 rows of one table. W5: W2's vectors into a dense tower of 160-256-1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from loadtest import wire

Arrays = dict[str, np.ndarray[Any, Any]]
# A request: its body, and its headers besides those of the protocol.
Encoded = tuple[bytes, tuple[tuple[str, str], ...]]
WORKLOADS = ("W1", "W2", "W3", "W4", "W5")
MODEL = "bench"
LOOKUP, PREDICT = "lookup", "serving_default"
_HIDDEN = 256
_MAX_TAGS = 20
# The ids are distributed as in recommenders: the frequency of the r-th most frequent id is proportional to 1 / r^1.05.
_ZIPF = 1.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the benchmark's tables and requests.

    tables: table -> (rows, columns).
    rows: rows of a request of each workload; variants: number of different requests, sent in turn.
    """

    tables: Mapping[str, tuple[int, int]]
    rows: Mapping[str, int]
    variants: Mapping[str, int]


FULL = Sizes(
    tables={"user": (1_000_000, 64), "item": (200_000, 64), "tag": (50_000, 32)},
    rows={"W1": 1, "W2": 128, "W3": 4096, "W4": 10_000, "W5": 128},
    variants={"W1": 64, "W2": 16, "W3": 4, "W4": 4, "W5": 16},
)
# Sizes for loadtest/soak: so large that a version which the server never unloads shows in the server's memory.
SMALL = Sizes(
    tables={"user": (40_000, 64), "item": (10_000, 64), "tag": (5_000, 32)},
    rows={"W1": 1, "W2": 48, "W3": 1024, "W4": 10_000, "W5": 48},
    variants={"W1": 64, "W2": 16, "W3": 4, "W4": 4, "W5": 16},
)
TINY = Sizes(
    tables={"user": (100, 64), "item": (50, 64), "tag": (20, 32)},
    rows={"W1": 1, "W2": 8, "W3": 300, "W4": 400, "W5": 8},
    variants=dict.fromkeys(WORKLOADS, 2),
)


@dataclass(frozen=True)
class Data:
    """Tables, tower and requests of a benchmark with given sizes; they are the same in every run."""

    sizes: Sizes

    @cached_property
    def tables(self) -> Arrays:
        """[V, D] float32 by name."""
        return {
            name: np.random.default_rng([1, i]).standard_normal(shape, np.float32)
            for i, (name, shape) in enumerate(self.sizes.tables.items())
        }

    @cached_property
    def tower(self) -> Arrays:
        """The tower's weights: kernel_1 [160, 256], bias_1, kernel_2 [256, 1], bias_2, all float32."""
        generator = np.random.default_rng(2)
        wide = sum(dim for _, dim in self.sizes.tables.values())
        return {
            "kernel_1": generator.standard_normal((wide, _HIDDEN), np.float32) / np.float32(np.sqrt(wide)),
            "bias_1": generator.standard_normal(_HIDDEN, np.float32),
            "kernel_2": generator.standard_normal((_HIDDEN, 1), np.float32) / np.float32(np.sqrt(_HIDDEN)),
            "bias_2": generator.standard_normal(1, np.float32),
        }

    @cached_property
    def _frequencies(self) -> dict[str, tuple[Any, Any]]:
        found = {}
        for i, (name, (rows, _)) in enumerate(self.sizes.tables.items()):
            shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -_ZIPF)
            # A random permutation of the ids, so that frequent ids are spread over the table.
            found[name] = (shares / shares[-1], np.random.default_rng([3, i]).permutation(rows))
        return found

    def _ids(self, table: str, count: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
        shares, order = self._frequencies[table]
        return order[np.searchsorted(shares, generator.random(count))].astype(np.int64)

    def requests(self, workload: str) -> list[Arrays]:
        found = []
        rows = self.sizes.rows[workload]
        # Workload W5 sends the same ids as workload W2, so it draws them with the same seed.
        seed = WORKLOADS.index("W2" if workload == "W5" else workload)
        for variant in range(self.sizes.variants[workload]):
            generator = np.random.default_rng([4, seed, variant])
            inputs = {"item": self._ids("item", rows, generator)}
            if workload != "W4":
                inputs["user"] = self._ids("user", rows, generator)
                # Workload W1 has requests of one row, which always has one tag.
                lengths = generator.integers(1, _MAX_TAGS + 1, rows) if rows > 1 else np.ones(1, np.int64)
                inputs["tags__row_splits"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
                inputs["tags__values"] = self._ids("tag", int(lengths.sum()), generator)
            found.append(inputs)
        return found

    def expected(self, workload: str, inputs: Arrays) -> Arrays:
        tables = self.tables
        found = {"item": tables["item"][inputs["item"]]}
        if "user" in inputs:
            splits = inputs["tags__row_splits"]
            sums = np.add.reduceat(tables["tag"][inputs["tags__values"]].astype(np.float64), splits[:-1], axis=0)
            found["user"] = tables["user"][inputs["user"]]
            found["tags"] = (sums / np.diff(splits)[:, None]).astype(np.float32)
        if workload != "W5":
            return found
        tower = self.tower
        joined = np.concatenate([found["user"], found["item"], found["tags"]], axis=1).astype(np.float64)
        hidden = np.maximum(joined @ tower["kernel_1"] + tower["bias_1"], 0)
        return {"score": (hidden @ tower["kernel_2"] + tower["bias_2"]).astype(np.float32)}


def key_of(row: int) -> str:
    return f"key-{row:07}"


def signature_of(workload: str) -> str:
    return PREDICT if workload == "W5" else LOOKUP


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
    encode: Callable[[str, Arrays], Encoded]
    decode: Callable[[bytes, dict[str, str]], Arrays]

    @property
    def port(self) -> str:
        """The name of the server's port."""
        return "grpc_port" if self.is_grpc else "http_port"


def _encode_grpc(workload: str, inputs: Arrays) -> Encoded:
    values = {name: array.tolist() for name, array in inputs.items()}
    message = wire.predict_request(wire.message_classes()[0], MODEL, signature_of(workload), values)
    return message.SerializeToString(), ()


def _decode_grpc(body: bytes, _headers: dict[str, str]) -> Arrays:
    """Decodes the outputs in a PredictResponse, which must all be float32 values."""
    found = {}
    for name, tensor in wire.message_classes()[1].FromString(body).outputs.items():
        content = tensor.tensor_content
        values = np.frombuffer(content, "<f4") if content else np.array(tensor.float_val, np.float32)
        found[name] = values.reshape([dim.size for dim in tensor.tensor_shape.dim])
    return found


def _by_row(inputs: Arrays) -> dict[str, Any]:
    found: dict[str, Any] = {name: inputs[name].tolist() for name in ("user", "item") if name in inputs}
    if "tags__values" in inputs:
        values, splits = inputs["tags__values"].tolist(), inputs["tags__row_splits"].tolist()
        found["tags"] = [values[a:b] for a, b in zip(splits[:-1], splits[1:], strict=True)]
    return found


def _encode_json(_workload: str, inputs: Arrays) -> Encoded:
    return orjson.dumps({"features": _by_row(inputs)}), (JSON_TYPE,)


def _decode_json(body: bytes, _headers: dict[str, str]) -> Arrays:
    return {name: np.array(rows, np.float32) for name, rows in json.loads(body)["embeddings"].items()}


def _encode_rest(workload: str, inputs: Arrays) -> Encoded:
    columns = _by_row(inputs)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return orjson.dumps({"signature_name": signature_of(workload), "instances": rows}), (JSON_TYPE,)


def _decode_rest(body: bytes, _headers: dict[str, str]) -> Arrays:
    rows = json.loads(body)["predictions"]
    if not isinstance(rows[0], dict):
        # If a signature has one output, the JSON answer has no name of the output.
        return {"score": np.array(rows, np.float32)}
    return {name: np.array([row[name] for row in rows], np.float32) for name in rows[0]}


def _encode_grpc_keys(workload: str, inputs: Arrays) -> Encoded:
    splits = {name: array.tolist() for name, array in inputs.items() if name.endswith("__row_splits")}
    message = wire.predict_request(wire.message_classes()[0], MODEL, signature_of(workload), splits)
    for name in inputs.keys() - splits.keys():
        tensor = message.inputs[name]
        tensor.dtype = wire.DT_STRING
        tensor.tensor_shape.dim.add().size = len(inputs[name])
        tensor.string_val.extend(key_of(row).encode() for row in inputs[name].tolist())
    return message.SerializeToString(), ()


def _encode_json_keys(_workload: str, inputs: Arrays) -> Encoded:
    features = {
        name: [[key_of(id_) for id_ in row] if isinstance(row, list) else key_of(row) for row in rows]
        for name, rows in _by_row(inputs).items()
    }
    return orjson.dumps({"features": features}), (JSON_TYPE,)


def _encode_infer(workload: str, inputs: Arrays) -> Encoded:
    message = wire.message_class("inference.ModelInferRequest")(model_name=MODEL)
    message.parameters["signature_name"].string_param = signature_of(workload)
    for name, ids in inputs.items():
        message.inputs.add(name=name, datatype="INT64", shape=[len(ids)])
        message.raw_input_contents.append(ids.astype("<i8").tobytes())
    return message.SerializeToString(), ()


def _decode_infer(body: bytes, _headers: dict[str, str]) -> Arrays:
    answer = wire.message_class("inference.ModelInferResponse").FromString(body)
    return {
        output.name: np.frombuffer(raw, "<f4").reshape(output.shape)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def _encode_infer_json(workload: str, inputs: Arrays) -> Encoded:
    described = [
        {"name": name, "datatype": "INT64", "shape": [len(ids)], "data": ids.tolist()} for name, ids in inputs.items()
    ]
    return orjson.dumps({"inputs": described, "parameters": {"signature_name": signature_of(workload)}}), (JSON_TYPE,)


def _decode_infer_json(body: bytes, _headers: dict[str, str]) -> Arrays:
    return {o["name"]: np.array(o["data"], np.float32).reshape(o["shape"]) for o in json.loads(body)["outputs"]}


def _encode_binary(workload: str, inputs: Arrays) -> Encoded:
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


GRPC = Wire(True, lambda _: wire.PREDICT_METHOD, _encode_grpc, _decode_grpc)
JSON = Wire(False, lambda _: f"/v1/models/{MODEL}:{LOOKUP}", _encode_json, _decode_json)
REST = Wire(False, lambda _: f"/v1/models/{MODEL}:predict", _encode_rest, _decode_rest)
GRPC_KEYS = Wire(True, lambda _: wire.PREDICT_METHOD, _encode_grpc_keys, _decode_grpc)
JSON_KEYS = Wire(False, JSON.path, _encode_json_keys, _decode_json)
INFER = Wire(True, lambda _: wire.INFER_METHOD, _encode_infer, _decode_infer)
INFER_JSON = Wire(False, lambda _: f"/v2/models/{MODEL}/infer", _encode_infer_json, _decode_infer_json)
BINARY = Wire(False, INFER_JSON.path, _encode_binary, _decode_binary)


def grpc_answer(arrays: Arrays) -> bytes:
    answer = wire.message_classes()[1]()
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
        tensor.MergeFromString(b"\x2a" + wire.varint(len(packed)) + packed)
    return answer.SerializeToString()


def json_answer(arrays: Arrays) -> bytes:
    return orjson.dumps({"embeddings": arrays}, option=orjson.OPT_SERIALIZE_NUMPY)


def check(found: Arrays, expected: Arrays, *, exact: bool) -> None:
    """Raises AssertionError if an answer differs from numpy's by more than 1e-6, or more than 1e-4 if not `exact`."""
    assert set(found) == set(expected), f"outputs {sorted(found)}, expected {sorted(expected)}"
    for name, array in expected.items():
        tolerance = 1e-6 if exact else 1e-4
        assert found[name].shape == array.shape, f"{name}: {found[name].shape}, expected {array.shape}"
        assert np.allclose(found[name], array, rtol=tolerance, atol=tolerance), f"{name} differs"
