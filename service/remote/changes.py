"""Writes changed rows of one table into its cluster, and follows the changes that other servers write.

An upsert gets a number, is held in the cluster as a whole, is written into its blocks, is told to all servers by a
stream, and is released once the replicas have it. A server that finds an upsert held for a second finishes it, because
the server that took the upsert may be gone. A script writes a row only if no change of a higher order wrote it, so a
change may be written twice, by two servers, or late, and the rows end the same.

A replica that takes over may lack the last entries of the stream, and then gives their numbers to other entries. So
each entry has a digest of all entries up to it: equal digests are equal streams. A server whose last digest is not in
the stream drops all cached rows, and the server that wrote an entry writes it again until all replicas have it.

Rows of an upsert can be read before the stream tells of them, for long if the stream's primary fails meanwhile. So
while an upsert is held, cached rows are valid only up to the moment before the server found it, or up to the last look
at which the server dropped the upsert's rows from its cache. A delta file is held by the ids of its rows alone, so only
a server that has the file can finish it.

If a primary fails before its replicas have what it holds, they lack the upsert. The server that took the upsert holds
it again then. A replica that takes over may also have the mark of a delta file, and lack the note that the file is
written. A server that took the file for written then reads and writes it again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from service.artifact.delta_file import Delta, DeltaFault, decode
from service.artifact.stored_tables import rounded
from service.remote.layout import TableLayout, slot_of
from service.remote.topology import Command, Primaries, Refused, Unreachable
from service.types import Array

logger = logging.getLogger(__name__)

# Longest times in seconds: for writing one change to the cluster, and for reading which changes other servers made.
_WRITE_S = 5.0
_LOOK_S = 1.0
# If an upsert stays in the Valkey hash `held` for this many seconds, any server finishes it, because the server that
# put it there has probably ended. An upsert that some replica still lacks then is written again after this time.
_HELD_S = 1.0
# Seconds from one attempt to the next in which this server writes its stream entries again that some replica lacks.
_AGAIN_S = 1.0
# The same for rows of a delta file that some replica lacks. A file may be large, and a replica may copy its primary for
# long.
_FILE_AGAIN_S = 5.0
# Number of entries that the Valkey stream of changed rows keeps, and number that a server reads at a time. A server
# that missed an entry drops all cached rows.
_KEPT_ENTRIES = 1000
_READ_ENTRIES = 500
# If a change has more rows than this, its entry in the stream names no rows, and all rows of the table count as
# changed.
_MOST_IDS = 4096

# Lua script for Valkey that writes the changed rows of a table into the table's blocks. KEYS: the hash `orders`, then
# the blocks. ARGV: the change's order, each block's size, then for each row: its block's position in KEYS, its offset,
# its id, its bytes.
_WRITE = """
for i = 2, #KEYS do
  if redis.call('STRLEN', KEYS[i]) ~= tonumber(ARGV[i]) then
    return redis.error_reply('NOBLOCK the rows are not in the cluster; run model-export push again')
  end
end
for i = #KEYS + 1, #ARGV, 4 do
  local before, order = redis.call('HGET', KEYS[1], ARGV[i + 2]), ARGV[1]
  if not before or #before < #order or (#before == #order and before <= order) then
    redis.call('SETRANGE', KEYS[tonumber(ARGV[i]) + 1], ARGV[i + 1], ARGV[i + 3])
    redis.call('HSET', KEYS[1], ARGV[i + 2], order)
  end
end
return 1
"""
# Lua script for Valkey that returns the number of a table's next upsert. KEYS: the table's record, the last number.
# ARGV: the record that a complete table has, a number that is in use.
_NEXT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('NOTWHOLE the version is not in the cluster any more')
end
local last = math.max(tonumber(redis.call('GET', KEYS[2]) or 0), tonumber(ARGV[2])) + 1
redis.call('SET', KEYS[2], string.format('%.0f', last))
return string.format('%.0f', last)
"""
# Lua script for Valkey that stores an upsert, or the ids of a delta file, before its rows are written into the table's
# blocks. KEYS: the table's record, the hash `held`, the hash `files`. ARGV: the record that a complete table has, the
# name in `held`, the bytes, and '', or the number of a file that is not held if another server has written it.
_HOLD = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('NOTWHOLE the version is not in the cluster any more')
end
if redis.call('HGET', KEYS[3], ARGV[4]) then return 0 end
return redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
"""
# Lua script for Valkey that tells all servers which rows were changed. KEYS: the stream `changes`, the last number, the
# hash `held`, the hash `files`. ARGV: the change's number, its ids or '', the entries to keep, the name to remove from
# `held` or '', the checksum of a file that is written or '', and random bytes.
_TELL = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local number = last and string.match(last[1], '^%d+') or '0'
local history = redis.sha1hex((last and last[2][4] or '') .. ARGV[6] .. ARGV[2])
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], string.format('%.0f-1', tonumber(number) + 1),
  'ids', ARGV[2], 'history', history)
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(ARGV[1]) then redis.call('SET', KEYS[2], ARGV[1]) end
redis.call('HDEL', KEYS[3], ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[4], ARGV[1], ARGV[5]) end
return 1
"""


