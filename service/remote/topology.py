"""Keeps the map of a cluster: the nodes that hold each hash slot, and the clients that send them commands."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from service.errors import TableUnreachable
from service.remote.address import StoreAddress
from service.remote.layout import NUM_SLOTS, TableLayout, slot_of

Node = tuple[str, int]
# The name and version that a client tells a node. redis-py would look its version up for each client, which takes 4 ms.
_DRIVER = DriverInfo(lib_version=redis.__version__)


class _TlsConnection(redis.SSLConnection):
    """A TLS connection that trusts the authorities of its ca_file alone, or the system's if it has no ca_file.

    redis-py's own class always trusts the system's, too, and reads them for each connection, which takes 17 ms.
    """

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return tls_context(self.ca_certs or "").wrap_socket(sock, server_hostname=self.host)


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Returns the TLS context of a new connection, with the authorities of a PEM file; "": the system's authorities.

    The file is read for each connection, because it may change; the system's authorities are read once. Raises OSError.
    """
    return ssl.create_default_context(cafile=ca_file) if ca_file else _system_context()


@cache
def _system_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def node_client(address: StoreAddress, node: Node, timeout_s: float, *, is_text: bool = True) -> Any:
    """Returns a client of one cluster node that does not retry, because its caller can ask other nodes."""
    retry = Retry(NoBackoff(), 0)
    return _server_client(node, {**_options(address, timeout_s), "decode_responses": is_text, "retry": retry})


def store_client(address: StoreAddress, timeout_s: float) -> Any:
    """Returns a client of a whole cluster, or of a single Valkey or Redis server; it returns values as bytes.

    Raises:
      redis.RedisError: no node answers.
    """
    problem: redis.RedisError | None = None
    for node in address.nodes:
        try:
            with node_client(address, node, timeout_s) as client:
                client.execute_command("CLUSTER MYID")
        except redis.ResponseError as error:
            if "cluster support disabled" in str(error):
                return _server_client(node, _options(address, timeout_s))
            raise
        except redis.RedisError as error:
            problem = error
            continue
        # Only a client that is made from a URL lets us choose the class of its connections. The scheme "rediss" would
        # replace the class by redis-py's own.
        host = f"[{node[0]}]" if ":" in node[0] else node[0]
        return redis.RedisCluster.from_url(f"redis://{host}:{node[1]}", **_options(address, timeout_s))
    assert problem is not None  # each node of `address` has raised a RedisError, the last one of which is `problem`
    raise problem


def _server_client(node: Node, options: Mapping[str, Any]) -> Any:
    return redis.Redis.from_pool(redis.ConnectionPool(host=node[0], port=node[1], **options))


def _options(address: StoreAddress, timeout_s: float) -> dict[str, Any]:
    authorities = {"ssl_ca_certs": address.ca_file} if address.ca_file else {}
    return {
        "connection_class": _TlsConnection if address.has_tls else redis.Connection,
        "username": address.user or None,
        "password": address.password or None,
        **authorities,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "driver_info": _DRIVER,
    }


# _BREAK_S: for how many seconds after a node's failure other nodes are asked before it. _REFRESH_S: shortest time in
# seconds between two reads of the map of hash slots to nodes.
_BREAK_S = 0.5
_REFRESH_S = 0.1
# For how many seconds after the last map of hash slots none of an earlier epoch counts. Only a cluster that was made
# anew has one for longer.
_EPOCH_S = 30.0
# Seconds for which other nodes are asked before a node that failed the regular check look(): until the next check.
_LOOK_BREAK_S = 2.0
_LATE = (TimeoutError, redis.TimeoutError)


class Reason:
    """Why a cluster gave no answer: the newest reason, but a time limit replaces no refusal.

    The end of an operation cuts its last attempts short, whatever nodes said before.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_refusal = False

    def note(self, error: Exception, node: Node | None = None) -> None:
        """Takes an error as the reason, with the node that it came from, unless it is late and a refusal is known."""
        if isinstance(error, Unreachable):
            is_refusal = error.reason.is_refusal
        else:
            is_refusal = not isinstance(error, _LATE)
        if is_refusal or not self.is_refusal:
            self.text = str(error) if node is None else f"{node[0]}:{node[1]}: {error}"
            self.is_refusal = is_refusal


class Unreachable(Exception):
    """The error that a cluster did not send its map of hash slots, or a reply, in time; the text says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class _Map(NamedTuple):
    """The map from a cluster's hash slots to nodes.

    holders: tuples of nodes, each with the primary first, or without it if it failed. primaries: the primary of each of
    these tuples, also a failed one; None if none is known. by_slot: slot -> index into both, -1 for no node. failed:
    nodes that the other nodes have marked as failed.
    """

    holders: tuple[tuple[Node, ...], ...]
    primaries: tuple[Node | None, ...]
    by_slot: tuple[int, ...]
    failed: tuple[Node, ...] = ()


