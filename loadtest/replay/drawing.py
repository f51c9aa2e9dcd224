"""Yields the requests of a corpus: random ones of each form, valid and with faults of each kind, and hand-written ones.

Random request number i of a form depends only on the seed, the form, i and the models.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import numpy as np
from google.protobuf import json_format

from loadtest.fuzz.mutations import mutated, mutated_binary, mutated_json
from loadtest.model_samples import DTYPES, ServedModel, Signature
from loadtest.replay.requests import BINARY_HEADER, Request, of_call
from loadtest.wire import framed, message_class
from tests.conformance import contract_calls, test_data_planes, test_tfs_contract
from tests.conformance.oip_wires import INFER, OipGrpcWire, OipHttpWire
from tests.conformance.random_calls import Array, Call, Drawn, RandomCalls, encoded, spoil
from tests.conformance.wires import GrpcWire, HttpWire, takes
from tests.conformance.wires import Request as LookupRequest

Dress = Callable[[Request], Request]

_ANY_HEADERS = (
    ("authorization", "Bearer token"),
    *(("x-request-id", value) for value in ("given-by-the-client", "not a valid id \t", "x" * 300)),
    *(("traceparent", value) for value in ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0-0-0")),
    *(("tracestate", "vendor=value"), ("baggage", "a=b"), ("user-agent", "curl/8.5.0")),
    *(("x-tensor-encoding", value) for value in ("content", "bfloat16", "nothing")),
    *(("x-forwarded-for", "10.0.0.1, 10.0.0.2"), ("accept", "text/plain"), ("accept-language", "de")),
    *(("cookie", "a=b; c=d"), ("x-unknown", "\u00e9"), ("cache-control", "no-cache")),
)
_HTTP_HEADERS = (
    *(("content-type", value) for value in ("application/json", "text/plain", "application/json; charset=latin-1", "")),
    ("content-type", "application/octet-stream"),
    *(("accept-encoding", value) for value in ("gzip", "br, gzip;q=0.5", "gzip;q=0", "identity", "*", "deflate", "")),
    *(("content-encoding", value) for value in ("gzip", "br", "identity", "GZIP", "gzip, gzip", "deflate", "")),
    *(("expect", "100-continue"), ("expect", "200-ok"), ("connection", "close"), ("host", "example.org")),
    *(("origin", "https://example.org"), ("if-none-match", "*"), ("range", "bytes=0-3")),
    *((BINARY_HEADER, value) for value in ("0", "1", "-1", "x", "99999999", "")),
)
_GRPC_HEADERS = (
    *(("grpc-encoding", value) for value in ("identity", "gzip", "deflate", "snappy")),
    *(("grpc-accept-encoding", value) for value in ("gzip", "identity,gzip", "deflate", "nothing")),
    *(("grpc-timeout", value) for value in ("1H", "999999999S", "x", "-1S", "1", "123456789S")),
    *(("content-type", value) for value in ("application/grpc+proto", "application/grpc-web", "application/json", "")),
    *(("te", ""), ("binary-bin", "AAEC"), ("binary-bin", "***"), ("grpc-previous-rpc-attempts", "1")),
)
_METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
_PATHS: tuple[Callable[[str], str], ...] = (
    lambda path: path + "?pretty=true",
    lambda path: path + "/",
    lambda path: path + "x",
    lambda path: path.replace("/models", "//models", 1),
    lambda path: path.replace("/v1", "/v3", 1),
    lambda path: path.upper(),
    lambda path: path.replace("e", "%65", 1),
    lambda path: path.replace(":", "%3A"),
    lambda path: path + "%00",
    lambda path: path.replace("/models/", "/models/%C3%A9", 1),
    lambda path: path.replace("/models/", "/models/../models/", 1),
)


def dresses(form: str) -> Iterator[tuple[str, Dress]]:
    is_grpc = form.startswith("grpc")
    for name, value in _ANY_HEADERS + (_GRPC_HEADERS if is_grpc else _HTTP_HEADERS):
        if not (is_grpc and name == "accept" or value == "\u00e9" and is_grpc):
            yield f"{name}: {value[:40]}", lambda request, name=name, value=value: _with(request, (name, value))
    if is_grpc:
        yield from _framings()
        return
    for method in _METHODS:
        yield method, lambda request, method=method: replace(request, method=method)
    for number, change in enumerate(_PATHS):
        yield f"path {number}", lambda request, change=change: replace(request, path=change(request.path))
    yield "gzip body", _zipped
    yield "gzip body and answer", lambda request: _with(_zipped(request), ("accept-encoding", "gzip"))
    yield "gzip body twice", lambda request: _with(_zipped(_zipped(request)), ("content-encoding", "gzip, gzip"))
    yield "half a gzip body", lambda request: _cut(_zipped(request))
    yield "more after a gzip body", lambda request: replace(_zipped(request), body=_zipped(request).body + b"more")
    space = gzip.compress(b" ", mtime=0)
    yield "two gzip members", lambda request: replace(_zipped(request), body=space + _zipped(request).body)
    yield "gzip bomb", lambda request: replace(_zipped(request), body=gzip.compress(bytes(1 << 24), mtime=0))
    yield "chunked", _chunked
    yield "no body", lambda request: replace(request, body=b"")
    yield "too large", lambda request: replace(request, body=request.body + b" " * (1 << 18))
    yield "byte order mark", lambda request: replace(request, body=b"\xef\xbb\xbf" + request.body)
    yield "many headers", lambda request: _with(request, *((f"x-{i}", "y" * 50) for i in range(60)))


def _framings() -> Iterator[tuple[str, Dress]]:
    yield "gzip message", _zipped_message
    yield "gzip message and answer", lambda request: _with(_zipped_message(request), ("grpc-accept-encoding", "gzip"))
    yield "compressed flag without a coding", lambda request: replace(_zipped_message(request), headers=request.headers)
    yield "half a gzip message", lambda request: _zipped_message(request, left_out=9)
    yield "gzip bomb", lambda request: _zipped_message(replace(request, body=bytes((1 << 24) + 5)))
    yield "two messages", lambda request: replace(request, body=request.body * 2)
    yield "no message", lambda request: replace(request, body=b"")
    yield "empty message", lambda request: replace(request, body=framed(b""))
    yield "half a prefix", lambda request: replace(request, body=request.body[:3])
    yield "half a message", _cut
    yield "flag 2", lambda request: replace(request, body=framed(request.body[5:], 2))
    yield "more after the message", lambda request: replace(request, body=request.body + b"mor")
    yield "too large", lambda request: replace(request, body=framed(bytes(1 << 18)))
    yield "unknown method", lambda request: replace(request, path=request.path + "x")
    yield "unknown service", lambda request: replace(request, path="/no.Service/Call")
    yield "path without a method", lambda request: replace(request, path="/nothing")


def _with(request: Request, *more: tuple[str, str]) -> Request:
    names = {name.lower() for name, _ in more}
    kept = tuple(pair for pair in request.headers if pair[0].lower() not in names)
    return replace(request, headers=kept + more)


def _zipped(request: Request) -> Request:
    return _with(replace(request, body=gzip.compress(request.body, mtime=0)), ("content-encoding", "gzip"))


def _zipped_message(request: Request, left_out: int = 0) -> Request:
    data = gzip.compress(request.body[5:], mtime=0)
    body = framed(data[: len(data) - left_out], 1)
    return _with(replace(request, body=body), ("grpc-encoding", "gzip"))


def _cut(request: Request) -> Request:
    return replace(request, body=request.body[: len(request.body) // 2])


def _chunked(request: Request) -> Request:
    halves = [half for half in (request.body[:10], request.body[10:]) if half]
    body = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in [*halves, b""])
    return _with(replace(request, body=body), ("Transfer-Encoding", "chunked"))


_CASES = Path(contract_calls.__file__).parent / "cases"
_DEPTHS, _DIGITS = (8, 9, 17, 64, 65, 200, 1025, 40_000), (18, 19, 20, 309, 2000)
# Methods of gRPC and HTTP whose requests no data route answers: they are control requests.
_CONTROL = ("GetModelStatus", "GetModelMetadata", "HandleReloadConfigRequest")


class _Caught(Exception):
    """Ends a client's call before it is sent; holds the call's bytes."""

    def __init__(self, call: Call, method: str) -> None:
        super().__init__(call, method)
        self.call, self.method = call, method


class Catcher:
    """Stands in for a gRPC channel and for an HTTP client; a call raises _Caught."""

    def unary_unary(self, path: str) -> Callable[..., NoReturn]:

        def call(body: bytes, *, timeout: float = 0, metadata: Any = ()) -> NoReturn:
            raise _Caught(Call("", True, path, body, tuple(metadata)), "GRPC")

        return call

    def exchange(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> NoReturn:
        raise _Caught(Call("", False, path, body, tuple((headers or {}).items())), method)

    def post(self, path: str, body: str) -> NoReturn:
        self.exchange("POST", path, body.encode())


def caught(name: str, send: Callable[[Any], object]) -> Request:
    """Returns the request that a function sends over the channel or client which it is given."""
    try:
        send(Catcher())
    except _Caught as found:
        return of_call(found.call, name, found.method)
    raise AssertionError(f"{name} sent nothing")


def case_request(name: str, case: Mapping[str, Any], wire: str) -> Request:
    if wire.startswith("grpc"):
        return caught(name, lambda to: contract_calls.send_grpc(to, case, as_content=wire == "grpc content"))
    return caught(name, lambda to: contract_calls.send_rest(to, case, wire))


def written() -> Iterator[Request]:
    """Yields all hand-written requests to data routes, each once."""
    seen: set[tuple[object, ...]] = set()
    for request in (*_contract(), *_lookups(), *_exact(), *_bounds()):
        is_control = request.path.endswith(_CONTROL) or request.path.endswith("/metadata")
        if request.method == "GET" and not request.path.rpartition("/")[2].count(":"):
            continue
        content = (request.method, request.path, request.headers, request.body)
        if not is_control and content not in seen:
            seen.add(content)
            yield request


def _read(name: str) -> list[Any]:
    found: list[Any] = json.loads((_CASES / f"{name}.json").read_text())
    return found


def _contract() -> Iterator[Request]:
    for case in _read("contract"):
        for wire in contract_calls.wires_of(case):
            yield case_request(f"{case['name']}, {wire}", case, wire)


def _lookups() -> Iterator[Request]:
    kinds: dict[str, Callable[[Any], Any]] = {
        "http :lookup": lambda to: HttpWire(to, "lookup"),
        "http columns": lambda to: HttpWire(to, "columns"),
        "http rows": lambda to: HttpWire(to, "rows"),
        "grpc": GrpcWire,
        "oip json": lambda to: OipHttpWire(to, is_binary=False),
        "oip binary": lambda to: OipHttpWire(to, is_binary=True),
        "oip grpc": lambda to: OipGrpcWire(to, is_raw=True),
        "oip grpc contents": lambda to: OipGrpcWire(to, is_raw=False),
    }
    for case in (*_read("lookups"), *_read("policies")):
        request = LookupRequest(**case["request"])
        for wire, kind in kinds.items():
            if takes(wire, request):
                yield caught(f"{case['name']}, {wire}", lambda to, kind=kind, request=request: kind(to).send(request))


def _exact() -> Iterator[Request]:
    for case in (*_read("contract_rest"), *_read("tfs_contract")):
        if "rpc" in case:
            service, method = case["rpc"].split("/")
            if method not in _CONTROL:
                message = json_format.ParseDict(case["message"], test_tfs_contract.request_class(method)())
                path = f"/tensorflow.serving.{service}/{method}"
                yield of_call(Call("", True, path, message.SerializeToString(deterministic=True)), case["name"])
            continue
        body = case.get("body", "")
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        call = Call("", False, case["path"], data, tuple(case.get("headers", {}).items()))
        yield of_call(call, case["name"], case["method"])


def _bounds() -> Iterator[Request]:
    for documents, sizes in ((test_data_planes.depth, _DEPTHS), (test_data_planes.digits, _DIGITS)):
        for size in sizes:
            for number, (path, body) in enumerate(documents(size)):
                yield of_call(Call("", False, path, body), f"{documents.__name__} {size}, document {number}")


_CALLS = {
    **{"grpc_classify": "classify", "rest_classify": "classify", "grpc_regress": "regress"},
    **{"rest_regress": "regress", "grpc_multi_inference": "multi"},
}
# Shares of the requests that ask for another model, version or signature, that are mutated, and that are dressed.
_MISDIRECTED, _MUTATED, _DRESSED = 0.12, 0.25, 0.3
_ROWS = (0, 1, 1, 1, 2, 3, 17)
_EDGES = (-1, 60, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-3, 3.4e38, 1e-40, float("nan"), float("inf"))
_TEXTS = (b"red", b"key 1", b"", "gr\u00fcn".encode(), b"no such word", b"\xff\x00", b'a "quoted"\\ one')
_SIGNATURES = ("regress_flat", "classes", "regress_wide", "regress_once", "classify_uneven", "two", "nope", "")
_VERSIONS = (0, 9, -1, 2**63 - 1, 2)
_MANIFEST = Path("assets.extra/lookup_manifest.json")
# Inputs of model "described" whose shape is [B, K] -> K; 0: any K.
_IDS_PER_ROW = {"any": 0, "two": 2}


class Drawing:
    """Source of random requests.

    Args:
      artifacts: folder with MODEL/1 of each model.
    """

    def __init__(self, models: Sequence[ServedModel], artifacts: Path, seed: int) -> None:
        self._models, self._seed = models, seed
        versions = [(model.name, artifacts / model.name / "1") for model in models]
        calls = [
            RandomCalls(name, version, _IDS_PER_ROW) for name, version in versions if (version / _MANIFEST).exists()
        ]
        self._lookups = [found for found in calls if found.lookups]
        self._signatures = [
            (model, signature)
            for model in models
            for signature in model.predicted()
            if all(dtype in DTYPES for dtype, _ in signature.inputs.values())
        ]

    def draw(self, form: str, number: int) -> Request:
        rng = Random(f"{self._seed} {form} {number}")
        request = replace(self._plain(rng, form), name=f"random {number}")
        if rng.random() < _MISDIRECTED:
            request = _misdirected(rng, request)
        if rng.random() < _MUTATED:
            request = _mutated(rng, request)
        if rng.random() < _DRESSED:
            name, dress = rng.choice(list(dresses(form)))
            request = replace(dress(request), name=f"{request.name}, {name}")
        return request

    def dressed(self, form: str) -> Iterator[Request]:
        """Yields a valid request of a form once with each dress."""
        rng = Random(f"{self._seed} {form}")
        plain = next(request for _ in range(100) if b"nope" not in (request := self._plain(rng, form)).body)
        for name, dress in dresses(form):
            yield replace(dress(plain), name=f"plain, {name}")

    def _plain(self, rng: Random, form: str) -> Request:
        if form in _CALLS:
            return _inference(rng, form, _CALLS[form])
        if form == "rows":
            return self._rows(rng)
        while True:
            if form == "lookup" or self._lookups and rng.random() < 0.5:
                calls = rng.choice(self._lookups).draw(rng)
            else:
                calls = encoded(rng, _drawn(rng, *rng.choice(self._signatures)))
            found = [request for request in (of_call(call, "") for call in calls) if request.form == form]
            if found:
                return rng.choice(found)

    def _rows(self, rng: Random) -> Request:
        model = rng.choice([model for model in self._models if model.tables])
        table = rng.choice([*model.tables, *model.tables, "nope"])
        ids: list[Any] = [_id(rng) for _ in range(rng.choice((0, 1, 2, 5, 40)))]
        if rng.random() < 0.15:
            ids.append(rng.choice((None, True, 1.5, "red", [1], {}, 1e3)))
        more = {rng.choice(("signature_name", "weights", "x")): 1} if rng.random() < 0.05 else {}
        version = rng.choice(("", "", "/versions/1"))
        body = json.dumps({rng.choice(("ids",) * 19 + ("id",)): ids} | more).encode()
        return of_call(Call("", False, f"/v1/models/{model.name}{version}/tables/{table}:rows", body), "")


def _id(rng: Random) -> int:
    return rng.choice(_EDGES) if rng.random() < 0.02 else rng.randrange(4)


def _values(rng: Random, dtype: str, sizes: Sequence[int]) -> Array:
    count = int(np.prod(sizes))
    kind = DTYPES[dtype]
    if kind == "object":
        return np.array([*(rng.choice(_TEXTS) for _ in range(count)), None], object)[:-1].reshape(sizes)
    if kind.startswith("float"):
        with np.errstate(over="ignore"):
            return np.array([rng.choice(_FLOATS) for _ in range(count)], kind).reshape(sizes)
    return np.array([_id(rng) for _ in range(count)], np.int64).astype(kind).reshape(sizes)


def _drawn(rng: Random, model: ServedModel, signature: Signature) -> Drawn:
    rows = rng.choice(_ROWS)
    splits = [name for name in signature.inputs if name.endswith("_splits")]
    # In the order of the signature: that of a set differs between processes.
    ragged = [name.removesuffix("__row_splits").removesuffix("_splits") for name in splits]
    lengths = {name: [rng.choice((0, 1, 2, 5)) for _ in range(rows)] for name in ragged}
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in signature.inputs.items():
        sizes = [size if size >= 0 else (rng.choice((1, 2, 3)) if at else rows) for at, size in enumerate(shape)]
        feature = next((feature for feature in ragged if name.startswith(f"{feature}_")), None)
        if feature is not None and name.endswith("_splits"):
            arrays[name] = np.cumsum([0, *lengths[feature]]).astype(DTYPES[dtype])
            continue
        if feature is not None:
            sizes = [sum(lengths[feature])]
        arrays[name] = _values(rng, dtype, sizes or rng.choice(([], [rows], [rows, 2])))
    if rng.random() < 0.15:
        # A number that is not finite has no integer.
        with np.errstate(invalid="ignore"):
            spoil(rng, arrays)
    nested = {name: _as_json(rng, array) for name, array in arrays.items()}
    return Drawn(model.name, signature.name, arrays, nested, {}, [])


def _as_json(rng: Random, array: Array) -> Any:
    """Converts an array to JSON lists; strings that are no UTF-8, and some others, become {"b64": ...}."""
    if array.dtype != object:
        return array.tolist()

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(item) for item in value]
        try:
            if rng.random() < 0.9:
                return value.decode()
        except UnicodeDecodeError:
            pass
        return {"b64": base64.b64encode(value).decode()}

    return text(array.tolist())


def _inference(rng: Random, form: str, call: str) -> Request:
    """Draws a request to classify or regress tf.Examples by model "half"; some name a wrong signature."""
    examples = [_example(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 5)))]
    signature = call if rng.random() < 0.7 else rng.choice(("scores", *_SIGNATURES))
    case: dict[str, Any] = {"call": call, "spec": {"name": "half", "signature": signature}, "examples": examples}
    if rng.random() < 0.2:
        case["context"] = _example(rng)
    if call == "multi":
        case["tasks"] = [
            {
                "method": method if rng.random() < 0.95 else "predict",
                "spec": {"name": "half", "signature": method if rng.random() < 0.9 else rng.choice(_SIGNATURES)},
            }
            for method in rng.choices(("classify", "regress"), k=rng.choice((0, 1, 2, 2, 3)))
        ]
    return case_request("", case, "grpc" if form.startswith("grpc") else "rest")


def _example(rng: Random) -> dict[str, Any]:
    values: dict[str, Any] = {"s": "text", "ids": [1, 2, 3]}
    example = {name: value for name, value in values.items() if rng.random() < 0.2}
    if rng.random() < 0.95:
        choices: tuple[Any, ...] = (2.0, 0.5, -1.0, 1e30) if rng.random() < 0.9 else (2, "text", [1.0, 2.0], [])
        example["x"] = rng.choice(choices)
    return example


def _misdirected(rng: Random, request: Request) -> Request:
    if request.is_grpc:
        return _misdirected_grpc(rng, request)
    if rng.random() < 0.3 and b'"signature_name"' in request.body:
        name = rng.choice(("nope", "", "serving_default", "lookup", "\u00e9"))
        body = re.sub(rb'"signature_name": ?"[^"]*"', f'"signature_name": "{name}"'.encode(), request.body, count=1)
        return replace(request, body=body)
    path = re.sub("/(versions|labels)/[^/:]*", "", request.path)
    model = rng.choice(("toy", "half", "nope", "", "toy%20", "a" * 300, "%E9"))
    version = rng.choice(("stable", "nope", "", *map(str, _VERSIONS), "0002", "1.0", "x", "+1", "9" * 30))
    changed = rng.choice((f"/models/{model}", rf"\1/versions/{version}", rf"\1/labels/{version}"))
    return replace(request, path=re.sub("(/models/[^/:]*)", changed, path))


def _misdirected_grpc(rng: Random, request: Request) -> Request:
    if request.path == INFER:
        message = message_class("inference.ModelInferRequest").FromString(request.body[5:])
        if rng.random() < 0.5:
            message.model_name = rng.choice(("toy", "half", "nope", ""))
        elif rng.random() < 0.5:
            message.model_version = rng.choice(("1", "2", "9", "x", "-1", "stable", "9" * 30))
        else:
            message.parameters["signature_name"].string_param = rng.choice(("nope", "", "serving_default"))
        return replace(request, body=framed(message.SerializeToString(deterministic=True)))
    names = {"Predict": "PredictRequest", "Classify": "ClassificationRequest", "Regress": "RegressionRequest"}
    method = request.path.rpartition("/")[2]
    kind = message_class(f"tensorflow.serving.{names.get(method, 'MultiInferenceRequest')}")
    message = kind.FromString(request.body[5:])
    tasks = message.tasks if method == "MultiInference" else [message]
    for spec in (task.model_spec for task in tasks):
        which = rng.randrange(4)
        if which == 0:
            spec.name = rng.choice(("toy", "half", "nope", "", "a" * 300))
        elif which == 1:
            spec.version.value = rng.choice(_VERSIONS)
        elif which == 2:
            spec.version_label = rng.choice(("stable", "nope", ""))
        else:
            spec.signature_name = rng.choice(("nope", "", "serving_default", "lookup", "\u00e9"))
    return replace(request, body=framed(message.SerializeToString(deterministic=True)))


def _mutated(rng: Random, request: Request) -> Request:
    if request.is_grpc:
        return replace(request, body=framed(mutated(rng, [request.body[5:]])))
    length = dict(request.headers).get(BINARY_HEADER)
    if length is not None:
        head, tensors = mutated_binary(rng, request.body[: int(length)], request.body[int(length) :])
        return replace(request, body=head + tensors, headers=((BINARY_HEADER, str(len(head))),))
    try:
        document = json.loads(request.body)
    except ValueError:
        return request
    body, headers = mutated_json(rng, [document])
    return replace(request, body=body, headers=(*request.headers, *headers.items()))