class _Held(NamedTuple):
    """An unfinished upsert or delta file in the cluster.

    tried_s: when this server saw it first, or tried last to finish it. told_s: a moment up to which the listeners know
    the rows that it changed. is_read: whether `ids` is known: the [N] int64 ids of these rows, or None for any row.
    """

    tried_s: float
    told_s: float
    is_read: bool = False
    ids: Array | None = None


class _File(NamedTuple):
    """A delta file whose rows some node may lack.

    refused: is called if the file is refused. again_s: when its rows are written again; 0: they were never written.
    """

    delta: Delta
    refused: Callable[[DeltaFault], None]
    again_s: float = 0.0


# Type of a function that is called with the [N] int64 ids of changed rows, or with None if any row may have changed. It
# must not raise.
Listener = Callable[[Array | None], None]


class _Entry(NamedTuple):
    """An entry of the stream of changes of a table in Valkey.

    history: digest of this entry and all entries before it; b"" if an older version of the server wrote the entry.
    """

    name: bytes = b"0-0"
    ids: bytes = b""
    history: bytes = b""

    @staticmethod
    def of(told: Any) -> _Entry:
        name, fields = told
        return _Entry(name, fields[b"ids"], fields.get(b"history", b""))


# _BEGIN: the position before the first entry of the stream of changes. _FIRST: the name of the stream's first entry.
_BEGIN, _FIRST = _Entry(), b"1-1"


