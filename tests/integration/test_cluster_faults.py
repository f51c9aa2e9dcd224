"""Runs the short form of loadtest.cluster_faults: a cluster that breaks under load gives no wrong row."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest import cluster_faults
from loadtest.cluster_faults import Tally
from loadtest.network_hosts import Hosts, can_make_hosts
from tests.valkey_cluster import needs_program

pytestmark = [needs_program, pytest.mark.core]
# Each of the four readers sends at most a hundred requests a second, so that the processors are free for other tests.
_PERIOD_S = 0.01


def test_faults_under_load_give_no_wrong_row() -> None:
    found: dict[str, Tally] = {}
    chosen = [
        cluster_faults.kill_primary,
        cluster_faults.failover,
        cluster_faults.reshard,
        cluster_faults.memory_full,
        cluster_faults.change_password,
        cluster_faults.flip_version,
    ]
    history = cluster_faults.run(
        chosen, 60_000, 1.0, found.__setitem__, settled_s=0.5, period_s=_PERIOD_S, seen_within_s=60
    )
    # `make cluster-test` checks it by native/src/clusters/simulation/history.rs.
    assert {line.split()[0] for line in history.lines} == {"change", "read", "loss"}
    assert [*found] == ["no fault", *(fault.__name__ for fault in chosen)]
    assert {name: tally.wrong for name, tally in found.items()} == dict.fromkeys(found, 0)
    assert min(tally.requests for tally in found.values()) > 0
    assert {name for name, tally in found.items() if not tally.seen} == {cluster_faults.NO_FAULT}
    # A cluster whose memory is full refuses upserts but answers reads.
    assert found["no fault"].failed == found["no fault"].failed_upserts == found["memory_full"].failed == 0
    assert found["memory_full"].failed_upserts > 0
    assert found["flip_version"].versions.keys() == {1, 2}


@pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and `ip`: NO HOST WAS LOST")
def test_lost_and_parted_hosts_under_load_give_no_wrong_row() -> None:
    found: dict[str, Tally] = {}
    chosen = [cluster_faults.part_from_servers, cluster_faults.lose_host]
    how: dict[str, Any] = {"settled_s": 0.5, "period_s": _PERIOD_S, "seen_within_s": 60}
    with Hosts(cluster_faults.NUM_HOSTS) as hosts:
        cluster_faults.run(chosen, 20_000, 1.0, found.__setitem__, **how, hosts=hosts)
    assert [*found] == ["no fault", "part_from_servers", "lose_host"]
    assert {name: tally.wrong for name, tally in found.items()} == dict.fromkeys(found, 0)
    assert min(tally.requests for tally in found.values()) > 0
    assert {name for name, tally in found.items() if not tally.seen} == {cluster_faults.NO_FAULT}
