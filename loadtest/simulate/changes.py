"""Runs the real writers and followers of a remote table, and the finders of replicas in sync, in a simulated cluster.

Two servers write and read rows by a simulated clock, and take delta files, while nodes end, freeze, lose their network
or their replicas, and replicas take over; a third one reads without a cache. Only the clock, the nodes and the reader
of rows are simulated. What holds, from any seed:

- A row is one that its primary had at some moment of the last two seconds, or no newer one was told or read before. A
  primary that ends may take changes of its last second with it that not all replicas have.
- Nothing is raised but that a cluster does not answer, or refuses.

Once all is well: no server has an unfinished upsert or delta file; caches have what the cluster has; and no row is
older than its newest confirmed upsert and file, unless a replica took over that was away when they were written.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import redis
from greenlet import getcurrent, greenlet

from service.artifact.delta_file import Delta, DeltaFault, encode
from service.remote import changes, replicas, topology
from service.remote.address import StoreAddress
from service.remote.core_clusters import FRESH_S
from service.remote.layout import TableLayout, slot_of
from service.types import Array

_FINGERPRINT = b"f" * 32
_ROWS = 8
_LAYOUT = TableLayout("m", "t", "f" * 16, _ROWS, row_bytes=4, block_rows=2, num_shards=4)
_GROUPS, _NODES = 2, 3
# Other nodes take a node for failed that is silent for one of these times (cluster-node-timeout).
_NODE_TIMEOUTS_S = (1.0, 3.0, 6.0)
# How long faults come, and how long the cluster then has until all is written.
_FAULTS_S, _CALM_S = 12.0, 9.0
# How long it takes until all has come that the network held back.
_COMES_S = 1.0
# The numbers of delta files are the multiples of this; an upsert has none of them.
_FILES = 10_000
# For how long after a node has failed servers may not wait for it (their maps of slots are as old).
_AWAY_S = 5.0
# How long a node takes to start with what it had saved: longer than a replica is read after its newest report.
_START_S = 1.0
# So few that servers miss entries.
_KEPT_ENTRIES, _READ_ENTRIES = 6, 4


class _Clock:
    """A clock, and the tasks that wait for it, of which one runs at a time: that with the earliest moment.

    failures: what tasks raised.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.failures: list[Exception] = []
        self._numbers = count()
        self._waiting: list[tuple[float, int, greenlet]] = []
        self._main = getcurrent()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        own = getcurrent()
        self._wait(own, self.now_s + max(seconds, 0.0))
        if own is not self._main:
            # The main task goes on with the next one.
            self._main.switch()
            return
        while True:
            self.now_s, _, task = heappop(self._waiting)
            if task is own:
                return
            task.switch()

    def start(self, call: Callable[[], object]) -> None:
        """Begins a task, once the present one waits."""

        def run() -> None:
            try:
                call()
            except Exception as error:
                self.failures.append(error)

        self._wait(greenlet(run, self._main), self.now_s)

    def end(self) -> None:
        """Ends all tasks but the main one, where they wait."""
        for _, _, task in self._waiting:
            task.throw()

    def _wait(self, task: greenlet, until_s: float) -> None:
        heappush(self._waiting, (until_s, next(self._numbers), task))


