"""Reads rows of one version's table from a cluster before a deadline.

A read asks all primaries at once. If a primary is down, slow, or lacks a key, the read asks another node of the same
slot for its rows. Replicas are asked only while they are in sync. Only an answer with the size of a row counts as a
row. A connection that broke or was given up is closed, so that no later read gets its
answers.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from service.remote.address import StoreAddress
from service.remote.clients import Node
from service.remote.counts import ReadCounts
from service.remote.layout import TableLayout
from service.remote.row_connection import ErrorReply, Reply, RowConnection, command
from service.remote.topology import Topology, Unreachable
from service.types import Array

# Most commands that are sent to a node at once, before their replies are read: 1 MB of replies for rows of 256 bytes.
_MOST_COMMANDS = 4096
_PAUSE_S = 0.01
_IDLE_CONNECTIONS = 32
# Kinds of Valkey's error replies that may vanish at the next attempt: the map of hash slots is outdated, or a node is
# not ready yet.
_PASSING = frozenset({"MOVED", "ASK", "CLUSTERDOWN", "LOADING", "TRYAGAIN", "MASTERDOWN"})


class Found(NamedTuple):
    """The result of reading rows from a cluster.

    rows: [N, row_bytes] uint8. is_missing: [N] bool, True for rows that could not be read. why: the reason for these.
    """

    rows: Array
    is_missing: Array
    why: str


class _Stale(ConnectionError):
    """A cluster node closed a connection while it was idle: the node restarted, or the password of the connection's
    user changed.
    """


class RowReader:
    """The reader of one remote table, with connections to the cluster's nodes. Concurrency: any thread."""

    def __init__(self, layout: TableLayout, address: StoreAddress, topology: Topology) -> None:
        self.layout = layout
        self.address = address
        self.topology = topology
        self.counts = ReadCounts()
        self._changing = threading.Lock()
        self._idle: dict[Node, list[RowConnection]] = defaultdict(list)
        size = len(layout.key(0))
        self._head = b"*4\r\n$8\r\nGETRANGE\r\n$%d\r\n" % size + layout.tag.encode()
        self._tails = [self._tail(row) for row in range(min(layout.block_rows, layout.vocabulary_size))]

    def _tail(self, row: int) -> bytes:
        begin = b"%d" % (row * self.layout.row_bytes)
        end = b"%d" % ((row + 1) * self.layout.row_bytes - 1)
        return b"\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(begin), begin, len(end), end)

    def read(self, ids: Array, deadline_s: float | None = None) -> Found:
        """Reads the rows of [N] int64 ids, each from 0 to V - 1.

        Args:
          deadline_s: on time.monotonic(); the read also ends after the timeout_s of the address.
        """
        begin_s = time.monotonic()
        end_s = begin_s + self.address.timeout_s
        end_s = end_s if deadline_s is None else min(end_s, deadline_s)
        rows = np.empty((ids.shape[0], self.layout.row_bytes), np.uint8)
        task = _Task(self, ids, rows, end_s)
        task.run()
        missing = np.zeros(ids.shape[0], bool)
        missing[task.left] = True
        num_missing = int(task.left.size)
        with self._changing:
            counts = self.counts
            counts.reads += 1
            counts.rows += ids.shape[0] - num_missing
            counts.bytes += (ids.shape[0] - num_missing) * self.layout.row_bytes
            counts.retries += task.retries
            counts.errors += bool(num_missing)
            counts.seconds += time.monotonic() - begin_s
        return Found(rows, missing, task.why)

    def count_replaced(self, kind: Literal["default", "stale"], number: int) -> None:
        """Counts ids that got a default row, or a cached row, in place of a row that could not be read."""
        with self._changing:
            if kind == "default":
                self.counts.default_rows += number
            else:
                self.counts.stale_rows += number

    def commands(self, blocks: Array, rows: Array) -> list[bytes]:
        """Encodes a Valkey command for each row to read, given the row's block and its position in the block."""
        head, tails, shards = self._head, self._tails, blocks % self.layout.num_shards
        return [
            head + b"%04x}%08x" % (shard, block) + tails[row]
            for shard, block, row in zip(shards.tolist(), blocks.tolist(), rows.tolist(), strict=True)
        ]

    def connection(self, node: Node, end_s: float) -> RowConnection:
        """Returns an idle connection to a cluster node, or opens one; raises OSError."""
        with self._changing:
            if self._idle[node]:
                connection = self._idle[node].pop()
                connection.was_idle = True
                return connection
        # Every connection sends READONLY, so it can be used whether the node is a primary or a replica, even if that
        # changes.
        return RowConnection(node, self.address, end_s)

    def give_back(self, node: Node, connection: RowConnection) -> None:
        """Keeps a connection to a cluster node for later reads, or closes it if enough are idle; all its replies must
        have been read.
        """
        with self._changing:
            if len(self._idle[node]) < _IDLE_CONNECTIONS:
                self._idle[node].append(connection)
                return
        connection.close()

    def drop_idle(self, node: Node) -> None:
        """Closes all idle connections to a cluster node, which has failed and may have been restarted."""
        with self._changing:
            idle = self._idle.pop(node, [])
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections to all nodes of the cluster."""
        for node in list(self._idle):
            self.drop_idle(node)


class _Task:
    """A read of remote rows, in rounds until all rows are read or the deadline passes. left: unread positions."""

    def __init__(self, reader: RowReader, ids: Array, rows: Array, end_s: float) -> None:
        self._reader = reader
        self._rows = rows
        self._end_s = end_s
        self._blocks, self._places = np.divmod(ids, reader.layout.block_rows)
        self._slots = reader.layout.slots[self._blocks % reader.layout.num_shards]
        # Position of an id in the request -> the nodes that were asked for its row and do not have it.
        self._lacking: dict[int, set[Node]] = {}
        # Position of an id in the request -> the node that an ASK reply named for its row, because the hash slot is
        # being moved to that node.
        self._asking: dict[int, Node] = {}
        self.left = np.arange(ids.shape[0])
        self.retries = 0
        self.why = ""
        self._lost = ""

    def run(self) -> None:
        first = True
        while self.left.size:
            if not first:
                self.retries += 1
                if time.monotonic() + _PAUSE_S >= self._end_s:
                    self.why = self.why or "timed out"
                    return
                time.sleep(_PAUSE_S)
            needs_map = self._round()
            if self.left.size and (needs_map or first):
                try:
                    self._reader.topology.refresh(self._end_s)
                except Unreachable as error:
                    self.why = str(error)
            if self.left.size and self._is_hopeless():
                return
            first = False

    def _is_hopeless(self) -> bool:
        """Says whether an unread row can not be read: all nodes of the row's hash slot are down or lack its key."""
        topology = self._reader.topology
        for position in self.left.tolist():
            if position in self._asking:
                continue
            nodes = topology.hopes(int(self._slots[position]))
            lacking = self._lacking.get(position, set())
            if nodes and all(node in lacking for node in nodes):
                self.why = self._lost
                return True
            if nodes and all(node in lacking or topology.is_down(node) for node in nodes):
                return True
        return False

    def _round(self) -> bool:
        """Asks one node for each unread row; returns whether the map of hash slots to nodes must be read again."""
        groups, needs_map = self._groups()
        sent = []
        for (node, asks), positions in groups.items():
            for begin in range(0, positions.size, _MOST_COMMANDS):
                some = positions[begin : begin + _MOST_COMMANDS]
                try:
                    sent.append((node, asks, some, self._send(node, some, asks=asks)))
                except OSError as error:
                    needs_map |= self._failed(node, error)
        done = []
        for node, asks, some, connection in sent:
            try:
                values = self._receive(connection, some, asks=asks)
            except OSError as error:
                connection.close()
                needs_map |= self._failed(node, _of_connection(connection, error))
                continue
            self._reader.topology.answered(node)
            self._reader.give_back(node, connection)
            if isinstance(values, np.ndarray):
                self._rows[some] = values
                done.append(some)
            else:
                read, stale = self._judged(node, some, values)
                done.append(read)
                needs_map |= stale
        if done:
            self.left = np.setdiff1d(self.left, np.concatenate(done))
        return needs_map

    def _groups(self) -> tuple[dict[tuple[Node, bool], Array], bool]:
        """Groups the unread rows by the cluster node to ask; also returns whether the map of hash slots is outdated.

        A key is (node, whether an ASK reply named the node); its value: positions of the rows' ids in the request.
        """
        topology, needs_map = self._reader.topology, False
        if not self._lacking and not self._asking:
            # All rows of a hash slot are read from the same node, so that the node is looked up once for each hash
            # slot.
            slots, inverse = np.unique(self._slots[self.left], return_inverse=True)
            numbers: dict[Node, int] = {}
            of_slot = []
            for slot in slots.tolist():
                nodes = topology.nodes(slot)
                of_slot.append(numbers.setdefault(nodes[0], len(numbers)) if nodes else -1)
            of_row = np.array(of_slot, np.int64)[inverse]
            groups = {(node, False): self.left[of_row == number] for node, number in numbers.items()}
            return groups, -1 in of_slot
        found: dict[tuple[Node, bool], list[int]] = defaultdict(list)
        for position in self.left.tolist():
            if (told := self._asking.pop(position, None)) is not None:
                found[told, True].append(position)
                continue
            lacking = self._lacking.get(position, set())
            able = [node for node in topology.nodes(int(self._slots[position])) if node not in lacking]
            if able:
                found[able[0], False].append(position)
            else:
                needs_map = True
        return {key: np.array(positions) for key, positions in found.items()}, needs_map

    def _send(self, node: Node, positions: Array, *, asks: bool) -> RowConnection:
        reader = self._reader
        commands = reader.commands(self._blocks[positions], self._places[positions])
        if asks:
            commands = [asking + one for asking, one in zip([command("ASKING")] * len(commands), commands, strict=True)]
        connection = reader.connection(node, self._node_end_s())
        try:
            connection.send(commands, self._node_end_s())
        except OSError as error:
            connection.close()
            raise _of_connection(connection, error) from error
        return connection

    def _receive(self, connection: RowConnection, positions: Array, *, asks: bool) -> Array | list[Reply]:
        if asks:
            return connection.replies(2 * positions.size, self._node_end_s())[1::2]
        return connection.values(positions.size, self._reader.layout.row_bytes, self._node_end_s())

    def _node_end_s(self) -> float:
        return min(self._end_s, time.monotonic() + self._reader.address.node_timeout_s)

    def _failed(self, node: Node, error: OSError) -> bool:
        self.why = f"{node[0]}:{node[1]}: {error}"
        if isinstance(error, _Stale):
            # The node closed an idle connection, which is no fault of the node. The reader asks the node again on a new
            # connection.
            self._reader.drop_idle(node)
            return False
        self._reader.topology.failed(node)
        self._reader.drop_idle(node)
        return True

    def _judged(self, node: Node, positions: Array, replies: Sequence[Reply]) -> tuple[Array, bool]:
        """Copies the rows in a node's replies to the result; returns their positions, and whether the map of hash slots
        may be outdated.
        """
        read, is_old = [], False
        for position, reply in zip(positions.tolist(), replies, strict=True):
            if isinstance(reply, ErrorReply):
                self.why = f"{node[0]}:{node[1]}: {reply}"
                if reply.kind == "ASK":
                    host, _, port = str(reply).rpartition(" ")[2].rpartition(":")
                    self._asking[position] = (host or node[0], int(port))
                elif reply.kind in _PASSING:
                    is_old = True
                else:
                    is_typed = reply.kind == "WRONGTYPE"
                    self._lose(position, node, "is of another type" if is_typed else f"can not be read: {reply}")
            elif reply is None or len(reply) != self._reader.layout.row_bytes:
                self._lose(position, node, "is cut short" if reply else "is not in the cluster, or ends before the row")
                is_old = True
            else:
                self._rows[position] = np.frombuffer(reply, np.uint8)
                read.append(position)
        return np.array(read, np.int64), is_old

    def _lose(self, position: int, node: Node, fault: str) -> None:
        """Notes that a node lacks a row, although the node holds the row's hash slot."""
        self._lacking.setdefault(position, set()).add(node)
        layout, block, slot = self._reader.layout, self._blocks[position], self._slots[position]
        self._lost = f'block {block} of table "{layout.table}" (slot {slot}) {fault}; run "model-export push"'
        self.why = self._lost


def _of_connection(connection: RowConnection, error: OSError) -> OSError:
    """Returns the error that a connection raised, as a _Stale if the node may have closed the connection while idle."""
    return _Stale(*error.args) if connection.was_idle and not isinstance(error, TimeoutError) else error
