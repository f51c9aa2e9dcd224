"""Verifies the checksums of tables: reads the files at a limited rate, and fills the page cache only if they fit there.

The bytes come through a descriptor and a buffer, not through the map: so rows that no request looked up do not become
memory of this process. Pages that were in the page cache stay there. Other pages are dropped at once unless the files
fit into memory, so that reading gigabytes takes no room from rows that requests look up.

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

# Bytes of a file that are read and checksummed at a time: few enough to stay in the CPU's cache.
_CHUNK_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Stored:
    """A range of a file's bytes with their checksum, masked as in a checkpoint's index. what: its name in messages."""

    what: str
    file: Path
    offset: int
    nbytes: int
    crc32c: int


def nothing_before() -> None:
    """Does nothing: the default for the work that must end before a version's checksums are verified."""


class Verifier:
    """The verifier of stored tables' checksums, one version after the other. Concurrency: any thread.

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
        # Lock that lets only one verify() call read at a time, so that the limit on the rate holds for all versions
        # together.
        self._one = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def verify(self, files: GuardedFiles, stored: Sequence[Stored]) -> None:
        """Compares bytes in a version's files with their checksums; if one differs, marks the files as damaged. Blocks.

        Raises:
          NotReady: the verifier was stopped, or the files were closed, before the end.
        """
        with self._one:
            started_s, done, memory = self._clock(), 0, mmap.mmap(-1, _CHUNK_BYTES)
            for part in stored:
                # The checksum 0 means that there is none for this part of a file, so that it can not be verified.
                if not part.crc32c:
                    continue
                found = 0
                with files.reading(part.file) as (descriptor, address):
                    for begin, size in _chunks(part.offset, part.nbytes):
                        if self._is_stopped or files.is_closed:
                            raise NotReady("The version was given up before its tables were verified.")
                        if _read(files, descriptor, address, begin, memory, size) != size:
                            files.damaged(f"{part.what}: file {part.file} ends within it or can not be read")
                            return
                        found = crc32c(np.frombuffer(memory, np.uint8, size), found)
                        done += size
                        self._hold_back(done, started_s)
                if masked(found) != part.crc32c:
                    end = part.offset + part.nbytes
                    files.damaged(
                        f"{part.what}: bytes {part.offset} to {end} of file {part.file} have the checksum "
                        f"{masked(found)}, its index says {part.crc32c}"
                    )
                    return
            # GuardedFiles.look() finds a change of a file during its verification; later calls find later changes.
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
        """Queues files for verification in the verifier's thread, which calls on_damage if they are damaged.

        Args:
          behind: called before the reads; waits for other work that must come first.
        """

        def run() -> None:
            behind()
            try:
                self.verify(files, stored)
            except NotReady:
                return
            # If the server stops or the files are closed before the end, verify() raises NotReady and
            # is_verification_due stays True.
            files.is_verification_due = False
            if files.is_damaged:
                on_damage()

        files.is_verification_due = True
        self._waiting.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="verify-tables", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the verification of tables that runs, and all verifications that wait."""
        self._is_stopped = True

    def _run(self) -> None:
        while not self._is_stopped:
            task = self._waiting.get()
            try:
                task()
            except Exception:
                logger.exception("tables could not be verified")
            # The reference to the finished task is dropped, as it would keep its version's files mapped.
            del task

    def _hold_back(self, done: int, started_s: float) -> None:
        if self._bytes_per_s:
            ahead_s = done / self._bytes_per_s - (self._clock() - started_s)
            if ahead_s > 0:
                self._sleep(ahead_s)


def _chunks(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Splits a range of bytes into chunks that meet at page boundaries; yields the offset and size of each chunk."""
    begin, end = offset, offset + nbytes
    while begin < end:
        behind = min(begin - begin % mmap.PAGESIZE + _CHUNK_BYTES, end)
        yield begin, behind - begin
        begin = behind


def _read(files: GuardedFiles, descriptor: int, address: int, offset: int, memory: mmap.mmap, size: int) -> int:
    """Reads bytes of a file; leaves no page in the page cache that was not there, unless files.is_kept.

    Returns how many bytes were read.
    """
    begin = offset & -mmap.PAGESIZE
    # The range of the file that is dropped from the page cache is extended to whole pages, because posix_fadvise() does
    # not drop a part of a page.
    num_pages = -(-(offset + size - begin) // mmap.PAGESIZE)
    pages = np.zeros(num_pages, np.uint8)
    # If this process's user neither owns the file nor may write to it, mincore() reports all pages as being in the page
    # cache, and no page is dropped.
    _libc.mincore(address + begin, num_pages * mmap.PAGESIZE, pages.ctypes.data)
    was_there = files.is_kept or bool((pages & 1).any())
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
