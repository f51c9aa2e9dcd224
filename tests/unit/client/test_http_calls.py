"""Checks the client's HTTP requests and its reading of answers, against the encoders of the reference server."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from embedding_client.async_client import AsyncEmbeddingClient
from embedding_client.calls import Reply, Where
from embedding_client.client import EmbeddingClient
from embedding_client.errors import InvalidRequest, ServerFault, Unavailable, Unimplemented
from embedding_client.http_bodies import lookup_body, predict_body, rows_body
from embedding_client.http_calls import HttpCalls
from embedding_client.json_answers import float32_array, typed_array
from embedding_client.open_inference import encode_infer
from embedding_client.targets import Tls
from embedding_client.types import RaggedIds, State, TableDescription, TensorDescription, VersionStatus
from service import types
from service.artifact.signature_def import metadata_json
from service.reference.http_app import LookupBody, RowsBody
from service.reference.json_tensors import dump, lookup_answer, parse_object, predict_answer, predict_inputs
from service.types import Array, SignatureSpec, TableInfo, TensorSpec
from service.wire.api import statuses_json
from service.wire.json_body import encode_tables
from tests.certificates import Authority
from tests.unit.client.test_grpc_calls import answer

X = {"x": np.array([1.0], np.float32)}
IDS = {"user": np.array([1])}


def metadata(**outputs: tuple[str, tuple[int | None, ...] | None]) -> bytes:
    """Returns the metadata of a model whose signature "s" has these outputs."""
    tensors = {name: TensorSpec(name, dtype, shape, f"{name}:0") for name, (dtype, shape) in outputs.items()}
    inputs = {"user": TensorSpec("user", "int64", (None,), "user:0")}
    return metadata_json("m", 3, {"s": SignatureSpec("s", "predict", "method", inputs, tensors)})


def predicted(**outputs: Any) -> bytes:
    """Returns the columnar answer to a predict with these outputs."""
    return predict_answer({name: np.asarray(array) for name, array in outputs.items()}, by_row=False, strict=False)


@pytest.mark.parametrize(
    ("model", "at", "path"),
    [
        ("m", Where(), "/v2/models/m/infer"),
        ("a/b ü:c", Where(), "/v2/models/a%2Fb%20%C3%BC%3Ac/infer"),
        ("m", Where(0), "/v2/models/m/versions/0/infer"),
        ("m", Where(None, "a/b"), "/v2/models/m/versions/a%2Fb/infer"),
        ("m", Where(None, "20"), "/v1/models/m/labels/20:lookup"),
    ],
)
def test_paths(model: str, at: Where, path: str) -> None:
    assert next(HttpCalls(model).lookup(IDS, (), at, "lookup")).path == path


def test_a_version_is_not_negative() -> None:
    with pytest.raises(InvalidRequest, match="version is -1"):
        next(HttpCalls("m").status(-1))


def binary(version: int = 7, **outputs: np.ndarray) -> Reply:
    """Returns an Open Inference answer with binary tensors, which has the form of a request."""
    body, json_length = encode_infer(outputs, (), "s")
    return Reply(body.replace(b'"inputs"', b'"outputs"', 1), version, json_length + 1)


def test_a_lookup_takes_one_call() -> None:
    flow = HttpCalls("m").lookup(IDS, (), Where(), "lookup")
    call = next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send(call.read(binary(user=np.array([[0.1, np.nan]], np.float32))))
    arrays = end.value.value
    assert arrays.version == 7
    np.testing.assert_array_equal(arrays["user"], np.array([[0.1, np.nan]], np.float32), strict=True)


def test_a_server_without_open_inference_is_asked_in_json() -> None:
    flow = HttpCalls("m").lookup({"user": np.array([], np.int64)}, (), Where(), "s")
    next(flow)
    call = flow.throw(Unimplemented("UNIMPLEMENTED", "no /v2"))
    assert call.path == "/v1/models/m:lookup"
    asked = flow.send(call.read(Reply(lookup_answer({"user": np.empty((0, 5), np.float32)}, strict=False))))
    assert asked.path == "/v1/models/m/metadata"
    with pytest.raises(StopIteration) as end:
        flow.send(asked.read(Reply(metadata(user=("float32", (None, 5))))))
    assert (end.value.value["user"].shape, end.value.value.version) == ((0, 5), None)


def test_a_label_of_digits_is_no_version() -> None:
    body = lookup_answer({"a": np.ones((1, 2), np.float32), "b": np.zeros((1, 2), np.float32)}, strict=False)
    described = metadata(a=("float32", (None, 2)), b=("float32", (None, 2)), c=("float32", (None, 2)))
    at = Where(None, "20")
    for names, found in (((), ["a", "b"]), (("b",), ["b"]), (("a", "c"), ["a"])):
        arrays, _ = answer(HttpCalls("m").lookup(IDS, names, at, "s"), body, described, versions=[7])
        assert (list(arrays), arrays.version) == (found, 7)


def test_a_predict_whose_dtypes_fit_is_binary_once_the_signature_is_known() -> None:
    calls_of = HttpCalls("m")
    inputs = {"user": np.array([1])}
    described = metadata(y=("float32", (None,)))
    answer(calls_of.predict(inputs, (), Where(), "s"), predicted(y=np.float32([1])), described, versions=[3])
    for other in ({"user": np.int32([1])}, {"else": np.array([1])}):
        assert next(calls_of.predict(other, (), Where(), "s")).path == "/v1/models/m:predict"
    assert next(calls_of.predict(inputs, (), Where(3), "s")).path == "/v1/models/m/versions/3:predict"
    flow = calls_of.predict(inputs, ("y",), Where(), "s")
    call = next(flow)
    assert (call.path, call.body) == ("/v2/models/m/infer", encode_infer(inputs, ("y",), "s")[0])
    with pytest.raises(StopIteration) as end:
        flow.send(call.read(binary(y=np.float64([0.5]))))
    assert (end.value.value.version, end.value.value["y"].dtype) == (7, np.float64)
    # A newer version may have other dtypes, so JSON decides whether a refused request is wrong.
    flow = calls_of.predict(inputs, (), Where(), "s")
    next(flow)
    assert flow.throw(InvalidRequest("INVALID_ARGUMENT", "other dtype")).path == "/v1/models/m:predict"
    flow = calls_of.predict(inputs, (), Where(), "s")
    next(flow)
    with pytest.raises(ServerFault):
        flow.throw(ServerFault("INTERNAL", "an error that stays"))


def test_a_predict_of_a_server_that_names_no_version_is_json() -> None:
    calls_of = HttpCalls("m")
    for bodies in ((predicted(y=np.float32([1])), metadata(y=("float32", (None,)))), (predicted(y=np.float32([1])),)):
        _, calls = answer(calls_of.predict(IDS, (), Where(), "s"), *bodies)
        assert calls[0].path == "/v1/models/m:predict"


def test_outputs_are_chosen_as_grpcs_filter_does() -> None:
    body = predicted(a=np.ones((1, 2), np.float32), b=np.zeros((1, 2), np.float32))
    described = metadata(a=("float32", (None, 2)), b=("float32", (None, 2)), c=("float32", (None, 2)))

    def chosen(*names: str) -> Any:
        return answer(HttpCalls("m").predict(IDS, names, Where(), "s"), body, described)[0]

    assert list(chosen("b")) == ["b"]
    assert list(chosen("b", "a")) == ["b", "a"]
    assert list(chosen("a", "c")) == ["a"], "c is an output whose feature was not sent"
    with pytest.raises(InvalidRequest, match=r"alias not found in signature: z Outputs expected .* \{a,b,c\}"):
        chosen("z")
    with pytest.raises(InvalidRequest, match="duplicate output tensor alias: a"):
        chosen("a", "a")


def test_a_predict_asks_for_its_signature_once() -> None:
    calls_of = HttpCalls("m")
    described = metadata(y=("float16", (None,)))
    for bodies in ((predicted(y=np.float16([0.1])), described), (predicted(y=np.float16([0.2])),)):
        arrays, calls = answer(calls_of.predict(X, (), Where(3), "s"), *bodies)
        assert arrays["y"].dtype == np.float16
        assert [call.path.rpartition("3")[2] for call in calls] == [":predict", "/metadata"][: len(bodies)]


def test_a_predict_of_several_outputs_has_their_dtypes() -> None:
    body = predicted(y=np.float32([[0.1]]), n=np.int32([7]), s_bytes=np.array([b"\0"], object))
    described = metadata(y=("float32", (None, 1)), n=("int32", (None,)), s_bytes=("string", (None,)))
    arrays, _ = answer(HttpCalls("m").predict(X, (), Where(), "s"), body, described)
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "y": "float32",
        "n": "int32",
        "s_bytes": "object",
    }
    assert arrays["s_bytes"].tolist() == [b"\0"]


@pytest.mark.parametrize("feature", ["a", "a__values"])
def test_a_single_output_of_a_lookup_is_named_by_its_feature(feature: str) -> None:
    described = metadata(a=("float32", (None, 1)), b=("float32", (None, 1)))
    inputs = {feature: np.array([1])}
    arrays, _ = answer(HttpCalls("m").predict(inputs, (), Where(), "s"), predicted(a=np.float32([[2]])), described)
    assert arrays["a"].tolist() == [[2]]


def test_a_signature_that_changed_is_asked_for_again() -> None:
    calls_of = HttpCalls("m")
    answer(calls_of.predict(X, (), Where(), "s"), predicted(y=np.float32([1])), metadata(y=("float32", (None,))))
    body, described = predicted(y=[1.0], z=[2]), metadata(y=("float64", (None,)), z=("int64", (None,)))
    arrays, calls = answer(calls_of.predict(X, (), Where(), "s"), body, described)
    assert len(calls) == 2
    assert {name: array.dtype.name for name, array in arrays.items()} == {"y": "float64", "z": "int64"}


def test_each_version_that_answers_is_asked_for_its_signature_once() -> None:
    calls_of = HttpCalls("m")
    dtypes = {3: "float32", 4: "float16"}
    for version, is_new in ((3, True), (3, False), (4, True), (3, False)):
        bodies = [predicted(y=np.float16([0.5])), metadata(y=(dtypes[version], (None,)))][: 1 + is_new]
        arrays, calls = answer(calls_of.predict(X, (), Where(), "s"), *bodies, versions=[version])
        assert (arrays["y"].dtype, arrays.version) == (np.dtype(dtypes[version]), version)
        assert [call.path for call in calls] == [
            "/v1/models/m:predict",
            f"/v1/models/m/versions/{version}/metadata",
        ][: 1 + is_new]


def test_signatures_of_versions_long_gone_are_dropped() -> None:
    calls_of = HttpCalls("m")
    body, described = predicted(y=np.float32([1])), metadata(y=("float32", (None,)))
    for version in range(1000):
        answer(calls_of.predict(X, (), Where(), "s"), body, described, versions=[version])
    assert len(calls_of._signatures) <= 256


@pytest.mark.parametrize(
    ("body", "described"),
    [
        (predicted(y=[1.0], z=[2]), metadata(y=("float32", (None,)))),
        (predicted(y=[1.0]), metadata(a=("float32", (None,)), b=("float32", (None,)))),
        (predicted(y=np.array([b"a"], object)), metadata(y=("float32", (None,)))),
        (b'{"outputs": [1, [2]]}', metadata(y=("int64", (None,)))),
    ],
)
def test_an_answer_that_is_not_the_signatures_is_the_servers_fault(body: bytes, described: bytes) -> None:
    with pytest.raises(ServerFault, match="signature's|no (float32|int64) tensor"):
        answer(HttpCalls("m").predict(X, (), Where(), "s"), body, described)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"outputs": 5}', b'{"outputs": [{"name": "a"}]}'])
def test_an_answer_of_another_form_is_the_servers_fault(body: bytes) -> None:
    with pytest.raises(ServerFault, match="can not be read"):
        next(HttpCalls("m").lookup(IDS, (), Where(), "s")).read(Reply(body))


def test_tables() -> None:
    info = TableInfo("film", 1683, 32, "int8", 60588, ("film_id", "recent"))
    tables, calls = answer(HttpCalls("m").tables(Where(None, "stable")), encode_tables([info]))
    assert tables == (TableDescription("film", 1683, 32, "int8", 60588, ("film_id", "recent")),)
    assert (calls[0].path, calls[0].body) == ("/v1/models/m/labels/stable/tables", None)


def test_rows_statuses_and_metadata() -> None:
    rows, calls = answer(
        HttpCalls("m").rows("a/t", np.array([5]), Where(2)), dump({"rows": np.float32([[1, 2]])}, strict=False)
    )
    np.testing.assert_array_equal(rows, np.float32([[1, 2]]), strict=True)
    assert calls[0].path == "/v1/models/m/versions/2/tables/a%2Ft:rows"
    assert orjson.loads(calls[0].body) == {"ids": [5]}

    sent = (
        types.VersionStatus(2, types.State.LOADING),
        types.VersionStatus(1, types.State.END, "FAILED_PRECONDITION", "no file"),
    )
    got, calls = answer(HttpCalls("m").status(None), statuses_json(sent))
    assert got == (VersionStatus(2, State.LOADING), VersionStatus(1, State.END, "FAILED_PRECONDITION", "no file"))
    assert (calls[0].path, calls[0].body) == ("/v1/models/m", None)

    shapes: dict[str, tuple[str, tuple[int | None, ...] | None]] = {
        "a": ("float32", (None, 3)),
        "b": ("string", None),
        "c": ("float64", ()),
        "d": ("uint8", (2,)),
    }
    described, _ = answer(HttpCalls("m").metadata(Where()), metadata(**shapes))
    assert (described.model, described.version) == ("m", 3)
    assert described.signatures["s"].outputs == {name: TensorDescription(*spec) for name, spec in shapes.items()}


def decode_lookup(body: bytes) -> LookupBody:
    """Reads a lookup's body; raises if it has a key of another name, or a value of another type."""
    return LookupBody.model_validate(parse_object(body, strict=False))


