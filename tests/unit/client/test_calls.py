"""Calls over HTTP and gRPC: targets, tokens, errors and retries."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import orjson
import pytest

from embedding_client.bearer import NO_TOKEN, Bearer
from embedding_client.calls import Reply, Where
from embedding_client.client import EmbeddingClient
from embedding_client.errors import EmbeddingError, InvalidRequest, ServerFault, Unimplemented, error_of
from embedding_client.grpc_calls import GrpcCalls
from embedding_client.http_calls import HttpCalls
from embedding_client.retry import Attempts, RetryPolicy
from embedding_client.targets import Tls, parse_target
from embedding_client.types import RaggedIds, State, TableDescription, TensorDescription, VersionStatus
from service import types
from service.artifact.signature_def import encode_metadata, metadata_json
from service.reference.json_tensors import dump, lookup_answer, predict_answer
from service.types import ModelRef, SignatureSpec, TableInfo, TensorSpec, ragged_features
from service.wire.api import encode_statuses, parse_message, statuses_json
from service.wire.json_body import encode_tables
from service.wire.predict_proto import decode_inputs, decode_request, encode_response, read_model_spec
from tests.conftest import Clock

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
        ("m", Where(), "/v1/models/m:lookup"),
        ("a/b ü:c", Where(), "/v1/models/a%2Fb%20%C3%BC%3Ac:lookup"),
        ("m", Where(0), "/v1/models/m/versions/0:lookup"),
        ("m", Where(None, "a/b"), "/v1/models/m/labels/a%2Fb:lookup"),
    ],
)
def test_paths(model: str, at: Where, path: str) -> None:
    assert next(HttpCalls(model).lookup(IDS, (), at, "lookup")).path == path


def test_a_version_is_not_negative() -> None:
    with pytest.raises(InvalidRequest, match="version is -1"):
        next(HttpCalls("m").status(-1))


def test_a_lookup_takes_one_call() -> None:
    body = lookup_answer({"user": np.array([[0.1, np.nan]], np.float32)}, strict=False)
    arrays, calls = answer(HttpCalls("m").lookup(IDS, (), Where(), "lookup"), body, versions=[7])
    assert arrays.version == 7
    np.testing.assert_array_equal(arrays["user"], np.array([[0.1, np.nan]], np.float32), strict=True)
    assert len(calls) == 1


def test_no_rows_have_the_signatures_width() -> None:
    body = lookup_answer({"user": np.empty((0, 5), np.float32)}, strict=False)
    arrays, calls = answer(HttpCalls("m").lookup(IDS, (), Where(), "s"), body, metadata(user=("float32", (None, 5))))
    assert (arrays["user"].shape, arrays.version) == ((0, 5), None)
    assert [call.path for call in calls] == ["/v1/models/m:lookup", "/v1/models/m/metadata"]


def test_outputs_are_chosen_as_grpcs_filter_does() -> None:
    body = lookup_answer({"a": np.ones((1, 2), np.float32), "b": np.zeros((1, 2), np.float32)}, strict=False)
    described = metadata(a=("float32", (None, 2)), b=("float32", (None, 2)), c=("float32", (None, 2)))

    def chosen(*names: str) -> Any:
        return answer(HttpCalls("m").lookup(IDS, names, Where(), "s"), body, described)[0]

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


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"embeddings": 5}', b'{"embeddings": {"a": ["x"]}}'])
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


CODES = ["INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED"]


def unavailable(retry_after_s: float | None = None) -> EmbeddingError:
    """Returns an error of the one kind that is tried again."""
    return error_of("UNAVAILABLE", "no", retry_after_s)


def attempts(clock: Clock, *, timeout_s: float = 100, chance: float = 0, policy: RetryPolicy | None = None) -> Attempts:
    """Returns the attempts of one call, whose random numbers are all `chance`."""
    return Attempts(policy or RetryPolicy(3, 0.1, 0.3), timeout_s, clock, lambda: chance)


@pytest.mark.parametrize(("chance", "waits"), [(0.0, [0.1, 0.2, 0.3]), (0.5, [0.075, 0.15, 0.225])])
def test_waits_double_up_to_the_longest_and_are_cut_at_random(clock: Clock, chance: float, waits: list[float]) -> None:
    tries = attempts(clock, chance=chance)
    got = []
    for _ in waits:
        tries.start_try()
        got.append(tries.wait_s(unavailable()))
    assert got == pytest.approx(waits)


def test_after_the_last_retry_the_error_comes_out_with_its_count(clock: Clock) -> None:
    tries, last = attempts(clock), unavailable()
    for _ in range(3):
        tries.start_try()
        tries.wait_s(unavailable())
    tries.start_try()
    with pytest.raises(EmbeddingError) as caught:
        tries.wait_s(last)
    assert caught.value is last
    assert last.attempts == 4
    assert str(last) == "UNAVAILABLE: no (tried 4 times)"


@pytest.mark.parametrize("code", CODES)
def test_nothing_else_is_tried_again(clock: Clock, code: str) -> None:
    tries = attempts(clock)
    tries.start_try()
    with pytest.raises(EmbeddingError) as caught:
        tries.wait_s(error_of(code, "no"))
    assert caught.value.attempts == 1
    assert not caught.value.is_retryable


def test_no_retries_means_one_try(clock: Clock) -> None:
    tries = attempts(clock, policy=RetryPolicy(0))
    tries.start_try()
    with pytest.raises(EmbeddingError):
        tries.wait_s(unavailable())


def test_what_the_server_asks_for_goes_before_the_policy(clock: Clock) -> None:
    tries = attempts(clock)
    tries.start_try()
    assert tries.wait_s(unavailable(retry_after_s=7)) == 7


@pytest.mark.parametrize(("retry_after_s", "first_wait_s"), [(10, 0.1), (None, 10)])
def test_a_wait_that_ends_after_the_deadline_is_not_begun(
    clock: Clock, retry_after_s: float | None, first_wait_s: float
) -> None:
    tries = attempts(clock, timeout_s=10, policy=RetryPolicy(3, first_wait_s, 20))
    tries.start_try()
    with pytest.raises(EmbeddingError, match="UNAVAILABLE"):
        tries.wait_s(unavailable(retry_after_s))


def test_all_tries_share_one_deadline(clock: Clock) -> None:
    tries = attempts(clock, timeout_s=10)
    assert tries.start_try() == 10
    clock.now_s += 4
    assert tries.start_try() == 6


def test_many_retries_overflow_nothing(clock: Clock) -> None:
    tries = attempts(clock, timeout_s=1e9, policy=RetryPolicy(5000, 0.1, 2))
    for _ in range(5000):
        tries.start_try()
        assert tries.wait_s(unavailable()) <= 2


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_timeout_is_positive(clock: Clock, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        attempts(clock, timeout_s=timeout_s)


@pytest.mark.parametrize("policy", [(-1, 0.1, 1), (1, -0.1, 1), (1, 2, 1)])
def test_a_policy_makes_sense(policy: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="expected 0"):
        RetryPolicy(*policy)


def test_a_token_goes_into_the_header_of_each_wire() -> None:
    bearer = Bearer("abc.DEF-_~+/=")
    assert bearer.headers({"A": "b"}) == {"A": "b", "Authorization": "Bearer abc.DEF-_~+/="}
    assert bearer.metadata() == (("authorization", "Bearer abc.DEF-_~+/="),)


def test_a_callable_is_asked_each_time() -> None:
    tokens = iter(["a", "b"])
    bearer = Bearer(lambda: next(tokens))
    assert [bearer.value(), bearer.value()] == ["Bearer a", "Bearer b"]


def test_without_a_token_nothing_is_sent() -> None:
    headers = {"A": "b"}
    assert NO_TOKEN.headers(headers) is headers and NO_TOKEN.metadata() is None


@pytest.mark.parametrize("token", ["", "a b", "secret\r\nX-Other: 1", "s\xe9cret", "secret\n"])
def test_what_could_end_the_header_is_refused_and_not_shown(token: str) -> None:
    for make in (lambda: Bearer(token), lambda: Bearer(lambda: token).value()):
        with pytest.raises(ValueError, match="token: expected") as caught:
            make()
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="token: expected"):
        EmbeddingClient("localhost:8500", model="m", token=token)


@pytest.mark.parametrize(
    ("text", "wire", "address", "has_tls"),
    [
        ("localhost:8500", "grpc", "localhost:8500", False),
        ("grpc://10.0.0.1:8500", "grpc", "10.0.0.1:8500", False),
        ("grpcs://emb.example:443", "grpc", "emb.example:443", True),
        ("http://localhost:8501", "http", "localhost:8501", False),
        ("HTTP://localhost:8501/", "http", "localhost:8501", False),
        ("https://emb.example:8501", "http", "emb.example:8501", True),
        ("[::1]:8500", "grpc", "[::1]:8500", False),
        ("http://[::1]:8501", "http", "[::1]:8501", False),
        ("unix:/run/embedding.sock", "grpc", "unix:/run/embedding.sock", False),
    ],
)
def test_forms(text: str, wire: str, address: str, has_tls: bool) -> None:
    target = parse_target(text)
    assert (target.wire, target.address, target.tls is not None) == (wire, address, has_tls)


def test_certificates_make_tls_of_any_scheme() -> None:
    tls = Tls(ca_file="ca.pem")
    assert parse_target("localhost:8500", tls).tls is tls
    assert str(parse_target("http://localhost:8501", tls)) == "https://localhost:8501"


def test_the_host_of_an_address_in_brackets_is_bare() -> None:
    assert parse_target("http://[::1]:8501").host == "::1"


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "localhost:", "localhost:x", "localhost:99999", ":8500", "ftp://h:1", "http://h:1/v1", "h:1?a=b"]
    + ["http://user@h:1", "http://h:0"],
)
def test_what_is_no_target_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port, grpc://host:port"):
        parse_target(text)


def test_tls_needs_more_than_a_file() -> None:
    with pytest.raises(ValueError, match="Unix socket"):
        parse_target("unix:/s", Tls())
    with pytest.raises(ValueError, match="go together"):
        Tls(cert_file="a.pem")
