"""The Python client against real servers: both wires, blocking and asynchronous, through restarts, freezes and TLS."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedding_client.async_client import AsyncEmbeddingClient
from embedding_client.client import EmbeddingClient
from embedding_client.errors import (
    DeadlineExceeded,
    EmbeddingError,
    InvalidRequest,
    NotFound,
    Unavailable,
    Unimplemented,
)
from embedding_client.retry import RetryPolicy
from embedding_client.types import RaggedIds, State, TableDescription, VersionStatus
from tests.http_servers import Silent, http_server
from tests.integration.conftest import Serve, add_version
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, environment, stopped
from tests.toy_model import TAG_STRINGS

# The client tries so often that the server is back before it gives up, however slow the machine.
STUBBORN = RetryPolicy(10_000, 0.02, 0.1)
WIRES = ["grpc", "http"]
USER = {"user": [1, 4]}
USER_ROWS = [[1, 10], [4, 40]]
JSON_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server of the toy model, which tests only read from."""
    with ServerProcess(model_base_path=toy_model, graph_signatures="off") as server:
        yield server.ready()


def target_of(server: ServerProcess, wire: str) -> str:
    """Returns the target at which a client reaches a wire: an address for gRPC, a URL for HTTP."""
    return f"127.0.0.1:{server.grpc_port}" if wire == "grpc" else f"http://127.0.0.1:{server.http_port}"