def decode_x(body: bytes, dtype: str) -> Array:
    """Reads the input x of a predict's body by column, for the signature "s"."""
    document = parse_object(body, strict=False)
    assert document.keys() == {"signature_name", "inputs"} and document["signature_name"] == "s"
    spec = SignatureSpec("s", "predict", "m", {"x": TensorSpec("x", dtype, None)}, {})
    return predict_inputs({"inputs": document["inputs"]}, spec)["x"]


def test_a_lookup_is_nested_by_row() -> None:
    ragged = RaggedIds(np.array([b"a", b"\xff"], object), np.array([0, 2, 2]), np.array([0.1, 2], np.float32))
    body = decode_lookup(lookup_body({"user": np.array([1, 2], np.int32), "tags": ragged}, "lookup"))
    assert body.signature_name == "lookup"
    assert body.features == {"user": [1, 2], "tags": [["a", {"b64": "/w=="}], []]}
    # A weight has all digits of its float32, so that every reader rounds it to the same float32.
    assert body.weights == {"tags": [[0.10000000149011612, 2.0], []]}


def test_a_float32_is_the_same_again_though_the_server_rounds_twice() -> None:
    # Rounded to a double and then to a float32, the number's shortest decimal form would give the neighbouring float32.
    given = np.array([363742205], np.uint32).view(np.float32)
    read = decode_x(predict_body({"x": given}, "s"), "float32")
    assert (read.dtype, read.tobytes()) == (given.dtype, given.tobytes())


