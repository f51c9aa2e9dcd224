"""Reads many values of the same size over one connection to a cluster node, with all commands in one send.

Answers of the expected size stand side by side in the buffer, so one comparison in numpy checks all of them. Any other
answer - an error, a missing key - is read one by one.

Source: the RESP protocol specification of Redis and Valkey, version 2.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import numpy as np

from service.remote.address import StoreAddress
from service.remote.clients import tls_context
from service.types import Array

_READ_BYTES = 64 << 10
_MOST_LINE_BYTES = 4096


class ErrorReply(Exception):
    """An error reply of a Valkey or Redis node; the exception's argument is the text of the reply."""

    @property
    def kind(self) -> str:
        """The first word of this error reply of a cluster node, such as MOVED, which names the kind of error."""
        return str(self.args[0]).partition(" ")[0]


Reply = bytes | ErrorReply | None


class RowConnection:
    """A connection to a node of a cluster. Concurrency: one caller at a time. After an OSError callers must close it.

    was_idle: whether the connection waited for a read, so that the node may have closed it.

    Raises:
      OSError: no connection, or the node did not answer before end_s (time.monotonic); also for an ErrorReply to AUTH.
    """

    def __init__(self, node: tuple[str, int], address: StoreAddress, end_s: float) -> None:
        sock = socket.create_connection(node, _left(end_s))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.has_tls:
                sock = tls_context(address.ca_file).wrap_socket(sock, server_hostname=node[0])
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._rest = b""
        self.was_idle = False
        # READONLY lets a replica answer reads, which it would else redirect to the primary; a primary ignores it.
        greetings = [command("READONLY")]
        if password := address.password:
            greetings.insert(0, command("AUTH", *filter(None, (address.user,)), password))
        try:
            self.send(greetings, end_s)
            for _ in greetings:
                reply = self._reply(end_s)
                # A single server without cluster support refuses READONLY; this error is ignored, as such a server
                # needs no READONLY.
                if isinstance(reply, ErrorReply) and not str(reply).startswith("ERR This instance has cluster"):
                    raise ConnectionError(str(reply))
        except BaseException:
            self.close()
            raise

    def send(self, commands: Sequence[bytes], end_s: float) -> None:
        """Sends encoded commands to the cluster node in one piece; raises OSError."""
        if commands:
            self._socket.settimeout(_left(end_s))
            self._socket.sendall(b"".join(commands))

    def values(self, count: int, size: int, end_s: float) -> Array | list[Reply]:
        """Returns the cluster node's next replies as [count, size] uint8; as a list if one is no value of this size.

        Raises:
          OSError: the connection broke, or not all answers came before end_s.
        """
        head = b"$%d\r\n" % size
        frame = len(head) + size + 2
        buffer = np.empty(count * frame, np.uint8)
        view = buffer.data
        got = len(self._rest)
        if got > len(view):
            return self._one_by_one(count, end_s)
        view[:got] = self._rest
        self._rest = b""
        checked = 0
        while True:
            if not _begin_with(buffer, checked, got, head, frame):
                self._rest = bytes(view[:got])
                return self._one_by_one(count, end_s)
            checked = got // frame
            if got == len(view):
                return buffer.reshape(count, frame)[:, len(head) : -2]
            self._socket.settimeout(_left(end_s))
            received = self._socket.recv_into(view[got:])
            if not received:
                raise ConnectionError("the node closed the connection")
            got += received

    def replies(self, count: int, end_s: float) -> list[Reply]:
        """Returns the cluster node's next replies as a list; raises OSError if the connection fails or end_s passes."""
        return self._one_by_one(count, end_s)

    def _one_by_one(self, count: int, end_s: float) -> list[Reply]:
        return [self._reply(end_s) for _ in range(count)]

    def _reply(self, end_s: float) -> Reply:
        while (end := self._rest.find(b"\r\n")) < 0:
            if len(self._rest) > _MOST_LINE_BYTES:
                raise ConnectionError("the node sent a line without an end")
            self._receive(end_s)
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        kind, text = line[:1], line[1:]
        if kind == b"-":
            return ErrorReply(text.decode(errors="replace"))
        if kind in (b"+", b":"):
            return text
        if kind != b"$":
            raise ConnectionError(f"the node answered {line[:40]!r}, which is no answer to these commands")
        size = int(text)
        if size < 0:
            return None
        while len(self._rest) < size + 2:
            self._receive(end_s)
        value, self._rest = self._rest[:size], self._rest[size + 2 :]
        return value

    def _receive(self, end_s: float) -> None:
        self._socket.settimeout(_left(end_s))
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise ConnectionError("the node closed the connection")
        self._rest += received

    def close(self) -> None:
        """Closes the connection to the cluster node; replies that were not read yet are lost."""
        self._socket.close()

    def __del__(self) -> None:
        # If a version fails to load, nobody calls close(): the socket is closed here, when its reader is
        # garbage-collected.
        if hasattr(self, "_socket"):
            self._socket.close()


def command(*words: str) -> bytes:
    """Encodes a command of Valkey or Redis in the RESP protocol.

    >>> command("GET", "a")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\na\\r\\n'
    """
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _begin_with(buffer: Array, checked: int, got: int, head: bytes, frame: int) -> bool:
    """Says whether a node's replies that have arrived since the last check all are values of the expected size."""
    whole = got // frame
    frames = buffer[checked * frame : whole * frame].reshape(-1, frame)
    expected = np.frombuffer(head, np.uint8)
    if not (frames[:, : len(head)] == expected).all() or not (frames[:, -2:] == (13, 10)).all():
        return False
    begun = buffer[whole * frame : min(got, whole * frame + len(head))]
    return bool((begun == expected[: begun.size]).all())


def _left(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s