class _Lock:
    """A lock between tasks."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            self._clock.sleep(0.001)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class _View(NamedTuple):
    """The cluster as a node knows it: the primary of each group of nodes, and which nodes failed."""

    epoch: int
    primaries: tuple[int, ...]
    failed: frozenset[int] = frozenset()


class _Made(NamedTuple):
    """A change that a primary made."""

    at_s: float
    words: tuple[Any, ...]

    @property
    def order(self) -> float:
        """Order of the upsert that wrote it; 0 if none did."""
        match self.words:
            case ["EVAL", changes._WRITE, size, *rest]:
                return float(rest[size])
            case ["EVAL", changes._TELL, size, *rest]:
                return _order_of(rest[size])
            case ["EVAL", changes._HOLD, size, *rest]:
                return _order_of(abs(int(rest[size + 1])))
        return 0.0


@dataclass
class _Node:
    """A node. is_full: it refuses to write. hidden_from: servers that do not reach it. log: the last changes that it
    made as a primary, by time.

    heard_s: when others heard it last. failed_s: when they took it for failed. closed_until_s: it takes no commands
    before. copied_s: when it may have copied a new primary. cut_s: since when the network holds the changes of its
    primary back. held_back_s: from when the network held those back that come now, and when it let go.
    """

    number: int
    view: _View
    keys: dict[str, Any]
    history: int
    offset: int = 0
    log: list[_Made] = field(default_factory=list)
    hidden_from: set[int] = field(default_factory=set)
    is_up: bool = True
    is_frozen: bool = False
    is_full: bool = False
    has_peers: bool = True
    cut_s: float | None = None
    held_back_s: tuple[float, float] | None = None
    slow_s: float = 0.0
    heard_s: float = 0.0
    failed_s: float = 0.0
    closed_until_s: float = 0.0
    copied_s: float = 0.0

    @property
    def group(self) -> int:
        """Number of the group that holds the same slots."""
        return self.number // _NODES

    @property
    def place(self) -> tuple[str, int]:
        return f"n{self.number}", 7000 + self.number

    @property
    def is_primary(self) -> bool:
        """Says whether it takes itself for one."""
        return self.view.primaries[self.group] == self.number

    @property
    def is_linked(self) -> bool:
        """Says whether other nodes reach it."""
        return self.is_up and not self.is_frozen and self.has_peers

    def run(self, words: Sequence[Any]) -> Any:
        """Runs a command; a replica runs those of its primary, which do the same again."""
        match words:
            case ["GET", key]:
                return self.keys.get(key)
            case ["GETRANGE", key, begin, end]:
                return bytes(self.keys.get(key, b"")[begin : end + 1])
            case ["HGET", key, name]:
                return self.keys.get(key, {}).get(str(name))
            case ["HKEYS", key]:
                return [name.encode() for name in self.keys.get(key, {})]
            case ["XREVRANGE", key, "+", "-", "COUNT", 1]:
                return self.keys.get(key, [])[-1:]
            case ["XRANGE", key, first, "+", "COUNT", most]:
                number = int(first.split("-")[0])
                return [one for one in self.keys.get(key, []) if int(one[0].split(b"-")[0]) >= number][:most]
            case ["EVAL", script, size, *rest]:
                return _SCRIPTS[script](self.keys, rest[:size], rest[size:])
        raise AssertionError(f"the model has no command {words[0]}")


def _write(keys: dict[str, Any], names: Sequence[str], words: Sequence[Any]) -> int:
    order, orders = int(words[0]), keys.setdefault(names[0], {})
    for place, offset, row, octets in zip(*(words[len(names) + first :: 4] for first in range(4)), strict=True):
        if int(orders.get(str(row), 0)) <= order:
            block = keys[names[place]]
            keys[names[place]] = block[:offset] + octets + block[offset + len(octets) :]
            orders[str(row)] = order
    return 1


def _next(keys: dict[str, Any], names: Sequence[str], words: Sequence[Any]) -> bytes:
    keys[names[1]] = max(int(keys.get(names[1], 0)), int(words[1])) + 1
    return str(keys[names[1]]).encode()


def _hold(keys: dict[str, Any], names: Sequence[str], words: Sequence[Any]) -> int:
    if str(words[3]) not in keys.get(names[2], {}):
        keys.setdefault(names[1], {})[str(words[1])] = words[2]
    return 1


def _tell(keys: dict[str, Any], names: Sequence[str], words: Sequence[Any]) -> int:
    sequence, ids, kept, released, checksum, nonce = words
    stream = keys.setdefault(names[0], [])
    number, before = (int(stream[-1][0].split(b"-")[0]), stream[-1][1][b"history"]) if stream else (0, b"")
    history = hashlib.sha1(before + nonce + ids).hexdigest().encode()
    keys[names[0]] = [*stream, (f"{number + 1}-1".encode(), {b"ids": ids, b"history": history})][-kept:]
    keys[names[1]] = max(int(keys.get(names[1], 0)), sequence)
    keys.get(names[2], {}).pop(released, None)
    if checksum != "":
        keys.setdefault(names[3], {})[str(sequence)] = str(checksum).encode()
    return 1


def _order_of(number: int) -> float:
    """Returns the order of the change with a number: of two with one number, the upsert counts."""
    return 2.0 * number + (number % _FILES > 0)


# What the scripts in Lua do, on the keys of a node.
_SCRIPTS = {changes._WRITE: _write, changes._NEXT: _next, changes._HOLD: _hold, changes._TELL: _tell}


def _keys_of(group: int) -> dict[str, Any]:
    named: dict[str, Any] = {_LAYOUT.record: _LAYOUT.record_text(is_whole=True)}
    named |= {_LAYOUT.key(block): bytes(8) for block in range(_LAYOUT.num_blocks)}
    return {key: value for key, value in named.items() if _group_of(slot_of(key)) == group}


def _group_of(slot: int) -> int:
    return slot % _GROUPS


class _Cluster:
    """The nodes, and what is so, which nodes and servers learn by and by.

    was: row -> the moments from which its primary had it, and its order then. told: row -> order of a change -> when
    the stream told of it, or a server read it. gone: orders of changes that a primary took with it. excused: those of
    changes that may be lost, because the replica that took over was away when they were written. lost_s: when a
    change was lost last, or made by a node that another one has replaced. starved_s: until when each server gets no
    processor time. filling: the primary of the stream will refuse to write once a row was written; 0: of a delta file,
    1: of an upsert. is_losing: it will end, and take with it that a delta file is written.
    """

    def __init__(self, clock: _Clock, rng: random.Random, tell: Callable[[str], object]) -> None:
        self.clock = clock
        self.rng = rng
        self.tell = tell
        self.truth = _View(0, tuple(group * _NODES for group in range(_GROUPS)))
        groups = [number // _NODES for number in range(_GROUPS * _NODES)]
        self.nodes = [_Node(number, self.truth, _keys_of(group), group) for number, group in enumerate(groups)]
        self.was: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in range(_ROWS)]
        self.told: list[dict[float, float]] = [{} for _ in range(_ROWS)]
        self.gone: set[float] = set()
        self.excused: set[float] = set()
        self.starved_s = [0.0, 0.0]
        self.filling: int | None = None
        self.is_losing = False
        self.lost_s = 0.0
        self.node_timeout_s = rng.choice(_NODE_TIMEOUTS_S)
        self.num_heals = self.num_files = 0
        self._electing: set[int] = set()
        clock.start(self._look_around)
        clock.start(self._read_elsewhere)

    def members(self, group: int) -> list[_Node]:
        return self.nodes[group * _NODES : (group + 1) * _NODES]

    def primary(self, group: int) -> _Node:
        """Returns the true primary of a group."""
        return self.nodes[self.truth.primaries[group]]

    def row(self, row: int) -> float:
        """Returns the order of the change that wrote a row, as its primary has it."""
        block = self.primary(_group_of(_ROW_SLOTS[row])).keys[_LAYOUT.key(row // 2)]
        return float(np.frombuffer(block, "<f4")[row % 2])

    def note_rows(self) -> None:
        for row, was in enumerate(self.was):
            if (now := self.row(row)) != was[-1][1]:
                was.append((self.clock.now_s, now))

    def catch_up(self, node: _Node) -> None:
        """Runs on a replica what has come from its primary by now."""
        source = self.nodes[node.view.primaries[node.group]]
        is_linked = node.cut_s is None and node.is_linked and source.is_linked and source.is_primary
        if node is source or not is_linked:
            return
        if node.history == source.history and node.offset >= source.offset - len(source.log):
            for made in source.log[len(source.log) - (source.offset - node.offset) :]:
                if made.at_s > self._come_s(node):
                    break
                if made.words[0] == "EVAL":
                    node.run(made.words)
                node.offset += 1
        elif self.clock.now_s >= node.copied_s:
            # Values that change are made anew, except for hashes.
            copy = {key: dict(one) if isinstance(one, dict) else one for key, one in source.keys.items()}
            node.keys, node.history, node.offset, node.log = copy, source.history, source.offset, []

    def _come_s(self, node: _Node) -> float:
        """Returns the moment up to which the network has brought a replica its primary's changes."""
        now_s = self.clock.now_s
        if node.held_back_s is None or now_s >= node.held_back_s[1] + _COMES_S:
            return now_s
        begin_s, end_s = node.held_back_s
        return begin_s + (now_s - begin_s) * (now_s - end_s) / _COMES_S

    def catch_up_all(self) -> None:
        for node in self.nodes:
            self.catch_up(node)

    def reply(self, node: _Node, words: Sequence[Any], *, is_readonly: bool) -> Any:
        """Returns a node's reply to a command, errors included."""
        self.catch_up(node)
        if words[0] == "CLUSTER INFO":
            state = "fail" if self.is_closed(node) else "ok"
            return {"cluster_current_epoch": str(node.view.epoch), "cluster_state": state}
        if words[0] == "CLUSTER SHARDS":
            return [self._shard(node.view, group) for group in range(_GROUPS)]
        if words[0] == "INFO":
            role, name = ("master", "master") if node.is_primary else ("slave", "slave")
            return {"role": role, "master_replid": str(node.history), f"{name}_repl_offset": node.offset}
        if self.is_closed(node):
            return redis.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down")
        slot = slot_of(words[3] if words[0] == "EVAL" else words[1])
        group = _group_of(slot)
        if group != node.group or not (node.is_primary or is_readonly):
            host, port = self.nodes[node.view.primaries[group]].place
            return redis.exceptions.MovedError(f"{slot} {host}:{port}")
        if words[0] == "EVAL" and node.is_full:
            return redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas to write.")
        found = node.run(words)
        if words[0] == "EVAL":
            if words[1] == changes._TELL and words[-2] != "" and self.is_losing:
                self.is_losing = False
                for one in self.members(group):
                    if one is not node:
                        self.cut(one)
                self.later(0.5, self.unless_healed(partial(self.end, node)))
            if words[1] == changes._WRITE and _Made(0.0, tuple(words)).order % 2 == self.filling:
                self.primary(_STREAM_GROUP).is_full, self.filling = True, None
            if node is not self.primary(group):
                self.lost_s = self.clock.now_s
                others = [one for one in self.members(group) if one not in (node, self.primary(group))]
                if any(one.failed_s and self.lost_s < one.failed_s + _AWAY_S for one in others):
                    # A replica that was away has the change, in place of the one that took over.
                    self.excused.add(_Made(self.lost_s, tuple(words)).order)
            if words[1] == changes._TELL and words[-5]:
                for row in np.frombuffer(words[-5], "<i8").tolist():
                    self.note_told(row, _order_of(words[-6]))
            self.replicate(node, words)
        return found

    def note_told(self, row: int, order: float) -> None:
        """Notes that a change of a row was told or read."""
        if self.told[row].get(order, 0.0) <= self.lost_s:
            self.told[row][order] = self.clock.now_s

    def is_right(self, row: int, order: float, begin_s: float) -> bool:
        """Says whether a read that began at a moment may get a row that the change of this order wrote."""
        was = self.was[row]
        ends = [*(at_s for at_s, _ in was[1:]), float("inf")]
        if order in {one for (_, one), end_s in zip(was, ends, strict=True) if end_s + FRESH_S >= begin_s}:
            return True
        told = [(one, told_s) for one, told_s in self.told[row].items() if one > order and one not in self.gone]
        newer = [told_s for _, told_s in told if told_s > self.lost_s]
        return all(told_s + FRESH_S >= begin_s for told_s in newer)

    def replicate(self, node: _Node, words: Sequence[Any]) -> None:
        """Sends a change to the replicas of a node."""
        node.log.append(_Made(self.clock.now_s, tuple(words)))
        node.offset += 1
        self.note_rows()

    def is_closed(self, node: _Node) -> bool:
        """Says whether a node takes no commands: it has just started, or knows that it is cut off."""
        is_cut = not node.has_peers and self.clock.now_s >= node.heard_s + self.node_timeout_s
        return is_cut or self.clock.now_s < node.closed_until_s

    def num_copies(self, node: _Node) -> int:
        """Returns how many replicas have all changes of a node."""
        self.catch_up_all()
        others = [one for one in self.members(node.group) if one is not node]
        return sum((one.history, one.offset) == (node.history, node.offset) for one in others)

    def _shard(self, view: _View, group: int) -> dict[str, Any]:
        slots = [slot for slot in sorted(_SLOTS) if _group_of(slot) == group]
        nodes = [
            {
                "endpoint": node.place[0],
                "port": node.place[1],
                "role": "master" if view.primaries[group] == node.number else "replica",
                "health": "fail" if node.number in view.failed else "online",
            }
            for node in self.members(group)
        ]
        return {"slots": [slot for slot in slots for _ in range(2)], "nodes": nodes}

    def learn(self, node: _Node) -> None:
        """Lets a node learn what is so, if it hears the others."""
        if node.is_linked:
            self.catch_up_all()
            if node.view.primaries[node.group] != self.truth.primaries[node.group]:
                node.copied_s = self.clock.now_s + self.rng.uniform(0, 1.5)
            node.view = self.truth

    def later(self, most_s: float, call: Callable[[], object], least_s: float = 0.0) -> None:
        """Calls at a random moment from now on."""
        delay_s = self.rng.uniform(least_s, most_s)

        def task() -> None:
            self.clock.sleep(delay_s)
            call()

        self.clock.start(task)

    def unless_healed(self, call: Callable[[], object]) -> Callable[[], None]:
        """Returns a function that calls another, unless the present faults have ended."""
        num_heals = self.num_heals

        def run() -> None:
            if self.num_heals == num_heals:
                call()

        return run

    def spread(self) -> None:
        """Lets each node learn what is so, at a time of its own."""
        for node in self.nodes:
            self.later(0.3, partial(self.learn, node))

    def _look_around(self) -> None:
        for turn in count():
            self.catch_up_all()
            failed = set(self.truth.failed)
            for node in self.nodes:
                if node.is_linked:
                    node.heard_s = self.clock.now_s
                    failed.discard(node.number)
                elif self.clock.now_s >= node.heard_s + self.node_timeout_s:
                    failed.add(node.number)
                # A sign of life (repl-ping-replica-period).
                if turn % 20 == 0 and node.is_primary and node.is_up and not node.is_frozen:
                    self.replicate(node, ["PING"])
            for number in failed:
                self.nodes[number].failed_s = self.clock.now_s
            if failed != self.truth.failed:
                self.truth = self.truth._replace(failed=frozenset(failed))
                self.spread()
            for group, primary in enumerate(self.truth.primaries):
                if primary in failed and group not in self._electing:
                    self._electing.add(group)
                    self.later(0.8, partial(self._elect, group))
            self.clock.sleep(0.05)

    def _read_elsewhere(self) -> None:
        """Reads rows as another server does that has no cache."""
        while True:
            self.clock.sleep(self.rng.uniform(0, 0.1))
            row = self.rng.randrange(_ROWS)
            node = self.primary(_group_of(_ROW_SLOTS[row]))
            if node.is_up and not (node.is_frozen or self.is_closed(node)):
                self.note_told(row, self.row(row))

    def _elect(self, group: int) -> None:
        self._electing.discard(group)
        self.catch_up_all()
        before = self.primary(group)
        able = [one for one in self.members(group) if one.is_linked and one.history == before.history]
        able = [one for one in able if one is not before and one.number not in self.truth.failed]
        if able and before.number in self.truth.failed:
            self.promote(max(able, key=lambda one: one.offset))

    def promote(self, node: _Node) -> None:
        """Makes a replica the primary of its group."""
        before = self.primary(node.group)
        newest = before.log[len(before.log) - (before.offset - node.offset) :]
        lost = [made for made in newest if made.words[0] == "EVAL"]
        if lost:
            self.lost_s = self.clock.now_s
        away_s = node.failed_s + _AWAY_S if node.failed_s else 0.0
        self.excused |= {made.order for made in lost if made.at_s < away_s}
        for told in self.told:
            told.update({order: self.clock.now_s for order in self.gone.intersection(told)})
        self.gone.clear()
        self.tell(f"n{node.number} takes over, and lacks {len(lost)} changes")
        primaries = list(self.truth.primaries)
        primaries[node.group] = node.number
        self.truth = self.truth._replace(epoch=self.truth.epoch + 1, primaries=tuple(primaries))
        self.learn(node)
        node.history, node.log = self.rng.getrandbits(64), []
        self.note_rows()
        self.spread()

    def end(self, node: _Node) -> None:
        node.is_up = False
        if node is self.primary(node.group):
            others = [one.offset for one in self.members(node.group) if one is not node and one.history == node.history]
            lacking = node.log[len(node.log) - (node.offset - min(others, default=node.offset)) :]
            self.gone |= {made.order for made in lacking if made.at_s > self.clock.now_s - replicas._GONE_S}

    def cut(self, node: _Node) -> None:
        """Lets the network hold back what a replica gets from its primary."""
        node.cut_s = self.clock.now_s if node.cut_s is None else node.cut_s

    def link(self, node: _Node) -> None:
        """Lets a replica get from its primary what the network has held back, not at once."""
        if node.cut_s is not None:
            node.held_back_s, node.cut_s = (node.cut_s, self.clock.now_s), None

    def heal(self, node: _Node) -> None:
        """Ends a node's faults. One that has ended starts with saved keys or none, once another has taken over."""
        self.link(node)
        self.filling, self.is_losing = None, False
        node.is_frozen, node.is_full, node.slow_s = False, False, 0.0
        node.hidden_from.clear()
        if not node.has_peers:
            node.has_peers, node.closed_until_s = True, self.clock.now_s + 0.5
        while not node.is_up and self.primary(node.group) is node:
            self.clock.sleep(0.1)
        if not node.is_up:
            self.start(node, has_saved=self.rng.random() < 0.5)
        self.later(1.0, partial(self.learn, node))

    def start(self, node: _Node, *, has_saved: bool) -> None:
        """Starts a node's process, with keys that it saved long ago or without any."""
        node.is_up, node.view, node.log = True, self.truth, []
        node.keys = _keys_of(node.group) if has_saved else {}
        node.history, node.offset, node.held_back_s = self.rng.getrandbits(64), 0, None
        node.closed_until_s = self.clock.now_s + (_START_S if has_saved else 2)
        node.copied_s = self.clock.now_s + self.rng.uniform(0, 1.5)