class _Told(NamedTuple):
    """A node's map of hash slots, with what the node knows of its cluster.

    epoch: a number that grows with each takeover and each slot that moves. is_whole: whether the node hears most of the
    primaries, and knows of no slots without a primary. 0 and True if the user may not ask for it.
    """

    map: _Map
    epoch: int
    is_whole: bool


class NodeStatus(NamedTuple):
    """The status of one cluster node. num_slots: number of its hash slots; 0 if other nodes have marked it as failed.

    is_in_sync: whether rows may be read from the node: a replica may lack the last changes.
    """

    node: str
    is_primary: bool
    num_slots: int
    answers: bool
    is_in_sync: bool


class Topology:
    """The map of a cluster's hash slots to nodes; a single server holds all slots. Concurrency: any thread."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._map = _Map((), (), (-1,) * NUM_SLOTS)
        self._down: dict[Node, float] = {}
        # Replica -> moment on time.monotonic() up to which it has all changes of its primary; until which it is read.
        self._as_of_s: dict[Node, float] = {}
        self._until_s: dict[Node, float] = {}
        # Slot -> its primary, as moved() has seen it last, and the map then; empty before the first call.
        self._known: list[Node | None] = []
        self._compared = self._map
        self._changing = threading.Lock()
        self._asked_s = float("-inf")
        self._epoch = 0

    def holders(self, slot: int) -> tuple[Node, ...]:
        place = self._map.by_slot[slot]
        return () if place < 0 else self._map.holders[place]

    def nodes(self, slot: int) -> tuple[Node, ...]:
        """Returns the nodes of a hash slot that may be read: the primary, and replicas that are in sync.

        They are in the order to ask them: nodes that failed recently are last, and the primary is before replicas.
        """
        place = self._map.by_slot[slot]
        if place < 0:
            return ()
        primary = self._map.primaries[place]
        found = tuple(node for node in self._map.holders[place] if node == primary or self.is_in_sync(node))
        return tuple(sorted(found, key=self.is_down)) if self._down else found

    def groups(self) -> list[tuple[Node, list[Node]]]:
        """Returns (primary, its replicas) for each group of nodes that holds the same hash slots, also for a primary
        that failed.
        """
        pairs = zip(self._map.primaries, self._map.holders, strict=True)
        return [(primary, [node for node in nodes if node != primary]) for primary, nodes in pairs if primary]

    def is_in_sync(self, node: Node) -> bool:
        """Says whether a replica's rows may be read now."""
        return time.monotonic() < self._until_s.get(node, float("-inf"))

    def as_of_s(self, node: Node) -> float:
        return self._as_of_s.get(node, float("-inf"))

    def set_as_of_s(self, node: Node, as_of_s: float, until_s: float) -> None:
        """Notes up to which moment a replica has all changes of its primary, and until when its rows may be read."""
        self._as_of_s[node], self._until_s[node] = as_of_s, until_s

    def primary(self, slot: int) -> Node | None:
        place = self._map.by_slot[slot]
        return None if place < 0 else self._map.primaries[place]

    def num_replicas(self, node: Node) -> int | None:
        """Returns how many replicas a primary has; None for a node that is no primary, as far as this server knows."""
        return max((len(replicas) for primary, replicas in self.groups() if primary == node), default=None)

    def is_down(self, node: Node) -> bool:
        until_s = self._down.get(node)
        return until_s is not None and time.monotonic() < until_s

    def failed(self, node: Node, break_s: float = _BREAK_S) -> None:
        self._down[node] = time.monotonic() + break_s

    def answered(self, node: Node) -> None:
        self._down.pop(node, None)

    def all_nodes(self) -> list[Node]:
        return list(dict.fromkeys([node for nodes in self._map.holders for node in nodes] + list(self.address.nodes)))

    def uncovered(self) -> str:
        failed = f"; dead: {_named(self._map.failed)}" if self._map.failed else ""
        if -1 in self._map.by_slot:
            return f"{self._map.by_slot.count(-1)} slots of {self.address} have no node{failed}"
        silent = [nodes for nodes in self._map.holders if all(map(self.is_down, nodes))]
        if silent:
            nodes = dict.fromkeys(node for nodes in silent for node in nodes)
            return f"no node answers for the slots of {_named(tuple(nodes))}{failed}"
        return ""

    def status(self) -> list[NodeStatus]:
        places = Counter(self._map.by_slot)
        slots: Counter[Node] = Counter()
        primaries = {primary for primary, _ in self.groups()}
        for place, nodes in enumerate(self._map.holders):
            for node in nodes:
                slots[node] += places[place]
        known = dict.fromkeys((*slots, *self._map.failed))
        return [
            NodeStatus(
                _named((node,)),
                node in primaries,
                slots[node],
                slots[node] > 0 and not self.is_down(node),
                node in primaries or self.is_in_sync(node),
            )
            for node in known
        ]

    def moved(self) -> str:
        """Returns one line on hash slots whose primary is another one than at the last call; "" if there are none.

        A slot without a known primary keeps the one before.
        """
        if self._map == self._compared:
            return ""
        self._compared = self._map
        found = [self.primary(slot) for slot in range(NUM_SLOTS)]
        known = self._known or found
        self._known = [new or old for old, new in zip(known, found, strict=True)]
        pairs = Counter((old, new) for old, new in zip(known, self._known, strict=True) if old and new and old != new)
        named = [f"{count} from {_named((old,))} to {_named((new,))}" for (old, new), count in sorted(pairs.items())]
        return f"{pairs.total()} slots: {'; '.join(named)}" if named else ""

    def look(self) -> str:
        """Reads the map of hash slots and pings each node; returns "", or one line on hash slots without a live node,
        or on a cluster that does not answer.
        """
        try:
            self.refresh(time.monotonic() + self.address.timeout_s)
        except Unreachable as error:
            return str(error)
        for node in dict.fromkeys(node for nodes in self._map.holders for node in nodes):
            try:
                with node_client(self.address, node, self.address.timeout_s) as client:
                    client.ping()
                self.answered(node)
            except (OSError, redis.RedisError):
                self.failed(node, _LOOK_BREAK_S)
        return self.uncovered()

    def refresh(self, end_s: float, first: Node | None = None) -> None:
        """Reads the map of hash slots from any node, `first` before others, unless the map is fresh.

        Raises:
          Unreachable: no node answers.
        """
        with self._changing:
            if time.monotonic() < self._asked_s + _REFRESH_S:
                return
            why = Reason("no node was asked")
            best: _Told | None = None
            nodes = dict.fromkeys([*filter(None, [first]), *self.all_nodes()])
            for node in sorted(nodes, key=self.is_down):
                left_s = end_s - time.monotonic()
                if left_s <= 0 or (best is not None and self.is_down(node)):
                    break
                # While the map of hash slots is read, a node gets only a part of the time that is left, so that other
                # nodes can be asked if this one hangs.
                left_s = min(left_s, max(left_s / 3, self.address.node_timeout_s))
                try:
                    try:
                        told = _ask_for_map(self.address, node, left_s)
                    except redis.ConnectionError:
                        # A node that closes one connection, as CLIENT KILL does, has not failed: it is asked once more.
                        told = _ask_for_map(self.address, node, left_s)
                except (OSError, redis.RedisError) as error:
                    why.note(error, node)
                    # If the caller has less time than a node needs, a late answer says nothing about the node.
                    if left_s >= self.address.node_timeout_s or not isinstance(error, _LATE):
                        self.failed(node)
                    continue
                if told.epoch < self._epoch and time.monotonic() < self._asked_s + _EPOCH_S:
                    # The node was frozen, or is cut off from the others: it does not know which nodes took over
                    # meanwhile.
                    why.note(TimeoutError("its map of slots is outdated"), node)
                    continue
                if told.is_whole or best is None or told.epoch > best.epoch:
                    best = told
                if told.is_whole:
                    break
            if best is None:
                raise Unreachable(why)
            self._map, self._epoch, self._asked_s = best.map, best.epoch, time.monotonic()