def test_weights_that_are_not_finite_are_bare_tokens() -> None:
    ragged = RaggedIds(np.array([1, 2, 3]), np.array([0, 3]), np.array([np.nan, np.inf, 1], np.float32))
    (row,) = decode_lookup(lookup_body({"tags": ragged}, "lookup")).weights["tags"]
    np.testing.assert_array_equal(row, [np.nan, np.inf, 1])


def test_a_lookup_without_rows() -> None:
    ragged = RaggedIds(np.array([], np.int64), np.array([0]))
    assert decode_lookup(lookup_body({"tags": ragged}, "x")).features == {"tags": []}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool", "string"])
def test_a_predict_goes_by_column(dtype: str) -> None:
    if dtype == "string":
        given = np.array([[b"a", b"null"], [b"", b"\xfe"]], object)
    else:
        given = (np.array([[0, 1], [7, 100]]) / 3).astype(dtype)
    np.testing.assert_array_equal(decode_x(predict_body({"x": given}, "s"), dtype), given, strict=True)


def test_scalars_and_what_is_not_finite() -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    text = predict_body({"x": x, "y": np.array(2, np.int64)}, "").decode()
    document = json.loads(text)
    assert document["inputs"]["y"] == 2
    np.testing.assert_array_equal(np.array(document["inputs"]["x"], np.float32), x)


