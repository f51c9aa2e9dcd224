"""Verifies the checksums of tables: reads the files at a bounded rate, and pushes no pages out of the page cache.

The bytes come through a descriptor and a buffer, not through the map: so rows that no request looked up do not become
memory of this process. Pages that were in the page cache stay there, and other pages are dropped at once, so that
reading gigabytes takes no room from rows that requests look up.

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

# Bytes that are read and added to the checksum at a time: enough to be worth a call, and few enough for the CPU cache.
_CHUNK_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Stored:
    """A range of bytes in a file with a checksum, masked as in a checkpoint's index. what: its name in messages."""

    what: str
    file: Path
    offset: int
    nbytes: int
    crc32c: int


def nothing_before() -> None:
    """Returns at once; the default for `behind` in verify_later."""


class Verifier:
    """The checker of stored bytes against their checksums, one version after the other. Concurrency: any thread.

    Args:
      bytes_per_s: the highest rate of reading; 0: no limit.
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
        # Lock of the one verify() call that reads: so all versions together stay below the rate.
        self._one = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def verify(self, files: GuardedFiles, stored: Sequence[Stored]) -> None:
        """Reads stored bytes and compares their checksums; marks the files as damaged at a difference. Blocks.

        Raises:
          NotReady: the verifier was stopped, or the files were closed, before the end.
        """
        with self._one:
            started_s, done, memory = self._clock(), 0, mmap.mmap(-1, _CHUNK_BYTES)
            for part in stored:
                # The checksum 0 means that the writer of the checkpoint stored none.
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
            # Writes to the files after this are found by files.look().
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
        """Verifies the files in the verifier's thread, after earlier files; calls on_damage if the files are damaged.

        Args:
          behind: called before the reads; waits for other work that must come first.
        """

        def run() -> None:
            behind()
            try:
                self.verify(files, stored)
            except NotReady:
                return
            # If verify() raised NotReady, is_verification_due stays True.
            files.is_verification_due = False
            if files.mark[0]:
                on_damage()

        files.is_verification_due = True
        self._waiting.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="verify-tables", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the verification that is running, and all that wait."""
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
    """Yields the offset and size of each chunk; chunks meet at page boundaries, so that no two chunks share a page."""
    begin, end = offset, offset + nbytes
    while begin < end:
        behind = min(begin - begin % mmap.PAGESIZE + _CHUNK_BYTES, end)
        yield begin, behind - begin
        begin = behind


def _read(descriptor: int, address: int, offset: int, memory: mmap.mmap, size: int) -> int:
    """Reads bytes of a file into memory; returns how many bytes were read. Leaves the page cache as it was."""
    begin = offset & -mmap.PAGESIZE
    # The range is extended to whole pages, because posix_fadvise does not drop a part of a page.
    num_pages = -(-(offset + size - begin) // mmap.PAGESIZE)
    pages = np.zeros(num_pages, np.uint8)
    # Where the kernel may not tell, mincore reports all pages as in the page cache: then no page is dropped.
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