class TableChanges:
    """The writer and follower of row changes in one version's table in a cluster. Concurrency: any thread; calls block.

    listeners: are told of changed rows, those that this server wrote included.
    on_heard: called each time that the listeners know all changes up to a moment, with this moment on time.monotonic().
    applied: deltas and upserts that this server wrote. refused: upserts that the cluster did not take; refusal: why it
    did not take the newest upsert, "" if it did.
    """

    def __init__(self, layout: TableLayout, primaries: Primaries, dtype: str) -> None:
        self._layout = layout
        self._primaries = primaries
        self._dtype = dtype
        self._slot = slot_of(layout.record)
        self.listeners: list[Listener] = []
        self.on_heard: Callable[[float], None] | None = None
        self.applied = 0
        self.refused = 0
        self.refusal = ""
        self._following = threading.Lock()
        # Id of an entry of the table's stream of changes: the listeners know the changed rows of all entries up to it.
        self._told = _BEGIN
        # _uncopied: for each stream entry that this server wrote and that some replica may lack, the entry's random
        # bytes -> its ids. _again_at_s: the time at which these ids are written again, on time.monotonic().
        self._uncopied: dict[bytes, bytes] = {}
        self._again_at_s = 0.0
        # The moment up to which the listeners know all changes, but for those of unfinished upserts, by their number.
        self._heard_s = float("-inf")
        self._held: dict[str, _Held] = {}
        # The highest number of an upsert that this server took.
        self._newest, self._numbering = 0, threading.Lock()
        # The bytes of upserts that this server took and some replica may lack, by their number.
        self._own: dict[str, bytes] = {}
        self._files: deque[_File] = deque()
        # Numbers of the delta files that this server takes for written, and of those to be read again.
        self._done: set[int] = set()
        self._lost: set[int] = set()
        self._trouble = ""
        self._behind_since_s: float | None = None

    @property
    def num_pending(self) -> int:
        """Number of delta files and upserts whose rows may be missing on a node of the cluster."""
        return len(self._held.keys() | {_name_of_file(file.delta) for file in self._files.copy()})

    @property
    def lag_s(self) -> float:
        """Seconds for which the table's changes wait to be written, or other servers' could not be read; else 0."""
        since_s = self._behind_since_s
        return 0.0 if since_s is None else max(time.monotonic() - since_s, 0.0)

    def begin(self, end_s: float) -> None:
        """Makes follow() tell only changes after the newest one in the cluster; called before any row is read.

        Raises:
          Unreachable, Refused: the stream of changes could not be read.
        """
        command = self._command("XREVRANGE", "changes", "+", "-", "COUNT", 1)
        (newest,), self._heard_s = self._primaries.read_as_of([command], end_s)
        self._told = _Entry.of(newest[0]) if newest else _BEGIN

    def upsert(self, make: Callable[[int], tuple[Delta, bytes]], floor: int) -> tuple[Delta, bool]:
        """Stores an upsert in the cluster; returns its Delta, and whether all its rows are written to their blocks.

        Args:
          make: makes the upsert and its bytes from its number.
          floor: a number that is in use already.

        Raises:
          Unreachable, Refused: nothing was changed, unless the answer of a node was lost.
        """
        try:
            found = self._upsert(make, floor)
        except (Unreachable, Refused) as error:
            if not self.refusal:
                logger.warning("a cluster refuses upserts", extra=self._names() | {"reason": str(error)})
            self.refused += 1
            self.refusal = str(error)
            raise
        self.refusal = ""
        return found

    def _upsert(self, make: Callable[[int], tuple[Delta, bytes]], floor: int) -> tuple[Delta, bool]:
        end_s = time.monotonic() + _WRITE_S
        whole = self._layout.record_text(is_whole=True)
        # A replica that takes over may lack the newest numbers, and must not give them again: they name upserts.
        floor = max(floor, self._newest)
        (number,) = self._primaries.run([self._script(_NEXT, ["", "sequence"], whole, floor)], end_s)
        delta, data = make(int(number))
        with self._numbering:
            self._newest = max(self._newest, delta.sequence)
        # Primaries and replicas store the upsert before a row changes, so that a server can finish the upsert even if a
        # replica takes over.
        is_safe = self._hold(str(delta.sequence), data, "", end_s)
        try:
            is_safe |= self._finish(delta, end_s)
        except (Unreachable, Refused) as error:
            logger.warning("an upsert is written later", extra=self._names() | {"reason": str(error)})
            return delta, False
        finally:
            if not is_safe:
                self._own[str(delta.sequence)] = data
        return delta, True

    def queue_file(self, delta: Delta, refused: Callable[[DeltaFault], None]) -> None:
        """Queues a delta that was read from a file; follow() writes its rows to the cluster if no other server has."""
        self._done.discard(delta.sequence)
        self._files.append(_File(delta, refused))

    def take_lost(self) -> set[int]:
        """Returns the numbers of delta files that are to be read again: the cluster has lost that they are written."""
        found, self._lost = self._lost, set()
        return found

    def follow(self) -> None:
        """Tells listeners the rows that other servers changed; writes queued deltas' and unfinished upserts' rows.

        The rows are written to the cluster. An upsert is unfinished if a server has written only a part of its rows.
        """
        with self._following:
            try:
                self._look(time.monotonic() + _LOOK_S)
                self._hold_again(time.monotonic() + _LOOK_S)
                self._tell_again(time.monotonic() + _LOOK_S)
                self._write_files(time.monotonic() + _WRITE_S)
            except (Unreachable, Refused) as error:
                if not self._trouble:
                    logger.warning("changes of a remote table wait", extra=self._names() | {"reason": str(error)})
                self._trouble = str(error)
            else:
                self._trouble = ""
            if not (self._trouble or self.num_pending):
                self._behind_since_s = None
            elif self._behind_since_s is None:
                self._behind_since_s = time.monotonic()

    def _look(self, end_s: float) -> None:
        told = self._told
        # The range that is read from the stream of changes begins with the entry that the listeners heard last: if the
        # stream still has it, the server has missed no entry behind it.
        told_and_new = self._command("XRANGE", "changes", told.name.decode(), "+", "COUNT", _READ_ENTRIES)
        # `held` is read first, so that the stream has each upsert that was released before.
        (names, found), as_of_s = self._primaries.read_as_of([self._command("HKEYS", "held"), told_and_new], end_s)
        entries = [_Entry.of(one) for one in found]
        if told is _BEGIN:
            is_known = not entries or entries[0].name == _FIRST
        else:
            is_known = bool(entries) and (entries[0].name, entries[0].history) == (told.name, told.history)
        if is_known:
            self._hear(entries if told is _BEGIN else entries[1:])
        else:
            # The stream lacks the last entry that the listeners were told of: the node lost it, dropped it as too old,
            # or is another node. All cached rows are dropped after the newest entry was read, so that no row is cached
            # between both.
            self.begin(end_s)
            self._tell(None)
        now_s = time.monotonic()
        # An upsert that was not held at the last look had changed no row then.
        new = _Held(now_s, self._heard_s)
        self._held = {name: self._held.get(name, new) for name in map(bytes.decode, names)}
        if len(entries) < _READ_ENTRIES:
            self._heard_s = as_of_s
        self._tell_held()
        for name, held in sorted(self._held.items(), key=lambda one: one[1].tried_s):
            if time.monotonic() >= end_s or now_s - held.tried_s < _HELD_S:
                # While replicas lack rows, each attempt takes as long as a write waits for them.
                break
            # The time is noted before the attempt, so that an upsert that is refused lets this server try the others.
            self._held[name] = held._replace(tried_s=now_s)
            self._finish_held(name)

    def _tell_held(self) -> None:
        """Tells the rows of unfinished upserts, at each look, because a server may just have written them, and then the
        moment up to which the listeners know all changes.
        """
        now_s = time.monotonic()
        known = {name: held for name, held in self._held.items() if held.is_read}
        ids = [held.ids for held in known.values() if held.ids is not None]
        if known:
            self._tell(np.unique(np.concatenate(ids)) if len(ids) == len(known) else None)
            self._held |= {name: held._replace(told_s=now_s) for name, held in known.items()}
        if self.on_heard is not None:
            self.on_heard(min([self._heard_s, *(held.told_s for held in self._held.values())]))

    def _hear(self, entries: list[_Entry]) -> None:
        if not entries:
            return
        self._told = entries[-1]
        ids = [one.ids for one in entries]
        self._tell(np.unique(np.frombuffer(b"".join(ids), "<i8")) if all(ids) else None)

    def _finish_held(self, name: str) -> None:
        """Reads which rows an upsert or a delta file changes; writes those of an upsert."""
        commands = [self._command("HGET", "held", name), self._command("HGET", "files", name.removeprefix("-"))]
        data, noted = self._primaries.run(commands, time.monotonic() + _LOOK_S)
        if data is None:
            return
        if noted is None and name.startswith("-") and int(name[1:]) in self._done:
            self._lost.add(int(name[1:]))
        delta: Delta | None = None
        ids: Array | None = np.frombuffer(data, "<i8") if name.startswith("-") and data else None
        if not name.startswith("-"):
            try:
                delta = decode(data)
            except DeltaFault as fault:
                why = {"reason": str(fault), "sequence": name}
                logger.error("a held upsert is damaged", extra=self._names() | why)
            ids = np.empty(0, np.int64) if delta is None else delta.ids
        self._held[name] = self._held[name]._replace(is_read=True, ids=ids)
        self._tell_held()
        if delta is not None:
            logger.info("finishing an upsert that another server left", extra=self._names() | {"sequence": name})
            self._finish(delta, time.monotonic() + _WRITE_S)

    def _hold(self, name: str, data: bytes, file: int | str, end_s: float) -> bool:
        whole = self._layout.record_text(is_whole=True)
        return self._primaries.write([self._script(_HOLD, ["", "held", "files"], whole, name, data, file)], end_s)

    def _hold_again(self, end_s: float) -> None:
        """Holds upserts of this server again that a replica lacked which has taken over."""
        for name, data in self._own.copy().items():
            if name not in self._held and self._hold(name, data, "", end_s):
                self._own.pop(name, None)

    def _finish(self, delta: Delta, end_s: float, *, is_file: bool = False) -> bool:
        """Writes the rows of an upsert or a delta file, tells of them, and releases it once the replicas have the rows;
        returns whether they have them, and for a file, whether they also know that it is written.
        """
        name = _name_of_file(delta) if is_file else str(delta.sequence)
        is_copied = self._write(delta, 2 * delta.sequence + (not is_file), end_s)
        checksum = delta.checksum if is_copied and is_file else ""
        is_noted = self._announce(delta, name if is_copied else "", checksum, end_s)
        if is_copied:
            self._own.pop(name, None)
        return is_copied and (is_noted or not is_file)

    def _write_files(self, end_s: float) -> None:
        for _ in range(len(self._files)):
            file = self._files[0]
            delta, is_done, is_other = file.delta, False, False
            if time.monotonic() >= file.again_s:
                (found,) = self._primaries.run([self._command("HGET", "files", delta.sequence)], end_s)
                is_other = found is not None and int(found) != delta.checksum
                if is_other:
                    fault = f"another file of another server had the number {delta.sequence}"
                    file.refused(DeltaFault("repeated", fault))
                # A primary that fails may take the note with it that this server has written the file.
                is_done = is_other or (found is not None and not file.again_s)
                if not is_done:
                    note = "" if file.again_s else delta.sequence
                    self._hold(_name_of_file(delta), _told_ids(delta), note, end_s)
                    is_done = self._finish(delta, end_s, is_file=True)
                file = file._replace(again_s=time.monotonic() + _FILE_AGAIN_S)
            self._files.popleft()
            if not is_done:
                self._files.append(file)
            elif not is_other:
                self._done.add(delta.sequence)

    def _write(self, delta: Delta, order: int, end_s: float) -> bool:
        """Writes a delta's rows into the table's blocks in the cluster; returns whether the replicas have them."""
        layout = self._layout
        octets = _octets(delta.rows, self._dtype)
        blocks, places = np.divmod(delta.ids, layout.block_rows)
        shards = blocks % layout.num_shards
        by_shard = np.argsort(shards, kind="stable")
        commands = []
        for some in np.split(by_shard, np.flatnonzero(np.diff(shards[by_shard])) + 1):
            shard = int(shards[some[0]])
            distinct, of_row = np.unique(blocks[some], return_inverse=True)
            keys = [layout.orders(shard), *(layout.key(block) for block in distinct.tolist())]
            words: list[bytes | str | int] = [order]
            words += [(end - begin) * layout.row_bytes for begin, end in map(layout.rows, distinct.tolist())]
            for row, block in zip(some.tolist(), of_row.tolist(), strict=True):
                offset = int(places[row]) * layout.row_bytes
                words += [block + 1, offset, int(delta.ids[row]), octets[row].tobytes()]
            commands.append(Command(int(layout.slots[shard]), ("EVAL", _WRITE, len(keys), *keys, *words)))
        return self._primaries.write(commands, end_s)

    def _announce(self, delta: Delta, released: str, checksum: int | str, end_s: float) -> bool:
        """Tells all servers of changed rows; returns whether the replicas have what this notes in the cluster."""
        notes = ["changes", "sequence", "held", "files"]
        is_copied = self._add(_told_ids(delta), notes, [released, checksum], delta.sequence, end_s)
        self.applied += 1
        # Listeners in this process are called now; other servers learn of the rows from the stream.
        self._tell(delta.ids)
        return is_copied

    def _tell_again(self, end_s: float) -> None:
        """Writes one stream entry with the ids of all entries that a replica may lack: it may become the primary."""
        if not self._uncopied or time.monotonic() < self._again_at_s:
            return
        self._again_at_s = time.monotonic() + _AGAIN_S
        told = self._uncopied.copy()
        size = sum(map(len, told.values()))
        ids = b"".join(told.values()) if all(told.values()) and size <= 8 * _MOST_IDS else b""
        self._add(ids, ["changes", "sequence", "held", "files"], ["", ""], 0, end_s)
        for nonce in told:
            self._uncopied.pop(nonce, None)

    def _add(self, ids: bytes, notes: list[str], deed: list[str | int], sequence: int, end_s: float) -> bool:
        """Adds an entry to the stream of changes; returns whether all replicas have it, and keeps its ids in _uncopied
        if not.
        """
        nonce = os.urandom(16)
        self._uncopied[nonce] = ids
        if self._primaries.write([self._script(_TELL, notes, sequence, ids, _KEPT_ENTRIES, *deed, nonce)], end_s):
            self._uncopied.pop(nonce, None)
        return nonce not in self._uncopied

    def _tell(self, ids: Array | None) -> None:
        for listener in self.listeners:
            listener(ids)

    def _command(self, name: str, note: str, *words: str | int) -> Command:
        return Command(self._slot, (name, self._layout.note(note), *words))

    def _script(self, script: str, notes: list[str], *words: bytes | str | int) -> Command:
        keys = [self._layout.note(note) if note else self._layout.record for note in notes]
        return Command(self._slot, ("EVAL", script, len(keys), *keys, *words))

    def _names(self) -> dict[str, object]:
        return {"model": self._layout.model, "table": self._layout.table}


def _name_of_file(delta: Delta) -> str:
    return f"-{delta.sequence}"


def _told_ids(delta: Delta) -> bytes:
    return np.ascontiguousarray(delta.ids, "<i8").tobytes() if delta.ids.size <= _MOST_IDS else b""


def _octets(rows: Array, dtype: str) -> Array:
    """Encodes rows as [N, row_bytes] uint8, as a cluster stores them: an int8 or int4 row has its scale at its end."""
    numbers, scales = rounded(np.ascontiguousarray(rows, np.float32), dtype)
    parts = [numbers] if scales is None else [numbers, scales.astype("<f4")]
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(rows), -1) for part in parts], axis=1)
