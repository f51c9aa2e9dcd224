"""Hosts of one machine: network namespaces with an address each, joined by a bridge. Needs root, and `ip`."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """The host on which a process runs. address: its IP address. prefix: a command that runs another command on it."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


LOOPBACK = Host()


def can_make_hosts() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"es{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    return made.returncode == 0 and subprocess.run(["ip", "netns", "del", name], check=False).returncode == 0


class Hosts:
    """The hosts of a test, removed at the end of the `with` block. near: this machine's address on their bridge.

    hosts: the hosts; methods take an index into this list.
    """

    def __init__(self, count: int) -> None:
        network = _network()
        self.near = f"{network}.1"
        self._bridge = f"es{os.getpid()}br"
        names = [f"es{os.getpid()}h{number}" for number in range(count)]
        self.hosts = [
            Host(f"{network}.{11 + number}", ("ip", "netns", "exec", name)) for number, name in enumerate(names)
        ]
        self._names = names

    def __enter__(self) -> Hosts:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.near}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name, host in zip(self._names, self.hosts, strict=True):
                _ip("netns", "add", name)
                _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", name, "master", self._bridge, "up")
                _ip("-n", name, "addr", "add", f"{host.address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Delete the links before the namespaces: the kernel removes a deleted namespace's links late, so their names
        # would stay in use.
        links = [("link", "del", name) for name in (*self._names, self._bridge)]
        for words in links + [("netns", "del", name) for name in self._names]:
            subprocess.run(["ip", *words], capture_output=True, check=False)

    def cut(self, number: int) -> None:
        """Takes a host off the network: no packet reaches it or leaves it."""
        _ip("link", "set", self._names[number], "down")

    def join(self, number: int) -> None:
        _ip("link", "set", self._names[number], "up")

    def part(self, number: int, address: str) -> None:
        """Drops all packets that a host sends to an address."""
        _ip("-n", self._names[number], "route", "add", "blackhole", f"{address}/32")

    def mend(self, number: int, address: str) -> None:
        """Lets a host's packets to an address pass again, after part()."""
        _ip("-n", self._names[number], "route", "del", "blackhole", f"{address}/32")


def _network() -> str:
    """Returns the first three numbers of this process's addresses, in the range that RFC 2544 reserves for benchmarks.

    Two processes may have hosts at the same time. Their bridges are on one machine, so they need different networks.
    """
    number = os.getpid()
    return f"198.{18 + number // 256 % 2}.{number % 256}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
