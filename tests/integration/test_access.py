"""A server with callers refuses requests without the right for them, on all routes, methods and wires."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from embedding_client.async_client import AsyncEmbeddingClient
from embedding_client.client import EmbeddingClient
from embedding_client.errors import Refused
from service.artifact.protos import message_class
from tests.conformance.wires import fill_tensor
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.openapi_document import check_documented
from tests.toy_model import write_toy_model

TOKENS = {name: f"{name}-token-that-nobody-may-see" for name in ("user", "reader", "boss")}
PREDICTION, MODEL, INFERENCE = (
    "/tensorflow.serving.PredictionService",
    "/tensorflow.serving.ModelService",
    "/inference.GRPCInferenceService",
)
HEALTH, REFLECTION = "/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
BODY = {"features": {"user": [1]}}
ANSWER = [[1.0, 10.0]]


class Guarded:
    """A server of models "shown" and "hidden". Rights: user predicts on "shown", reader sees "shown", boss has all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.auth, self.models = folder / "auth.toml", folder / "models.conf"
        self.socket = folder / "grpc.sock"
        for name in ("shown", "hidden"):
            write_toy_model(folder / name / "1")
        entries = (
            f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}\n'
            for name in ("shown", "hidden")
        )
        self.models.write_text(f"model_config_list {{\n{''.join(entries)}}}\n")
        (folder / "boss-token").write_text(TOKENS["boss"] + "\n")
        self.good = (
            caller("user", token="user", shown='["predict"]')
            + caller("reader", token="reader", shown='["metadata"]')
            + '[[caller]]\nname = "boss"\ntoken_file = ["boss-token"]\ncertificate = ["CN:boss"]\n'
            + '[[caller.allow]]\nmodels = ["*"]\nrights = ["predict", "metadata", "admin"]\n'
        )
        self.auth.write_text(self.good)
        self.server = stack.enter_context(
            ServerProcess(
                auth_config=self.auth,
                file_system_poll_wait_seconds=0.05,
                model_config_file=self.models,
                admin_port="auto",
                grpc_socket_path=self.socket,
                graph_signatures="off",
                log_level="debug",
            )
        ).answering()
        self.admin_port = self.server.wait_for_log("listening")["admin_port"]
        until(lambda: self.server.http.get("/readyz").status_code == 200)

    def http(self, method: str, path: str, token: str = "", *, content: Any = None) -> httpx.Response:
        """Sends an HTTP request with the token of a caller; `token` is the caller's name."""
        body = None if content is None else json.dumps(content)
        return self.server.http.request(method, path, content=body, headers=bearer(token))

    def grpc(self, path: str, message: Any, token: str = "") -> tuple[str, bytes | str]:
        """Calls a gRPC method with a token; returns the status code, and the answer's bytes or the error's text."""
        metadata = [(name.lower(), value) for name, value in bearer(token).items()]
        try:
            data = self.server.channel.unary_unary(path)(
                message.SerializeToString(), timeout=PATIENCE_S, metadata=metadata
            )
        except grpc.RpcError as error:
            return error.code().name, str(error.details())
        return "OK", data

    def write(self, text: str) -> None:
        """Replaces the file of callers as an editor does."""
        draft = self.auth.with_suffix(".new")
        draft.write_text(text)
        os.replace(draft, self.auth)


def caller(name: str, *, token: str, **rights: str) -> str:
    """Returns the entry of a caller in the file of --auth_config: name, hash of the token, and rights by model."""
    allowed = "".join(f'[[caller.allow]]\nmodels = ["{model}"]\nrights = {given}\n' for model, given in rights.items())
    return f'[[caller]]\nname = "{name}"\ntoken_sha256 = ["{sha256(TOKENS[token].encode()).hexdigest()}"]\n{allowed}'


def bearer(token: str) -> dict[str, str]:
    """Returns the Authorization header with a caller's token, or no header for ""."""
    return {"Authorization": f"Bearer {TOKENS.get(token, token)}"} if token else {}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as stack:
        yield Guarded(tmp_path_factory.mktemp("guarded"), stack)


def spec(message: str, model: str, **more: Any) -> Any:
    """Returns a request message whose ModelSpec names this model."""
    made = message_class(f"tensorflow.serving.{message}")(**more)
    made.model_spec.name = model
    return made


