"""Cuts and loses hosts of a real cluster under load; the hosts are network namespaces of this machine. Needs root.

  python -m loadtest.host_faults --rows 200000 --seconds 5

Three hosts have a primary and another primary's replica each. Two servers and their clients are beside them, on a
fourth host. The counts have the same meaning as in loadtest.cluster_faults.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import redis

from loadtest import cluster_faults
from loadtest.cluster_faults import History, Stage, shown
from loadtest.network_hosts import Hosts
from tests.valkey_cluster import until

_COUNT = 3
# Index of the host on which each fault acts.
_LOST = 0


@dataclass
class Network:
    """A stage (cluster, servers and clients) whose nodes are spread over hosts."""

    stage: Stage
    hosts: Hosts

    def nodes_of(self, host: int) -> list[int]:
        place = self.hosts.hosts[host]
        return [number for number, node in enumerate(self.stage.cluster.nodes) if node.host == place]

    def restore(self) -> None:
        """Waits until the cluster is whole, and makes the first three nodes its primaries again, one on each host."""
        cluster = self.stage.cluster
        until(cluster.is_whole)
        for number in range(_COUNT):
            until(lambda number=number: self._is_primary(number))
        until(cluster.is_whole)

    def _is_primary(self, number: int) -> bool:
        if self.stage.role(number) == "master":
            return True
        # CLUSTER FAILOVER is repeated: a replica refuses it while it knows no primary, and gives up a failover after
        # five seconds.
        with suppress(redis.ResponseError):
            self.stage.cluster.nodes[number].ask("CLUSTER FAILOVER")
        time.sleep(0.5)
        return False


def lose_host(network: Network) -> None:
    """Loses a host for a time: both of its nodes end, and no packet is answered, not even with a refusal."""
    stage, lost = network.stage, network.nodes_of(_LOST)
    network.hosts.cut(_LOST)
    for number in lost:
        stage.cluster.nodes[number].kill()
    stage.wait()
    stage.wait_for_takeover(*lost)
    network.hosts.join(_LOST)
    for number in lost:
        stage.cluster.nodes[number].start()
    network.restore()


def cut_host(network: Network) -> None:
    """Takes a host off the network, then puts it back; the nodes on the host keep running."""
    network.hosts.cut(_LOST)
    network.stage.wait()
    network.stage.wait_for_takeover(*network.nodes_of(_LOST))
    network.hosts.join(_LOST)
    network.restore()


def part_from_servers(network: Network) -> None:
    """Parts a host from the servers only. Other hosts still reach the parted host, so no replica takes over."""
    network.hosts.part(_LOST, network.hosts.near)
    network.stage.wait()
    network.hosts.mend(_LOST, network.hosts.near)
    network.restore()


def part_from_hosts(network: Network) -> None:
    """Parts a host from the other hosts, but not from servers. For a time two nodes are primaries of the same slots."""
    pairs = [(_LOST, other) for other in range(1, _COUNT)] + [(other, _LOST) for other in range(1, _COUNT)]
    for number, other in pairs:
        network.hosts.part(number, network.hosts.hosts[other].address)
    network.stage.wait()
    network.stage.wait_for_takeover(*network.nodes_of(_LOST))
    for number, other in pairs:
        network.hosts.mend(number, network.hosts.hosts[other].address)
    network.restore()


FAULTS: tuple[Callable[[Network], None], ...] = (lose_host, cut_host, part_from_servers, part_from_hosts)


def run(faults: Sequence[Callable[[Network], None]], *arguments: Any, **options: Any) -> History:
    """Runs faults one after another on one cluster of several hosts; the other arguments are cluster_faults.run's."""
    with Hosts(_COUNT) as hosts:

        def on(fault: Callable[[Network], None]) -> Callable[[Stage], None]:
            return wraps(fault)(lambda stage: fault(Network(stage, hosts)))

        return cluster_faults.run([on(fault) for fault in faults], *arguments, hosts=hosts.hosts, **options)


def main() -> int:
    """Prints a table, a line for each fault; returns 1 if any row was wrong."""
    return shown(__doc__, {fault.__name__: fault for fault in FAULTS}, run)


if __name__ == "__main__":
    sys.exit(main())
