"""Compares the blocks of a remote table with the version's files, some blocks a second, for as long as it is loaded.

Lookups of rows that a cluster lost fail, and rows whose bits have changed are answered as they are. Nothing else would
show either: no node reports a key that was deleted, evicted or overwritten.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from service.remote.layout import BlockFile, TableLayout
from service.remote.topology import Command, Primaries, Refused, Unreachable

# Blocks of at most 16 KiB that one step reads next, and faulty ones that it reads again.
_NEW_BLOCKS = 16
_KNOWN_BLOCKS = 64
_STEP_S = 2.0
# The most faulty blocks that are remembered, and the most hash slots that a text names.
_MOST_FAULTY = 1024
_MOST_SLOTS = 8
# Numbers of steps over which the shares of lost blocks, and of failing reads, are taken. Failing reads are slower, so
# over a longer time the right reads before the loss would outnumber them.
_WINDOW, _READ_WINDOW = 10, 3
# A table whose blocks are lost can not answer if this share of its reads failed, or this share of its blocks is lost: a
# request reads many rows, and fails if one of them is lost.
_FAILING_READS = 0.5
_LOST_BLOCKS = 0.1
_LOST = ("missing", "cut short", "of another type")


class Scrub:
    """The comparison of one remote table with its version's files. Concurrency: one caller at a time; status: any.

    Args:
      start: the block to begin with; servers begin at different blocks, so that together they see all blocks sooner.
    """

    def __init__(self, layout: TableLayout, primaries: Primaries, file: BlockFile, start: int | None = None) -> None:
        self.layout = layout
        self._primaries = primaries
        self._file = file
        self._next = random.randrange(layout.num_blocks) if start is None else start
        self.num_checked = 0
        # Block -> its fault.
        self._faulty: dict[int, str] = {}
        # For each of the last steps: reads of lookups, failed reads, compared blocks, and lost ones among these.
        self._steps: deque[tuple[int, int, int, int]] = deque(maxlen=_WINDOW)
        self._totals = (0, 0)
        self._unreadable = ""

    def step(self, suspects: Iterable[int] = (), reads: int = 0, errors: int = 0) -> None:
        """Compares the next blocks, blocks that lookups could not read, and blocks that were faulty before.

        Args:
          reads, errors: the numbers of reads of the table by lookups so far, and of failed ones.
        """
        num_blocks = self.layout.num_blocks
        fresh = [(self._next + n) % num_blocks for n in range(min(_NEW_BLOCKS, num_blocks))]
        known = list(self._faulty)[:_KNOWN_BLOCKS]
        blocks = list(dict.fromkeys([*fresh, *suspects, *known]))
        try:
            found = dict(zip(blocks, self._faults(blocks), strict=True))
        except Unreachable:
            # The cluster's own check tells that it can not be reached.
            return
        except OSError as error:
            self._unreadable = str(error)
            return
        self._unreadable = ""
        self._next = (self._next + len(fresh)) % num_blocks
        self.num_checked += len(fresh)
        for block, fault in found.items():
            # A faulty block is put behind the others, so that all of them are read again in turn.
            self._faulty.pop(block, None)
            if fault and len(self._faulty) < _MOST_FAULTY:
                self._faulty[block] = fault
        lost = sum(found[block] in _LOST for block in fresh)
        self._steps.append((max(reads - self._totals[0], 0), max(errors - self._totals[1], 0), len(fresh), lost))
        self._totals = (reads, errors)

    def _faults(self, blocks: Sequence[int]) -> list[str]:
        layout, end_s = self.layout, time.monotonic() + _STEP_S
        slots = [int(layout.slots[block % layout.num_shards]) for block in blocks]
        commands = [Command(slot, ("GET", layout.key(block))) for slot, block in zip(slots, blocks, strict=True)]
        try:
            values = self._primaries.read(commands, end_s)
        except Refused:
            # One of the blocks is refused; which one, shows if each is read alone.
            return [self._fault_alone(block, command) for block, command in zip(blocks, commands, strict=True)]
        return [self._fault(block, slot, value) for block, slot, value in zip(blocks, slots, values, strict=True)]

    def _fault_alone(self, block: int, command: Command) -> str:
        try:
            (value,) = self._primaries.read([command], time.monotonic() + _STEP_S)
        except Refused as error:
            return "of another type" if "WRONGTYPE" in str(error) else f"refused: {error}"
        return self._fault(block, command.slot, value)

    def _fault(self, block: int, slot: int, value: bytes | None) -> str:
        orders = Command(slot, ("HKEYS", self.layout.orders(block % self.layout.num_shards)))
        return self._file.fault(block, value, lambda: self._primaries.read([orders], time.monotonic() + _STEP_S)[0])

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(list(self._faulty.values())))

    @property
    def problem(self) -> str:
        if self._unreadable:
            return f"its rows can not be compared with the version's files: {self._unreadable}"
        faulty = dict(self._faulty)
        if not faulty:
            return ""
        parts = []
        for fault, count in sorted(Counter(faulty.values()).items()):
            slots = sorted({self._slot(block) for block, one in faulty.items() if one == fault})
            more = f" and {len(slots) - _MOST_SLOTS} more" if len(slots) > _MOST_SLOTS else ""
            named = ", ".join(map(str, slots[:_MOST_SLOTS]))
            told = "hold other bytes than the version's files" if fault == "differs" else f"are {fault}"
            parts.append(f"{count} blocks {told}, in slots {named}{more}")
        return f"{'; '.join(parts)}: run `model-export push`"

    @property
    def can_answer(self) -> bool:
        """Whether most requests can be answered: few reads fail for lost blocks, and few blocks are lost."""
        if not any(fault in _LOST for fault in list(self._faulty.values())):
            return True
        steps = list(self._steps)
        with_reads = [step for step in steps if step[0]][-_READ_WINDOW:]
        if with_reads:
            return sum(step[1] for step in with_reads) < _FAILING_READS * sum(step[0] for step in with_reads)
        return sum(step[3] for step in steps) < _LOST_BLOCKS * sum(step[2] for step in steps)

    def _slot(self, block: int) -> int:
        return int(self.layout.slots[block % self.layout.num_shards])

    def status(self) -> dict[str, Any]:
        num_blocks = self.layout.num_blocks
        return {
            "blocks": num_blocks,
            "compared": self.num_checked % num_blocks,
            "passes": self.num_checked // num_blocks,
            "faulty": self.counts,
            "problem": self.problem,
            "can_answer": self.can_answer,
        }
