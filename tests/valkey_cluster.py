"""Starts real Valkey or Redis processes: one server, or a cluster of primaries and replicas, on loopback or hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from loadtest.network_hosts import LOOPBACK, Host
from tests.integration.process import until, unused_ports

redis = pytest.importorskip("redis", reason="the extra [remote] is not installed: no test of remote tables can run")

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
needs_program = pytest.mark.skipif(
    PROGRAM is None, reason="neither valkey-server nor redis-server is installed: NO TEST OF REMOTE TABLES RAN"
)
_NUM_SLOTS = 16384


@dataclass(frozen=True)
class Security:
    """How nodes are protected. tls: a folder with ca.pem, node.pem and node.key; None: no TLS."""

    tls: Path | None = None
    password: str = ""

    @property
    def flags(self) -> list[str]:
        """Returns the flags for a node's password and TLS, also for its connections to other nodes."""
        found = ["--requirepass", self.password, "--masterauth", self.password] if self.password else []
        if self.tls is not None:
            found += ["--tls-cert-file", str(self.tls / "node.pem"), "--tls-key-file", str(self.tls / "node.key")]
            found += ["--tls-ca-cert-file", str(self.tls / "ca.pem"), "--tls-auth-clients", "no"]
            found += ["--tls-replication", "yes", "--tls-cluster", "yes"]
        return found

    @property
    def options(self) -> dict[str, Any]:
        """Returns arguments of redis-py."""
        tls = {} if self.tls is None else {"ssl": True, "ssl_ca_certs": str(self.tls / "ca.pem")}
        return {**tls, **({"password": self.password} if self.password else {})}


class Node:
    """One Valkey or Redis process. port: its TCP port for clients; bus: its port for other nodes of the cluster."""

    def __init__(
        self, folder: Path, *flags: str, is_cluster: bool, security: Security = Security(), host: Host = LOOPBACK
    ) -> None:
        assert PROGRAM is not None
        self.port, self.bus = unused_ports(2)
        self.security, self.host = security, host
        folder.mkdir(parents=True)
        cluster = ["--cluster-enabled", "yes", "--cluster-port", str(self.bus), "--cluster-node-timeout", "1000"]
        port = ["--port", str(self.port)] if security.tls is None else ["--port", "0", "--tls-port", str(self.port)]
        self._arguments = [
            *(*host.prefix, PROGRAM, *port, "--bind", host.address, "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
            *(cluster if is_cluster else ()),
            *security.flags,
            *flags,
        ]
        self.start()

    def start(self) -> None:
        """Starts the process, also after it was stopped, and waits until it answers."""
        self.process = subprocess.Popen(self._arguments, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        until(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"{self._arguments} ended"
        try:
            return bool(self.ask("PING"))
        except redis.ConnectionError:
            return False

    @cached_property
    def client(self) -> Any:
        """A client that sends commands to this node alone."""
        options = self.security.options
        where = (self.host.address, self.port)
        return redis.Redis(*where, decode_responses=True, protocol=2, socket_timeout=10, **options)

    def ask(self, *words: object) -> Any:
        """Sends one command to this node and returns the answer."""
        return self.client.execute_command(*words)

    def authenticate(self, security: Security) -> None:
        """Uses another password from now on, also when it is started again."""
        before, self.security = self.security, security
        self._arguments = [security.password if word == before.password else word for word in self._arguments]
        self.__dict__.pop("client", None)

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Freezes the process with SIGSTOP, so that it answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resumes a process that was frozen."""
        os.kill(self.process.pid, signal.SIGCONT)


class Cluster:
    """The nodes of a cluster, stopped at the end of the test. primaries: 0 makes one server without cluster mode.

    nodes: the primaries, and then the replicas in the same order.
    """

    def __init__(
        self,
        folder: Path,
        primaries: int = 3,
        replicas: int = 0,
        flags: tuple[str, ...] = (),
        security: Security = Security(),
        hosts: Sequence[Host] = (LOOPBACK,),
    ) -> None:
        self.nodes: list[Node] = []
        self._primaries = primaries
        self._security = security
        try:
            for number in range(primaries * (1 + replicas) or 1):
                # If there are several hosts, a replica is on another host than its primary.
                host = hosts[(number + number // max(primaries, 1)) % len(hosts)]
                node = Node(folder / str(number), *flags, is_cluster=bool(primaries), security=security, host=host)
                self.nodes.append(node)
            if primaries:
                self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """Returns the cluster's address, which lists some of its nodes and has no password."""
        scheme = "valkey://" if self._security.tls is None else "valkeys://"
        return scheme + ",".join(f"{node.host.address}:{node.port}" for node in self.nodes[:3])

    def _join(self) -> None:
        names = [node.ask("CLUSTER MYID") for node in self.nodes]
        for number, node in enumerate(self.nodes[: self._primaries]):
            begin, end = (_NUM_SLOTS * n // self._primaries for n in (number, number + 1))
            node.ask("CLUSTER ADDSLOTSRANGE", begin, end - 1)
            node.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
        # Every node is told of every other node, because gossip alone would take seconds to spread the addresses.
        for one in self.nodes:
            for other in self.nodes:
                if one is not other:
                    one.ask("CLUSTER MEET", other.host.address, other.port, other.bus)
        until(lambda: all(len(node.ask("CLUSTER NODES")) == len(self.nodes) for node in self.nodes))
        for number, node in enumerate(self.nodes[self._primaries :]):
            until(lambda node=node, name=names[number % self._primaries]: _replicates(node, name))
        until(self.is_whole)

    def is_whole(self) -> bool:
        """Says whether all nodes agree that every slot has a primary, and all replicas follow their primaries."""
        alive = [node for node in self.nodes if node.process.poll() is None]
        states = [node.ask("CLUSTER INFO")["cluster_state"] for node in alive]
        links = [node.ask("INFO", "replication") for node in alive]
        return set(states) == {"ok"} and all(
            link["role"] == "master" or link["master_link_status"] == "up" for link in links
        )

    def client(self) -> Any:
        """Returns a redis-py client for the whole cluster."""
        if not self._primaries:
            return self.nodes[0].client
        options = self._security.options
        first = self.nodes[0]
        return redis.RedisCluster(first.host.address, first.port, decode_responses=True, protocol=2, **options)

    def authenticate(self, password: str) -> None:
        """Uses another password from now on, also for nodes that are started again."""
        self._security = replace(self._security, password=password)
        for node in self.nodes:
            node.authenticate(self._security)

    def keys(self) -> set[str]:
        """Returns the keys that the primaries hold, of all primaries."""
        return {key for node in self.nodes[: self._primaries or 1] for key in node.ask("KEYS", "*")}

    def stop(self) -> None:
        """Ends all processes."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _replicates(node: Node, primary: str) -> bool:
    try:
        node.ask("CLUSTER REPLICATE", primary)
    except redis.ResponseError:
        # CLUSTER REPLICATE fails as long as the replica does not know the primary, so the test sends it again.
        return False
    return True
