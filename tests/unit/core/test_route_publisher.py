"""The native core finds the versions that the registry gives leases on, and no others; its holders are waited for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from service.core.native_servable import RoutePublisher
from service.types import TableCounts
from service.versions.registry import Registry
from service.versions.servable import Holder
from tests.unit.versions.fakes import servable


class FakeNative:
    """A native servable that a test gives any number of holders."""

    def __init__(self, num_holders: int = 0) -> None:
        self.num_holders = num_holders

    def table_counts(self) -> Mapping[str, TableCounts]:
        """Counts a constant."""
        return {"user": TableCounts(2, 1, 0, 8)}

    def on_tables(self, tables: Mapping[str, Any]) -> FakeNative:
        """Returns itself."""
        return self


class FakeServer:
    """Keeps the routes of all models after each change, and the changes."""

    def __init__(self) -> None:
        self.routes: list[Any] = []
        self.changes: list[tuple[list[str], list[str]]] = []

    def change_routes(self, models: Any, removed: Any) -> None:
        """Keeps the routes; stands for service._native.Server.change_routes."""
        all_routes = {route[0]: route for route in (self.routes[-1] if self.routes else ())}
        for name in removed:
            del all_routes[name]
        self.routes.append(list((all_routes | {route[0]: route for route in models}).values()))
        self.changes.append(([route[0] for route in models], list(removed)))


def published(publisher: RoutePublisher) -> Registry:
    """Returns a registry that publishes version 1 of model m and its label."""
    registry = Registry(lambda model, status: None, publisher)
    registry.add_model("m", is_configured=False)
    registry.start("m", 1)
    registry.publish(servable(1))
    registry.configure({"m": {"stable": 1}})
    return registry


def test_routes_are_the_configured_models_with_their_versions_and_labels() -> None:
    server, publisher = FakeServer(), RoutePublisher({})
    publisher.attach(server)
    registry = Registry(lambda model, status: None, publisher)
    registry.add_model("m", is_configured=False)
    registry.start("m", 1)
    registry.publish(servable(1))
    assert server.routes[-1] == []
    registry.configure({"m": {"stable": 1}})
    assert server.routes[-1] == [("m", [(1, None)], {"stable": 1}, 0.0, "")]
    registry.start("m", 2)
    registry.publish(servable(2))
    assert server.routes[-1] == [("m", [(2, None), (1, None)], {"stable": 1}, 0.0, "")]
    registry.unload("m", 1)
    assert server.routes[-1] == [("m", [(2, None)], {"stable": 1}, 0.0, "")]
    registry.configure({})
    assert server.routes[-1] == []


def test_a_change_of_one_model_sends_no_other() -> None:
    server, publisher = FakeServer(), RoutePublisher({})
    publisher.attach(server)
    registry = Registry(lambda model, status: None, publisher)
    for name in "abc":
        registry.add_model(name, is_configured=False)
    registry.configure(dict.fromkeys("abc", {}))
    server.changes.clear()
    registry.start("b", 1)
    registry.publish(servable(1, "b"))
    registry.note_problem("c", "none")
    # While a model has no version, each of its changes changes the text that tells clients why.
    assert {name for changed, _ in server.changes for name in changed} == {"b", "c"}
    assert all(len(changed) == 1 and not gone for changed, gone in server.changes)
    server.changes.clear()
    registry.configure(dict.fromkeys("ab", {}))
    assert server.changes == [(["a", "b"], ["c"])]
    assert [route[0] for route in server.routes[-1]] == ["a", "b"]


def test_a_server_that_comes_later_gets_what_is_there() -> None:
    publisher = RoutePublisher({})
    published(publisher)
    server = FakeServer()
    publisher.attach(server)
    assert server.routes == [[("m", [(1, None)], {"stable": 1}, 0.0, "")]]
    publisher.detach()
    assert server.routes[-1] == []


def test_a_version_leaves_the_routes_before_its_unload_waits_for_the_core() -> None:
    server, publisher = FakeServer(), RoutePublisher({})
    registry = published(publisher)
    publisher.attach(server)
    native = FakeNative(num_holders=1)
    registry.start("m", 2)
    registry.publish(servable(2, native=native))
    unloading = threading.Thread(target=registry.unload, args=("m", 2))
    unloading.start()
    while server.routes[-1] != [("m", [(1, None)], {"stable": 1}, 0.0, "")]:
        pass
    assert unloading.is_alive()
    native.num_holders = 0
    unloading.join(60)
    assert not unloading.is_alive()


def test_a_holder_is_not_free_while_the_core_holds_its_servable() -> None:
    native = FakeNative(num_holders=2)
    holder = Holder(servable(native=native))
    # The core holds the servable twice: for its route, and for one request.
    assert (holder.num_leases, holder.num_requests) == (2, 1)
    holder.retire()
    assert not holder.is_free
    native.num_holders = 0
    assert holder.is_free


def test_a_native_servable_of_two_holders_is_counted_once() -> None:
    first, second = FakeNative(1), FakeNative(1)
    one = Holder(servable(native=first))
    two = Holder(servable(native=second), one)
    three = Holder(servable(native=first), two)
    assert three.num_leases == 2
