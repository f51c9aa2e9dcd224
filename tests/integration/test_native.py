"""The native core tells why calls are reset, once, and its threads of connections come before those that load."""

from __future__ import annotations

import ctypes
import platform
import struct
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.process import predict_grpc, until


def test_why_calls_for_a_list_of_addresses_are_reset_is_logged_once(serve: Serve) -> None:
    server = serve().ready()
    # For a list of addresses, grpcio sends the whole list as the name of the server.
    target = f"ipv4:127.0.0.1:{server.grpc_port},127.0.0.1:{server.grpc_port}"

    def told() -> list[str]:
        texts = [record["message"] for record in server.records]
        return [text for text in texts if "RST_STREAM 1" in text]

    for _ in range(3):
        with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError, match="RST_STREAM"):
            predict_grpc(channel, {"user": np.array([1])}, "lookup")
        until(lambda: len(told()) > 0)
    assert len(told()) == 1
    assert "grpc.default_authority" in told()[0] and "127.0.0.1" in told()[0]
    with grpc.insecure_channel(target, [("grpc.default_authority", "replicas")]) as channel:
        assert predict_grpc(channel, {"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]


def test_threads_of_connections_interrupt_threads_that_load(serve: Serve) -> None:
    server = serve().ready()
    usual_ns = _slice_ns(server.pid)
    if usual_ns == 0:
        pytest.skip("this kernel tells no slices: Linux does since 6.12")
    edges = []
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        # Threads of other names may end meanwhile.
        with suppress(OSError):
            edges += [int(task.name)] if (task / "comm").read_text().startswith("edge") else []
    assert edges and {_slice_ns(task) for task in edges} == {100_000} and usual_ns > 100_000


def _slice_ns(thread: int) -> int:
    """Returns the slice of a thread; 0 if the kernel does not tell it."""
    # struct sched_attr of 48 bytes: after size, policy, flags, nice and priority comes the runtime. The numbers of the
    # system call are those of x86-64 and of the generic table.
    attributes = ctypes.create_string_buffer(48)
    number = 315 if platform.machine() == "x86_64" else 275
    if ctypes.CDLL(None).syscall(number, thread, attributes, 48, 0) != 0:
        return 0
    return int(struct.unpack_from("<Q", attributes, 24)[0])