def test_what_json_can_not_say() -> None:
    for dtype in (np.complex64, np.longdouble):
        with pytest.raises(InvalidRequest, match=f'"x": dtype {np.dtype(dtype)} has no JSON form; use gRPC'):
            predict_body({"x": np.zeros(1, dtype)}, "")


def test_rows() -> None:
    assert RowsBody.model_validate_json(rows_body(np.arange(10)[::3])).ids == [0, 3, 6, 9]


# (bits of a float32, bits of the float32 to which its decimal form leads if it is first rounded to a float64).
ROUNDED_TWICE = [(363742205, 363742206)]


def written(array: np.ndarray) -> bytes:
    """Returns an array's JSON as the server writes it."""
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize(("bits", "wrong_bits"), ROUNDED_TWICE)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_decimal_beside_the_middle_of_two_floats_is_rounded_once(bits: int, wrong_bits: int, sign: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32) * np.float32(sign)
    document = orjson.loads(written(value))
    assert np.array(document, np.float32).view(np.uint32)[0] & 0x7FFFFFFF == wrong_bits, "numpy alone is wrong here"
    assert float32_array(document).tobytes() == value.tobytes()


def test_floats_of_every_exponent_come_back() -> None:
    fractions = np.random.default_rng(5).integers(0, 1 << 23, (255, 250), np.uint32)
    values = (fractions | np.arange(255, dtype=np.uint32)[:, None] << 23).view(np.float32)
    assert float32_array(orjson.loads(written(values))).tobytes() == values.tobytes()


