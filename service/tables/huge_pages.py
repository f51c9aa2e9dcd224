"""Makes memory pages of mapped files huge: drops small pages from the page cache, and reads the files into huge ones.

A file that was just written or copied is in the page cache in pieces of 4 to 64 KB. Looking up a random row then costs
the processor a page walk through page tables that are in no CPU cache. File systems with large folios (XFS since Linux
5.18, ext4 since 6.16) read a file in pieces of 2 MB if its map asks for huge pages, and such a piece is one entry in
the page table. It stays in the page cache, which all processes share.

A chunk is 2 MB, at a multiple of 2 MB in the file and in memory. For each chunk:

- this process's page table entries are removed (MADV_DONTNEED: the page cache still has the pages),
- the page cache drops it (POSIX_FADV_DONTNEED), unless it is not written to disk yet or another process maps it,
- it is read again (MADVPOPULATE_READ), in one piece, because the map has the advice MADV_HUGEPAGE.

A lookup in the chunk meanwhile waits until it is read, or reads small pages first; then the chunk is done again.

Source: madvise(2), posix_fadvise(2), sync_file_range(2); mm/filemap.c, do_sync_mmap_readahead (Linux 6.18); which pages
of a map are huge or in memory: PAGEMAP_SCAN(2const), include/uapi/linux/fs.h (Linux 6.7); mincore(2).
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from service.tables.guarded_files import DONT_NEED, HUGE_PAGE, LIBC, POPULATE_READ, GuardedFiles, pages_in_memory
from service.types import Array

HUGE_BYTES = 2 << 20

# Linux's struct pm_scan_arg, with the fields size, flags, start, end, walk_end, vec, vec_len, max_pages,
# category_inverted, category_mask, category_anyof_mask, return_mask.
_ARGUMENT = struct.Struct("12Q")
_WALK_END = 4
# The ioctl number of PAGEMAP_SCAN: _IOWR('f', 16, struct pm_scan_arg), as x86 and ARM compute it.
_PAGEMAP_SCAN = 3 << 30 | _ARGUMENT.size << 16 | ord("f") << 8 | 16
_IS_HUGE = 1 << 6
# Most address ranges that one PAGEMAP_SCAN call returns; the kernel joins adjacent ranges into one.
_NUM_RANGES = 256


class PageTable:
    """The page table of this process, opened for reading; a context manager. Concurrency: one caller at a time.

    Raises:
      OSError: the kernel does not show the page table, or (from huge_bytes) does not tell which pages are huge.
    """

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        # Each row of this array is an address range from PAGEMAP_SCAN: start, end, categories.
        self._ranges = np.zeros((_NUM_RANGES, 3), np.uint64)

    def __enter__(self) -> PageTable:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def huge_bytes(self, address: int, nbytes: int) -> int:
        """Returns how many bytes of an address range of whole pages are mapped by huge pages.

        A page that this process did not read yet is not in its page table, even if the page is in the page cache.
        """
        end, found = address + nbytes, 0
        while address < end:
            ranges = (self._ranges.ctypes.data, _NUM_RANGES)
            argument = bytearray(
                _ARGUMENT.pack(_ARGUMENT.size, 0, address, end, 0, *ranges, 0, 0, _IS_HUGE, 0, _IS_HUGE)
            )
            count = fcntl.ioctl(self._descriptor, _PAGEMAP_SCAN, argument)
            found += int((self._ranges[:count, 1] - self._ranges[:count, 0]).sum())
            address = _ARGUMENT.unpack(argument)[_WALK_END]
        return found


def huge_bytes(array: Array) -> int | None:
    """Returns how many bytes of an array's pages are mapped by huge pages; None if the kernel does not tell."""
    begin = array.ctypes.data & -mmap.PAGESIZE
    end = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        with PageTable() as table:
            return table.huge_bytes(begin, end - begin)
    except OSError:
        return None


