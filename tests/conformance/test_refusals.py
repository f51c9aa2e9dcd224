"""The native core refuses by itself what the Python data plane refuses, in the same words: both get the same requests.

Intended differences stand in `_DIFFERENCES`, each with its reason.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import encode_tensor
from tests.conformance import refused_calls
from tests.conformance.random_calls import Call, RandomCalls
from tests.conformance.test_data_planes import _IDS_PER_ROW, _MODELS
from tests.conformance.wires import fill_tensor
from tests.integration.process import ServerProcess
from tests.integration.test_native import data_plane

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("service._native") is None, reason="the native core is not built here (no cargo)"
)

# Headers that differ between two answers to the same request.
_OWN_HEADERS = {"date", "x-request-id", "server", "connection", "keep-alive"}
# Pattern of a text of the reference -> why the core has another one.
_DIFFERENCES = {
    # A text of ours names at most ten names.
    r"(, [^,{}]+){10,}": "at most ten names",
    # Python's JSON parser words what rapidjson has no fault for.
    r"Expecting value: line": "-NaN is a number for rapidjson and TensorFlow Serving",
}
# Text of the core for a signature that the server can not run: the core compares the inputs with none of its features.
_NOT_RUN = b"this server runs without TensorFlow"


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server of each data plane over the toy models."""
    folder = tmp_path_factory.mktemp("refusals")
    configs = []
    for name, write in _MODELS.items():
        write(folder / name / "1")
        configs.append(f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}')
    (folder / "models.config").write_text(f"model_config_list {{ {' '.join(configs)} }}")
    with ExitStack() as stack:
        servers = {
            plane: stack.enter_context(
                ServerProcess(data_plane=plane, model_config_file=folder / "models.config", graph_signatures="off")
            )
            for plane in ("native", "python")
        }
        for server in servers.values():
            server.ready()
        yield servers


