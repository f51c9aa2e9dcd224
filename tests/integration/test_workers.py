"""Several processes as one server: killed, hung, reloaded, scraped and drained, with real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.codecs.protos import message_class
from tests.exposition import Family, read_exposition
from tests.integration.conftest import Serve, add_version
from tests.integration.connections import Kept, held_ports, on_each, one_to_each, worker_pids
from tests.integration.process import PATIENCE_S, ServerProcess, predict_grpc, stopped, until
from tests.integration.test_shutdown import accepts, finish_request, open_request
from tests.toy_model import write_toy_model

LOOKUP = json.dumps({"features": {"user": [1]}})
ANSWER = {"embeddings": {"user": [[1, 10]]}}
URL = "/v1/models/default:lookup"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opens."""
    with contextlib.ExitStack() as stack:
        yield stack


def two(serve: Serve, **settings: object) -> ServerProcess:
    """Starts a server of two workers and waits until both answer."""
    server = serve(workers=2, **settings).ready()
    until(lambda: on_each(server, lambda kept: kept.get("/readyz")[0] == 200))
    return server


def scrape(server: ServerProcess) -> dict[str, Family]:
    """Returns the metrics, over a connection of its own."""
    response = httpx.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    return read_exposition(response.text)


def ask_anew(server: ServerProcess) -> Any:
    """Asks over a connection of its own."""
    return httpx.post(f"http://127.0.0.1:{server.http_port}{URL}", content=LOOKUP, timeout=PATIENCE_S).json()


def num_ok(server: ServerProcess, api: str = "http") -> float:
    """Returns how many lookups the metrics say succeeded."""
    requests = scrape(server)["embedding_server_requests_total"]
    return sum(
        value for (_, labels), value in requests.samples.items() if {("api", api), ("code", "OK")} <= set(labels)
    )


class Steady:
    """A client that asks again and again over one connection until told to stop."""

    def __init__(self, ask: Any, is_over: threading.Event) -> None:
        self.num_answers = 0
        self.errors: list[Exception] = []
        self._ask = ask
        self._is_over = is_over
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._ask()
                self.num_answers += 1
            except (httpx.TransportError, grpc.RpcError) as error:
                self.errors.append(error)

    def join(self) -> None:
        """Waits for its end."""
        self._thread.join(PATIENCE_S)


def steady_clients(server: ServerProcess, stack: contextlib.ExitStack, is_over: threading.Event) -> dict[str, Any]:
    """Starts four clients of each wire, each with a connection of its own."""

    def over_http(http: httpx.Client) -> None:
        response = http.post(URL, content=LOOKUP)
        assert (response.status_code, response.json()) == (200, ANSWER), response.text

    def over_grpc(channel: grpc.Channel) -> None:
        assert predict_grpc(channel, {"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]

    clients: dict[str, Any] = {"http": [], "grpc": []}
    for _ in range(4):
        http = stack.enter_context(httpx.Client(base_url=server.http.base_url, timeout=PATIENCE_S))
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options))
        clients["http"].append(Steady(lambda http=http: over_http(http), is_over))
        clients["grpc"].append(Steady(lambda channel=channel: over_grpc(channel), is_over))
    return clients


@pytest.mark.parametrize("grpc_transport", ["h2", "grpcio"])
def test_a_killed_worker_fails_no_request_of_another_and_is_replaced(
    serve: Serve, stack: contextlib.ExitStack, grpc_transport: str
) -> None:
    server = two(serve, grpc_transport=grpc_transport)
    is_over = threading.Event()
    clients = steady_clients(server, stack, is_over)
    everybody = [*clients["http"], *clients["grpc"]]
    try:
        until(lambda: all(client.num_answers > 5 for client in everybody))
        victim = worker_pids(server)[0]
        held = {
            "http": len(held_ports(server.http_port, victim)),
            "grpc": len(held_ports(server.grpc_port, victim)),
        }
        os.kill(victim, signal.SIGKILL)
        # Connections that are new find the other worker, or wait for nobody.
        for _ in range(20):
            assert ask_anew(server) == ANSWER
        server.wait_for_log("worker ended", pid=victim, ended_with="signal SIGKILL", restart_in_s=0.0)
        until(lambda: len(worker_pids(server)) == 2)
        before = [client.num_answers for client in everybody]
        until(lambda: all(client.num_answers > n + 5 for client, n in zip(everybody, before, strict=True)))
    finally:
        is_over.set()
        for client in everybody:
            client.join()
    for wire, of_wire in clients.items():
        # One of a connection's requests may have been with the worker that was killed; none of any other.
        failed = [client for client in of_wire if client.errors]
        assert len(failed) <= held[wire], (wire, [client.errors for client in failed])
    assert scrape(server)["embedding_server_worker_restarts_total"].value() == 1