class AsyncOnOneLoop:
    """Gives an AsyncEmbeddingClient the interface of EmbeddingClient, so that one test works for both."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncEmbeddingClient(*arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))

    def __enter__(self) -> AsyncOnOneLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


KINDS = [(wire, kind) for wire in WIRES for kind in ("blocking", "async")]


def client_of(server: Any, wire: str, kind: str, **options: Any) -> Any:
    """Returns a blocking or asynchronous client of the toy model on one wire."""
    client_class = EmbeddingClient if kind == "blocking" else AsyncOnOneLoop
    return client_class(target_of(server, wire), **({"model": "default", "timeout_s": PATIENCE_S} | options))


@pytest.fixture(params=KINDS, ids="-".join)
def connect(request: pytest.FixtureRequest) -> partial[Any]:
    """Makes a client of each wire and kind: connect(server, **options)."""
    wire, kind = request.param
    return partial(client_of, wire=wire, kind=kind)


def test_a_lookup_of_every_form(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server) as client:
        rows = client.lookup({**USER, "tags": [["red", "green"], []], "tags_sum": np.array([[1, 2], [3, 3]])})
        assert {name: array.dtype for name, array in rows.items()} == dict.fromkeys(rows, np.float32)
        assert rows["user"].tolist() == USER_ROWS
        assert rows["tags"].tolist() == [[1.5, 2.5, 1], [0, 0, 0]]
        assert rows["tags_sum"].tolist() == [[3, 5, 2], [6, 18, 2]]
        ragged = RaggedIds(np.array([b"blue", b"?"], object), np.array([0, 0, 2]), np.array([2, 1], np.float32))
        assert client.lookup({"tags_sum": ragged})["tags_sum"].tolist() == [[0, 0, 0], [6, 18, 3]]
        weighted = client.lookup({"tags": [[1, 3], [2]]}, {"tags": [[1, 3], [5]]})["tags"]
        assert weighted.tolist() == [[2.5, 7, 1], [2, 4, 1]]


def test_versions_signatures_and_outputs(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server) as client:
        assert client.lookup(USER, version=1)["user"].tolist() == USER_ROWS
        small = client.lookup(USER | {"tags": [[1], [2]]}, signature="lookup_tpu_tensor_core", outputs=["tags"])
        assert {name: array.tolist() for name, array in small.items()} == {"tags": [[1, 1, 1], [2, 4, 1]]}
        predicted = client.predict({"tags": [[1], [2]]}, signature="lookup")
        assert {name: array.tolist() for name, array in predicted.items()} == {"tags": [[1, 1, 1], [2, 4, 1]]}


def test_no_rows_keep_their_width(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server) as client:
        for user, tags in ((np.empty(0, np.int64), np.empty((0, 3), np.int64)), ([], [])):
            rows = client.lookup({"user": user, "tags": tags})
            assert {name: array.shape for name, array in rows.items()} == {"user": (0, 2), "tags": (0, 3)}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_ids_of_every_integer_dtype(server: ServerProcess, connect: partial[Any], dtype: str) -> None:
    with connect(server) as client:
        ids = RaggedIds(np.array([1, 3], dtype), np.array([0, 0, 2], dtype))
        rows = client.lookup({"user": np.array([1, 4], dtype), "tags_sum": ids})
        assert {name: array.tolist() for name, array in rows.items()} == {
            "user": USER_ROWS,
            "tags_sum": [[0, 0, 0], [4, 10, 2]],
        }
        with pytest.raises(InvalidRequest, match="a value does not fit int64"):
            client.lookup({"user": np.array([1 << 63], np.uint64)})


def test_status_and_metadata(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server) as client:
        assert client.status() == client.status(1) == (VersionStatus(1, State.AVAILABLE),)
        metadata = client.metadata()
        assert (metadata.model, metadata.version) == ("default", 1)
        assert sorted(metadata.signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]
        assert metadata.signatures["lookup"].ragged == {"tags", "tags_sum", "tags_sqrtn"}
        assert metadata.signatures["lookup_tpu_tensor_core"].inputs["user"].dtype == "int32"
        assert metadata.signatures["lookup"].outputs["user"].shape == (None, 2)


def test_an_answer_names_the_version_that_computed_it(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server) as client:
        assert client.lookup(USER).version == 1
        assert client.lookup(USER, outputs=["user"]).version == 1
        assert client.predict(USER, signature="lookup").version == 1


def test_tables_and_rows_go_over_http(server: ServerProcess, connect: partial[Any]) -> None:
    http_target = target_of(server, "http") if connect.keywords["wire"] == "grpc" else None
    with connect(server, http_target=http_target) as client:
        user = TableDescription("user", 5, 2, "float32", 40, ("user",))
        assert [table for table in client.tables() if table.name == "user"] == [user]
        assert client.tables(version=1) == client.tables()
        rows = client.rows("tag", [3, 0])
        np.testing.assert_array_equal(rows, np.array([[3, 9, 1], [0, 0, 1]], np.float32), strict=True)
        with pytest.raises(NotFound, match="no table"):
            client.rows("tga", [1])
    if connect.keywords["wire"] == "grpc":
        with connect(server) as client:
            for read in (client.tables, partial(client.rows, "tag", [3, 0])):
                with pytest.raises(Unimplemented, match="http_target"):
                    read()


# Rows of "tag" are [i, i * i, 1]; its keys are red, green and blue for rows 1 to 3.
def test_neighbors_are_the_same_over_each_wire(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server) as client:
        by_key = client.neighbors("tag", keys=["blue"], k=2, metric="l2", exclude_ids=[2])
        assert (by_key.ids.tolist(), by_key.scores.tolist(), by_key.version) == ([[1, 0]], [[68.0, 90.0]], 1)
        assert by_key.keys.tolist() == [[b"red", b""]]
        assert (by_key.ids.dtype, by_key.scores.dtype) == (np.int64, np.float32)
        some = {"filter_keys": ["red", "blue"], "include_self": True, "exact": True, "version": 1}
        by_vector = client.neighbors("tag", vectors=[[1, 1, 1], [0, -1, 0]], k=3, **some)
        assert by_vector.ids[:, :2].tolist() == [[3, 1], [1, 3]] and (by_vector.ids[:, 2:] == -1).all()
        assert by_vector.scores[:, :2].tolist() == [[13.0, 3.0], [-1.0, -9.0]]
        assert np.isnan(by_vector.scores[:, 2:]).all()
        assert client.neighbors("user", ids=[0], k=1).keys is None
        for wrong in ({}, {"labels": True}, {"ids": [1], "keys": ["red"]}, {"ids": [1], "labels": ["a"]}):
            with pytest.raises(InvalidRequest, match="give one of ids, keys, vectors and labels"):
                client.neighbors("tag", **wrong)
        with pytest.raises(NotFound, match="Tables: tag, user"):
            client.neighbors("film", ids=[1])


FAULTS: dict[str, tuple[Callable[[Any], Any], type[EmbeddingError], str, str]] = {
    "id out of range": (lambda c: c.lookup({"user": [5]}), InvalidRequest, "INVALID_ARGUMENT", "id 5 .* out of range"),
    "wrong dtype": (lambda c: c.lookup({"user": [1.5]}), InvalidRequest, "INVALID_ARGUMENT", '"user".*integers'),
    "nested for flat": (lambda c: c.lookup({"user": [[1]]}), InvalidRequest, "INVALID_ARGUMENT", "user"),
    "flat for nested": (lambda c: c.lookup({"tags": [1]}), InvalidRequest, "INVALID_ARGUMENT", "tags"),
    "strings without vocabulary": (lambda c: c.lookup({"user": ["a"]}), InvalidRequest, "INVALID_ARGUMENT", "user"),
    "no such feature": (lambda c: c.lookup({"x": [1]}), InvalidRequest, "INVALID_ARGUMENT", "x"),
    "no such output": (lambda c: c.lookup(USER, outputs=["x"]), InvalidRequest, "INVALID_ARGUMENT", "signature: x"),
    "no such signature": (lambda c: c.lookup(USER, signature="x"), InvalidRequest, "FAILED_PRECONDITION", '"x" not'),
    "predict without TensorFlow": (
        lambda c: c.predict({"user": [1], "tags": [[1]]}),
        InvalidRequest,
        "FAILED_PRECONDITION",
        "runs a TensorFlow graph",
    ),
    "no such version": (lambda c: c.lookup(USER, version=9), NotFound, "NOT_FOUND", r"Specific\(default, 9\)"),
    "no such label": (lambda c: c.lookup(USER, label="x"), InvalidRequest, "INVALID_ARGUMENT", "label: x"),
    "no status": (lambda c: c.status(9), NotFound, "NOT_FOUND", "Could not find version 9"),
    "no metadata": (lambda c: c.metadata(9), NotFound, "NOT_FOUND", r"Specific\(default, 9\)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_one_type_and_code_on_every_wire(server: ServerProcess, connect: partial[Any], fault: str) -> None:
    call, error_class, code, text = FAULTS[fault]
    with connect(server, sleep=_never) as client, pytest.raises(error_class, match=text) as caught:
        call(client)
    assert (type(caught.value), caught.value.code) == (error_class, code)
    # The client makes no attempt if it finds the fault itself, such as an unknown output over HTTP.
    assert caught.value.attempts <= 1


def _never(seconds: float) -> Any:
    raise AssertionError("an error that stays was tried again")


def test_a_model_that_nobody_has(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server, model="a bü") as client, pytest.raises(NotFound, match=r"Latest\(a bü\)"):
        client.lookup(USER)


def test_float32_is_the_same_to_the_last_bit_on_both_wires(server: ServerProcess) -> None:
    # Row 1 of `tag` is [1, 1, 1], so the sum of one id returns its weight: each float32 goes to the server and back in
    # JSON.
    bits = np.random.default_rng(3).integers(1 << 23, 0x7F800000, 5000, np.uint32)
    # A reader that rounds this number's decimals to a float64 first would get the neighbouring float32.
    weights = np.append(bits, np.uint32(363742205)).view(np.float32)
    ids = RaggedIds(np.ones(len(weights), np.int64), np.arange(len(weights) + 1), weights)
    answers = []
    for wire in WIRES:
        with EmbeddingClient(target_of(server, wire), model="default", timeout_s=PATIENCE_S) as client:
            answers.append(client.lookup({"tags_sum": ids})["tags_sum"])
    assert answers[0].tobytes() == np.repeat(weights[:, None], 3, 1).tobytes()
    assert answers[1].tobytes() == answers[0].tobytes()


def test_weights_that_are_not_finite_mean_the_same_on_both_wires(server: ServerProcess) -> None:
    answers = []
    for wire in WIRES:
        with EmbeddingClient(target_of(server, wire), model="default", timeout_s=PATIENCE_S) as client:
            answers.append(client.lookup({"tags_sum": [[1, 2], [3]]}, {"tags_sum": [[np.nan, 1], [np.inf]]}))
    np.testing.assert_array_equal(answers[0]["tags_sum"], answers[1]["tags_sum"])
    assert np.isinf(answers[0]["tags_sum"][1, 0])


def test_the_port_of_the_other_protocol_is_named(server: ServerProcess) -> None:
    for target, text in (
        (f"127.0.0.1:{server.http_port}", "this is the HTTP port: send gRPC calls to the gRPC port"),
        (f"http://127.0.0.1:{server.grpc_port}", "Is this the server's HTTP port, by default 8501"),
    ):
        with EmbeddingClient(target, model="default", retries=0, timeout_s=PATIENCE_S) as client:
            assert repr(client) == f"EmbeddingClient({target!r}, model='default')"
            with pytest.raises(EmbeddingError, match=text):
                client.lookup({"user": [1]})


def test_a_port_without_tls_is_told(server: ServerProcess) -> None:
    for target, text in (
        (f"https://127.0.0.1:{server.http_port}", "has no TLS: begin the target with http://"),
        (f"grpcs://127.0.0.1:{server.grpc_port}", "has no TLS: begin the target with grpc://"),
    ):
        with (
            EmbeddingClient(target, model="default", retries=0, timeout_s=PATIENCE_S) as client,
            pytest.raises(EmbeddingError, match=text),
        ):
            client.lookup({"user": [1]})


@pytest.mark.parametrize("wire", WIRES)
def test_many_threads_share_a_client(server: ServerProcess, wire: str) -> None:
    def lookups(thread: int) -> bool:
        ids = [(thread + i) % 5 for i in range(20)]
        return all(client.lookup({"user": [i]})["user"].tolist() == [[i, 10 * i]] for i in ids)

    with (
        EmbeddingClient(target_of(server, wire), model="default", timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        assert all(threads.map(lookups, range(16)))


@pytest.mark.parametrize("wire", WIRES)
def test_a_hundred_lookups_at_once_on_one_event_loop(server: ServerProcess, wire: str) -> None:
    async def gather() -> list[Any]:
        async with AsyncEmbeddingClient(target_of(server, wire), model="default", timeout_s=PATIENCE_S) as client:
            answers = await asyncio.gather(*(client.lookup({"user": [i % 5]}) for i in range(100)))
        return [answer["user"].tolist() for answer in answers]

    assert asyncio.run(gather()) == [[[i % 5, 10 * (i % 5)]] for i in range(100)]


def test_a_server_that_was_killed_is_found_again(serve: Serve, base: Path) -> None:
    first = serve().ready()
    waits: list[list[float]] = [[] for _ in KINDS]

    def knock(number: int) -> Any:
        wire, kind = KINDS[number]
        with client_of(first, wire, kind, retries=STUBBORN, sleep=Sleep(waits[number])) as client:
            assert client.lookup(USER)["user"].tolist() == USER_ROWS
            connected.wait()
            killed.wait()
            return client.lookup(USER)["user"].tolist()

    connected, killed = threading.Barrier(len(KINDS) + 1), threading.Barrier(len(KINDS) + 1)
    with ThreadPoolExecutor(len(KINDS)) as threads:
        answers = [threads.submit(knock, number) for number in range(len(KINDS))]
        connected.wait(PATIENCE_S)
        first.signal(signal.SIGKILL)
        first.exit_code()
        with client_of(first, "http", "blocking", retries=0) as hasty, pytest.raises(Unavailable):
            hasty.lookup(USER)
        killed.wait(PATIENCE_S)
        add_version(base, 2, scale=3)
        second = serve(port=first.grpc_port, rest_api_port=first.http_port)
        assert [answer.result(PATIENCE_S) for answer in answers] == [[[3, 30], [12, 120]]] * len(KINDS)
        second.wait_for_log("loaded")
    assert all(waits), "each has waited, and tried again"


def test_a_server_that_hangs_ends_at_the_deadline_and_not_before(server: ServerProcess, connect: partial[Any]) -> None:
    with connect(server, retries=STUBBORN) as client:
        client.lookup(USER)
        with stopped(server.pid):
            start_s = time.monotonic()
            with pytest.raises(DeadlineExceeded, match="No answer from .* within 0.[23]") as caught:
                client.lookup(USER, timeout_s=0.3)
            assert time.monotonic() - start_s >= 0.29
            assert caught.value.attempts == 1, "a late answer is not asked for again"
        assert client.lookup(USER)["user"].tolist() == USER_ROWS


def test_nobody_there_is_tried_as_often_as_allowed_and_waits_between(connect: partial[Any]) -> None:
    class Nobody:
        grpc_port = http_port = 1

    waits: list[float] = []
    with connect(Nobody(), retries=RetryPolicy(3, 0.001, 1), random=lambda: 0.5, sleep=Sleep(waits)) as client:
        with pytest.raises(Unavailable) as caught:
            client.lookup(USER)
    assert caught.value.attempts == 4
    assert waits == pytest.approx([0.00075, 0.0015, 0.003])


class Sleep:
    """Sleeps, and records for how long it was asked to; works for blocking and asynchronous clients."""

    def __init__(self, waits: list[float], scale: float = 1) -> None:
        self._waits = waits
        self._scale = scale

    def __call__(self, seconds: float) -> Any:
        self._waits.append(seconds)
        seconds *= self._scale
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return time.sleep(seconds)
        return asyncio.sleep(seconds)


def test_a_closed_client_says_so(server: ServerProcess, connect: partial[Any]) -> None:
    client = connect(server)
    with client:
        client.lookup(USER)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.lookup(USER)


@contextmanager
def answering(
    *answers: Callable[[BaseHTTPRequestHandler], None], ended: threading.Event | None = None
) -> Iterator[str]:
    """Yields the address of an HTTP server that answers with these functions in turn, then only with the last one.

    ended: set when a connection has been closed.
    """
    left = list(answers)

    class Handler(Silent):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Answers."""
            self.rfile.read(int(self.headers["Content-Length"]))
            (left.pop(0) if len(left) > 1 else left[0])(self)

    class Server(ThreadingHTTPServer):
        def shutdown_request(self, request: Any) -> None:
            """Closes a connection."""
            super().shutdown_request(request)
            if ended is not None:
                ended.set()

    with http_server(Handler, Server) as port:
        yield f"http://127.0.0.1:{port}"


