"""Tests which addresses a host setting stands for."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from service.process import bound_ports


def test_without_ipv6_in_the_kernel_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    class SocketWithoutIpv6(socket.socket):
        def __init__(self, family: int = socket.AF_INET) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family)

    monkeypatch.setattr(bound_ports.socket, "socket", SocketWithoutIpv6)
    assert bound_ports._resolved("::", 8500) == (socket.AF_INET, ("0.0.0.0", 8500))
