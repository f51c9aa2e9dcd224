"""The client's gRPC requests and its reading of answers agree with the server's own decoders and encoders."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from embedding_client.calls import Reply, Where
from embedding_client.errors import ServerFault, Unimplemented
from embedding_client.grpc_calls import GrpcCalls
from embedding_client.messages import decode_predict
from embedding_client.types import RaggedIds, State, TensorDescription, VersionStatus
from service import types
from service.artifact.signature_def import encode_metadata
from service.types import ModelRef, SignatureSpec, TensorSpec, ragged_features
from service.wire.api import encode_statuses, parse_message
from service.wire.predict_proto import decode_inputs, decode_request, encode_response, read_model_spec

CALLS = GrpcCalls("m")


def answer(
    flow: Generator[Any, Any, Any], *bodies: bytes, versions: Sequence[int | None] = ()
) -> tuple[Any, list[Any]]:
    """Drives a flow with answers, whose headers name versions; returns its result and its calls."""
    calls = [next(flow)]
    for body, version in zip_longest(bodies, versions):
        try:
            calls.append(flow.send(calls[-1].read(Reply(body, version))))
        except StopIteration as end:
            return end.value, calls
    raise AssertionError("the flow wants more")


def test_a_lookup_names_the_parts_of_ragged_features() -> None:
    ragged = RaggedIds(np.array([b"a", b"b"], object), np.array([0, 2, 2]), np.array([1, 0.5], np.float32))
    body = encode_response({"user": np.ones((2, 3), np.float32)}, model="m", version=4, signature_name="lookup")
    ids = {"user": np.array([1, 2]), "tags": ragged}
    arrays, calls = answer(CALLS.lookup(ids, ("user",), Where(4), "lookup"), body)
    assert arrays["user"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert arrays.version == 4
    assert calls[0].path == "/tensorflow.serving.PredictionService/Predict"
    request = decode_request(calls[0].body)
    assert (request.ref, request.signature_name, request.output_filter) == (ModelRef("m", 4), "lookup", ("user",))
    sent = {name: array.tolist() for name, array in decode_inputs(request).items()}
    assert sent == {
        "user": [1, 2],
        "tags__values": [b"a", b"b"],
        "tags__row_splits": [0, 2, 2],
        "tags__weights": [1, 0.5],
    }


@pytest.mark.parametrize("as_content", [False, True], ids=["values", "content"])
def test_answers_of_equal_length_are_not_mixed_up(as_content: bool) -> None:
    """The client remembers where the numbers of an answer were: for other bytes around them, they are elsewhere."""

    def encoded(name: str = "user", version: int = 4, **arrays: np.ndarray) -> tuple[dict[str, np.ndarray], int, bytes]:
        arrays = arrays or {"user": np.float32([[1, 2], [3, 4]])}
        outputs = {name if key == "user" else key: array for key, array in arrays.items()}
        body = encode_response(outputs, model="m", version=version, signature_name="s", as_content=as_content)
        return outputs, version, body

    zeros = np.zeros(4, np.float32)
    answers = [
        encoded(),
        encoded(user=np.float32([[5, 6], [7, -0.0]])),
        encoded("item"),
        encoded(version=5),
        encoded(user=np.float32([1, 2, 3, 4]).reshape(4, 1)),
        encoded(user=np.int32([[1, 2], [3, 4]])),
        encoded(user=np.array([[True, False], [False, True]])),
        encoded(user=zeros.reshape(2, 2), a=zeros, z=np.float64([1, 2])),
        encoded(user=zeros.reshape(2, 2) + 9, a=zeros + 8, z=np.float64([3, 4])),
        encoded(user=np.array([b"abcd", b"abc"], object)),
        encoded(user=np.array([b"abc", b"abcd"], object)),
        encoded(user=np.empty((0, 2), np.float32), a=zeros),
        encoded(user=np.int64([1, 128])),
        encoded(user=np.int64([128, 1])),
    ]
    assert len({len(body) for _, _, body in answers}) < len(answers) - 4
    for outputs, version, body in answers * 2:
        found = decode_predict(body)
        assert (sorted(found), found.version) == (sorted(outputs), version)
        for name, array in outputs.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
            assert found[name].flags.writeable and found[name].flags.aligned


def test_statuses_come_as_they_were_sent() -> None:
    sent = (
        types.VersionStatus(2, types.State.AVAILABLE),
        types.VersionStatus(1, types.State.END, "FAILED_PRECONDITION", "no file"),
    )
    got, calls = answer(CALLS.status(2), encode_statuses(sent))
    assert got == (VersionStatus(2, State.AVAILABLE), VersionStatus(1, State.END, "FAILED_PRECONDITION", "no file"))
    request = parse_message("tensorflow.serving.GetModelStatusRequest", calls[0].body)
    assert (request.model_spec.name, request.model_spec.version.value) == ("m", 2)


def test_metadata_tells_signatures() -> None:
    inputs = {name: TensorSpec(name, "int64", (None,), "x:0") for name in ("g__values", "g__row_splits")}
    outputs = {"g": TensorSpec("g", "float32", (None, 8), "y:0"), "any": TensorSpec("any", "string", None, "z:0")}
    specs = {"lookup": SignatureSpec("lookup", "lookup", "method", inputs, outputs, ragged_features(inputs))}
    metadata, calls = answer(CALLS.metadata(Where(None)), encode_metadata("m", 3, specs))
    assert (metadata.model, metadata.version) == ("m", 3)
    signature = metadata.signatures["lookup"]
    assert signature.ragged == {"g"}
    assert signature.method_name == "method"
    assert signature.outputs == {"any": TensorDescription("string", None), "g": TensorDescription("float32", (None, 8))}
    request = parse_message("tensorflow.serving.GetModelMetadataRequest", calls[0].body)
    assert read_model_spec(request) == (ModelRef("m"), "")
    assert list(request.metadata_field) == ["signature_def"]


@pytest.mark.parametrize("flow", [CALLS.rows("t", np.array([1]), Where()), CALLS.tables(Where())])
def test_tables_and_rows_say_what_they_need(flow: Generator[Any, Any, Any]) -> None:
    with pytest.raises(Unimplemented, match='http_target="http://host:port"'):
        next(flow)


def test_an_answer_of_other_bytes_is_the_servers_fault() -> None:
    call = next(CALLS.lookup({"user": np.array([1])}, (), Where(), "lookup"))
    with pytest.raises(ServerFault, match="can not be read"):
        call.read(Reply(b"\xff\xff\xff"))