def test_the_edges_come_back() -> None:
    info = np.finfo(np.float32)
    edges = [0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, 1 + info.eps]
    values = np.array(edges, np.float32).reshape(2, 4)
    assert float32_array(orjson.loads(written(values))).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(16777217, 16777216), (16777219, 16777220), (1e39, np.inf), (-1e39, -np.inf), (1e-46, 0), (7e-46, 0)],
)
def test_ties_go_to_the_even_and_what_is_too_large_is_infinite(value: float, expected: float) -> None:
    # 7e-46 is just below the middle between 0 and the smallest float32, so it rounds to 0.
    assert float32_array([value])[0] == expected


def test_shapes_and_tokens() -> None:
    array = float32_array([[1, float("nan")], [float("-inf"), 2.5]])
    np.testing.assert_array_equal(array, np.array([[1, np.nan], [-np.inf, 2.5]], np.float32), strict=True)
    assert float32_array(0.1).shape == ()
    assert float32_array(7.038531e-26).shape == ()


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int64", [9007199254740993], np.array([9007199254740993])),
        ("uint8", [255], np.array([255], np.uint8)),
        ("float64", [0.1], np.array([0.1])),
        ("float16", [0.1], np.array([0.1], np.float16)),
        ("bool", [True, False], np.array([True, False])),
        ("float32", 1.5, np.float32(1.5)),
        ("string", [["é"], [{"b64": "AP8="}]], np.array([["é".encode()], [b"\0\xff"]], object)),
        ("string", {"b64": "AP8="}, np.array(b"\0\xff", object)),
    ],
)
def test_dtypes_are_the_signatures(dtype: str, value: Any, expected: Any) -> None:
    array = typed_array(value, TensorDescription(dtype, None))
    np.testing.assert_array_equal(array, np.asarray(expected), strict=True)


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [([], (None, 8), (0, 8)), ([[], []], (None, 0, 3), (2, 0, 3)), ([], None, (0,)), ([], (None, None), (0, 0))],
)
def test_an_empty_list_has_the_signatures_shape(
    value: Any, shape: tuple[int | None, ...] | None, expected: tuple[int, ...]
) -> None:
    assert typed_array(value, TensorDescription("float32", shape)).shape == expected