_PRESENT = np.uint64(1 << 63)
_ENTRY_BYTES = 8
# Number of entries of /proc/self/pagemap that are read at once; they describe 256 MiB of memory.
_CHUNK_PAGES = 1 << 16


def resident_bytes(array: np.ndarray[Any, Any]) -> int | None:
    """Returns how many bytes of an array's pages are in this process's page table; None if the kernel does not tell.

    The call takes 0.1 s for each 100 GB of a table.
    """
    first = array.ctypes.data // mmap.PAGESIZE
    end = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE)
    present = 0
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            for page in range(first, end, _CHUNK_PAGES):
                size = min(_CHUNK_PAGES, end - page) * _ENTRY_BYTES
                entries = np.frombuffer(os.pread(pagemap.fileno(), size, page * _ENTRY_BYTES), "<u8")
                present += int(np.count_nonzero(entries & _PRESENT))
    except OSError:
        return None
    return present * mmap.PAGESIZE


logger = logging.getLogger(__name__)

# The flags of sync_file_range that write bytes to disk and wait: WAIT_BEFORE, WRITE and WAIT_AFTER.
_WRITE_BACK = 7
_ATTEMPTS = 3
# If none of the first _FIRST chunks of a version's files became a huge page, no further chunks are tried.
_FIRST = 4
# Unless --table_pages is "huge", a version gets no further huge pages once its reads are too slow. After each of the
# chunks (2 MiB) from number _FIRST to number _TRIAL, the median time of all reads so far is compared with _SLOW_S
# seconds, which is 200 MB/s: lookups would wait for such a disk.
_TRIAL, _SLOW_S = 12, 0.010
# Shortest pause in seconds after each chunk of a file, in which other threads get the interpreter's lock and the
# kernel's lock on the memory map.
_BREAK_S = 0.0005
# A chunk is written to disk in parts of _PART_BYTES. After each part, and after each look whether a chunk is in memory,
# this thread sleeps for _PART_BREAK_S seconds. A thread that never sleeps keeps a processor for some ms from threads
# that answer requests, and one system call that writes a whole chunk keeps it for 1.4 ms.
_PART_BYTES, _PART_BREAK_S = HUGE_BYTES // 8, 0.00005
_LOOK_S, _PATIENCE_S, _PROGRESS_S = 0.05, 600.0, 5.0


class _GivenUp(Exception):
    # _GivenUp ends the work on a version's huge pages; its text is the reason.
    pass


@dataclass(slots=True)
class _Work:
    # _Work has the progress of making one version's pages huge. seconds: the time of each read of a chunk.
    num_bytes: int
    started_s: float
    huge_bytes: int = 0
    advised_bytes: int = 0
    read_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    told_s: float = 0.0


