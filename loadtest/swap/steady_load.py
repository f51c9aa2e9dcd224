"""Sends lookups at a steady rate, without waiting for answers, from a separate process, and checks every answer.

python -m loadtest.swap.steady_load PORT ROWS_USER ROWS_ITEM RATE CONNECTIONS

It runs until its standard input ends. Then it prints JSON: [due, seconds, version] of each answered request on the
monotonic clock, and the faults.

A request is due by the clock, not after the answer to the one before, so requests that wait during a pause count as
slow.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import deque

import numpy as np
import orjson

from loadtest.swap.model import numbers_of

_PATH = "/v1/models/swap:lookup"
# Number of requests that are drawn before the load begins; their ids have a skewed distribution, as in production.
_DRAWN = 4096
_MAX_WRONG = 20


class SteadyLoad:
    """Sender of a steady load over HTTP; it records response times, versions and faults."""

    def __init__(self, port: int, rows: dict[str, int], rate: float, connections: int) -> None:
        self._rate = rate
        random = np.random.default_rng(0)
        ids = {name: (random.zipf(1.2, _DRAWN) * 7919) % n for name, n in rows.items()}
        self._requests = [self._request({name: [int(ids[name][i])] for name in rows}) for i in range(_DRAWN)]
        self._selector = selectors.DefaultSelector()
        self._idle: deque[socket.socket] = deque()
        self._port = port
        self._due: dict[socket.socket, float] = {}
        self._read: dict[socket.socket, bytes] = {}
        self.answers: list[tuple[float, float, float]] = []
        self.wrong: list[str] = []
        for _ in range(connections):
            self._connect()
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def _connect(self) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(sock, selectors.EVENT_READ)
        self._idle.append(sock)

    def _request(self, features: dict[str, list[int]]) -> bytes:
        body = orjson.dumps({"features": features})
        head = f"POST {_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return (head + f"content-length: {len(body)}\r\n\r\n").encode() + body

    def run(self) -> None:
        """Sends requests until standard input ends, then waits up to 10 s for the last answers."""
        started_s = time.monotonic()
        number, waiting, is_over, until_s = 0, deque[float](), False, float("inf")
        while not (is_over and not waiting and not self._due) and time.monotonic() < until_s:
            now_s = time.monotonic()
            while not is_over and started_s + number / self._rate <= now_s:
                waiting.append(started_s + number / self._rate)
                number += 1
            while waiting and self._idle:
                sock = self._idle.popleft()
                self._due[sock], self._read[sock] = waiting.popleft(), b""
                sock.sendall(self._requests[len(self.answers) % _DRAWN])
            next_s = started_s + number / self._rate - time.monotonic()
            for key, _ in self._selector.select(max(next_s, 0) if not is_over else 0.1):
                if key.fileobj is sys.stdin:
                    is_over, until_s = True, time.monotonic() + 10
                    self._selector.unregister(sys.stdin)
                else:
                    self._receive(key.fileobj)  # type: ignore[arg-type]
        self._note(f"{len(self._due) + len(waiting)} requests were not answered", bool(self._due or waiting))

    def _receive(self, sock: socket.socket) -> None:
        data = sock.recv(1 << 16)
        self._read[sock] = self._read.get(sock, b"") + data
        head, found, body = self._read[sock].partition(b"\r\n\r\n")
        if not data:
            # The server may close an idle connection, but not a connection with a request in flight.
            self._note("a connection was closed before its answer", is_so=self._due.pop(sock, None) is not None)
            self._selector.unregister(sock)
            self._idle = deque(one for one in self._idle if one is not sock)
            self._connect()
            return
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not found or len(body) < int(lengths[0].partition(b":")[2]):
            return
        due_s = self._due.pop(sock)
        self._idle.append(sock)
        now_s = time.monotonic()
        if not head.startswith(b"HTTP/1.1 200"):
            self._note(f"{head[:40]!r} {body[:200]!r}", is_so=True)
            return
        numbers = numbers_of(orjson.loads(body))
        self._note(f"an answer of several versions: {sorted(numbers)}", is_so=len(numbers) != 1)
        self.answers.append((due_s, now_s - due_s, max(numbers)))

    def _note(self, what: str, is_so: bool) -> None:
        if is_so:
            self.wrong.append(what)


def main() -> None:
    port, user, item, rate, connections = sys.argv[1:]
    load = SteadyLoad(int(port), {"user": int(user), "item": int(item)}, float(rate), int(connections))
    load.run()
    found = {"answers": load.answers, "num_wrong": len(load.wrong), "wrong": load.wrong[:_MAX_WRONG]}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
