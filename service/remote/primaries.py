"""Sends Valkey commands to the nodes of their hash slots, many at once, and retries until a deadline."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import redis

from service.remote.address import StoreAddress
from service.remote.clients import Node, node_client
from service.remote.topology import Reason, Topology, Unreachable

_PAUSE_S = 0.05
# Largest number of Valkey commands that are sent to a cluster node in one pipeline.
_BATCH = 64
# Longest time in milliseconds that write() waits, after each pipeline of writes, until replicas have the writes.
_COPY_MS = 200
# Valkey's errors after which a command is tried again: the map of hash slots is outdated, the node becomes a replica or
# is not ready, or it accepts no writes before replicas have joined.
_PASSING = (
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ReadOnlyError,
)


class Refused(Exception):
    """The error that a Valkey node refused a command for good; the exception's text is the node's error text."""


class Command(NamedTuple):
    """A Valkey command for a node of a hash slot. It may run twice, so a second run must change nothing."""

    slot: int
    words: tuple[bytes | str | int, ...]


class Primaries:
    """The clients of one cluster's primaries, or of a single Valkey or Redis server. Concurrency: any thread."""

    def __init__(self, address: StoreAddress, topology: Topology) -> None:
        self._address = address
        self._topology = topology
        self._changing = threading.Lock()
        # The clients of redis-py by (node, whether the client only reads).
        self._clients: dict[tuple[Node, bool], Any] = {}

    def run(self, commands: Sequence[Command], end_s: float) -> list[Any]:
        """Runs Valkey commands on the primaries of their hash slots; returns the replies in the order of the commands.

        Raises:
          Unreachable: not all were answered before end_s (time.monotonic).
          Refused: a node refuses a command; others may have run.
        """
        return self._run(commands, end_s, has_copies=False)[0]

    def read(self, commands: Sequence[Command], end_s: float) -> list[Any]:
        """Runs Valkey commands that read; returns and raises as run does.

        If the primary failed lately, a replica that is in sync is asked.
        """
        return self._run(commands, end_s, has_copies=False, is_read=True)[0]

    def write(self, commands: Sequence[Command], end_s: float) -> bool:
        """Runs Valkey commands that write; returns whether all known replicas have the writes. Raises Unreachable,
        Refused.
        """
        return self._run(commands, end_s, has_copies=True)[1]

    def close(self) -> None:
        for node, is_read in list(self._clients):
            self._drop(node, is_read)

    def _run(
        self, commands: Sequence[Command], end_s: float, *, has_copies: bool, is_read: bool = False
    ) -> tuple[list[Any], bool]:
        answers: dict[int, Any] = {}
        asking: dict[int, Node] = {}
        is_copied, why = True, Reason("no node of the slot is known")
        while True:
            groups: dict[tuple[Node, bool], list[int]] = defaultdict(list)
            for place in range(len(commands)):
                told = asking.pop(place, None)
                nodes = self._topology.nodes(commands[place].slot)[:1] if is_read else ()
                node = told or (nodes[0] if nodes else self._topology.primary(commands[place].slot))
                if place not in answers and node is not None:
                    groups[node, told is not None].append(place)
            for (node, asks), places in groups.items():
                for begin in range(0, len(places), _BATCH):
                    some = places[begin : begin + _BATCH]
                    try:
                        chosen = [commands[place] for place in some]
                        found, has_all = self._ask(node, chosen, asks, has_copies, is_read, end_s)
                    except (redis.RedisError, OSError) as error:
                        self._drop(node, is_read)
                        if is_read and self._topology.num_replicas(node):
                            self._topology.failed(node)
                        why.note(error, node)
                        break
                    is_copied = is_copied and has_all
                    for place, answer in zip(some, found, strict=True):
                        if not isinstance(answer, Exception):
                            answers[place] = answer
                        elif isinstance(answer, _PASSING) or str(answer).startswith("NOREPLICAS"):
                            why = Reason(f"{node[0]}:{node[1]}: {answer}")
                            # redis-py's MovedError is a subclass of AskError; after a MovedError the map of hash slots
                            # is read again.
                            if type(answer) is redis.exceptions.AskError:
                                asking[place] = (answer.host or node[0], answer.port)
                        else:
                            raise Refused(f"{node[0]}:{node[1]}: {answer}")
            if len(answers) == len(commands):
                return [answers[place] for place in range(len(commands))], is_copied
            if time.monotonic() + _PAUSE_S >= end_s:
                raise Unreachable(why)
            time.sleep(_PAUSE_S)
            try:
                self._topology.refresh(end_s)
            except Unreachable as error:
                why.note(error)
                raise Unreachable(why) from error

    def _ask(
        self, node: Node, commands: Iterable[Command], asks: bool, has_copies: bool, is_read: bool, end_s: float
    ) -> tuple[list[Any], bool]:
        """Returns a Valkey node's replies to commands, errors included, and whether all its known replicas have the
        writes.
        """
        if end_s <= time.monotonic():
            raise TimeoutError("timed out")
        # A pipeline uses one connection, so the command WAIT at its end waits for the replication of its own writes.
        with self._client(node, is_read).pipeline(transaction=False) as pipe:
            if is_read:
                # Without READONLY, a replica redirects reads to its primary. A server without cluster support refuses
                # READONLY; this error is ignored.
                pipe.execute_command("READONLY")
            for one in commands:
                if asks:
                    pipe.execute_command("ASKING")
                pipe.execute_command(*one.words)
            copies = self._topology.num_replicas(node) if has_copies else 0
            if copies:
                pipe.execute_command("WAIT", copies, _COPY_MS)
            answers = pipe.execute(raise_on_error=False)
        if is_read:
            answers = answers[1:]
        has_all = True
        if copies:
            last = answers.pop()
            has_all = not isinstance(last, Exception) and last >= copies
        return (answers[1::2] if asks else answers), has_all

    def _client(self, node: Node, is_read: bool) -> Any:
        with self._changing:
            client = self._clients.get((node, is_read))
            if client is None:
                timeout_s = self._address.node_timeout_s if is_read else self._address.timeout_s
                # The new redis-py client authenticates with the password that is in the password file now.
                client = self._clients[node, is_read] = node_client(self._address, node, timeout_s, is_text=False)
            return client

    def _drop(self, node: Node, is_read: bool) -> None:
        with self._changing:
            client = self._clients.pop((node, is_read), None)
        if client is not None:
            client.close()