_HEAD = b'{"outputs":[{"name":"user","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}]}'
EMBEDDINGS = _HEAD + np.array(USER_ROWS, np.float32).tobytes()


def good(handler: BaseHTTPRequestHandler) -> None:
    """Answers a lookup."""
    respond(handler, 200, EMBEDDINGS)


def overloaded(handler: BaseHTTPRequestHandler) -> None:
    """Answers 503 with a Retry-After of 7 seconds."""
    respond(handler, 503, b'{"error": "full"}', {"Retry-After": "7"})


def respond(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Writes an answer."""
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body)), JSON_LENGTH: str(len(_HEAD))} | dict(headers or {})).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def drip(data: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Returns a handler that sends an answer one byte at a time, every 20 ms, so that no wait for a byte is long."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            for byte in data:
                handler.wfile.write(bytes((byte,)))
                time.sleep(0.02)
        handler.close_connection = True

    return answer


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    """Announces a longer body than it sends, and closes the connection."""
    respond(handler, 200, EMBEDDINGS, {"Content-Length": "1000"})
    handler.close_connection = True


def goodbye(handler: BaseHTTPRequestHandler) -> None:
    """Answers with embeddings and closes the connection."""
    respond(handler, 200, EMBEDDINGS, {"Connection": "close"})


HTTP_CLIENTS = pytest.mark.parametrize("client_class", [EmbeddingClient, AsyncOnOneLoop])


@HTTP_CLIENTS
def test_retry_after_is_waited_for(client_class: Any) -> None:
    waits: list[float] = []
    sleep = Sleep(waits, scale=0.001)
    with answering(overloaded, good) as target:
        with client_class(target, model="m", timeout_s=PATIENCE_S, sleep=sleep) as client:
            assert client.lookup(USER)["user"].tolist() == USER_ROWS
    assert waits == [7]


@HTTP_CLIENTS
def test_retry_after_beyond_the_deadline_is_an_error_at_once(client_class: Any) -> None:
    with answering(overloaded) as target, client_class(target, model="m", timeout_s=6.5, sleep=_never) as client:
        with pytest.raises(Unavailable, match="full") as caught:
            client.lookup(USER)
    assert caught.value.retry_after_s == 7


@HTTP_CLIENTS
@pytest.mark.parametrize("dripping", [b"HTTP/1.1 200 OK" + b" " * 100, b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 100])
def test_a_byte_at_a_time_ends_at_the_deadline(client_class: Any, dripping: bytes) -> None:
    # The answer needs 2 s; a client that waits for its end raises another error, because the bytes are no valid answer.
    with answering(drip(dripping)) as target, client_class(target, model="m", timeout_s=0.5, retries=0) as client:
        with pytest.raises(DeadlineExceeded):
            client.lookup(USER)


@HTTP_CLIENTS
def test_an_answer_cut_short_is_asked_for_again(client_class: Any) -> None:
    waits: list[float] = []
    with answering(cut_short, good) as target:
        with client_class(target, model="m", timeout_s=PATIENCE_S, sleep=Sleep(waits)) as client:
            assert client.lookup(USER)["user"].tolist() == USER_ROWS
    assert len(waits) == 1


def test_http_connections_are_kept_and_replaced_when_the_server_drops_them() -> None:
    ports = []

    def note(handler: BaseHTTPRequestHandler) -> None:
        ports.append(handler.client_address[1])
        good(handler)

    def missing(handler: BaseHTTPRequestHandler) -> None:
        respond(handler, 404, b'{"error": "gone"}')

    def last(handler: BaseHTTPRequestHandler) -> None:
        # The connection ends behind the answer, which does not say so: as an idle one does.
        note(handler)
        handler.close_connection = True

    dropped = threading.Event()
    with answering(note, missing, last, note, ended=dropped) as target:
        with EmbeddingClient(target, model="m", timeout_s=PATIENCE_S, retries=0) as client:
            client.lookup(USER)
            with pytest.raises(NotFound):
                client.lookup(USER)
            client.lookup(USER)
            assert dropped.wait(PATIENCE_S)
            assert client.lookup(USER)["user"].tolist() == USER_ROWS
    assert ports[0] == ports[1] != ports[2]


@HTTP_CLIENTS
def test_a_server_that_ends_each_connection_is_no_fault(client_class: Any) -> None:
    with answering(goodbye) as target:
        with client_class(target, model="m", timeout_s=PATIENCE_S, retries=0) as client:
            for _ in range(3):
                assert client.lookup(USER)["user"].tolist() == USER_ROWS


def test_a_unix_socket(serve: Serve, tmp_path: Path) -> None:
    serve(grpc_socket_path=f"{tmp_path}/s").ready()
    with EmbeddingClient(f"unix:{tmp_path}/s", model="default", timeout_s=PATIENCE_S) as client:
        assert client.lookup(USER)["user"].tolist() == USER_ROWS


@pytest.mark.tf
def test_predict_of_a_foreign_model(tf_serving_testdata: Path, tmp_path: Path, tf: Any) -> None:
    base = tf_serving_testdata / "saved_model_half_plus_two_cpu"
    with ServerProcess(model_base_path=base) as server:
        server.ready()
        for wire in WIRES:
            with EmbeddingClient(target_of(server, wire), model="default", timeout_s=PATIENCE_S) as client:
                for x in ([1.0, 2.0], np.array([1, 2], np.float32)):
                    answer = client.predict({"x": x})
                    np.testing.assert_array_equal(answer["y"], np.array([2.5, 3], np.float32), strict=True)
                    assert list(answer) == ["y"]


def test_the_example_shows_answers(server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "examples/client.py", f"--server={target_of(server, 'grpc')}"]
        + [f"--rest={target_of(server, 'http')}", "--model_name=default", "--table=tag"]
        + [f'--features={{"user": [1, 4], "tags": [["{TAG_STRINGS[0]}"], []]}}'],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    for wire in ("gRPC", "HTTP"):
        assert f"user over {wire}: float32 (2, 2) [1.0, 10.0] ..." in done.stdout
        assert f"version over {wire}: 1" in done.stdout
    assert "rows of tag: (2, 3)" in done.stdout
    assert "rows nearest to row 1: [[2, 3, 0]]" in done.stdout
    assert "as expected: INVALID_ARGUMENT" in done.stdout
    assert "lookups at once: 10" in done.stdout