def test_counters_hold_all_workers_and_those_that_are_gone(serve: Serve, stack: contextlib.ExitStack) -> None:
    server = two(serve)
    pids = worker_pids(server)
    before = num_ok(server)
    kept = one_to_each(server, stack)
    for pid, times in zip(pids, (3, 5), strict=True):
        for _ in range(times):
            assert kept[pid].post(URL, LOOKUP)[0] == 200
    found = scrape(server)
    assert num_ok(server) == before + 8
    seconds = found["embedding_server_request_seconds"]
    labels = {"api": "http", "model": "default", "signature": "lookup", "version": 1}
    assert seconds.value("_count", **labels) == before + 8
    assert found[":tensorflow:serving:request_count"].value(model_name="default", status="OK") == before + 8
    assert found["embedding_server_table_ids_total"].value(model="default", table="user", version=1) == before + 8
    assert found["embedding_server_workers"].value() == 2
    assert found["embedding_server_version_state"].value(model="default", version=1) == 30
    os.kill(pids[0], signal.SIGKILL)
    server.wait_for_log("worker ended", pid=pids[0])
    until(lambda: len(worker_pids(server)) == 2)
    found = scrape(server)
    assert num_ok(server) == before + 8
    assert found["embedding_server_table_ids_total"].value(model="default", table="user", version=1) == before + 8
    assert found["embedding_server_worker_restarts_total"].value() == 1
    # The last counts of one that drains are not lost either.
    survivor = one_to_each(server, stack)[pids[1]]
    for _ in range(4):
        assert survivor.post(URL, LOOKUP)[0] == 200
    os.kill(pids[1], signal.SIGTERM)
    server.wait_for_log("worker ended", pid=pids[1], ended_with="exit status 0")
    assert num_ok(server) == before + 12


def test_a_hung_worker_does_not_hang_a_scrape(serve: Serve, stack: contextlib.ExitStack) -> None:
    server = two(serve)
    pids = worker_pids(server)
    assert on_each(server, serves("default"))
    before = num_ok(server)
    kept = one_to_each(server, stack)
    with stopped(pids[0]):
        status, text = kept[pids[1]].get("/metrics")
        assert status == 200
        found = read_exposition(text)
        assert found["embedding_server_workers_silent"].value() == 1
        labels = {"api": "http", "code": "OK", "model": "default", "signature": "lookup", "version": 1}
        assert found["embedding_server_requests_total"].value(**labels) == before
        # Nor does it hold up connections that are new.
        for _ in range(10):
            assert ask_anew(server) == ANSWER
    until(lambda: scrape(server)["embedding_server_workers_silent"].value() == 0)
    assert num_ok(server) == before + 10


def test_a_new_version_is_seen_by_all(serve: Serve, base: Path) -> None:
    server = two(serve)
    add_version(base, 2)

    def serves_it_alone(kept: Kept) -> bool:
        # What status says is so in the worker that says it.
        told = statuses(kept, "default")
        if told.get("2") == "AVAILABLE":
            assert kept.post("/v1/models/default/versions/2:lookup", LOOKUP)[0] == 200
        return told == {"1": "END", "2": "AVAILABLE"}

    until(lambda: on_each(server, serves_it_alone))
    labels = {"model": "default", "version": 2}
    until(lambda: scrape(server)["embedding_server_version_state"].value(**labels) == 30)


def statuses(kept: Kept, model: str) -> dict[str, str]:
    """Returns the states of a model's versions as one worker tells them."""
    status, text = kept.get(f"/v1/models/{model}")
    told = json.loads(text).get("model_version_status", [])
    return {one["version"]: one["state"] for one in told} if status == 200 else {}


def serves(model: str, status: int = 200) -> Callable[[Kept], bool]:
    """Returns whether a worker answers from a model, or refuses with a status."""
    return lambda kept: kept.post(f"/v1/models/{model}:lookup", LOOKUP)[0] == status


def reload(server: ServerProcess, models: dict[str, Path]) -> None:
    """Asks for a list of models over a new gRPC connection; raises grpc.RpcError."""
    request = message_class("tensorflow.serving.ReloadConfigRequest")()
    request.config.model_config_list.SetInParent()
    for name, path in models.items():
        request.config.model_config_list.config.add(name=name, base_path=str(path), model_platform="tensorflow")
    call = server.channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
    call(request.SerializeToString(), timeout=PATIENCE_S)


def test_a_reload_reaches_all_workers_and_those_that_come_later(serve: Serve, tmp_path: Path) -> None:
    write_toy_model(tmp_path / "other" / "1")
    server = two(serve)
    reload(server, {"other": tmp_path / "other"})
    # Not a moment later: the answer came when all had swapped.
    assert on_each(server, serves("other"))
    assert on_each(server, serves("default", 404))
    kill_first(server)
    until(lambda: on_each(server, serves("other")))
    assert on_each(server, serves("default", 404))


def kill_first(server: ServerProcess) -> None:
    """Kills a worker and waits for its successor."""
    victim = worker_pids(server)[0]
    os.kill(victim, signal.SIGKILL)
    server.wait_for_log("worker ended", pid=victim)
    until(lambda: len(worker_pids(server)) == 2)


