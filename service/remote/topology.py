"""Keeps the map of a cluster: the nodes that hold each hash slot, that failed lately, and that may be read."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import redis

from service.remote.address import StoreAddress
from service.remote.clients import Node, node_client
from service.remote.layout import NUM_SLOTS

# _BREAK_S: for how many seconds after a node's failure other nodes are asked before it. _REFRESH_S: shortest time in
# seconds between two reads of the map of hash slots to nodes.
_BREAK_S = 0.5
_REFRESH_S = 0.1
# Seconds for which other nodes are asked before a node that failed the regular check look(): until the next check.
_LOOK_BREAK_S = 2.0


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
            is_refusal = not isinstance(error, (TimeoutError, redis.TimeoutError))
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
        # Replica -> time on time.monotonic() until which its rows may be read.
        self._in_sync: dict[Node, float] = {}
        # Slot -> its primary, as moved() has seen it last, and the map then; empty before the first call.
        self._known: list[Node | None] = []
        self._compared = self._map
        self._changing = threading.Lock()
        self._asked_s = float("-inf")

    def holders(self, slot: int) -> tuple[Node, ...]:
        """Returns the nodes of a hash slot, the primary first, or without the primary if it has failed."""
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
        """Says whether a replica's rows may be read now: the server found the replica in sync at most SYNC_S seconds
        ago.
        """
        return time.monotonic() < self._in_sync.get(node, 0.0)

    def set_in_sync(self, nodes: Iterable[Node], until_s: float) -> None:
        """Lets rows of the given replicas be read until a time on time.monotonic(); other replicas keep their time."""
        self._in_sync.update(dict.fromkeys(nodes, until_s))

    def primary(self, slot: int) -> Node | None:
        """Returns the primary of a hash slot, whether it answers or not; None if no node of the hash slot is known."""
        place = self._map.by_slot[slot]
        return None if place < 0 else self._map.primaries[place]

    def num_replicas(self, node: Node) -> int:
        return max((len(replicas) for primary, replicas in self.groups() if primary == node), default=0)

    def is_down(self, node: Node) -> bool:
        """Says whether a cluster node failed so lately that other nodes shall be asked first."""
        until_s = self._down.get(node)
        return until_s is not None and time.monotonic() < until_s

    def failed(self, node: Node, break_s: float = _BREAK_S) -> None:
        """Notes that a cluster node failed, so that for break_s seconds other nodes are asked before this node."""
        self._down[node] = time.monotonic() + break_s

    def answered(self, node: Node) -> None:
        """Notes that a cluster node has answered, so that other nodes are no longer asked before this node."""
        self._down.pop(node, None)

    def all_nodes(self) -> list[Node]:
        return list(dict.fromkeys([node for nodes in self._map.holders for node in nodes] + list(self.address.nodes)))

    def uncovered(self) -> str:
        """Returns one line on hash slots without nodes, or whose nodes have all failed lately; "" if there are none."""
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
        for node in {node for nodes in self._map.holders for node in nodes}:
            try:
                with node_client(self.address, node, self.address.timeout_s) as client:
                    client.ping()
                self.answered(node)
            except (OSError, redis.RedisError):
                self.failed(node, _LOOK_BREAK_S)
        return self.uncovered()

    def refresh(self, end_s: float) -> None:
        """Reads the map of hash slots from any node, unless the map is fresh; raises Unreachable if no node answers."""
        with self._changing:
            if time.monotonic() < self._asked_s + _REFRESH_S:
                return
            why = Reason("no node was asked")
            nodes = self.all_nodes()
            for node in sorted(nodes, key=self.is_down):
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                # While the map of hash slots is read, a node gets only a part of the time that is left, so that other
                # nodes can be asked if this one hangs.
                left_s = min(left_s, max(left_s / 3, self.address.node_timeout_s))
                try:
                    self._map = _map_of(_cluster_shards(self.address, node, left_s), node, self.address.has_tls)
                except (OSError, redis.RedisError) as error:
                    why.note(error, node)
                    self.failed(node)
                    continue
                self._asked_s = time.monotonic()
                return
            raise Unreachable(why)


def _cluster_shards(address: StoreAddress, node: Node, timeout_s: float) -> list[dict[str, Any]] | None:
    """Asks a node for the cluster's shards; None if the node is a server without a cluster. Raises OSError."""
    with node_client(address, node, timeout_s) as client:
        try:
            return [_as_dict(shard) for shard in client.execute_command("CLUSTER SHARDS")]
        except redis.ResponseError as error:
            if "cluster support disabled" in str(error):
                return None
            raise OSError(str(error)) from error


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
