"""Compares Classify, Regress and MultiInference over random tf.Examples with TensorFlow, over gRPC and REST.

TensorFlow answers by tf.saved_model.load: its signatures get the serialized Examples. The version has
warm-up requests of each kind.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class, tag, varint
from service.artifact.tf_record import WARMUP_PATH
from tests.conformance.contract_calls import METHODS, Refused
from tests.conformance.wires import HttpClient
from tests.integration.process import ServerProcess, server_of
from tests.unit.artifact.test_encodings import record

pytestmark = pytest.mark.tf

_METHOD_NAMES = {"classify": "tensorflow/serving/classify", "regress": "tensorflow/serving/regress"}
Features = dict[str, list[Any]]


def write_model(tf: Any, folder: Path) -> None:
    """Writes a model whose signatures parse Examples with features of each kind, missing ones with defaults."""
    spec = {
        "i": tf.io.FixedLenFeature([2], tf.int64, [7, -3]),
        "f": tf.io.FixedLenFeature([], tf.float32, 0.25),
        "b": tf.io.FixedLenFeature([], tf.string, b"none"),
        "many": tf.io.VarLenFeature(tf.int64),
        "texts": tf.io.VarLenFeature(tf.string),
        "floats": tf.io.RaggedFeature(tf.float32),
    }

    def parse(inputs: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_example(inputs, spec)
        many = tf.sparse.reduce_sum(parsed["many"], 1)
        lengths = tf.strings.length(tf.sparse.to_dense(parsed["texts"], b""))
        numbers = [
            tf.cast(tf.reshape(many, [-1]), tf.float32),
            tf.cast(tf.reduce_sum(parsed["i"], 1), tf.float32),
            parsed["f"],
            tf.reduce_sum(parsed["floats"], 1),
            tf.cast(tf.reduce_sum(lengths, 1), tf.float32),
        ]
        texts = [parsed["b"], tf.strings.reduce_join(tf.strings.as_string(parsed["i"]), 1, separator=",")]
        return tf.stack(numbers, 1), tf.stack([*texts, *texts, texts[0]], 1)

    module = tf.Module()
    examples = tf.TensorSpec([None], tf.string, name="inputs")

    @tf.function(input_signature=[examples])
    def classify(inputs: Any) -> Any:
        scores, classes = parse(inputs)
        return {"scores": scores, "classes": classes}

    @tf.function(input_signature=[examples])
    def regress(inputs: Any) -> Any:
        return {"outputs": tf.reduce_sum(parse(inputs)[0], 1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="other")])
    def misnamed(other: Any) -> Any:
        return {"outputs": tf.reduce_sum(parse(other)[0], 1)}

    tf.saved_model.save(module, str(folder), {"classify": classify, "regress": regress, "misnamed": misnamed})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the model, with a warm-up record of each kind; returns its folder."""
    tf = pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("examples") / "m"
    write_model(tf, folder / "1")
    logs = []
    for kind, call in (("classify_log", "classify"), ("regress_log", "regress"), ("multi_inference_log", "multi")):
        log = message_class("tensorflow.serving.PredictionLog")()
        getattr(log, kind).request.ParseFromString(grpc_request(call, [{"f": [1.5]}], {"i": [1, 2]}))
        logs.append(record(log.SerializeToString()))
    path = folder / "1" / WARMUP_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(logs))
    return folder


