"""The native core and the Python data plane send the same bytes: random calls of every wire to both, side by side.

`--parity-requests N` draws N requests of each model, each for every wire (default 200).
"""

from __future__ import annotations

import http.client
import importlib.util
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.wire.json_body import MAX_KEYS, MAX_LISTS
from tests.conformance.random_calls import Call, RandomCalls
from tests.integration.process import ServerProcess
from tests.toy_described import write_described_model
from tests.toy_model import write_toy_model
from tests.toy_policies import write_policy_model

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("service._native") is None, reason="the native core is not built here (no cargo)"
)

# Caller -> the pattern of model names, and the right on them. Only "exact" may run model "toy".
_CALLERS = {
    "exact": ("toy", "predict"),
    "prefix": ("policies*", "predict"),
    "reader": ("*", "metadata"),
}
# Input of model "described" with shape [B, K] -> K, or 0 if K is free.
_IDS_PER_ROW = {"any": 0, "two": 2}
_MODELS = {"toy": write_toy_model, "policies": write_policy_model, "described": write_described_model}
# Headers that differ between two answers to the same request, so they are not compared.
_OWN_HEADERS = {"date", "x-request-id", "server", "connection", "keep-alive"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder with one version of each toy model, and a config file that lists the models."""
    folder = tmp_path_factory.mktemp("planes")
    configs = []
    for name, write in _MODELS.items():
        write(folder / name / "1")
        configs.append(f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}')
    (folder / "models.config").write_text(f"model_config_list {{ {' '.join(configs)} }}")
    (folder / "auth.toml").write_text("".join(_caller(name, *given) for name, given in _CALLERS.items()))
    return folder


@pytest.fixture(scope="module")
def planes(repository: Path) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server of each data plane over the same models."""
    with ExitStack() as stack:
        servers = {
            plane: stack.enter_context(
                ServerProcess(data_plane=plane, model_config_file=repository / "models.config", graph_signatures="off")
            )
            for plane in ("native", "python")
        }
        for server in servers.values():
            server.ready()
        yield servers


@pytest.fixture(scope="module")
def guarded_planes(repository: Path) -> Iterator[dict[str, ServerProcess]]:
    """Starts the servers of both data planes with --auth_config."""
    with ExitStack() as stack:
        servers = {
            plane: stack.enter_context(
                ServerProcess(
                    data_plane=plane,
                    model_config_file=repository / "models.config",
                    auth_config=repository / "auth.toml",
                    graph_signatures="off",
                )
            )
            for plane in ("native", "python")
        }
        for server in servers.values():
            server.ready()
        yield servers


class Answers:
    """Sends calls to one server and returns what came back, as bytes.

    authorization: sent with each call; "" is not.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.authorization = ""
        self._channel = server.channel
        self._http = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def close(self) -> None:
        """Ends the HTTP connection."""
        self._http.close()

    def to(self, call: Call) -> tuple[Any, bytes]:
        """Sends a call; returns the status and the body, over HTTP with the headers."""
        if call.is_grpc:
            try:
                metadata = [("authorization", self.authorization)] if self.authorization else []
                return "OK", self._channel.unary_unary(call.path)(call.body, timeout=60, metadata=metadata)
            except grpc.RpcError as error:
                # The text of the error is not compared: of several faults, the order of a protobuf map decides which
                # one is reported, and it differs between processes.
                return error.code().name, b""
        more = {"authorization": self.authorization} if self.authorization else {}
        self._http.request("POST", call.path, call.body, dict(call.headers) | more)
        response = self._http.getresponse()
        headers = sorted(
            (name.lower(), value) for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS
        )
        return (response.status, *headers), response.read()


@pytest.mark.parametrize("model", list(_MODELS))
def test_both_planes_send_the_same_bytes(
    model: str, planes: dict[str, ServerProcess], repository: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(f"planes of {model}")
    calls = RandomCalls(model, repository / model / "1", _IDS_PER_ROW)
    answered: Counter[str] = Counter()
    with (
        closing(Answers(planes["native"])) as native,
        closing(Answers(planes["python"])) as reference,
    ):
        for _ in range(request.config.getoption("--parity-requests")):
            for call in calls.draw(rng):
                expected, found = reference.to(call), native.to(call)
                # test_refusals.py compares the texts of errors: of several faults in one request, the planes tell that
                # of another input.
                assert without_text(found) == without_text(expected), (call, found, expected)
                answered[call.wire] += expected[0] == "OK" or str(expected[0]).startswith("(200")
    # For each wire, at least one of the compared answers is not a refusal.
    assert min(answered.values()) > 0, answered


def without_text(answer: tuple[Any, bytes]) -> tuple[Any, bytes]:
    """Returns an answer without the text of its error."""
    head, body = answer
    if head == "OK" or not isinstance(head, tuple) or head[0] == 200:
        return head, body
    return (head[0], *(one for one in head[1:] if one[0] != "content-length")), b""


_LOOKUP, _PREDICT, _INFER = "/v1/models/toy:lookup", "/v1/models/toy:predict", "/v2/models/toy/infer"
_ROWS = "/v1/models/toy/tables/user:rows"


def keys(count: int) -> Iterator[tuple[str, bytes]]:
    """Yields for each form of request a document with `count` keys; colons in strings count as keys."""
    rows = b",".join([b'{"user":1}'] * (count - 2))
    yield _PREDICT, b'{"signature_name":"lookup","instances":[%s]}' % rows
    inputs = b'[{"name":"user","datatype":"INT64","shape":[1],"data":[1]}]'
    yield _INFER, b'{"id":"%s","parameters":{"signature_name":"lookup"},"inputs":%s}' % (b":" * (count - 8), inputs)
    # Lookups and rows can not have so many valid keys, so these documents are refused.
    yield _LOOKUP, b'{"signature_name":"%s","features":{"user":[1]}}' % (b":" * (count - 3))
    yield _ROWS, b'{"ids":["%s"]}' % (b":" * (count - 1))


def lists(count: int) -> Iterator[tuple[str, bytes]]:
    """Yields, for each form of request, a document with `count` lists and objects."""
    yield _LOOKUP, b'{"features":{"tags":[%s]}}' % b",".join([b"[1]"] * (count - 3))
    yield _PREDICT, b'{"signature_name":"lookup","inputs":{"user":[1],"tags":[[1]%s]}}' % (b",[]" * (count - 5))
    rows = b",".join([b"[1]"] * (count - 6))
    inputs = b'[{"name":"user","datatype":"INT64","shape":[%d],"data":[%s]}]' % (count - 6, rows)
    yield _INFER, b'{"parameters":{"signature_name":"lookup"},"inputs":%s}' % inputs
    # The route for rows of a table accepts no nested lists, so it refuses this document.
    yield _ROWS, b'{"ids":[%s]}' % b",".join([b"[1]"] * (count - 2))


def depth(levels: int) -> Iterator[tuple[str, bytes]]:
    """Yields, for each JSON form of a request, its route and a document with lists nested `levels` deep."""
    deep = b"[" * levels + b"1" + b"]" * levels
    yield _LOOKUP, b'{"features":{"tags":%s}}' % deep
    yield _PREDICT, b'{"signature_name":"lookup","inputs":{"tags":%s}}' % deep
    for head in (b'"datatype":"INT64","data":%s', b'"data":%s,"datatype":"INT64"'):
        tensor = b'{"name":"user","shape":[1],%s}' % (head % deep)
        yield _INFER, b'{"parameters":{"signature_name":"lookup"},"inputs":[%s]}' % tensor
    yield _ROWS, b'{"ids":%s}' % deep


def digits(count: int) -> Iterator[tuple[str, bytes]]:
    """Yields, for each form of request, documents with numbers of `count` digits."""
    for number in (b"1" * count, b"-" + b"1" * count, b"1." + b"0" * count, b"0." + b"1" * count, b"1e" + b"1" * count):
        yield _LOOKUP, b'{"features":{"user":[%s]}}' % number
        yield _LOOKUP, b'{"features":{"tags":[[1]]},"weights":{"tags":[[%s]]}}' % number
        yield _PREDICT, b'{"signature_name":"lookup","inputs":{"user":[%s]}}' % number
        inputs = b'[{"name":"user","datatype":"INT64","shape":[1],"data":[%s]}]' % number
        yield _INFER, b'{"parameters":{"signature_name":"lookup"},"inputs":%s}' % inputs
        yield _ROWS, b'{"ids":[%s]}' % number


@pytest.mark.parametrize(
    ("documents", "size", "statuses"),
    [
        *((keys, MAX_KEYS + more, {200, 400}) for more in (-1, 0)),
        (keys, MAX_KEYS + 1, {413}),
        *((lists, MAX_LISTS + more, {200, 400}) for more in (-1, 0)),
        (lists, MAX_LISTS + 1, {413}),
        # In the Open Inference Protocol, data may be nested up to 64 levels deep, whatever its shape.
        *((depth, levels, {200, 400}) for levels in (8, 9, 16, 17, 64)),
        *((depth, levels, {400}) for levels in (65, 200, 201, 1024, 1025, 100_000)),
        *((digits, count, {200, 400}) for count in (18, 19, 20, 309, 100_000)),
    ],
)
def test_both_planes_bound_json_alike(
    documents: Callable[[int], Iterator[tuple[str, bytes]]],
    size: int,
    statuses: set[int],
    planes: dict[str, ServerProcess],
) -> None:
    found = set()
    with closing(Answers(planes["native"])) as native, closing(Answers(planes["python"])) as reference:
        for path, body in documents(size):
            call = Call("json", False, path, body)
            expected = reference.to(call)
            assert native.to(call) == expected, (path, body[:200])
            found.add(expected[0][0])
    assert found == statuses


def test_both_planes_judge_callers_alike(
    guarded_planes: dict[str, ServerProcess], repository: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random("callers")
    calls = RandomCalls("toy", repository / "toy" / "1", _IDS_PER_ROW)
    answered: dict[str, Counter[str]] = {}
    headers = {name: f"Bearer token-of-{name}" for name in _CALLERS}
    headers |= {"spaced": "bearer  token-of-exact", "none": "", "wrong": "Bearer token-of-exact2", "basic": "Basic x"}
    with (
        closing(Answers(guarded_planes["native"])) as native,
        closing(Answers(guarded_planes["python"])) as reference,
    ):
        for _ in range(request.config.getoption("--parity-requests") // 10):
            for call in calls.draw(rng):
                for name, value in headers.items():
                    native.authorization = reference.authorization = value
                    expected, found = reference.to(call), native.to(call)
                    assert found == expected, (name, call, found, expected)
                    is_answered = expected[0] == "OK" or str(expected[0]).startswith("(200")
                    answered.setdefault(name, Counter())[call.wire] += is_answered
    for name, counts in answered.items():
        is_allowed = name in ("exact", "spaced")
        assert (min(counts.values()) > 0) if is_allowed else (sum(counts.values()) == 0), (name, counts)


def _caller(name: str, models: str, right: str) -> str:
    digest = sha256(f"token-of-{name}".encode()).hexdigest()
    allowed = f'[[caller.allow]]\nmodels = ["{models}"]\nrights = ["{right}"]\n'
    return f'[[caller]]\nname = "{name}"\ntoken_sha256 = ["{digest}"]\n{allowed}'
