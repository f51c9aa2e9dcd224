"""Graph runs beside the event loop are bounded and timed, and never lose a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from service.engine.registry import Registry
from service.types import ModelRef
from tests.conftest import RecordingObserver
from tests.unit.http.conftest import REGRESS, REGRESSION, Http, NumpyModel, error_text


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
    response = make_http(rest_api_timeout_s=1).post(REGRESS, json=REGRESSION)
    assert (response.status_code, error_text(response)) == (504, "Timed out: the request took longer than 1 s.")
    assert model.entered.acquire(timeout=20), "the run did not begin within the timeout"
    assert num_leases(registry) == 1
    gate.set()
    while num_leases(registry):
        pass


def test_a_request_that_waits_for_a_thread_until_its_deadline_is_never_run(
    make_http: Callable[..., Http], model: NumpyModel, gate: threading.Event, observer: RecordingObserver
) -> None:
    http = make_http(rest_api_timeout_s=1, graph_threads=1)
    responses = http.together([lambda client: client.post(REGRESS, json=REGRESSION)] * 3)
    assert [response.status_code for response in responses] == [504, 504, 504]
    assert len(model.threads) == 1
    assert [request["error"].code for request in observer.finished_requests] == ["DEADLINE_EXCEEDED"] * 2
    gate.set()


def test_after_shutdown_requests_are_refused_and_leases_given_back(
    make_http: Callable[..., Http], registry: Registry
) -> None:
    http = make_http()
    import asyncio

    async def shut_down() -> None:
        async with http.app.router.lifespan_context(http.app):
            pass

    asyncio.run(shut_down())
    response = http.post(REGRESS, json=REGRESSION)
    assert (response.status_code, error_text(response)) == (503, "The server is shutting down.")
    assert num_leases(registry) == 0


@pytest.mark.parametrize("body", [{"examples": [{}]}, {"signature_name": "lookup", "examples": [{}]}])
def test_a_refused_request_gives_its_lease_back(http: Http, registry: Registry, body: object) -> None:
    assert http.post(REGRESS, json=body).status_code == 400
    assert num_leases(registry) == 0
