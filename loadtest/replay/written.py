"""Collects the requests that people wrote: the tables of cases of the conformance tests, and bounds of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf import json_format

from loadtest.replay.requests import Request, of_call
from tests.conformance import contract_calls, test_data_planes, test_tfs_contract
from tests.conformance.oip_wires import OipGrpcWire, OipHttpWire
from tests.conformance.random_calls import Call
from tests.conformance.wires import GrpcWire, HttpWire, takes
from tests.conformance.wires import Request as LookupRequest

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
        """Returns a function that catches a gRPC request."""

        def call(body: bytes, *, timeout: float = 0, metadata: Any = ()) -> NoReturn:
            raise _Caught(Call("", True, path, body, tuple(metadata)), "GRPC")

        return call

    def exchange(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> NoReturn:
        """Catches an HTTP request."""
        raise _Caught(Call("", False, path, body, tuple((headers or {}).items())), method)

    def post(self, path: str, body: str) -> NoReturn:
        """Catches an HTTP POST of a text."""
        self.exchange("POST", path, body.encode())


def caught(name: str, send: Callable[[Any], object]) -> Request:
    """Returns the request that a function sends over the channel or client which it is given."""
    try:
        send(Catcher())
    except _Caught as found:
        return of_call(found.call, name, found.method)
    raise AssertionError(f"{name} sent nothing")


def case_request(name: str, case: Mapping[str, Any], wire: str) -> Request:
    """Returns the request of a case of the contract's table over one of its wires."""
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
