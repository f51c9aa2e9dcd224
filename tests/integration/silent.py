"""Disks and servers that take requests and never answer: what a test blocks while a server runs."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DETACH = 2
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="not root, or no /dev/fuse: NO DISK WAS SILENT"
)


@contextmanager
def silent_disk(folder: Path) -> Iterator[None]:
    """Mounts over a folder a disk that never answers, as a network disk without its server does.

    It is a FUSE file system whose program reads no request. At the end, all calls that wait for it fail with an error.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"silent", bytes(folder), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "can not mount", str(folder))
        try:
            yield
        finally:
            libc.umount2(bytes(folder), _DETACH)
    finally:
        os.close(fuse)


@contextmanager
def silent_server() -> Iterator[int]:
    """Listens on a TCP port whose connections are never accepted, and so never answered; returns the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def silent_names(file: Path) -> Iterator[None]:
    """Writes a resolv.conf whose name server never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        # Port 53 is fixed; a loopback address of its own keeps it apart from other name servers.
        server.bind(("127.53.53.53", 53))
        file.write_text("nameserver 127.53.53.53\noptions timeout:60 attempts:5\n")
        yield


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Returns the reading and the writing end of a pipe that is full, and that nobody reads."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        try:
            while os.write(writing, b"x" * 4095 + b"\n"):
                pass
        except BlockingIOError:
            os.set_blocking(writing, True)
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mounts over a folder a disk in memory that takes `size` bytes; skips the test where nothing can be mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"small", bytes(folder), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip(f"{os.strerror(ctypes.get_errno())}: NO DISK WAS FULL")
    try:
        yield
    finally:
        libc.umount2(bytes(folder), _DETACH)
