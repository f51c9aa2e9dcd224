"""Graph runs beside the event loop are bounded and timed, and never lose a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from service.engine.registry import Registry
from service.types import ModelRef
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import Http, NumpyModel, error_text

PREDICT = "/v1/models/m:predict"
BODY = {"inputs": [1]}


def num_leases(registry: Registry) -> int:
    """Returns how many requests hold model m, without the lease that this function takes."""
    holder = registry.lease(ModelRef("m"))
    with holder:
        return holder._holder.num_leases - 1


@pytest.fixture
def gate(model: NumpyModel) -> threading.Event:
    """Returns an event; every run of the model waits until it is set."""
    model.gate = threading.Event()
    return model.gate


def test_a_run_that_takes_too_long_is_answered_and_its_lease_kept_until_it_ends(
    make_http: Callable[..., Http], model: NumpyModel, gate: threading.Event, registry: Registry
) -> None:
    response = make_http(rest_api_timeout_s=0.05).post(PREDICT, json=BODY)
    assert (response.status_code, error_text(response)) == (504, "Timed out: the request took longer than 0.05 s.")
    model.entered.acquire()
    assert num_leases(registry) == 1
    gate.set()
    while num_leases(registry):
        pass


def test_a_request_that_waits_for_a_thread_until_its_deadline_is_never_run(
    make_http: Callable[..., Http], model: NumpyModel, gate: threading.Event, observer: RecordingObserver
) -> None:
    http = make_http(rest_api_timeout_s=0.2, graph_threads=1)
    responses = http.together([lambda client: client.post(PREDICT, json=BODY)] * 3)
    assert [response.status_code for response in responses] == [504, 504, 504]
    assert len(model.threads) == 1
    assert [request["error"].code for request in observer.finished_requests] == ["DEADLINE_EXCEEDED"] * 2
    gate.set()


def test_lookups_go_on_while_all_graph_threads_are_busy(
    make_http: Callable[..., Http], model: NumpyModel, gate: threading.Event
) -> None:
    http = make_http(graph_threads=1, inline_body_bytes=64)

    async def lookups_then_open(client):  # type: ignore[no-untyped-def]
        model.gate = None
        answers = [await client.post("/v1/models/m:lookup", json={"features": {"user": [1]}})]
        answers.append(await client.post("/v1/models/m:lookup", json={"features": {"user": [1] * 50}}))
        gate.set()
        return answers

    async def predict(client):  # type: ignore[no-untyped-def]
        return await client.post(PREDICT, json=BODY)

    # The first predict occupies the only thread, and waits at the gate, before the lookups begin.
    model.gate = gate
    predicted = threading.Thread(target=lambda: results.append(http.together([predict])[0]))
    results: list[object] = []
    predicted.start()
    model.entered.acquire()
    ((small, large),) = http.together([lookups_then_open])  # type: ignore[list-item, misc]
    predicted.join()
    assert small.status_code == large.status_code == 200
    assert results[0].status_code == 200  # type: ignore[attr-defined]


def test_after_shutdown_predicts_are_refused_and_leases_given_back(
    make_http: Callable[..., Http], registry: Registry
) -> None:
    http = make_http()
    import asyncio

    async def shut_down() -> None:
        async with http.app.router.lifespan_context(http.app):
            pass

    asyncio.run(shut_down())
    response = http.post(PREDICT, json=BODY)
    assert (response.status_code, error_text(response)) == (503, "The server is shutting down.")
    assert num_leases(registry) == 0


@pytest.mark.parametrize("body", [{"inputs": [True]}, {"inputs": {}}, {"signature_name": "lookup", "inputs": {}}])
def test_a_refused_request_gives_its_lease_back(http: Http, registry: Registry, body: object) -> None:
    assert http.post(PREDICT, json=body).status_code == 400
    assert num_leases(registry) == 0