PATIENCE_S = 30.0
AUTHORITY = Authority()


def blocking(target: str, tls: Tls | None) -> Any:
    with EmbeddingClient(target, model="m", tls=tls, timeout_s=PATIENCE_S, retries=0) as client:
        return client.lookup({"user": [1]})


def not_blocking(target: str, tls: Tls | None) -> Any:
    async def ask() -> Any:
        async with AsyncEmbeddingClient(target, model="m", tls=tls, timeout_s=PATIENCE_S, retries=0) as client:
            return await client.lookup({"user": [1]})

    return asyncio.run(ask())


both = pytest.mark.parametrize("ask", [blocking, not_blocking])


@contextmanager
def one_connection(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """Yields a port on which one connection is served. The event is set when the client has ended."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def run() -> None:
            with listening.accept()[0] as accepted:
                accepted.settimeout(PATIENCE_S)
                serve(accepted, is_over)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            is_over.set()
            thread.join()


@both
def test_a_client_s_certificate_that_is_missed_after_its_handshake(ask: Callable[..., Any], tmp_path: Path) -> None:
    # In TLS 1.3 the client has ended its handshake, and may have sent its request, when the server refuses it.
    own = AUTHORITY.issue()
    (tmp_path / "cert").write_text(own.key + own.cert)
    (tmp_path / "ca").write_text(AUTHORITY.pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=AUTHORITY.pem)
    context.load_cert_chain(tmp_path / "cert")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(accepted: socket.socket, is_over: threading.Event) -> None:
        # Without this copy the failed handshake closes the connection, and the client may see that before the alert.
        with accepted.dup():
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(accepted, server_side=True)
            assert is_over.wait(PATIENCE_S)

    with one_connection(serve) as port, pytest.raises(Unavailable, match=r"(?i)certificate required"):
        ask(f"https://localhost:{port}", Tls(tmp_path / "ca"))


@both
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut",
        b"HTTP/9.9 what\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_is_none(ask: Callable[..., Any], answer: bytes) -> None:
    def serve(accepted: socket.socket, is_over: threading.Event) -> None:
        accepted.recv(65536)
        accepted.sendall(answer)
        accepted.shutdown(socket.SHUT_WR)
        assert is_over.wait(PATIENCE_S)

    with one_connection(serve) as port, pytest.raises(Unavailable):
        ask(f"http://localhost:{port}", None)


def test_a_compressed_answer_that_is_damaged() -> None:
    # The blocking client asks for no compression.
    def serve(accepted: socket.socket, is_over: threading.Event) -> None:
        accepted.recv(65536)
        accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone")
        assert is_over.wait(PATIENCE_S)

    with one_connection(serve) as port, pytest.raises(Unavailable):
        not_blocking(f"http://localhost:{port}", None)