@pytest.fixture(scope="module", params=["alone", "batched"])
def server(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Starts a server of the model, once with batching."""
    flags = ("--enable_batching",) if request.param == "batched" else ()
    with server_of({"m": base}, tmp_path_factory.mktemp("list"), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def oracle(base: Path) -> Mapping[str, Any]:
    """Loads the model in TensorFlow; returns its signatures."""
    signatures: Mapping[str, Any] = pytest.importorskip("tensorflow").saved_model.load(str(base / "1")).signatures
    return signatures


def random_features(rng: Random) -> Features:
    """Draws the features of an Example; each may be missing."""
    text = ["", "a", "h\u00e9", "\u4f60", "x" * 300]
    drawn: Features = {
        "i": [rng.choice((0, 1, -1, 2**40, -(2**62))) for _ in range(2)],
        "f": [rng.choice((0.5, -0.0, 3e38, 1e-3))],
        "b": [rng.choice(text)],
        "many": [rng.randrange(1000) for _ in range(rng.choice((0, 1, 5)))],
        "texts": [rng.choice(text) for _ in range(rng.choice((0, 1, 3)))],
        "floats": [rng.uniform(-9, 9) for _ in range(rng.choice((0, 1, 4)))],
        "unknown": [rng.choice(text)],
    }
    return {name: values for name, values in drawn.items() if rng.random() < 0.6}


def example(features: Features) -> Any:
    """Returns a tf.Example."""
    message = message_class("tensorflow.Example")()
    for name, values in features.items():
        feature = message.features.feature[name]
        if not values:
            continue
        if isinstance(values[0], str):
            feature.bytes_list.value.extend(value.encode() for value in values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return message


def grpc_request(call: str, examples: list[Features], context: Features | None, signature: str = "") -> bytes:
    """Returns the bytes of a request for one of the methods."""
    request = message_class(f"tensorflow.serving.{METHODS[call][1]}")()
    if call == "multi":
        for name, method_name in _METHOD_NAMES.items():
            task = request.tasks.add(method_name=method_name)
            task.model_spec.name, task.model_spec.signature_name = "m", name
    else:
        request.model_spec.name, request.model_spec.signature_name = "m", signature or call
    if context is None:
        request.input.example_list.SetInParent()
        request.input.example_list.examples.extend(map(example, examples))
    else:
        request.input.example_list_with_context.context.CopyFrom(example(context))
        request.input.example_list_with_context.examples.extend(map(example, examples))
    return bytes(request.SerializeToString())


def wanted(oracle: Mapping[str, Any], call: str, examples: list[Features], context: Features | None) -> Any:
    """Returns TensorFlow's answer: the values, or the classes and scores. An Example goes before its context."""
    import tensorflow as tf

    merged = [example((context or {}) | features).SerializeToString() for features in examples]
    outputs = oracle[call](inputs=tf.constant(merged))
    if call == "regress":
        return outputs["outputs"].numpy()
    return outputs["classes"].numpy(), outputs["scores"].numpy()


def same(call: str, result: Any, expected: Any) -> None:
    """Compares a ClassificationResult or a RegressionResult with TensorFlow's answer, bit for bit."""
    if call == "regress":
        values = np.array([one.value for one in result.regressions], np.float32)
        assert values.tobytes() == expected.tobytes()
        return
    rows = [row.classes for row in result.classifications]
    assert np.array([[one.score for one in row] for row in rows], np.float32).tobytes() == expected[1].tobytes()
    assert [[one.label.encode() for one in row] for row in rows] == expected[0].tolist()


@pytest.mark.parametrize("seed", range(12))
def test_random_examples(server: ServerProcess, oracle: Mapping[str, Any], seed: int) -> None:
    rng = Random(seed)
    for call in ("classify", "regress", "multi"):
        examples = [random_features(rng) for _ in range(rng.choice((1, 2, 7)))]
        context = random_features(rng) if rng.random() < 0.5 else None
        method, _, response_type = METHODS[call]
        path = f"/tensorflow.serving.PredictionService/{method}"
        data = server.channel.unary_unary(path)(grpc_request(call, examples, context), timeout=60)
        response = message_class(f"tensorflow.serving.{response_type}").FromString(data)
        if call == "multi":
            for name, one in zip(_METHOD_NAMES, response.results, strict=True):
                kind = "classification_result" if name == "classify" else "regression_result"
                assert one.WhichOneof("result") == kind and one.model_spec.signature_name == name
                same(name, getattr(one, kind), wanted(oracle, name, examples, context))
        else:
            same(call, response.result, wanted(oracle, call, examples, context))
            check_rest(server, oracle, call, examples, context)


def check_rest(
    server: ServerProcess, oracle: Mapping[str, Any], call: str, examples: list[Features], context: Features | None
) -> None:
    """Sends the request over REST, with a value in place of a list of one, and some texts in base64; compares it."""

    def in_json(features: Features) -> dict[str, Any]:
        sent: dict[str, Any] = {name: values[0] if len(values) == 1 else values for name, values in features.items()}
        if isinstance(sent.get("b"), str):
            sent["b"] = {"b64": base64.b64encode(sent["b"].encode()).decode()}
        return sent

    body: dict[str, Any] = {"signature_name": call, "examples": [in_json(one) for one in examples]}
    if context is not None:
        body["context"] = in_json(context)
    data = gzip.compress(json.dumps(body).encode())
    headers = {"Content-Encoding": "gzip"}
    response = HttpClient(server.http).exchange("POST", f"/v1/models/m:{call}", data, headers)
    assert response.status_code == 200, response.text
    results, expected = response.json()["results"], wanted(oracle, call, examples, context)
    if call == "regress":
        assert np.array(results, np.float32).tobytes() == expected.tobytes()
        return
    assert np.array([[score for _, score in row] for row in results], np.float32).tobytes() == expected[1].tobytes()
    assert [[label.encode() for label, _ in row] for row in results] == expected[0].tolist()


def field(number: int, data: bytes) -> bytes:
    """Returns a length-delimited protobuf field."""
    return tag(number, 2) + varint(len(data)) + data


SPEC = field(1, field(1, b"m") + field(3, b"regress"))
FLOATS = field(1, field(1, b"f") + field(2, field(2, field(1, b"\0\0\x80?"))))


def of_example(features: bytes) -> bytes:
    """Returns a RegressionRequest with one Example, whose features are given as bytes."""
    return SPEC + field(2, field(1, field(1, field(1, features))))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (of_example(FLOATS), 5.0),
        # The defaults of "i" add 4.
        # A float that is not packed, an unknown field, a group, and an Example in two pieces.
        (of_example(field(1, field(1, b"f") + field(2, field(2, tag(1, 5) + b"\0\0\x80?")))), 5.0),
        (of_example(field(9, b"x") + FLOATS), 5.0),
        (of_example(FLOATS + b"\x53\x08\x01\x54"), 5.0),
        (SPEC + field(2, field(1, field(1, field(1, b"") + field(1, FLOATS)))), 5.0),
        # The last of two kinds counts, and the last of two entries.
        (of_example(field(1, field(1, b"f") + field(2, field(3, b"") + field(2, field(1, b"\0\0\x80?"))))), 5.0),
        (of_example(FLOATS.replace(b"\x80?", b"\0@") + FLOATS), 5.0),
        # The last kind of input counts.
        (SPEC + field(2, field(2, field(1, b"")) + field(1, field(1, field(1, FLOATS)))), 5.0),
        (
            of_example(field(1, field(1, b"\xff") + field(2, b""))),
            "is not a valid tensorflow.serving.RegressionRequest",
        ),
        (of_example(field(1, field(1, b"f") + field(2, field(2, field(1, b"\0\0\x80"))))), "is not a valid tensorflow"),
        (of_example(field(1, field(1, b"i") + field(2, field(3, field(1, b"\xff"))))), "is not a valid tensorflow"),
        (of_example(b"\x53"), "is not a valid tensorflow.serving.RegressionRequest message."),
        (SPEC, "Input is empty."),
        (SPEC + field(2, field(2, field(2, b""))), "Input is empty."),
        (field(1, field(3, b"regress")), "ModelSpec has no name specified."),
        (field(2, b""), "Missing ModelSpec"),
        (SPEC.replace(b"regress", b"regresz"), "No signature was found with the name: regresz; did you mean regress?"),
        (SPEC.replace(b"regress", b"neighbo"), "No signature was found with the name: neighbo"),
        (field(1, field(1, b"m") + field(3, b"neighbors")), "No signature was found with the name: neighbors"),
        (field(1, field(1, b"m") + field(3, b"misnamed")), "No regression inputs found in SignatureDef: inputs {"),
        (of_example(field(1, field(1, b"f") + field(2, field(3, field(1, b"\x01"))))), "Data types don't match"),
    ],
)
def test_rare_encodings_and_refusals(server: ServerProcess, data: bytes, expected: float | str) -> None:
    call = server.channel.unary_unary("/tensorflow.serving.PredictionService/Regress")
    if isinstance(expected, float):
        response = message_class("tensorflow.serving.RegressionResponse").FromString(call(data, timeout=60))
        assert [one.value for one in response.result.regressions] == [expected]
        return
    with pytest.raises(grpc.RpcError) as caught:
        call(data, timeout=60)
    refused = Refused(caught.value.code().name, caught.value.details() or "")
    assert refused.code == "INVALID_ARGUMENT"
    assert expected in refused.text


def test_nothing_is_forwarded_and_all_is_counted(server: ServerProcess) -> None:
    http = HttpClient(server.http)
    call = server.channel.unary_unary("/tensorflow.serving.PredictionService/Classify")
    call(grpc_request("classify", [{}], None), timeout=60)
    document = http.exchange("GET", "/v1/statusz").json()
    assert document["data_plane"]["forwarded"]["grpc"] == 0
    text = http.exchange("GET", "/metrics").text
    counts = [line for line in text.splitlines() if line.startswith(":tensorflow:serving:request_example_counts_count")]
    assert counts and float(counts[0].split()[-1]) > 0
