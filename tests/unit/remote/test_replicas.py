"""The moment up to which a replica has all changes, in any order of faults of a primary and the network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.remote import replicas, topology
from service.remote.address import StoreAddress
from service.remote.core_clusters import FRESH_S
from service.remote.replicas import Replicas, Report
from service.remote.topology import Node, Topology

PRIMARY, REPLICA = ("primary", 1), ("replica", 1)


class _Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


CLOCK = _Clock()


class _Shard(Replicas):
    """The product's finder. Its nodes are modelled: a primary that makes changes, and a replica that copies them."""

    def __init__(self) -> None:
        self.nodes = Topology(StoreAddress.parse("valkey://primary:1"))
        super().__init__(self.nodes)
        self.is_linked = self.is_heard = self.is_awake = self.is_alive = True
        # The moments of the primary's changes, and how many of them the replica has.
        self.made_s: list[float] = []
        self.num_copied = 0
        # A primary that is killed takes its newest changes with it: until when their loss would be a fault.
        self.kept_s = float("inf")

    def act(self, action: str) -> None:
        if action == "change" and self.is_awake and self.is_alive:
            self.made_s.append(CLOCK.now_s)
        elif action == "kill":
            self.kept_s = min(self.kept_s, CLOCK.now_s - replicas._GONE_S)
            self.is_alive = False
        elif action in ("linked", "heard", "awake"):
            name = f"is_{action}"
            setattr(self, name, not getattr(self, name))
        if self.is_linked and self.is_awake and self.is_alive:
            self.num_copied = len(self.made_s)
        if action == "compare":
            self.compare()

    def _report(self, node: Node) -> Report:
        if node == REPLICA:
            return Report(CLOCK.now_s, False, "history", self.num_copied)
        if not self.is_alive and self.is_heard:
            refused = OSError()
            refused.__context__ = ConnectionRefusedError()
            raise refused
        if not (self.is_heard and self.is_awake):
            raise TimeoutError
        return Report(CLOCK.now_s, True, "history", len(self.made_s))


@pytest.fixture(scope="module", autouse=True)
def fake() -> Iterator[None]:
    """Gives both modules the clock of this file, and the topology one primary with a replica."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "time", CLOCK)
        patch.setattr(replicas, "time", CLOCK)
        patch.setattr(Topology, "groups", lambda _: [(PRIMARY, [REPLICA])])
        yield


STEPS = st.tuples(st.sampled_from(["change", "linked", "heard", "awake", "kill"]), st.integers(0, 9), st.booleans())


@settings(max_examples=500, deadline=None)
@given(st.lists(STEPS, max_size=12))
# The silent primary's replica gets a change, is cut off, and lacks the next one.
@example([("heard", 1, False), ("change", 0, False), ("linked", 0, False), ("change", 1, False)])
# The silent primary's replica is cut off for long before the primary is killed.
@example([("heard", 1, False), ("linked", 0, False), ("change", 9, False), ("kill", 0, False), ("heard", 1, False)])
# The primary is cut off from the replica, takes changes, and is killed, and the server has not compared them meanwhile.
@example([("linked", 0, False), *[("change", 0, False)] * 12, ("kill", 9, False)])
def test_a_replica_has_all_changes_up_to_its_moment(steps: list[tuple[str, int, bool]]) -> None:
    CLOCK.now_s = 100.0
    shard = _Shard()
    shard.compare()
    for action, num_compared, is_busy in steps:
        CLOCK.now_s += 0.1
        shard.act(action)
        for _ in range(num_compared):
            CLOCK.now_s += 0.3
            shard.act("compare")
            as_of_s = shard.nodes.as_of_s(REPLICA)
            assert shard.num_copied >= sum(made_s < min(as_of_s, shard.kept_s) for made_s in shard.made_s)
            assert shard.nodes.is_in_sync(REPLICA) == (CLOCK.now_s < as_of_s + FRESH_S)
            if is_busy:
                shard.act("change")


@pytest.mark.parametrize(("fault", "is_in_sync"), [("heard", True), ("awake", False), ("kill", True)])
def test_a_replica_stays_in_sync_while_it_hears_from_its_primary_or_the_primary_is_dead(
    fault: str, is_in_sync: bool
) -> None:
    shard = _Shard()
    for action in ("change", "compare", fault, *("change", "compare", "compare") * 10):
        CLOCK.now_s += 0.3
        shard.act(action)
    assert shard.nodes.is_in_sync(REPLICA) == is_in_sync


def test_a_replica_that_was_behind_when_its_primary_fell_silent_is_not_read() -> None:
    shard = _Shard()
    for action in ("linked", "change", "compare", "heard", *("change",) * 10, "linked", "change"):
        CLOCK.now_s += 0.3
        shard.act(action)
    for action in ("compare", "change") * 10:
        shard.act(action)
    assert not shard.nodes.is_in_sync(REPLICA)


def test_a_replica_that_gets_what_a_network_held_back_is_not_read_until_its_primary_answers() -> None:
    shard = _Shard()
    for action in ("change", "compare", "heard", "linked", *("change", "compare") * 10):
        CLOCK.now_s += 0.3
        shard.act(action)
    for _ in range(10):
        CLOCK.now_s += 0.3
        shard.num_copied += 1
        shard.act("compare")
        assert not shard.nodes.is_in_sync(REPLICA)
    for action in ("linked", "heard", "compare"):
        shard.act(action)
    assert shard.nodes.is_in_sync(REPLICA)


def test_a_replica_stays_in_sync_with_an_ended_primary_if_it_is_compared_late() -> None:
    shard = _Shard()
    for action, pause_s in (("change", 0.3), ("compare", 0.3), ("kill", 0.3), ("compare", 1.5), ("compare", 1.5)):
        shard.act(action)
        was_in_sync = shard.nodes.is_in_sync(REPLICA)
        CLOCK.now_s += pause_s
    assert was_in_sync
    # It may have started again since.
    assert not shard.nodes.is_in_sync(REPLICA)


def test_a_replica_that_starts_again_with_what_it_had_saved_is_not_read_until_it_has_copied_its_primary() -> None:
    shard = _Shard()
    for action in ("change", "change", "compare"):
        CLOCK.now_s += 0.3
        shard.act(action)
    assert shard.nodes.is_in_sync(REPLICA)
    shard.act("linked")
    shard.num_copied = 1
    shard.act("compare")
    assert not shard.nodes.is_in_sync(REPLICA)
    shard.act("linked")
    shard.act("compare")
    assert shard.nodes.is_in_sync(REPLICA)


def test_a_replica_that_starts_again_is_told_while_another_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ("silent", 1)
    monkeypatch.setattr(Topology, "groups", lambda _: [(PRIMARY, [REPLICA, silent])])
    told = []

    class Shard(_Shard):
        def _report(self, node: Node) -> Report:
            if node == silent:
                told.append(self.nodes.is_in_sync(REPLICA))
                raise TimeoutError
            return super()._report(node)

    shard = Shard()
    shard._on_lost = lambda as_of_s: told.append(as_of_s)
    for action in ("change", "change", "compare", "compare", "linked"):
        shard.act(action)
    shard.num_copied = 1
    shard.act("compare")
    assert told == [True, True, {REPLICA: float("-inf")}, False]