def test_a_reload_that_one_worker_can_not_take_changes_none(
    serve: Serve, base: Path, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    write_toy_model(tmp_path / "other" / "1")
    server = two(serve, model_reload_timeout_s=1)
    pids = worker_pids(server)
    with pytest.raises(grpc.RpcError, match="did not become available"):
        reload(server, {"default": base, "other": tmp_path / "nothing"})
    # A connection of the worker that goes on, so that the request reaches it.
    server.channel.close()
    server.channel = stack.enter_context(on_worker(server, pids[1]))
    with stopped(pids[0]):
        with pytest.raises(grpc.RpcError) as caught:
            reload(server, {"default": base, "other": tmp_path / "other"})
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert on_each(server, serves("other", 404))
    assert on_each(server, serves("default"))
    # The one that hung still takes back what it began.
    until(lambda: not is_refused(server, {"default": base, "other": tmp_path / "other"}))
    assert on_each(server, serves("other"))
    assert worker_pids(server) == pids


def is_refused(server: ServerProcess, models: dict[str, Path]) -> bool:
    """Says whether a reload is refused."""
    try:
        reload(server, models)
    except grpc.RpcError:
        return True
    return False


def on_worker(server: ServerProcess, pid: int) -> grpc.Channel:
    """Returns a gRPC channel whose connection this worker holds."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    while True:
        before = held_ports(server.grpc_port, pid)
        channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options)
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=1)
            if held_ports(server.grpc_port, pid) - before:
                return channel
        channel.close()


def test_a_file_of_models_is_followed_by_all(serve: Serve, base: Path, tmp_path: Path) -> None:
    write_toy_model(tmp_path / "other" / "1")
    file = tmp_path / "models.config"
    config = 'config {{ name: "{}" base_path: "{}" model_platform: "tensorflow" }}'
    listed = [config.format("default", base), config.format("other", tmp_path / "other")]
    file.write_text(f"model_config_list {{ {listed[0]} }}")
    server = two(serve, model_config_file=file, model_config_file_poll_wait_seconds=0.1, model_base_path="")
    file.write_text(f"model_config_list {{ {' '.join(listed)} }}")
    until(lambda: on_each(server, serves("other")))
    # The one that looks at the file is replaced, and its successor takes up what a request has changed meanwhile.
    reload(server, {"default": base})
    kill_first(server)
    until(lambda: on_each(server, serves("default")))
    assert on_each(server, serves("other", 404))
    file.write_text(f"model_config_list {{ {listed[1]} }}")
    until(lambda: on_each(server, serves("other")))


def test_a_unix_socket_is_shared_and_goes_with_the_server(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = two(serve, grpc_socket_path=path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert predict_grpc(channel, {"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]
        kill_first(server)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert predict_grpc(channel, {"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_drain_and_the_request_in_flight_is_answered(serve: Serve, number: int) -> None:
    server = two(serve)
    pids = worker_pids(server)
    with open_request(server) as connection:
        until(lambda: sum(len(held_ports(server.http_port, pid)) for pid in pids) > 0)
        server.lookup({"user": [1]})
        server.signal(number)
        server.wait_for_log("draining", signal=signal.Signals(number).name)
        until(lambda: not accepts(server.http_port))
        answer = finish_request(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert server.exit_code() == 0
    assert server.records[-1]["message"] == "stopped" and "worker" not in server.records[-1]
    assert not [record for record in server.records if record["level"] in ("error", "raw")]
    assert not any(is_running(pid) for pid in pids)


def test_a_second_signal_does_not_wait(serve: Serve) -> None:
    server = two(serve, drain_timeout_s=3600)
    with open_request(server):
        server.lookup({"user": [1]})
        server.signal(signal.SIGTERM)
        server.wait_for_log("draining")
        until(lambda: not accepts(server.http_port))
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


def test_workers_drain_when_the_supervising_process_is_killed(serve: Serve) -> None:
    server = two(serve)
    pids = worker_pids(server)
    with open_request(server) as connection:
        server.lookup({"user": [1]})
        server.signal(signal.SIGKILL)
        until(lambda: not accepts(server.http_port))
        assert finish_request(connection).startswith(b"HTTP/1.1 200 ")
    until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    """Says whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_port_in_use_stops_the_start(serve: Serve) -> None:
    first = serve().answering()
    for flag, port in (("rest_api_port", first.http_port), ("port", first.grpc_port)):
        second = serve(workers=2, **{flag: port})
        assert second.exit_code() == 2
        assert f":{port}" in second.wait_for_log("cannot start")["reason"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_stops_a_single_process_stops_workers_with_the_same_words(
    serve: Serve, tmp_path: Path, workers: int
) -> None:
    server = serve(workers=workers, monitoring_config_file=tmp_path / "nothing")
    assert server.exit_code() == 2
    told = [record for record in server.records if record["message"] == "cannot start"]
    assert len(told) == 1
    assert told[0]["reason"].startswith(f"--monitoring_config_file={tmp_path}/nothing: ")
