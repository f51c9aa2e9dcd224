"""What comes for many connections in one turn of the event loop is read first, then answered, then sent.

Taken one connection at a time, the kernel's code and data push the interpreter's out of the processor's caches, and the
other way round, for each request; so do lookups with their tables. Small requests go first, whoever came first, and
large ones leave room for them in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from time import perf_counter
from typing import Any, Protocol

# Answers of a group are sent before more work is done: what was written is in the cache still, and nobody waits long.
_GROUP_BYTES, _GROUP_SIZE = 512 << 10, 32
# A turn waits for the next poll. Where no more connections than this are busy, that costs more than it saves, and so
# many reads are worked on as they come until the next look at how many there are.
_FEW, _BETWEEN_LOOKS = 5, 32
# A read of so much holds thousands of ids: more than a millisecond's work. Others are let in after this long.
_LARGE_BYTES, _MOST_S = 32 << 10, 1e-3
# No more is kept unread, whatever the connections send.
_KEPT_BYTES = 16 << 20


class Member(Protocol):
    """A connection.

    transport: what it speaks over.
    """

    transport: Any

    def take(self, data: bytes) -> int:
        """Reads what came; returns how many bytes of answers wait for flush, or will."""
        ...

    def answer(self) -> None:
        """Answers what was read."""
        ...

    def flush(self) -> None:
        """Sends what waits."""
        ...


class Turns:
    """Shared by connections; each gets its data in order. Concurrency: one event loop."""

    def __init__(self) -> None:
        self._small: list[tuple[Member, bytes]] = []
        self._large: deque[tuple[Member, bytes]] = deque()
        # Members of whom something large waits: all that comes for them after that waits behind it.
        self._delayed: set[Member] = set()
        self._kept_bytes = 0
        self._is_due = False
        # Reads that are worked on as they come.
        self._num_alone = 0

    def came(self, member: Member, data: bytes) -> None:
        """Has data worked on: now, or in the next turn."""
        size = len(data)
        if size >= _LARGE_BYTES or member in self._delayed:
            self._large.append((member, data))
            self._delayed.add(member)
        elif self._num_alone:
            self._num_alone -= 1
            member.take(data)
            member.answer()
            member.flush()
            return
        else:
            self._small.append((member, data))
        self._kept_bytes += size
        if self._kept_bytes > _KEPT_BYTES:
            self._work_on_all()
        elif not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def settle(self, member: Member) -> None:
        """Works on all that came for a member, before it learns anything else."""
        _work_on(self._take_small())
        if member in self._delayed:
            mine = [entry for entry in self._large if entry[0] is member]
            self._large = deque(entry for entry in self._large if entry[0] is not member)
            self._delayed.discard(member)
            self._kept_bytes -= sum(len(data) for _, data in mine)
            _work_on(mine)

    def _turn(self) -> None:
        self._is_due = False
        small = self._take_small()
        if 0 < len(small) <= _FEW:
            self._num_alone = _BETWEEN_LOOKS
        _work_on(small)
        if self._large:
            end_s = perf_counter() + _MOST_S
            while self._large and perf_counter() < end_s:
                _work_on([self._next_large()])
            if self._large:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._turn)

    def _work_on_all(self) -> None:
        _work_on(self._take_small())
        while self._large:
            _work_on([self._next_large()])

    def _take_small(self) -> list[tuple[Member, bytes]]:
        small, self._small = self._small, []
        self._kept_bytes = sum([len(data) for _, data in self._large]) if self._large else 0
        return small

    def _next_large(self) -> tuple[Member, bytes]:
        member, data = self._large.popleft()
        self._kept_bytes -= len(data)
        self._delayed = {of for of, _ in self._large}
        return member, data


def _work_on(waiting: Iterable[tuple[Member, bytes]]) -> None:
    group: list[Member] = []
    num_bytes = 0
    for member, data in waiting:
        try:
            num_bytes += member.take(data)
        except Exception as error:
            _fail(member, error)
        group.append(member)
        if num_bytes >= _GROUP_BYTES or len(group) >= _GROUP_SIZE:
            _answer(group)
            group, num_bytes = [], 0
    _answer(group)


def _answer(group: list[Member]) -> None:
    for member in group:
        try:
            member.answer()
        except Exception as error:
            _fail(member, error)
    for member in group:
        try:
            member.flush()
        except Exception as error:
            _fail(member, error)


def _fail(member: Member, error: Exception) -> None:
    """Ends a connection, as the event loop does with one that fails in data_received."""
    context = {"message": "a connection failed", "exception": error, "transport": member.transport}
    asyncio.get_running_loop().call_exception_handler(context)
    member.transport.abort()