def _ask_for_map(address: StoreAddress, node: Node, timeout_s: float) -> _Told:
    """Asks a node for its map of hash slots; a server without a cluster has all of them. Raises OSError."""
    with node_client(address, node, timeout_s) as client:
        shards: list[dict[str, Any]] | None = None
        info = _cluster_info(client)
        try:
            shards = [_as_dict(shard) for shard in client.execute_command("CLUSTER SHARDS")]
        except redis.ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise OSError(str(error)) from error
    epoch, state = int(info.get("cluster_current_epoch", 0)), info.get("cluster_state")
    return _Told(_map_of(shards, node, address.has_tls), epoch, state != "fail")


def _cluster_info(client: Any) -> Mapping[str, str]:
    try:
        return dict(client.execute_command("CLUSTER INFO"))
    except redis.ResponseError:
        # The node is a server without a cluster, or the user may not ask.
        return {}


def _map_of(shards: Sequence[dict[str, Any]] | None, asked: Node, has_tls: bool) -> _Map:
    if shards is None:
        return _Map(((asked,),), (asked,), (0,) * NUM_SLOTS)
    holders: list[tuple[Node, ...]] = []
    primaries: list[Node | None] = []
    failed: list[Node] = []
    by_slot = [-1] * NUM_SLOTS
    for shard in shards:
        nodes = [_as_dict(node) for node in shard["nodes"]]
        # A primary that was just killed may still be in a Valkey cluster's list of nodes with the health "online",
        # until the other nodes agree that it is down.
        alive = [node for node in nodes if node["health"] != "fail"]
        alive.sort(key=lambda node: node["role"] != "master")
        primary = next((node for node in (*alive, *nodes) if node["role"] == "master"), None)
        failed += [_place(node, asked, has_tls) for node in nodes if node["health"] == "fail"]
        slots = shard["slots"]
        if not (alive and slots):
            continue
        for first, last in zip(slots[::2], slots[1::2], strict=True):
            by_slot[int(first) : int(last) + 1] = [len(holders)] * (int(last) + 1 - int(first))
        holders.append(tuple(_place(node, asked, has_tls) for node in alive))
        primaries.append(None if primary is None else _place(primary, asked, has_tls))
    return _Map(tuple(holders), tuple(primaries), tuple(by_slot), tuple(failed))


