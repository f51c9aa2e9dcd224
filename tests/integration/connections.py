"""Which process holds the other end of a connection, from what Linux tells of sockets and open files."""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.integration.process import PATIENCE_S, ServerProcess, until

_ESTABLISHED = "01"


def held_ports(server_port: int, pid: int) -> set[int]:
    """Returns the clients' ports of the connections to a port that a process holds."""
    try:
        links = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    mine = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    # gRPC's C core listens on IPv6 sockets for IPv4 too.
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {
        int(row[2].partition(":")[2], 16)
        for row in rows
        if row[3] == _ESTABLISHED and row[9] in mine and int(row[1].partition(":")[2], 16) == server_port
    }


class Kept:
    """One HTTP connection that stays open, with the worker that holds it."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.http = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        self.http.connect()
        self.port = self.http.sock.getsockname()[1]
        # An answer: some worker has taken it.
        self.get("/healthz")

    def get(self, path: str) -> tuple[int, str]:
        """Returns the status and the text of a path."""
        return self._answer("GET", path, None)

    def post(self, path: str, body: str) -> tuple[int, str]:
        """Returns the status and the text of an answer."""
        return self._answer("POST", path, body)

    def _answer(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        self.http.request(method, path, body)
        response = self.http.getresponse()
        return response.status, response.read().decode()

    def pid(self, pids: Iterable[int]) -> int:
        """Returns which of the processes holds the other end."""
        (found,) = [pid for pid in pids if self.port in held_ports(self._server.http_port, pid)]
        return found

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *error: Any) -> None:
        self.http.close()


def worker_pids(server: ServerProcess) -> list[int]:
    """Returns the processes that a server's log says listen, the first places first, without those that ended."""
    ended = {record["pid"] for record in server.records if record["message"] == "worker ended"}
    listening = [record for record in server.records if record["message"] == "worker listening"]
    by_place = {record["worker"]: record["pid"] for record in listening if record["pid"] not in ended}
    return [pid for _, pid in sorted(by_place.items())]


def one_to_each(server: ServerProcess, stack: ExitStack) -> dict[int, Kept]:
    """Opens connections until each of the workers holds one; returns one of each. Idle ones are closed after 5 s."""
    wanted, found = set(worker_pids(server)), dict[int, Kept]()

    def open_one() -> bool:
        one = stack.enter_context(Kept(server))
        try:
            found.setdefault(one.pid(wanted), one)
        except ValueError:
            # It is gone already: on a busy machine five seconds pass between two lines.
            return False
        return found.keys() == wanted

    until(open_one)
    return found


def on_each(server: ServerProcess, is_so: Callable[[Kept], bool]) -> bool:
    """Says whether something is so of each worker, asked over new connections."""
    with ExitStack() as stack:
        return all(is_so(kept) for kept in one_to_each(server, stack).values())
