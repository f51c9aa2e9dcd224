"""Whether tables are what their checksums say: read at a bounded rate, beside the maps and without pushing pages out.

The bytes come through a descriptor and a buffer of its own, not through the map: what nobody looked up does not become
memory of this process. Pages that were in the page cache before stay there, the others are let go of at once, so that
reading gigabytes takes no room from rows that are looked up.

Source: posix_fadvise(2), mincore(2); mm/readahead.c (Linux 6.18): with RANDOM advice a file is read no further than
asked.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.artifact.crc32c import crc32c, masked
from service.errors import NotReady
from service.tables.guarded_files import GuardedFiles

logger = logging.getLogger(__name__)

# Read, added up and let go of at a time: long enough to be worth a call, short enough to stay in a processor's cache.
_CHUNK_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes with a checksum, masked as in a checkpoint's index. what: how a message calls them."""

    what: str
    file: Path
    offset: int
    nbytes: int
    crc32c: int


def nothing_before() -> None:
    """Waits for nothing."""


class Verifier:
    """Holds stored bytes against their checksums, one version after the other. Concurrency: any thread.

    Args:
      bytes_per_s: reads no faster than that; 0 is as fast as it goes.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._is_stopped = False
        # All of them share the rate.
        self._one = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def verify(self, files: GuardedFiles, stored: Sequence[Stored]) -> None:
        """Reads and compares; a difference is a damage of the files. Blocks.

        Raises:
          NotReady: it was stopped before it came to an end.
        """
        with self._one:
            started_s, done, memory = self._clock(), 0, mmap.mmap(-1, _CHUNK_BYTES)
            for part in stored:
                # No checksum: a writer that leaves it out.
                if not part.crc32c:
                    continue
                found = 0
                with files.reading(part.file) as (descriptor, address):
                    for begin, size in _chunks(part.offset, part.nbytes):
                        if self._is_stopped or files.is_closed:
                            raise NotReady("The version was given up before its tables were verified.")
                        if _read(descriptor, address, begin, memory, size) != size:
                            files.damaged(f"{part.what}: file {part.file} ends within it or can not be read")
                            return
                        found = crc32c(np.frombuffer(memory, np.uint8).ctypes.data, size, found)
                        done += size
                        self._hold_back(done, started_s)
                if masked(found) != part.crc32c:
                    end = part.offset + part.nbytes
                    files.damaged(
                        f"{part.what}: bytes {part.offset} to {end} of file {part.file} have the checksum "
                        f"{masked(found)}, its index says {part.crc32c}"
                    )
                    return
            # What is written to from here on, looking at the files finds.
            files.is_verified = not files.look()
            extra = {"tables": len(stored), "bytes": done, "seconds": round(self._clock() - started_s, 3)}
            logger.info("verified tables", extra=extra)

    def verify_later(
        self,
        files: GuardedFiles,
        stored: Sequence[Stored],
        on_damage: Callable[[], None],
        behind: Callable[[], object] = nothing_before,
    ) -> None:
        """Does so in a thread of its own, after what it was given before; on_damage is called where it finds any.

        Args:
          behind: waits for what else must come first.
        """

        def run() -> None:
            behind()
            try:
                self.verify(files, stored)
            except NotReady:
                return
            # One that could not be verified stays due.
            files.is_verification_due = False
            if files.mark[0]:
                on_damage()

        files.is_verification_due = True
        self._waiting.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="verify-tables", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends what goes on, and all that follows."""
        self._is_stopped = True

    def _run(self) -> None:
        while not self._is_stopped:
            task = self._waiting.get()
            try:
                task()
            except Exception:
                logger.exception("tables could not be verified")

    def _hold_back(self, done: int, started_s: float) -> None:
        if self._bytes_per_s:
            ahead_s = done / self._bytes_per_s - (self._clock() - started_s)
            if ahead_s > 0:
                self._sleep(ahead_s)


def _chunks(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yields where each chunk begins and its size; they meet where pages do, so that none reads another's page."""
    begin, end = offset, offset + nbytes
    while begin < end:
        behind = min(begin - begin % mmap.PAGESIZE + _CHUNK_BYTES, end)
        yield begin, behind - begin
        begin = behind


def _read(descriptor: int, address: int, offset: int, memory: mmap.mmap, size: int) -> int:
    """Fills memory from a file; returns how many bytes there were. Leaves the page cache as it was."""
    begin = offset & -mmap.PAGESIZE
    # Whole pages: part of one is not let go of.
    num_pages = -(-(offset + size - begin) // mmap.PAGESIZE)
    pages = np.zeros(num_pages, np.uint8)
    # A kernel that does not tell says that all are there: then all stay.
    _libc.mincore(address + begin, num_pages * mmap.PAGESIZE, pages.ctypes.data)
    was_there = bool((pages & 1).any())
    done = 0
    try:
        with memoryview(memory) as view:
            while done < size:
                count = os.preadv(descriptor, [view[done:size]], offset + done)
                if not count:
                    break
                done += count
    except OSError as error:
        logger.warning("a file can not be read", extra={"reason": os.strerror(error.errno or 0)})
    if not was_there:
        os.posix_fadvise(descriptor, begin, num_pages * mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
    return done