def _place(node: dict[str, Any], asked: Node, has_tls: bool) -> Node:
    """Returns a node's host and port: its port for TLS if has_tls, else its plain port; the other one if the node lacks
    it.
    """
    names = ("tls-port", "port") if has_tls else ("port", "tls-port")
    return str(node.get("endpoint") or node["ip"] or asked[0]), int(node.get(names[0]) or node[names[1]])


def _as_dict(flat: Any) -> dict[str, Any]:
    if isinstance(flat, dict):
        return flat
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _named(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in nodes)


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
# Beginnings of such errors for which redis-py has no class: too few replicas, or a script that runs for long.
_PASSING_TEXTS = ("NOREPLICAS", "BUSY ")


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
        # The clients of redis-py by (node, whether the client only reads, whether the node is a replica).
        self._clients: dict[tuple[Node, bool, bool], Any] = {}

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
        return self.read_as_of(commands, end_s)[0]

    def read_as_of(self, commands: Sequence[Command], end_s: float) -> tuple[list[Any], float]:
        """Runs commands as read() does; returns the replies, and the moment on time.monotonic() up to which they have
        all changes.
        """
        replies, _, as_of_s = self._run(commands, end_s, has_copies=False, is_read=True)
        return replies, as_of_s

    def write(self, commands: Sequence[Command], end_s: float) -> bool:
        """Runs Valkey commands that write; returns whether all known replicas have the writes. Raises Unreachable,
        Refused.
        """
        return self._run(commands, end_s, has_copies=True)[1]

    def close(self) -> None:
        for kind in list(self._clients):
            self._drop(*kind)

    def _run(
        self, commands: Sequence[Command], end_s: float, *, has_copies: bool, is_read: bool = False
    ) -> tuple[list[Any], bool, float]:
        # A node that names another node for a slot has a newer map of slots than this server.
        moved_by: Node | None = None
        answers: dict[int, Any] = {}
        asking: dict[int, Node] = {}
        is_copied, as_of_s, why = True, float("inf"), Reason("no node of the slot is known")
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
                    chosen = [commands[place] for place in some]
                    is_replica = not asks and node != self._topology.primary(chosen[0].slot)
                    asked_s = self._topology.as_of_s(node) if is_replica else time.monotonic()
                    kind = (node, is_read, is_replica)
                    if end_s <= time.monotonic():
                        why.note(TimeoutError("timed out"), node)
                        raise Unreachable(why)
                    try:
                        found, has_all = self._ask(kind, chosen, asks, has_copies)
                    except (redis.RedisError, OSError) as error:
                        self._drop(*kind)
                        if is_read and self._topology.num_replicas(node):
                            self._topology.failed(node)
                        why.note(error, node)
                        break
                    is_copied, as_of_s = is_copied and has_all, min(as_of_s, asked_s)
                    for place, answer in zip(some, found, strict=True):
                        if not isinstance(answer, Exception):
                            answers[place] = answer
                        elif isinstance(answer, _PASSING) or str(answer).startswith(_PASSING_TEXTS):
                            why = Reason(f"{node[0]}:{node[1]}: {answer}")
                            # redis-py's MovedError is a subclass of AskError; after a MovedError the map of hash slots
                            # is read again.
                            if type(answer) is redis.exceptions.AskError:
                                asking[place] = (answer.host or node[0], answer.port)
                            elif isinstance(answer, redis.exceptions.MovedError):
                                moved_by = node
                        else:
                            raise Refused(f"{node[0]}:{node[1]}: {answer}")
            if len(answers) == len(commands):
                return [answers[place] for place in range(len(commands))], is_copied, as_of_s
            if time.monotonic() + _PAUSE_S >= end_s:
                raise Unreachable(why)
            time.sleep(_PAUSE_S)
            try:
                self._topology.refresh(end_s, moved_by)
            except Unreachable as error:
                why.note(error)
                raise Unreachable(why) from error

    def _ask(
        self, kind: tuple[Node, bool, bool], commands: Iterable[Command], asks: bool, has_copies: bool
    ) -> tuple[list[Any], bool]:
        """Returns a Valkey node's replies to commands, errors included, and whether all its known replicas have the
        writes.
        """
        node, _, is_replica = kind
        # A pipeline uses one connection, so the command WAIT at its end waits for the replication of its own writes.
        with self._client(*kind).pipeline(transaction=False) as pipe:
            if is_replica:
                # Without READONLY, a replica redirects reads to its primary, also one that was a primary until another
                # node took over. A server without cluster support refuses READONLY; this error is ignored.
                pipe.execute_command("READONLY")
            for one in commands:
                if asks:
                    pipe.execute_command("ASKING")
                pipe.execute_command(*one.words)
            # Another node may have become the primary since this one was chosen.
            copies = self._topology.num_replicas(node) if has_copies else 0
            if copies:
                pipe.execute_command("WAIT", copies, _COPY_MS)
            answers = pipe.execute(raise_on_error=False)
        if is_replica:
            answers = answers[1:]
        has_all = copies is not None
        if copies:
            last = answers.pop()
            has_all = not isinstance(last, Exception) and last >= copies
        return (answers[1::2] if asks else answers), has_all

    def _client(self, node: Node, is_read: bool, is_replica: bool) -> Any:
        with self._changing:
            client = self._clients.get((node, is_read, is_replica))
            if client is None:
                timeout_s = self._address.node_timeout_s if is_read else self._address.timeout_s
                # The new redis-py client authenticates with the password that is in the password file now.
                client = node_client(self._address, node, timeout_s, is_text=False)
                self._clients[node, is_read, is_replica] = client
            return client

    def _drop(self, node: Node, is_read: bool, is_replica: bool) -> None:
        with self._changing:
            client = self._clients.pop((node, is_read, is_replica), None)
        if client is not None:
            client.close()


_RECORD_PAUSE_S = 0.1


def check_records(layout: TableLayout, topology: Topology, end_s: float) -> None:
    """Raises TableUnreachable unless a cluster's record says, before end_s, that it holds all rows of a table."""
    slot, why = slot_of(layout.record), Reason("no node was asked")
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            topology.refresh(end_s)
            # One node has both the table's record and the pointer to the newest fingerprint, because their keys have
            # the same hash tag, so one connection reads both. Only the primary surely has the newest pointer, so no
            # replica is asked.
            for node in topology.nodes(slot)[:1]:
                with node_client(topology.address, node, min(left_s, 2.0)) as client:
                    record, pointer = client.get(layout.record), client.get(layout.pointer)
                layout.check_record(record, pointer)
                return
            why = Reason(f"slot {slot} has no node")
        except (Unreachable, redis.RedisError, OSError) as error:
            why.note(error)
        time.sleep(_RECORD_PAUSE_S)
    raise TableUnreachable(f"table {layout.table!r} is remote, and {topology.address} does not answer: {why.text}")
