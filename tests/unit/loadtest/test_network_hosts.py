"""Hosts of two processes that run at the same time have different addresses."""

from __future__ import annotations

import ipaddress
import os

import pytest

from loadtest.network_hosts import Hosts


def test_processes_have_different_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set()
    for pid in range(4_194_000, 4_194_300):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        hosts = Hosts(3)
        addresses = {ipaddress.ip_address(address) for address in (hosts.near, *(one.address for one in hosts.hosts))}
        assert len(addresses) == 4 and not addresses & taken
        assert all(address in ipaddress.ip_network("198.18.0.0/15") for address in addresses)
        taken |= addresses
