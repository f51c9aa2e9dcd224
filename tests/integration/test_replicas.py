"""A short run of loadtest.replicas: no request of usual clients fails in a rolling restart or a roll-out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest.network_hosts import can_make_hosts
from loadtest.replicas import fleet as faults
from loadtest.replicas.__main__ import run
from loadtest.replicas.fleet import balancers
from loadtest.replicas.load import Tally


def network_of(program: str) -> set[str]:
    """Returns the network namespaces of the children of this process that run a program."""
    children = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    running = [pid for pid in children if Path("/proc", pid, "comm").read_text().strip() == program]
    return {os.readlink(f"/proc/{pid}/ns/net") for pid in running}


pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and `ip`: NO REPLICA RAN")


@pytest.mark.parametrize("balancer", ["haproxy", "nginx"])
def test_no_request_fails_while_replicas_restart_and_a_version_is_rolled_out(balancer: str) -> None:
    if balancer not in balancers():
        pytest.skip(f"{balancer} is not installed: IT WAS NOT TRIED")
    found: dict[str, dict[str, Tally]] = {}
    networks: set[str] = set()

    def show(_: object, fault: str, tallies: dict[str, Tally]) -> None:
        found[fault] = tallies
        networks.update(network_of(balancer))

    chosen = [faults.rolling_restart, faults.roll_out_version]
    run(chosen, balancer, 1.0, show, settled_s=0.5, period_s=0.06)
    assert [*found] == ["no fault", *(fault.__name__ for fault in chosen)]
    for fault, tallies in found.items():
        assert tallies.keys() == {"gRPC", "HTTP"}
        for wire, tally in tallies.items():
            assert (tally.failed, tally.wrong, dict(tally.why)) == (0, 0, {}), (fault, wire)
            assert len(tally.seconds) > 10
    rolled_out = found["roll_out_version"].values()
    assert all(tally.versions.keys() == {1, 2} for tally in rolled_out)
    # The balancer's ports are fixed, so they must not be this machine's: `make demo` may use the same ones.
    assert len(networks) == 1 and os.readlink("/proc/self/ns/net") not in networks