@pytest.fixture(scope="module")
def graph_planes(contract_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server of each data plane over the models on which TensorFlow Serving's contract is checked."""
    configs = [
        f'config {{ name: "{name}" base_path: "{contract_models / name}" model_platform: "tensorflow" }}'
        for name in ("half", "kinds")
    ]
    file = tmp_path_factory.mktemp("graphs") / "models.config"
    file.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    with ExitStack() as stack:
        servers = {
            plane: stack.enter_context(ServerProcess(data_plane=plane, model_config_file=file))
            for plane in ("native", "python")
        }
        for server in servers.values():
            server.ready()
        yield servers


class Answers:
    """Sends calls to one server, and returns what came back without ids and dates."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._http = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def close(self) -> None:
        """Ends the HTTP connection."""
        self._http.close()

    def to(self, call: Call) -> Any:
        """Sends a call; returns status, headers or trailers, and body."""
        if call.is_grpc:
            try:
                return "OK", self._server.channel.unary_unary(call.path)(call.body, timeout=60)  # type: ignore[arg-type]
            except grpc.RpcError as error:
                metadata: Any = error.trailing_metadata()
                trailers = [(key, value) for key, value in metadata if key not in _OWN_HEADERS]
                # What a tensor may have depends on the order of a protobuf map, which differs between processes.
                return error.code().name, sorted(trailers), re.sub(r"(?<=the limit is )\d+", "N", error.details() or "")
        self._http.request("POST", call.path, call.body, dict(call.headers))
        response = self._http.getresponse()
        headers = sorted(
            (name.lower(), value) for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS
        )
        return response.status, headers, response.read()

    def forwarded(self) -> int:
        """Returns how many data requests the core has forwarded."""
        return sum(data_plane(self._server)["forwarded"].values())


def _differing(
    planes: dict[str, ServerProcess], calls: Iterable[Call], *, may_differ_in_text: bool = False
) -> tuple[list[str], int, int]:
    """Sends calls to both planes; returns the differences, the number of calls, and the number of forwarded ones.

    Args:
      may_differ_in_text: one call in twenty may have another text under the same code. Of several faults in one
        request, the core tells that of the first input in the signature's order, Python that in the request's order.
    """
    found: list[str] = []
    count, forwarded, others = 0, 0, 0
    with closing(Answers(planes["native"])) as native, closing(Answers(planes["python"])) as reference:
        before = native.forwarded()
        for call in calls:
            count += 1
            expected, got = reference.to(call), native.to(call)
            if may_differ_in_text and got != expected and _code(got) == _code(expected) != "OK":
                others += 1
            elif got != expected and not _is_intended(expected, got):
                found.append(f"{call.path} {call.body[:300]!r}\n    python {expected}\n    core   {got}")
        # Reading the status page is forwarded, too.
        forwarded = native.forwarded() - before - 1
    if others > count // 20:
        found.append(f"{others} of {count} have another text")
    return found, count, forwarded


def _code(answer: Any) -> Any:
    """Returns the gRPC code, or the HTTP status with the headers but the length; "OK" for a success."""
    if isinstance(answer[0], str):
        return answer[0]
    return "OK" if answer[0] == 200 else (answer[0], [one for one in answer[1] if one[0] != "content-length"])


def _is_intended(expected: Any, got: Any) -> bool:
    if _NOT_RUN in (got[-1] if isinstance(got[-1], bytes) else str(got[-1]).encode()):
        return True
    text = expected[-1].decode("utf-8", "replace") if isinstance(expected[-1], bytes) else str(expected[-1])
    return any(re.search(pattern, text) for pattern in _DIFFERENCES)


_FEATURES = {"user": [1], "tags": [[1, 2]], "tags_sum": [["red"]], "tags_sqrtn": [[1]]}


def _tensors() -> dict[str, Any]:
    arrays = {
        "user": np.array([1], np.int64),
        "tags__values": np.array([1, 2], np.int64),
        "tags__row_splits": np.array([0, 2], np.int64),
    }
    found = {}
    for name, array in arrays.items():
        found[name] = message_class("tensorflow.TensorProto")()
        fill_tensor(found[name], array)
    return found


_FORMS: dict[str, Any] = {
    "lookup": lambda: refused_calls.lookup_calls("toy", _FEATURES),
    "rows": lambda: refused_calls.rows_calls("toy", "user"),
    "predict of a lookup": lambda: refused_calls.predict_calls("toy", "lookup", {"user": [1], "tags": [[1, 2]]}),
    "grpc": lambda: refused_calls.grpc_calls("toy", "lookup", _tensors()),
    "infer over gRPC": lambda: refused_calls.infer_grpc_calls("toy", "lookup"),
    "infer over HTTP": lambda: refused_calls.infer_calls("toy", "lookup"),
}


@pytest.mark.parametrize("form", list(_FORMS))
def test_the_core_refuses_in_the_words_of_the_python_plane(form: str, planes: dict[str, ServerProcess]) -> None:
    found, count, forwarded = _differing(planes, _FORMS[form]())
    assert not found, f"{len(found)} of {count} differ:\n" + "\n".join(found[:20])
    assert count >= 40
    assert forwarded <= count // 20, f"{forwarded} of {count} were forwarded"


# Model -> signature -> a valid column for each of its inputs.
_GRAPHS: dict[str, dict[str, dict[str, Any]]] = {
    "half": {
        "serving_default": {"x": [[1.0], [2.0]]},
        "two": {"a": [1.0, 2.0], "b": [3.0, 4.0]},
        "product": {"m": [[1.0, 2.0]]},
        "texts": {"text": ["a", "b"]},
        "uneven": {"x": [[1.0]]},
        "scalar": {"x": [[1.0]]},
        "constant": {"x": [1.0]},
    },
    "kinds": {name: {"x": [1]} for name in ("int8", "uint16", "int64", "float")} | {"bool": {"x": [True]}},
}


@pytest.mark.parametrize(
    ("model", "signature"), [(model, name) for model, signatures in _GRAPHS.items() for name in signatures]
)
def test_graphs_are_refused_in_the_words_of_the_python_plane(
    model: str, signature: str, graph_planes: dict[str, ServerProcess]
) -> None:
    columns = _GRAPHS[model][signature]
    dtype = {"texts": "object", "float": "float32"}.get(signature, signature if model == "kinds" else "float32")
    tensors = {}
    for name, value in columns.items():
        tensors[name] = message_class("tensorflow.TensorProto")()
        elements = [one.encode() for one in value] if dtype == "object" else value
        tensors[name].ParseFromString(b"".join(encode_tensor(name, np.array(elements, dtype))))
    calls = [
        *refused_calls.predict_calls(model, signature, columns),
        *refused_calls.grpc_calls(model, signature, tensors),
    ]
    found, count, _ = _differing(graph_planes, calls)
    assert not found, f"{len(found)} of {count} differ:\n" + "\n".join(found[:12])


@pytest.mark.parametrize("model", list(_MODELS))
def test_random_faults_have_the_words_of_the_python_plane(
    model: str, planes: dict[str, ServerProcess], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(f"refusals of {model}")
    _MODELS[model](tmp_path / "1")
    calls = RandomCalls(model, tmp_path / "1", _IDS_PER_ROW)
    count = request.config.getoption("--parity-requests") // 4
    found, total, _ = _differing(planes, refused_calls.spoilt(calls, rng, count), may_differ_in_text=True)
    assert not found, f"{len(found)} of {total} differ:\n" + "\n".join(found[:20])


def test_a_refusal_is_counted_once_and_kept_for_the_status_page(planes: dict[str, ServerProcess]) -> None:
    server = planes["native"]
    bad = json.dumps({"features": {"absent": [1]}}).encode()
    before = _failures(server)
    with closing(Answers(server)) as native:
        for _ in range(3):
            native.to(Call("lookup", False, "/v1/models/toy:lookup", bad))
            native.to(Call("lookup", False, "/v1/models/absent:lookup", bad))
    after = _failures(server)
    more = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
    assert sorted(more.values()) == [3, 3], more
    errors = server.http.get("/v1/statusz").json()["last_errors"]
    messages = [one["message"] for one in errors if one["model"] == "toy" and one["version"] == 1]
    assert any(text.startswith('signature "lookup" has no feature "absent"') for text in messages), errors
    server.wait_for_log("request refused: 'Servable not found for request: Latest(absent)'", status=404)


def _failures(server: ServerProcess) -> dict[str, float]:
    lines = server.http.get("/metrics").text.splitlines()
    pattern = re.compile(r"^(embedding_server_requests_total\{.*\}) (\S+)$")
    found = [match for line in lines if (match := pattern.match(line)) and 'code="OK"' not in line]
    return {match[1]: float(match[2]) for match in found}