_STREAM_GROUP = _group_of(slot_of(_LAYOUT.record))
_SLOTS = {slot_of(_LAYOUT.record), *_LAYOUT.slots.tolist()}
_ROW_SLOTS = [slot_of(_LAYOUT.key(row // 2)) for row in range(_ROWS)]


class _Client:
    """A client of a node in place of redis-py's."""

    def __init__(self, cluster: _Cluster, address: StoreAddress, node: Any, timeout_s: float, **_: object) -> None:
        self._cluster = cluster
        self._server = int(address.user)
        self._node = cluster.nodes[node[1] - 7000]
        self._timeout_s = timeout_s
        self._words: list[tuple[Any, ...]] = []

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._words = []

    def close(self) -> None:
        pass

    def pipeline(self, transaction: bool) -> _Pipeline:
        """Returns a pipeline of commands."""
        assert not transaction
        return _Pipeline(self)

    def info(self, section: str) -> Any:
        return self.ask([("INFO", section)])[0]

    def ping(self) -> None:
        self.ask([("CLUSTER INFO",)])

    def execute_command(self, *words: Any) -> Any:
        return self.ask([words])[0]

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Sends commands; returns the replies, errors included. A command may be run although no reply comes."""
        cluster, node = self._cluster, self._node
        end_s = cluster.clock.now_s + self._timeout_s
        self._travel(end_s)
        is_readonly = commands[0][0] == "READONLY"
        found: list[Any] = [None] * is_readonly
        for words in commands[is_readonly:]:
            if words[0] == "WAIT":
                wait_s = cluster.clock.now_s + words[2] / 1000
                while (copies := cluster.num_copies(node)) < words[1] and cluster.clock.now_s < wait_s:
                    cluster.clock.sleep(0.02)
                # A primary that hears of its successor answers all waiting clients with an error.
                found.append(copies if node.is_primary else redis.exceptions.ResponseError("UNBLOCKED"))
            else:
                found.append(cluster.reply(node, words, is_readonly=is_readonly))
        self._travel(end_s, is_back=True)
        return found

    def _travel(self, end_s: float, *, is_back: bool = False) -> None:
        clock, node = self._cluster.clock, self._node
        clock.sleep(self._cluster.rng.uniform(0.0001, 0.002) + node.slow_s)
        while node.is_frozen or self._server in node.hidden_from:
            if clock.now_s >= end_s:
                raise redis.TimeoutError("timed out")
            clock.sleep(0.02)
        if not node.is_up:
            error = redis.ConnectionError("closed" if is_back else "refused")
            error.__context__ = None if is_back else ConnectionRefusedError()
            raise error


class _Pipeline(_Client):
    """Commands that are sent together."""

    def __init__(self, client: _Client) -> None:
        self.__dict__ |= client.__dict__
        self._words = []

    def execute_command(self, *words: Any) -> Any:
        self._words.append(words)

    def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        return self.ask(self._words)


class _Server:
    """A server: the parts in Python as they are, and a reader that caches rows as the core does.

    confirmed: row -> the order of the newest confirmed upsert.
    """

    def __init__(self, cluster: _Cluster, number: int, fail: Callable[[str], object]) -> None:
        self.number = number
        self.confirmed = [0.0] * _ROWS
        self.num_reads = self.num_cached = 0
        self._cluster = cluster
        self._fail = fail
        # Row -> its order, and the primary that told it.
        self._cache: dict[int, tuple[float, Any]] = {}
        self._folder: dict[int, Delta] = {}
        self._heard_s = float("-inf")
        self._num_changes = 0
        address = StoreAddress((("n0", 7000), (f"n{_NODES}", 7000 + _NODES)), user=str(number))
        self._topology = topology.Topology(address)
        self._primaries = topology.Primaries(address, self._topology)
        self.changes = changes.TableChanges(_LAYOUT, self._primaries, "float32")
        self.changes.listeners.append(self._forget)
        self.changes.on_heard = self._hear
        self._replicas = replicas.Replicas(self._topology)
        self._replicas._threads.shutdown()
        self._replicas._threads = SimpleNamespace(map=map)  # type: ignore[assignment]

    def start(self) -> None:
        """Begins to follow changes, as RemoteTables.watch() does."""
        self._topology.refresh(self._cluster.clock.now_s + 1)
        self.changes.begin(self._cluster.clock.now_s + 1)
        for call, pause_s in ((self._follow, 0.2), (self._replicas.compare, 0.3), (self._topology.look, 2.0)):
            self._cluster.clock.start(partial(self._repeat, call, pause_s))
        self._cluster.clock.start(partial(self._repeat, self.read, 0.03))

    def _repeat(self, call: Callable[[], object], pause_s: float) -> None:
        while True:
            self._cluster.clock.sleep(pause_s)
            self._cluster.clock.sleep(self._cluster.starved_s[self.number] - self._cluster.clock.now_s)
            call()

    def _forget(self, ids: Array | None) -> None:
        self._num_changes += 1
        for row in range(_ROWS) if ids is None else ids.tolist():
            self._cache.pop(row, None)

    def _hear(self, as_of_s: float) -> None:
        self._heard_s = max(self._heard_s, as_of_s)

    def upsert(self) -> None:
        rng = self._cluster.rng
        ids = np.array(sorted(rng.sample(range(_ROWS), rng.randint(1, 3))), np.int64)

        def make(number: int) -> tuple[Delta, bytes]:
            rows = np.full((ids.size, 1), 2 * number + 1, np.float32)
            delta = Delta(number, "t", ids, rows, _FINGERPRINT)
            return delta, encode(delta)

        try:
            delta, is_visible = self.changes.upsert(make, 0)
        except (topology.Unreachable, topology.Refused) as error:
            return self._cluster.tell(f"server {self.number}: an upsert is refused: {error}")
        self._cluster.tell(f"server {self.number}: upsert {delta.sequence} of {ids.tolist()}, visible: {is_visible}")
        for row in ids.tolist():
            self.confirmed[row] = max(self.confirmed[row], 2.0 * delta.sequence + 1)

    def _follow(self) -> None:
        self.changes.follow()
        # As VersionDeltas.catch_up() does.
        for sequence in self.changes.take_lost():
            self._cluster.tell(f"server {self.number}: file {sequence} is read again")
            self.changes.queue_file(self._folder[sequence], self._refuse)

    def take_file(self, delta: Delta) -> None:
        """Takes a delta file that was put into its folder."""
        self._folder[delta.sequence] = delta
        self.changes.queue_file(delta, self._refuse)
        for row in delta.ids.tolist():
            self.confirmed[row] = max(self.confirmed[row], 2.0 * delta.sequence)

    def _refuse(self, fault: DeltaFault) -> None:
        self._fail(f"server {self.number}: a file is refused: {fault}")

    def read(self, row: int | None = None) -> float | None:
        """Reads a row, from the cache if it may; returns it, or None if no node answers. None: draws a row."""
        row = self._cluster.rng.randrange(_ROWS) if row is None else row
        begin_s, num_changes = self._cluster.clock.now_s, self._num_changes
        slot, begin = _ROW_SLOTS[row], row % 2 * 4
        known = self._cache.get(row)
        is_cached = known is not None and known[1] == self._topology.primary(slot) and begin_s < self._heard_s + FRESH_S
        if is_cached and known is not None:
            found = known[0]
        else:
            command = topology.Command(slot, ("GETRANGE", _LAYOUT.key(row // 2), begin, begin + 3))
            try:
                (octets,), as_of_s = self._primaries.read_as_of([command], begin_s + 1)
            except topology.Unreachable:
                return None
            found = float(np.frombuffer(octets, "<f4")[0])
            if as_of_s >= begin_s and num_changes == self._num_changes:
                self._cache[row] = found, self._topology.primary(slot)
        self.num_reads += 1
        self.num_cached += is_cached
        self._cluster.note_told(row, found)
        if not self._cluster.is_right(row, found, begin_s):
            where, was = "cached" if is_cached else "read", self._cluster.was[row][-3:]
            self._fail(f"server {self.number}: row {row} is {found}, {where}, and was {was} at {begin_s:.3f}")
        return found


def _begin(cluster: _Cluster, kind: str, node: _Node) -> None:
    primary = cluster.primary(node.group)
    others = [one for one in cluster.members(node.group) if one is not primary]
    match kind:
        case "end":
            cluster.end(node)
        case "freeze":
            node.is_frozen = True
        case "hide":
            node.hidden_from.add(cluster.rng.randrange(2))
        case "cut":
            node.has_peers = False
        case "slow":
            node.slow_s = 0.06
        case "unlink":
            cluster.cut(node)
        case "promote" if node is not primary and node.is_linked and primary.is_linked and primary.is_primary:
            cluster.catch_up(node)
            if (node.history, node.offset) == (primary.history, primary.offset):
                cluster.promote(node)
                cluster.learn(primary)
        case "part":
            # The replicas lack changes, and later the primary can not be asked for them.
            for one in others:
                cluster.cut(one)
            kind = cluster.rng.choice(("end", "freeze", "hide"))
            cluster.later(2.5, cluster.unless_healed(partial(_begin, cluster, kind, primary)))
        case "starve":
            # The same, and a server does not compare them before the primary ends.
            for one in others:
                cluster.cut(one)
            cluster.starved_s[cluster.rng.randrange(2)] = cluster.clock.now_s + cluster.rng.uniform(1.5, 1.8)
            cluster.later(1.8, cluster.unless_healed(partial(cluster.end, primary)), 1.4)
        case "full":
            cluster.filling = cluster.rng.randrange(2)
        case "note":
            cluster.is_losing = True
        case "hold":
            # The network holds changes back for long, and lets go of them while a server does not reach the primary.
            primary.hidden_from.add(cluster.rng.randrange(2))
            for one in others:
                cluster.cut(one)
                cluster.later(FRESH_S + 3, cluster.unless_healed(partial(cluster.link, one)), FRESH_S)
        case "restart":
            # A server that does not reach the primary may read a replica that has started again.
            primary.hidden_from.add(cluster.rng.randrange(2))
            one = cluster.rng.choice(others)
            cluster.end(one)
            cluster.later(0.5, cluster.unless_healed(partial(cluster.start, one, has_saved=True)))
        case "lose":
            # A server does not hear of the takeover, and then hears of the former primary.
            primary.is_frozen = True
            cluster.rng.choice(others).hidden_from.add(cluster.rng.randrange(2))


_KINDS = (
    *("end", "freeze", "hide", "cut", "slow", "unlink", "promote"),
    *("part", "part", "lose", "lose", "hold", "starve", "restart", "full", "note"),
)


@dataclass
class Outcome:
    """The result of one seed. failure: what was broken, "" if nothing."""

    failure: str = ""
    reads: int = 0
    cached: int = 0
    takeovers: int = 0
    history: list[str] = field(default_factory=list)


@contextmanager
def _simulated(clock: _Clock, cluster: _Cluster) -> Iterator[None]:
    threads = SimpleNamespace(Lock=partial(_Lock, clock))
    with ExitStack() as stack:
        for module in (changes, replicas, topology):
            stack.enter_context(mock.patch.object(module, "time", clock))
        for module in (changes, topology):
            stack.enter_context(mock.patch.object(module, "threading", threads))
        for module in (replicas, topology):
            stack.enter_context(mock.patch.object(module, "node_client", partial(_Client, cluster)))
        draw = SimpleNamespace(urandom=cluster.rng.randbytes)
        stack.enter_context(mock.patch.object(changes, "os", draw))
        stack.enter_context(mock.patch.object(changes, "_KEPT_ENTRIES", _KEPT_ENTRIES))
        stack.enter_context(mock.patch.object(changes, "_READ_ENTRIES", _READ_ENTRIES))
        yield


def run_seed(seed: int) -> Outcome:
    """Runs two servers and a cluster of two groups of three nodes for some 25 simulated seconds."""
    outcome, clock, rng = Outcome(), _Clock(), random.Random(seed)

    def tell(line: str) -> None:
        outcome.history.append(f"{clock.now_s - 1000:9.3f} {line}")

    def fail(failure: str) -> None:
        tell(failure)
        outcome.failure = outcome.failure or failure

    cluster = _Cluster(clock, rng, tell)
    with _simulated(clock, cluster):
        servers = [_Server(cluster, number, fail) for number in range(2)]
        try:
            for server in servers:
                server.start()
            clock.start(partial(_write_some, cluster, servers))
            _break_some(cluster)
            clock.sleep(_CALM_S + cluster.node_timeout_s)
            _check_rest(cluster, servers, fail)
        finally:
            clock.end()
    for error in clock.failures:
        fail(f"{type(error).__name__}: {error}")
    outcome.reads = sum(server.num_reads for server in servers)
    outcome.cached = sum(server.num_cached for server in servers)
    outcome.takeovers = cluster.truth.epoch
    return outcome


def _write_some(cluster: _Cluster, servers: Sequence[_Server]) -> None:
    while cluster.clock.now_s < 1000 + _FAULTS_S + 1:
        cluster.clock.sleep(cluster.rng.uniform(0, 0.3))
        # More than one upsert at a time, of one server or of both.
        cluster.clock.start(cluster.rng.choice(servers).upsert)
        if cluster.rng.random() < 0.1:
            _drop_file(cluster, servers)


def _drop_file(cluster: _Cluster, servers: Sequence[_Server]) -> None:
    """Puts a delta file into the folder of one server, or of both."""
    rng = cluster.rng
    cluster.num_files += 1
    ids = np.array(sorted(rng.sample(range(_ROWS), rng.randint(1, 3))), np.int64)
    number = _FILES * cluster.num_files
    rows = np.full((ids.size, 1), 2 * number, np.float32)
    takers = rng.choice((servers, [rng.choice(servers)]))
    cluster.tell(f"file {number} of {ids.tolist()} for servers {[one.number for one in takers]}")
    for one in takers:
        one.take_file(Delta(number, "t", ids, rows, _FINGERPRINT, checksum=number))


def _break_some(cluster: _Cluster) -> None:
    rng, clock = cluster.rng, cluster.clock
    while clock.now_s < 1000 + _FAULTS_S:
        node = rng.choice(cluster.nodes)
        for one in (node, rng.choice(cluster.members(node.group)))[: rng.choice((1, 1, 1, 2))]:
            kind = rng.choice(_KINDS)
            cluster.tell(f"{kind} n{one.number}")
            cluster.catch_up_all()
            _begin(cluster, kind, one)
        clock.sleep(rng.uniform(0.1, 6))
        cluster.tell("all nodes are well")
        cluster.num_heals += 1
        for one in cluster.nodes:
            clock.start(partial(cluster.heal, one))
        clock.sleep(rng.uniform(0.1, 2.5))


def _check_rest(cluster: _Cluster, servers: Sequence[_Server], fail: Callable[[str], object]) -> None:
    if not all(node.is_up for node in cluster.nodes):
        # A primary and all replicas that had its rows have ended.
        return
    for server in servers:
        if server.changes.num_pending:
            fail(f"server {server.number} has {server.changes.num_pending} unfinished upserts")
        if server.changes.lag_s:
            fail(f"server {server.number} is {server.changes.lag_s:.3f} s behind")
        for row, order in enumerate(server.confirmed):
            if (found := server.read(row)) != cluster.row(row):
                fail(f"server {server.number}: row {row} is {found} at the end, and the cluster has {cluster.row(row)}")
            if cluster.row(row) < order and order not in cluster.excused:
                fail(f"row {row} is {cluster.row(row)} at the end, and {order} was confirmed")