class HugePages:
    """The maker of huge pages for versions' files, which logs failures and never raises. Concurrency: any thread.

    Args:
      is_whole: chunks that are not in memory are read too, however slow the disk is and however little memory there is.
        Else they are read when a request looks them up, and nothing is done if the files do not fit into memory or the
        disk is slow.
      available: returns the bytes of memory that this process may still use; None: not known.
      page_table: opens the page table, which tells which pages are huge; raises OSError.
    """

    def __init__(
        self,
        *,
        is_whole: bool,
        available: Callable[[], int | None] = lambda: None,
        page_table: Callable[[], PageTable] = PageTable,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._is_whole = is_whole
        self._available = available
        self._page_table = page_table
        self._clock = clock
        self._sleep = sleep
        self._is_stopped = False

    def make(self, files: GuardedFiles) -> None:
        """Makes the pages of a version's files huge, except in files smaller than a huge page. Blocks."""
        sizes = {path: size for path, size in files.sizes.items() if size >= HUGE_BYTES}
        if not sizes:
            return
        work, reason = _Work(sum(sizes.values()), self._clock()), ""
        work.told_s = work.started_s
        try:
            self._check_memory(work.num_bytes)
            with self._page_table() as table:
                _look(table, 0, mmap.PAGESIZE)
                for path, size in sizes.items():
                    self._make_file(files, path, size, table, work)
        except _GivenUp as why:
            reason = str(why)
        except OSError as error:
            reason = f"{error}: the file can not be worked on"
        self._tell("huge pages", work, reason)

    def stop(self) -> None:
        self._is_stopped = True

    def _check_memory(self, num_bytes: int) -> None:
        available = None if self._is_whole else self._available()
        if available is not None and num_bytes > available // 2:
            raise _GivenUp(
                f"the files have {num_bytes} bytes, more than half of the {available} bytes of memory that are "
                "available; --table_pages=huge does it all the same"
            )

    def _make_file(self, files: GuardedFiles, path: Path, size: int, table: PageTable, work: _Work) -> None:
        self._check_going_on(files)
        try:
            reading = files.reading(path)
            # The `with` block keeps the file mapped. If the file were unmapped here, madvise() could change other
            # memory that got the same address.
            with reading as (descriptor, address):
                if address % HUGE_BYTES:
                    raise _GivenUp(f"file {path} is mapped to no multiple of {HUGE_BYTES} bytes by this file system")
                self._wait_for_others(files, descriptor)
                offsets = range(0, size - HUGE_BYTES + 1, HUGE_BYTES)
                chunks = [_Chunk(descriptor, offset, address + offset) for offset in offsets]
                # All chunks are checked for being in memory before any is read: with each chunk the kernel reads ahead
                # into the next, which would then wrongly count as having been in memory.
                were_there = []
                for chunk in chunks:
                    were_there.append(chunk.is_in_memory())
                    self._sleep(_PART_BREAK_S)
                for chunk, was_there in zip(chunks, were_there, strict=True):
                    self._check_going_on(files)
                    self._make_chunk(chunk, was_there, table, work)
                    self._hold_back(work)
        except KeyError:
            raise _GivenUp("the version was closed") from None

    def _check_going_on(self, files: GuardedFiles) -> None:
        if self._is_stopped:
            raise _GivenUp("the server stops")
        if files.is_closed:
            raise _GivenUp("the version was closed")
        if files.is_damaged:
            raise _GivenUp("a file is damaged")

    def _wait_for_others(self, files: GuardedFiles, descriptor: int) -> None:
        """Waits up to _PATIENCE_S for a mapped file's lock, held until its descriptor is closed; else goes on unlocked.

        The lock makes server processes take turns: the page cache can not drop pages that another process maps.
        """
        end_s = self._clock() + _PATIENCE_S
        while self._clock() < end_s:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._sleep(_LOOK_S)
                self._check_going_on(files)
            except OSError:
                # flock() raises OSError if the file system has no locks: the work goes on without a lock.
                return

    def _make_chunk(self, chunk: _Chunk, was_there: bool, table: PageTable, work: _Work) -> None:
        chunk.advise()
        # After the version's first _TRIAL reads, which measure the disk's speed, a chunk that is not in memory is only
        # advised and not read (unless --table_pages is "huge"): a lookup that needs the chunk reads it.
        if not was_there and not self._is_whole and len(work.seconds) >= _TRIAL:
            work.advised_bytes += HUGE_BYTES
            return
        started_s = self._clock()
        is_huge = chunk.is_huge(table)
        seconds = self._clock() - started_s
        if not is_huge:
            is_huge, seconds = self._read_again(chunk, table)
        elif was_there:
            # The chunk of the file is a huge page already: another process or an earlier load made it one.
            work.huge_bytes += HUGE_BYTES
            return
        work.seconds.append(seconds)
        work.read_bytes += HUGE_BYTES
        work.huge_bytes += is_huge * HUGE_BYTES
        self._judge(work)

    def _read_again(self, chunk: _Chunk, table: PageTable) -> tuple[bool, float]:
        """Reads a chunk of a file again, into a huge page; returns whether this worked, and the seconds of the read."""
        seconds = 0.0
        for _ in range(_ATTEMPTS):
            # The page cache does not drop pages that are not written to disk yet, such as those of a version that was
            # just copied here.
            for _ in chunk.write_back():
                self._sleep(_PART_BREAK_S)
            chunk.drop()
            started_s = self._clock()
            chunk.populate()
            seconds = self._clock() - started_s
            if _look(table, chunk.address, HUGE_BYTES) == HUGE_BYTES:
                return True, seconds
        return False, seconds

    def _judge(self, work: _Work) -> None:
        if len(work.seconds) == _FIRST and not work.huge_bytes:
            raise _GivenUp(
                f"none of the first {_FIRST} chunks became huge: the file system has no large folios (XFS has since "
                "Linux 5.18, ext4 since 6.16), the kernel keeps small entries (it has no CONFIG_PT_RECLAIM, as before "
                "6.14), or another process has the file mapped; --table_pages=normal does not try"
            )
        if self._is_whole or not _FIRST <= len(work.seconds) <= _TRIAL:
            return
        if (median_s := statistics.median(work.seconds)) > _SLOW_S:
            raise _GivenUp(
                f"the disk takes {median_s * 1e3:.0f} ms to read {HUGE_BYTES} bytes, which lookups would wait for; "
                "--table_pages=huge does it before the version answers"
            )

    def _hold_back(self, work: _Work) -> None:
        now_s = self._clock()
        self._sleep(_BREAK_S)
        if now_s - work.told_s >= _PROGRESS_S:
            work.told_s = now_s
            self._tell("making huge pages", work, "")

    def _tell(self, message: str, work: _Work, reason: str) -> None:
        seconds = round(self._clock() - work.started_s, 3)
        extra = {"bytes": work.huge_bytes, "of": work.num_bytes, "advised": work.advised_bytes, "seconds": seconds}
        # The failure is logged as a warning only if the user asked for huge pages by --table_pages=huge and the server
        # is not stopping.
        level = logging.WARNING if reason and self._is_whole and not self._is_stopped else logging.INFO
        logger.log(level, message, extra=extra | ({"reason": reason} if reason else {}))


@dataclass(frozen=True, slots=True)
class _Chunk:
    descriptor: int
    offset: int
    address: int

    def advise(self) -> None:
        LIBC.madvise(self.address, HUGE_BYTES, HUGE_PAGE)

    def is_in_memory(self) -> bool:
        return bool(pages_in_memory(self.address, HUGE_BYTES).any())

    def is_huge(self, table: PageTable) -> bool:
        # One page that is in memory is mapped before the check: if another process has made the chunk a huge page, the
        # whole chunk is mapped by this.
        pages = pages_in_memory(self.address, HUGE_BYTES)
        if not pages.any():
            return False
        LIBC.madvise(self.address + int(pages.argmax()) * mmap.PAGESIZE, mmap.PAGESIZE, POPULATE_READ)
        return _look(table, self.address, HUGE_BYTES) == HUGE_BYTES

    def write_back(self) -> Iterator[None]:
        """Writes the chunk to disk in parts; yields after each."""
        for begin in range(0, HUGE_BYTES, _PART_BYTES):
            LIBC.sync_file_range(self.descriptor, self.offset + begin, _PART_BYTES, _WRITE_BACK)
            yield

    def drop(self) -> None:
        LIBC.madvise(self.address, HUGE_BYTES, DONT_NEED)
        # If the file system can not drop pages from the page cache, the error is ignored: the chunk of the file just
        # does not become a huge page.
        with suppress(OSError):
            os.posix_fadvise(self.descriptor, self.offset, HUGE_BYTES, os.POSIX_FADV_DONTNEED)

    def populate(self) -> None:
        LIBC.madvise(self.address, HUGE_BYTES, POPULATE_READ)


def _look(table: PageTable, address: int, nbytes: int) -> int:
    try:
        return table.huge_bytes(address, nbytes)
    except OSError as error:
        raise _GivenUp(
            f"the kernel does not tell which pages are huge ({error.strerror}); Linux does since 6.7"
        ) from error