def predict(model: str) -> Any:
    """Returns a PredictRequest that looks user 1 up."""
    request = spec("PredictRequest", model)
    request.model_spec.signature_name = "lookup"
    fill_tensor(request.inputs["user"], np.array([1]))
    return request


def neighbors(model: str) -> Any:
    """Returns a PredictRequest that searches the nearest rows of row 1 of table "user"."""
    request = spec("PredictRequest", model)
    request.model_spec.signature_name = "neighbors"
    fill_tensor(request.inputs["table"], np.array(b"user", object))
    fill_tensor(request.inputs["ids"], np.array([1]))
    return request


def examples(message: str, model: str) -> Any:
    request = spec(message, model)
    request.input.example_list.examples.add()
    return request


def infer(model: str) -> Any:
    request = message_class("inference.ModelInferRequest")(model_name=model)
    tensor = request.inputs.add(name="user", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(1)
    return request


def named(message: str, model: str) -> Any:
    return message_class(f"inference.{message}")(name=model)


INFER = {"inputs": [{"name": "user", "datatype": "INT64", "shape": [1], "data": [1]}]}
EXAMPLES = {"examples": [{"user": 1}]}
# Maps a right to all routes and methods that need this right on one model; {} in a path stands for the model.
HTTP: Mapping[str, list[tuple[str, str, Any]]] = {
    "predict": [
        ("POST", "/v1/models/{}:lookup", BODY),
        ("POST", "/v1/models/{}/versions/1:lookup", BODY),
        ("POST", "/v1/models/{}/labels/stable:lookup", BODY),
        ("POST", "/v1/models/{}:predict", {"signature_name": "lookup", "inputs": {"user": [1]}}),
        ("POST", "/v1/models/{}:predict", {"signature_name": "lookup", "instances": [{"user": 1}]}),
        ("POST", "/v1/models/{}:classify", EXAMPLES),
        ("POST", "/v1/models/{}:regress", EXAMPLES),
        ("POST", "/V1/MODELS/{}:lookup", BODY),
        ("POST", "/v1/models/{}/tables/user:rows", {"ids": [1]}),
        ("POST", "/v1/models/{}/tables/user:neighbors", {"ids": [1]}),
        ("POST", "/v2/models/{}/infer", INFER),
        ("POST", "/v2/models/{}/versions/1/infer", INFER),
    ],
    "metadata": [
        ("GET", "/v1/models/{}", None),
        ("HEAD", "/v1/models/{}", None),
        ("GET", "/v1/models/{}/versions/1", None),
        ("GET", "/v1/models/{}/metadata", None),
        ("GET", "/v1/models/{}/tables", None),
        ("GET", "/v2/models/{}", None),
        ("GET", "/v2/models/{}/config", None),
        ("GET", "/v2/models/{}/ready", None),
    ],
}
GRPC: Mapping[str, list[tuple[str, Callable[[str], Any]]]] = {
    "predict": [
        (f"{PREDICTION}/Predict", predict),
        (f"{PREDICTION}/Predict", neighbors),
        (f"{PREDICTION}/Classify", lambda model: examples("ClassificationRequest", model)),
        (f"{PREDICTION}/Regress", lambda model: examples("RegressionRequest", model)),
        (f"{INFERENCE}/ModelInfer", infer),
    ],
    "metadata": [
        (
            f"{PREDICTION}/GetModelMetadata",
            lambda model: spec("GetModelMetadataRequest", model, metadata_field=["signature_def"]),
        ),
        (f"{MODEL}/GetModelStatus", lambda model: spec("GetModelStatusRequest", model)),
        (f"{INFERENCE}/ModelMetadata", lambda model: named("ModelMetadataRequest", model)),
        (f"{INFERENCE}/ModelConfig", lambda model: named("ModelConfigRequest", model)),
    ],
}
MAY = {"predict": "user", "metadata": "reader"}
# Statuses of a request that passed the check of rights. The toy model lacks the signatures of some methods, so not all
# are OK.
_LET_IN = {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNIMPLEMENTED"}


def test_hot_rows_need_metadata_and_a_comparison_needs_admin(guarded: Guarded) -> None:
    hot, diff = "/v1/models/{}/tables/user:hot", "/v1/models/{}/versions/1:diff?to=1"
    # The Python data plane does not count hot rows, so it answers 501.
    wanted = {hot: {"user": {403}, "reader": {200, 501}, "boss": {200, 501}}, diff: {"user": {403}, "reader": {403}}}
    wanted[diff]["boss"] = {200}
    for path, codes in wanted.items():
        assert guarded.http("GET", path.format("shown")).status_code == 401
        for token, allowed in codes.items():
            answer = guarded.http("GET", path.format("shown"), token)
            assert answer.status_code in allowed, (path, token, answer.text)
        texts = []
        for model in ("hidden", "absent"):
            answer = guarded.http("GET", path.format(model), "reader")
            assert answer.status_code == 404, (path, model, answer.text)
            texts.append(answer.text.replace(model, "x"))
        assert texts[0] == texts[1]


@pytest.mark.parametrize("right", HTTP)
def test_every_route_of_a_model_asks_for_its_right(guarded: Guarded, right: str) -> None:
    (other,) = set(MAY.values()) - {MAY[right]}
    for method, path, content in HTTP[right]:

        def ask(model: str, token: str, *, path: str = path, method: str = method, content: Any = content) -> Any:
            return guarded.http(method, path.format(model), token, content=content)

        for token in ("", "wrong", TOKENS["user"] + "x"):
            for model in ("shown", "hidden", "absent"):
                answer = ask(model, token)
                assert answer.status_code == 401, (method, path, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["x-error-code"] == "UNAUTHENTICATED"
        # The second request has a header block that the server has cached.
        for _ in range(2):
            assert ask("shown", MAY[right]).status_code in (200, 400), path
            assert ask("shown", other).status_code == 403, path
        for token in ("user", "reader"):
            texts = {name: ask(name, token) for name in ("hidden", "absent")}
            told = {(one.status_code, one.text.replace(name, "NAME")) for name, one in texts.items()}
            assert len(told) == 1 and told.pop()[0] in (400, 404), path
        assert ask("hidden", "boss").status_code in (200, 400), path


@pytest.mark.parametrize("view", [":page", ":row?id=1", ":projection", ":drift?from=1"])
def test_a_view_of_a_table_needs_both_rights(guarded: Guarded, view: str) -> None:
    path = f"/v1/models/{{}}/tables/user{view}"
    for model in ("shown", "hidden", "absent"):
        assert guarded.http("GET", path.format(model)).status_code == 401
    assert [guarded.http("GET", path.format("shown"), name).status_code for name in ("user", "reader")] == [403, 403]
    assert guarded.http("GET", path.format("shown"), "boss").status_code in (200, 202)
    for token in ("user", "reader"):
        told = {
            (answer.status_code, answer.text.replace(name, "NAME"))
            for name in ("hidden", "absent")
            for answer in [guarded.http("GET", path.format(name), token)]
        }
        assert len(told) == 1 and told.pop()[0] == 404


@pytest.mark.parametrize("right", GRPC)
def test_every_method_of_a_model_asks_for_its_right(guarded: Guarded, right: str) -> None:
    (other,) = set(MAY.values()) - {MAY[right]}
    for path, make in GRPC[right]:
        for token in ("", "wrong", TOKENS["user"] + "x"):
            told = {guarded.grpc(path, make(model), token) for model in ("shown", "hidden", "absent")}
            assert len(told) == 1 and told.pop()[0] == "UNAUTHENTICATED", path
        assert guarded.grpc(path, make("shown"), MAY[right])[0] in _LET_IN, path
        assert guarded.grpc(path, make("shown"), other)[0] == "PERMISSION_DENIED", path
        for token in ("user", "reader"):
            refusals = {name: guarded.grpc(path, make(name), token) for name in ("hidden", "absent")}
            told = {(code, str(text).replace(name, "NAME")) for name, (code, text) in refusals.items()}
            assert len(told) == 1 and told.pop()[0] == "NOT_FOUND", path
        assert guarded.grpc(path, make("hidden"), "boss")[0] in _LET_IN, path


def test_answers_are_those_of_an_open_server(guarded: Guarded) -> None:
    assert guarded.http("POST", "/v1/models/shown:lookup", "user", content=BODY).json()["embeddings"]["user"] == ANSWER
    code, data = guarded.grpc(f"{PREDICTION}/Predict", predict("shown"), "user")
    assert code == "OK" and isinstance(data, bytes)
    (output,) = message_class("tensorflow.serving.PredictResponse").FromString(data).outputs.values()
    assert list(output.float_val) == ANSWER[0]
    # The server reads a large body in a thread, and judges the rights of the caller as for a small body.
    many = {"ids": [1] * 30000}
    path = "/v1/models/{}/tables/user:rows"
    assert len(guarded.http("POST", path.format("shown"), "user", content=many).json()["rows"]) == 30000
    assert guarded.http("POST", path.format("shown"), "reader", content=many).status_code == 403
    assert guarded.http("POST", path.format("hidden"), "user", content=many).status_code == 404


def test_the_core_answers_known_callers_and_refuses_the_others(guarded: Guarded) -> None:
    def forwarded() -> int:
        """Counts forwarded requests, including this request for the status page."""
        plane = guarded.http("GET", "/v1/statusz", "boss").json()["data_plane"]
        return sum(plane["forwarded"].values()) if plane["kind"] == "native" else 0

    def ask(token: str) -> list[object]:
        rows = ("POST", "/v1/models/shown/tables/user:rows", token)
        return [
            guarded.grpc(f"{PREDICTION}/Predict", predict("shown"), token)[0],
            guarded.grpc(f"{INFERENCE}/ModelInfer", modern, token)[0],
            guarded.http("POST", "/v1/models/shown:lookup", token, content=BODY).status_code,
            guarded.http("POST", "/v2/models/shown/infer", token, content=INFER | named).status_code,
            guarded.http(*rows, content={"ids": [1]}).status_code,
        ]

    named = {"parameters": {"signature_name": "lookup"}}
    modern = infer("shown")
    modern.parameters["signature_name"].string_param = "lookup"
    num_own = forwarded()
    is_native = num_own > 0
    assert ask("user") == ask("boss") == ["OK", "OK", 200, 200, 200]
    assert forwarded() - num_own == (1 if is_native else 0)
    assert ask("reader") == ["PERMISSION_DENIED", "PERMISSION_DENIED", 403, 403, 403]
    assert forwarded() - num_own == (2 if is_native else 0)
    assert ask("") == ["UNAUTHENTICATED", "UNAUTHENTICATED", 401, 401, 401]
    assert forwarded() - num_own == (3 if is_native else 0)


def test_clients_can_not_speak_for_the_core(guarded: Guarded) -> None:
    forged = {"x-embedding-server-names": "CN%3Aboss", "x-embedding-server-seal": "0" * 32}
    answer = guarded.server.http.post("/v1/models/shown:lookup", json=BODY, headers=forged)
    assert answer.status_code == 401
    with grpc.insecure_channel(f"unix:{guarded.socket}") as socket:
        # This socket leads directly to the reference server, past the core.
        for channel in (guarded.server.channel, socket):
            call = channel.unary_unary(f"{PREDICTION}/Predict")
            with pytest.raises(grpc.RpcError) as caught:
                call(predict("shown").SerializeToString(), timeout=PATIENCE_S, metadata=list(forged.items()))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_records_of_failures_name_the_caller_or_the_address_of_the_client(guarded: Guarded) -> None:
    def clients(request_id: str) -> list[str]:
        failures = guarded.http("GET", "/v1/statusz", "boss").json()["last_errors"]
        return [one["client"] for one in failures if one["request_id"] == request_id]

    for token, name in (("user", "user"), ("", "127.0.0.1"), ("wrong", "127.0.0.1")):
        headers = {**bearer(token), "X-Request-Id": f"by-{token}", "X-Embedding-Server-Client": "forged"}
        # The core answers lookups itself, and forwards requests for a status.
        guarded.server.http.post("/v1/models/shown:lookup", json={"features": {"none": [1]}}, headers=headers)
        guarded.server.http.get("/v1/models/none", headers=headers)
        metadata = [(key.lower(), value) for key, value in headers.items()]
        status = spec("GetModelStatusRequest", "none")
        for path, message in ((f"{PREDICTION}/Predict", predict("none")), (f"{MODEL}/GetModelStatus", status)):
            with pytest.raises(grpc.RpcError):
                call = guarded.server.channel.unary_unary(path)
                call(message.SerializeToString(), timeout=PATIENCE_S, metadata=metadata)
        assert clients(f"by-{token}") == [name] * 4
    reload = f"http://127.0.0.1:{guarded.admin_port}/v1/config:reload"
    assert httpx.post(reload, headers={**bearer("user"), "X-Request-Id": "by-admin"}).status_code == 403
    assert clients("by-admin") == ["user"]


def test_lists_show_what_the_caller_may_see(guarded: Guarded) -> None:
    index = message_class("inference.RepositoryIndexRequest")()
    for token, names in (("user", set()), ("reader", {"shown"}), ("boss", {"shown", "hidden"})):
        listed = guarded.http("POST", "/v2/repository/index", token, content={}).json()
        assert {one["name"] for one in listed} == names
        code, data = guarded.grpc(f"{INFERENCE}/RepositoryIndex", index, token)
        assert code == "OK" and isinstance(data, bytes)
        answer = message_class("inference.RepositoryIndexResponse").FromString(data)
        assert {one.name for one in answer.models} == names
    assert guarded.http("POST", "/v2/repository/index", content={}).status_code == 401
    assert guarded.grpc(f"{INFERENCE}/RepositoryIndex", index)[0] == "UNAUTHENTICATED"


def test_what_is_open_tells_nothing_of_models(guarded: Guarded) -> None:
    for path in ("/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"):
        answer = guarded.http("GET", path)
        assert answer.status_code == 200, path
        assert not re.search("shown|hidden", answer.text), path
    assert re.search("shown|hidden", guarded.http("GET", "/openapi.json", "boss").text)
    for path in ("/metrics", "/monitoring/prometheus/metrics", "/nothing", "/v1/models", "/docs/../metrics"):
        assert guarded.http("GET", path).status_code == 401, path
    assert guarded.http("GET", "/metrics", "reader").status_code == 403
    assert 'model="hidden"' in guarded.http("GET", "/metrics", "boss").text
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        assert guarded.grpc(f"{INFERENCE}/{method}", message_class(f"inference.{method}Request")())[0] == "OK"
    assert guarded.grpc(f"{PREDICTION}/Nothing", predict("shown"))[0] == "UNAUTHENTICATED"
    assert guarded.grpc(f"{PREDICTION}/Nothing", predict("shown"), "user")[0] == "UNIMPLEMENTED"

    def health(service: str, token: str = "") -> str:
        return guarded.grpc(HEALTH, health_pb2.HealthCheckRequest(service=service), token)[0]

    assert [health(name) for name in ("", "PredictionService", "shown", "absent")] == ["OK", "OK"] + ["NOT_FOUND"] * 2
    assert [health(name, "user") for name in ("shown", "hidden", "absent")] == ["OK", "NOT_FOUND", "NOT_FOUND"]
    watch = guarded.server.channel.unary_stream("/grpc.health.v1.Health/Watch")
    watched = {}
    for name in ("shown", "absent", ""):
        stream = watch(health_pb2.HealthCheckRequest(service=name).SerializeToString(), timeout=PATIENCE_S)
        watched[name] = health_pb2.HealthCheckResponse.FromString(next(stream)).status
        stream.cancel()
    unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert watched == {"shown": unknown, "absent": unknown, "": health_pb2.HealthCheckResponse.SERVING}
    ask = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    assert next(guarded.server.channel.stream_stream(REFLECTION)(iter([ask]), timeout=PATIENCE_S))


def test_refusals_are_as_the_openapi_document_says(guarded: Guarded) -> None:
    document = guarded.http("GET", "/openapi.json", "boss").json()
    seen = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            named = {one["name"]: one["example"] for one in operation["parameters"] if one["in"] == "path"}
            content = {} if method == "post" else None
            for token in ("", "user", "reader"):
                answer = guarded.http(method.upper(), path.format(**named), token, content=content)
                check_documented(document, operation, answer)
                assert token or (answer.status_code == 401) == ("401" in operation["responses"]), path
                seen.add(answer.status_code)
    assert {200, 401, 403} <= seen


def test_a_reload_by_request_is_the_admins(guarded: Guarded) -> None:
    request = message_class("tensorflow.serving.ReloadConfigRequest")()
    request.config.model_config_list.SetInParent()
    path = f"{MODEL}/HandleReloadConfigRequest"
    assert [guarded.grpc(path, request, token)[0] for token in ("", "user", "reader")] == [
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
    ]
    assert guarded.http("GET", "/v1/models/shown", "boss").status_code == 200
    config = message_class("tensorflow.serving.ReloadConfigRequest")()
    for name in ("shown", "hidden"):
        base = str(guarded.models.parent / name)
        config.config.model_config_list.config.add(name=name, base_path=base, model_platform="tensorflow")
    assert guarded.grpc(path, config, "boss")[0] == "OK"


def test_the_admin_routes_have_a_port_of_their_own(guarded: Guarded) -> None:
    base = f"http://127.0.0.1:{guarded.admin_port}"
    with httpx.Client(base_url=base, timeout=PATIENCE_S) as admin:

        def reload(token: str = "", **more: Any) -> httpx.Response:
            return admin.post("/v1/config:reload", headers=bearer(token) | more.pop("headers", {}), **more)

        assert [reload(token).status_code for token in ("", "wrong", "user", "reader")] == [401, 401, 403, 403]
        assert reload("boss").json() == {"models": ["hidden", "shown"]}
        refused = reload("boss", content="model_config_list {")
        assert refused.status_code == 400 and "The body" in refused.json()["error"]
        assert reload("boss", headers={"Origin": base}).status_code == 403
        assert admin.get("/v1/models/shown", headers=bearer("boss")).status_code == 404
        assert admin.get("/metrics").status_code == 401
        assert "embedding_server_auth_config_is_current" in admin.get("/metrics", headers=bearer("boss")).text
        assert admin.get("/healthz").status_code == 200
    assert guarded.http("POST", "/v1/config:reload", "boss").status_code in (400, 404)


def test_a_list_that_changes_holds_at_once_and_a_broken_one_does_not(guarded: Guarded) -> None:
    def statuses() -> list[Any]:
        by_http = [guarded.http("POST", "/v1/models/shown:lookup", name, content=BODY) for name in ("user", "reader")]
        by_grpc = [guarded.grpc(f"{PREDICTION}/Predict", predict("shown"), name)[0] for name in ("user", "reader")]
        return [answer.status_code for answer in by_http] + by_grpc

    before = [200, 403, "OK", "PERMISSION_DENIED"]
    assert statuses() == before
    try:
        guarded.write(guarded.good + "[[")
        guarded.server.wait_for_log("auth config refused; the one before stays in force")
        assert statuses() == before
        current = "embedding_server_auth_config_is_current{} "
        assert current + "0.0" in guarded.http("GET", "/metrics", "boss").text
        # The reader gets the user's token, and the reader's own token is deleted, while the connections of both stay
        # open.
        guarded.write(
            caller("reader", token="user", shown='["metadata"]')
            + guarded.good.partition('[[caller]]\nname = "boss"')[1]
            + guarded.good.partition('[[caller]]\nname = "boss"')[2]
        )
        until(lambda: statuses() == [403, 401, "PERMISSION_DENIED", "UNAUTHENTICATED"])
        assert current + "1.0" in guarded.http("GET", "/metrics", "boss").text
        (guarded.auth.parent / "boss-token").write_text("the-next-token-of-the-boss")
        until(lambda: guarded.http("GET", "/metrics", "boss").status_code == 401)
        assert guarded.http("GET", "/metrics", "the-next-token-of-the-boss").status_code == 200
    finally:
        (guarded.auth.parent / "boss-token").write_text(TOKENS["boss"])
        guarded.write(guarded.good)
    until(lambda: statuses() == before)


def test_health_checks_are_open_only_while_the_file_says_so(guarded: Guarded) -> None:
    paths = ("/healthz", "/readyz", "/v2/health/live")

    def statuses(token: str = "") -> list[Any]:
        check = guarded.grpc(HEALTH, health_pb2.HealthCheckRequest(), token)[0]
        return [guarded.http("GET", path, token).status_code for path in paths] + [check]

    assert statuses() == statuses("wrong") == [200, 200, 200, "OK"]
    try:
        guarded.write('open = ["docs"]\n' + guarded.good)
        until(lambda: statuses() == [401, 401, 401, "UNAUTHENTICATED"])
        # The native core gets the state of health each second: it must not begin to answer again.
        time.sleep(1.5)
        assert statuses() == statuses("wrong") == [401, 401, 401, "UNAUTHENTICATED"]
        assert statuses("user") == [200, 200, 200, "OK"]
        # The console is closed as well: a browser gets a page that says so, and other clients JSON.
        page = guarded.server.http.get("/console", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["www-authenticate"]) == (401, "Bearer")
        assert page.headers["content-type"] == "text/html; charset=utf-8" and "is closed" in page.text
        assert guarded.server.http.get("/console").json()["error"].startswith("Valid credentials are required")
    finally:
        guarded.write(guarded.good)
    until(lambda: statuses() == [200, 200, 200, "OK"])


def test_credentials_that_come_twice_are_none(guarded: Guarded) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.server.http_port, timeout=PATIENCE_S)
    connection.putrequest("POST", "/v1/models/shown:lookup")
    for token in ("user", "reader"):
        connection.putheader("Authorization", bearer(token)["Authorization"])
    body = json.dumps(BODY).encode()
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    assert connection.getresponse().status == 401
    connection.close()
    call = guarded.server.channel.unary_unary(f"{PREDICTION}/Predict")
    metadata = [("authorization", bearer(token)["Authorization"]) for token in ("user", "reader")]
    with pytest.raises(grpc.RpcError) as caught:
        call(predict("shown").SerializeToString(), timeout=PATIENCE_S, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_clients_send_a_token(guarded: Guarded) -> None:
    targets = [f"127.0.0.1:{guarded.server.grpc_port}", f"http://127.0.0.1:{guarded.server.http_port}"]
    given = iter([TOKENS["user"], TOKENS["reader"], TOKENS["user"], TOKENS["reader"]])
    asked: Callable[[], str] = given.__next__
    for target in targets:
        with EmbeddingClient(target, model="shown", token=TOKENS["user"], timeout_s=PATIENCE_S) as client:
            assert client.lookup({"user": [1]})["user"].tolist() == ANSWER
            with pytest.raises(Refused, match="PERMISSION_DENIED"):
                client.status()
        # The client calls this function for a token at each request: the second request gets the token of another
        # caller.
        with EmbeddingClient(target, model="shown", token=asked, timeout_s=PATIENCE_S) as client:
            assert client.lookup({"user": [1]})["user"].tolist() == ANSWER
            assert client.status()[0].version == 1
        with EmbeddingClient(target, model="shown", timeout_s=PATIENCE_S) as client:
            with pytest.raises(Refused, match="UNAUTHENTICATED"):
                client.lookup({"user": [1]})

    async def ask() -> list[Any]:
        answers = []
        for target in targets:
            async with AsyncEmbeddingClient(
                target, model="shown", token=TOKENS["user"], timeout_s=PATIENCE_S
            ) as client:
                answers.append((await client.lookup({"user": [1]}))["user"].tolist())
        return answers

    assert asyncio.run(ask()) == [ANSWER, ANSWER]


def test_secrets_show_nowhere(guarded: Guarded) -> None:
    # The test sends requests of its own, so that it can fail if it runs alone; the log also has the requests of other
    # tests.
    path = "/v1/models/shown:lookup"
    texts = [
        guarded.http("POST", path, token, content=content).text
        for token in (*TOKENS, TOKENS["user"] + "x")
        for content in (BODY, {"features": {}}, {"x": 1})
    ]
    texts += [str(guarded.grpc(f"{PREDICTION}/Predict", predict("shown"), token)[1]) for token in (*TOKENS, "wrong")]
    texts += [guarded.http("GET", name, "boss").text for name in ("/metrics", "/readyz", "/openapi.json", "/v2")]
    guarded.server.wait_for_log("settings")
    texts.append(json.dumps(guarded.server.records))
    assert guarded.server.wait_for_log(
        "request refused: 'Valid credentials are required: Authorization: Bearer <token>, or a certificate.'"
    )
    secrets = [*TOKENS.values(), *(sha256(token.encode()).hexdigest() for token in TOKENS.values())]
    for text in texts:
        assert not any(secret in text for secret in secrets)
