"""The core refuses mistakes of clients in the words that `cases/refusals.json` has.

The file was recorded from the data plane in Python that the server once had. To record the core's answers after an
intended change: `python -m pytest tests/conformance/test_refusals.py --record-refusals`, and review the difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import encode_tensor
from tests.conformance import refused_calls
from tests.conformance.random_calls import Call
from tests.conformance.wires import fill_tensor
from tests.integration.process import ServerProcess

_CASES = Path(__file__).parent / "cases" / "refusals.json"
# Headers that differ between two answers to the same request, or that follow from the body.
_OWN_HEADERS = {"date", "x-request-id", "server", "connection", "keep-alive", "content-length", "content-type"}


@pytest.fixture(scope="module")
def server(toy_repository: Path) -> Iterator[ServerProcess]:
    """Starts a server of the toy models."""
    with ServerProcess(model_config_file=toy_repository / "models.config", graph_signatures="off") as started:
        yield started.ready()


def _answer(server: ServerProcess, http: httpx.Client, call: Call) -> list[str]:
    """Sends a call; returns the status with the headers or trailers that matter, and the text."""
    if not call.is_grpc:
        response = http.post(call.path, content=call.body, headers=list(call.headers))
        more = (f"{name}={value}" for name, value in response.headers.items() if name not in _OWN_HEADERS)
        return [" ".join([str(response.status_code), *sorted(more)]), response.text]
    try:
        server.channel.unary_unary(call.path)(call.body, timeout=60)
    except grpc.RpcError as error:
        trailers: Any = error.trailing_metadata()
        more = (f"{name}={value}" for name, value in trailers if name not in _OWN_HEADERS)
        # What a tensor may have depends on the order of a protobuf map, which differs between processes.
        text = re.sub(r"(?<=the limit is )\d+", "N", error.details() or "")
        return [" ".join([error.code().name, *sorted(more)]), text]
    # The bytes of an answer depend on the order of a protobuf map, too.
    return ["OK", ""]


def _check(name: str, server: ServerProcess, calls: Iterable[Call], config: pytest.Config) -> int:
    """Sends calls, and compares the answers with those recorded under a name; returns the number of calls."""
    with httpx.Client(base_url=server.http.base_url, timeout=60) as http:
        found = [(call, _answer(server, http, call)) for call in calls]
    cases = json.loads(_CASES.read_text())
    if config.getoption("--record-refusals"):
        cases[name] = [answer for _, answer in found]
        text = json.dumps(cases, indent=0, ensure_ascii=False)
        # Each answer stands on one line.
        _CASES.write_text(re.sub(r"\[\n(.*),\n(.*)\n\]", r"[\1, \2]", text) + "\n")
    differing = [
        f"{call.path} {call.body[:300]!r}\n    recorded {wanted}\n    found    {answer}"
        for (call, answer), wanted in zip(found, cases[name], strict=True)
        if answer != wanted
    ]
    assert not differing, f"{len(differing)} of {len(found)} differ:\n" + "\n".join(differing[:20])
    return len(found)


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
def test_mistakes_get_the_recorded_answers(form: str, server: ServerProcess, request: pytest.FixtureRequest) -> None:
    assert _check(form, server, _FORMS[form](), request.config) >= 40


# Model and signature -> a valid column for each of its inputs.
_GRAPHS: dict[tuple[str, str], dict[str, Any]] = {
    ("half", "two"): {"a": [1.0, 2.0], "b": [3.0, 4.0]},
    ("half", "texts"): {"text": ["a", "b"]},
    ("kinds", "int8"): {"x": [1]},
}


@pytest.mark.tf
@pytest.mark.parametrize(("model", "signature"), list(_GRAPHS))
def test_mistakes_in_requests_for_graphs_get_the_recorded_answers(
    model: str, signature: str, contract_core: ServerProcess, request: pytest.FixtureRequest
) -> None:
    columns = _GRAPHS[model, signature]
    tensors = {}
    for name, value in columns.items():
        tensors[name] = message_class("tensorflow.TensorProto")()
        elements = [one.encode() for one in value] if signature == "texts" else value
        dtype = {"two": "float32", "texts": "object", "int8": "int8"}[signature]
        tensors[name].ParseFromString(b"".join(encode_tensor(name, np.array(elements, dtype))))
    calls = [
        *refused_calls.predict_calls(model, signature, columns),
        *refused_calls.grpc_calls(model, signature, tensors),
    ]
    assert _check(f"{model} {signature}", contract_core, calls, request.config) >= 40


def test_a_refusal_is_counted_once_and_kept_for_the_status_page(server: ServerProcess) -> None:
    bad = json.dumps({"features": {"absent": [1]}}).encode()
    before = _failures(server)
    for _ in range(3):
        server.http.post("/v1/models/toy:lookup", content=bad)
        server.http.post("/v1/models/absent:lookup", content=bad)
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
