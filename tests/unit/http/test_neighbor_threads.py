"""Searches beside the event loop are bounded and timed, and never lose a lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from service.types import ModelRef
from service.versions.registry import Registry
from tests.unit.http.conftest import QUERY, SEARCH, Http, NumpyTable, error_text


def num_leases(registry: Registry) -> int:
    """Returns how many requests hold model m, without the lease that this function takes."""
    holder = registry.lease(ModelRef("m"))
    with holder:
        return holder.num_leases - 1


@pytest.fixture
def gate(table: NumpyTable) -> threading.Event:
    """Returns an event; every search of the table waits until it is set."""
    table.gate = threading.Event()
    return table.gate


def test_a_search_that_takes_too_long_is_answered_and_its_lease_kept_until_it_ends(
    make_http: Callable[..., Http], table: NumpyTable, gate: threading.Event, registry: Registry
) -> None:
    http = make_http(rest_api_timeout_s=1)
    # On a busy machine, the time of a request may pass before its search begins.
    for _ in range(60):
        response = http.post(SEARCH, json=QUERY)
        assert (response.status_code, error_text(response)) == (504, "Timed out: the request took longer than 1 s.")
        if table.num_searches:
            break
    assert (table.num_searches, num_leases(registry)) == (1, 1)
    gate.set()
    while num_leases(registry):
        pass


def test_a_request_that_waits_for_a_thread_until_its_deadline_is_never_run(
    make_http: Callable[..., Http], table: NumpyTable, gate: threading.Event, registry: Registry
) -> None:
    responses = make_http(rest_api_timeout_s=1).together([lambda client: client.post(SEARCH, json=QUERY)] * 4)
    assert [response.status_code for response in responses] == [504] * 4
    gate.set()
    while num_leases(registry):
        pass
    # There are two threads, which the first searches occupied.
    assert table.num_searches <= 2


def test_after_shutdown_requests_are_refused_and_leases_given_back(
    make_http: Callable[..., Http], registry: Registry
) -> None:
    http = make_http()

    async def shut_down() -> None:
        async with http.app.router.lifespan_context(http.app):
            pass

    asyncio.run(shut_down())
    response = http.post(SEARCH, json=QUERY)
    assert (response.status_code, error_text(response)) == (503, "The server is shutting down.")
    assert num_leases(registry) == 0


@pytest.mark.parametrize("body", [{"ids": [4]}, {"vectors": [[1]]}])
def test_a_refused_request_gives_its_lease_back(http: Http, registry: Registry, body: object) -> None:
    assert http.post(SEARCH, json=body).status_code == 400
    assert num_leases(registry) == 0
