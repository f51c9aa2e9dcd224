"""Both clients refuse wrong arguments in the same way: targets, tokens, versions, and a library that is missing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embedding_client import AsyncEmbeddingClient, EmbeddingClient
from embedding_client.bearer import NO_TOKEN, Bearer
from embedding_client.errors import InvalidRequest
from embedding_client.methods import Methods
from embedding_client.targets import Tls, parse_target
from embedding_client.tensor_proto import float_dtype
from embedding_client.types import Outputs

METHODS = Methods("h:1", "m", None, None)
ONE: dict[str, Any] = {"version": None, "label": None, "signature": "lookup", "outputs": None}


def test_where_each_method_goes() -> None:
    assert Methods("h:1", "m", None, None).tables_target is None
    assert Methods("http://h:1", "m", None, None).tables_target is None
    methods = Methods("h:1", "m", None, "http://h:2")
    assert (str(methods.target), str(methods.tables_target)) == ("h:1", "http://h:2")


@pytest.mark.parametrize(
    ("target", "model", "http_target", "problem"),
    [
        ("h:1", "", None, "model is empty"),
        ("h:1", "m", "h:2", "expected http://host:port"),
        ("http://h:1", "m", "http://h:2", "speaks HTTP itself"),
    ],
)
def test_arguments_of_the_constructor(target: str, model: str, http_target: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Methods(target, model, None, http_target)


BITS = {"float16": [0x3C00, 0x7C00, 0x7E00], "bfloat16": [0x3F80, 0x4780, 0x7FC0]}


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("target", ["h:1", "http://h:1"])
def test_the_client_rounds_what_the_server_has_not(target: str, name: str) -> None:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    flow = Methods(target, "m", None, None, name).lookup({"user": [1]}, None, **ONE)
    call = next(flow)
    assert call.metadata == ((("x-tensor-encoding", name),) if target == "h:1" else ())
    asked = json.loads((call.body or b"")[: call.json_length])["parameters"] if target != "h:1" else {}
    assert asked.get("output_datatype") == {"float16": "FP16", "bfloat16": "BF16"}[name] or target == "h:1"
    half = np.ones(2, float_dtype(name))
    sent = {"x": np.array([1, 65520, np.nan], np.float32), "half": half, "exact": np.float64([1 / 3])}
    with pytest.raises(StopIteration) as end:
        flow.send(Outputs(sent, version=7))
    found = end.value.value
    assert (found.version, found["half"] is half, found["exact"] is sent["exact"]) == (7, True, True)
    assert (found["x"].dtype, found["x"].view(np.uint16).tolist()) == (half.dtype, BITS[name])


def test_a_client_asks_for_float32_by_default() -> None:
    call = next(METHODS.lookup({"user": [1]}, None, **ONE))
    assert call.metadata == ()
    call = next(Methods("http://h:1", "m", None, None).lookup({"user": [1]}, None, **ONE))
    assert "output_datatype" not in json.loads((call.body or b"")[: call.json_length])["parameters"]
    with pytest.raises(ValueError, match="float_dtype is 'int8': expected float32, float16 or bfloat16"):
        Methods("h:1", "m", None, None, "int8")


def test_a_version_or_a_label() -> None:
    with pytest.raises(InvalidRequest, match="version 1 and label 'stable' were both given"):
        METHODS.lookup({"user": [1]}, None, **ONE | {"version": 1, "label": "stable"})
    with pytest.raises(InvalidRequest, match="version is 'stable': expected an integer; a name such as 'stable' is a "):
        METHODS.lookup({"user": [1]}, None, **ONE | {"version": "stable"})


def test_outputs_are_a_list() -> None:
    with pytest.raises(InvalidRequest, match="expected a list of names, got the string 'user'"):
        METHODS.predict({"user": [1]}, **ONE | {"outputs": "user"})


@pytest.mark.parametrize("ids", [5, [[1]], ["a"], [1.5], np.zeros((1, 1), int)])
def test_rows_take_a_list_of_ids(ids: Any) -> None:
    with pytest.raises(InvalidRequest, match="ids: expected a list or an array of integers"):
        METHODS.rows("t", ids, version=None, label=None)


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


def test_a_token_goes_into_the_header_of_each_wire() -> None:
    bearer = Bearer("abc.DEF-_~+/=")
    assert bearer.headers({"A": "b"}) == {"A": "b", "Authorization": "Bearer abc.DEF-_~+/="}
    assert bearer.metadata((("a", "b"),)) == (("a", "b"), ("authorization", "Bearer abc.DEF-_~+/="))


def test_a_callable_is_asked_each_time() -> None:
    tokens = iter(["a", "b"])
    bearer = Bearer(lambda: next(tokens))
    assert [bearer.value(), bearer.value()] == ["Bearer a", "Bearer b"]


def test_without_a_token_nothing_is_sent() -> None:
    headers = {"A": "b"}
    assert NO_TOKEN.headers(headers) is headers and NO_TOKEN.metadata() == ()


def test_a_token_of_another_type_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match=r"^token is of type bytes: expected a string, or a function that returns it$"):
        EmbeddingClient("localhost:8500", model="m", token=b"secret")  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["", "a b", "secret\r\nX-Other: 1", "s\xe9cret", "secret\n"])
def test_what_could_end_the_header_is_refused_and_not_shown(token: str) -> None:
    for make in (lambda: Bearer(token), lambda: Bearer(lambda: token).value()):
        with pytest.raises(ValueError, match="token: expected") as caught:
            make()
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="token: expected .*; strip"):
        EmbeddingClient("localhost:8500", model="m", token=token)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Returns a function that makes a library fail to import, so that the module that needs it is imported anew."""

    def make(library: str, module: str) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, f"embedding_client.{module}", raising=False)

    return make


def test_without_grpcio_it_says_what_to_install(without: Callable[[str, str], None]) -> None:
    without("grpc", "grpc_transport")
    with pytest.raises(ImportError, match="pip install grpcio"):
        EmbeddingClient("localhost:8500", model="m")
    with EmbeddingClient("http://localhost:8501", model="m"):
        pass


def test_without_httpx_it_says_what_to_install(without: Callable[[str, str], None]) -> None:
    without("httpx", "http_async")
    client = AsyncEmbeddingClient("http://localhost:8501", model="m")
    with pytest.raises(ImportError, match="pip install httpx"):
        asyncio.run(client.status())
    with EmbeddingClient("http://localhost:8501", model="m"):
        pass
