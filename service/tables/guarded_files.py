"""Maps the files of one version, verifies their checksums, and marks the version as damaged if a file was changed.

Each request that read from a map checks the version's mark for damage before it answers. Three things set the mark:
the native core's handler of bus errors, at once; `look`, if a file's size or time has changed; and the Verifier, if a
table does not fit its checksum. Where the native core is not built, a bus error ends the process.

The Verifier reads the files at a limited rate, and fills the page cache only if they fit there. The bytes come through
a descriptor and a buffer, not through the map: so rows that no request looked up do not become memory of this process.
Pages that were in the page cache stay there. Other pages are dropped at once unless the files fit into memory, so that
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.files import close_unwritten
from service.artifact.hashes import crc32c, masked
from service.errors import ArtifactError, NotReady, os_errors_as
from service.native_tables import NATIVE_TABLES
from service.types import Array

logger = logging.getLogger(__name__)

# Linux's advice for madvise().
WILL_NEED, DONT_NEED, HUGE_PAGE, POPULATE_READ = 3, 4, 14, 22
# Linux's flag MAP_NORESERVE: without this flag the kernel reserves memory for a copy of every page, and refuses to map
# tables larger than memory.
_MAP_NORESERVE = 0x4000
# Number of bytes of mapped memory that close() frees before it pauses, so that other threads can get the kernel's lock
# on the process's memory map.
_SLICE_BYTES = 64 << 20
_BREAK_S = 0.001
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.mlock.argtypes = LIBC.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
LIBC.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def pages_in_memory(address: int, nbytes: int) -> Array:
    """Returns, for each page of an address range, whether it is in the page cache: [P] bool.

    For a file that this user neither owns nor may write to, the kernel reports all pages as in the page cache.
    """
    pages = np.ones(-(-nbytes // mmap.PAGESIZE), np.uint8)
    LIBC.mincore(address, nbytes, pages.ctypes.data)
    return (pages & 1).astype(bool)


class _PlainMark:
    """A mark for damage without the native core."""

    is_set = False

    def set(self) -> None:
        self.is_set = True


@dataclass(frozen=True, slots=True)
class _Opened:
    path: Path
    map: memoryview
    descriptor: int
    size: int
    changed_ns: int


class GuardedFiles:
    """A version's mapped files, with a mark for damage. Concurrency: map() by one caller at a time, else any thread.

    mark: set once the bytes of a file may differ from the opened bytes.
    is_verified: all bytes with a checksum fit their checksums. is_verification_due: that check is still to be done,
      while the version answers. is_kept: the files fit into memory, so that pages which verification has read
      stay in the page cache. is_closed: close() was called.
    """

    def __init__(self) -> None:
        self.mark: Any = _PlainMark() if NATIVE_TABLES is None else NATIVE_TABLES.Mark()
        self._opened: dict[Path, _Opened] = {}
        self.is_verified = self.is_verification_due = False
        self.is_kept = self.is_closed = False
        self._why = ""

    def map(self, path: Path) -> memoryview:
        """Maps a file, or returns its existing map; raises OSError, or ValueError for an empty file or a bad name."""
        if path not in self._opened:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                mapped = self._map(file.fileno())
                # GuardedFiles.look() needs this descriptor of the mapped file: the path may lead to another file later.
                kept = os.dup(file.fileno())
            self._opened[path] = _Opened(path, mapped, kept, found.st_size, found.st_mtime_ns)
        return self._opened[path].map

    @property
    def sizes(self) -> dict[Path, int]:
        return {path: opened.size for path, opened in self._opened.items()}

    @property
    def maps(self) -> list[object]:
        return [opened.map.obj for opened in self._opened.values()]

    @property
    def is_damaged(self) -> bool:
        return bool(self.mark.is_set)

    def map_privately(self, descriptor: int) -> memoryview:
        """Maps one of the version's files again, so that writes change only this map; raises as map() does.

        Damage to the map counts as damage to the version.
        """
        return self._map(descriptor, is_private=True)

    def _map(self, descriptor: int, *, is_private: bool = False) -> memoryview:
        if NATIVE_TABLES is not None:
            mapped = NATIVE_TABLES.Map(descriptor, self.mark, is_private)
            if not mapped.is_guarded:
                logger.warning("too many mapped files: if this file is cut short, a read of it ends the process")
            return memoryview(mapped)
        if is_private:
            flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            return memoryview(mmap.mmap(descriptor, 0, flags, protection))
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))

    def look(self) -> str:
        """Marks the version as damaged if a mapped file was changed; returns the damage in words, "" if none."""
        if not self.is_damaged:
            for opened in self._opened.values():
                try:
                    found = os.fstat(opened.descriptor)
                except OSError:
                    # The file system does not tell (on NFS, also of a file that another host has removed). The pages in
                    # memory are still the file's, and a page that can not be read sets the mark.
                    continue
                if found.st_size != opened.size:
                    self.damaged(f"file {opened.path} has {found.st_size} bytes since it was opened with {opened.size}")
                elif found.st_mtime_ns != opened.changed_ns:
                    self.damaged(f"file {opened.path} was written to since it was opened")
        if self.is_damaged:
            return self._why or f"the system could not read a page of {' or '.join(map(str, self._opened))}"
        return ""

    def damaged(self, why: str) -> None:
        self._why = self._why or why
        self.mark.set()

    @contextmanager
    def reading(self, path: Path) -> Iterator[tuple[int, int]]:
        """Opens a mapped file again, to read it by system calls; yields the descriptor and its memory map's address."""
        opened = self._opened[path]
        # The file is opened a second time, because the advice POSIX_FADV_RANDOM must not apply to the descriptor of the
        # memory map. The /proc path leads to the mapped file even if the file was renamed.
        descriptor = os.open(f"/proc/self/fd/{opened.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            yield descriptor, np.frombuffer(opened.map, np.uint8).ctypes.data
        finally:
            close_unwritten(descriptor)

    def close(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Frees the memory of all mapped files, a slice at a time; a later read loads pages from a file again. Blocks.

        Each map is unmapped with the last array that views its memory; unmapping is quick after close().
        """
        self.is_closed = True
        for opened in self._opened.values():
            address = np.frombuffer(opened.map, np.uint8).ctypes.data
            for begin in range(0, opened.size, _SLICE_BYTES):
                num_bytes = min(_SLICE_BYTES, opened.size - begin)
                # close() unlocks the pages of a mapped file before it frees them, because the kernel can not free
                # locked pages.
                LIBC.munlock(address + begin, num_bytes)
                LIBC.madvise(address + begin, num_bytes, DONT_NEED)
                sleep(_BREAK_S)
            close_unwritten(opened.descriptor)
        self._opened = {}

    def __del__(self) -> None:
        # If close() was not called, as after a failed load of the version, the files' descriptors are still open, and
        # are closed here.
        for opened in self._opened.values():
            close_unwritten(opened.descriptor)


# Bytes of a file that are read and checksummed at a time: few enough to stay in the CPU's cache.
_CHUNK_BYTES = 1 << 17
# After _WORK_S seconds of reading, a pause of _BREAK_S. A thread that never sleeps keeps a busy processor for some ms,
# for Linux takes it away at a tick of its clock (each 4 ms), and no lookup is answered there meanwhile.
_WORK_S, _BREAK_S = 0.0001, 0.00005


@dataclass(frozen=True, slots=True)
class Stored:
    """A range of a file's bytes with their checksum, masked as in a checkpoint's index. what: its name in messages."""

    what: str
    file: Path
    offset: int
    nbytes: int
    crc32c: int


class OneByOne:
    """A daemon thread that runs tasks one after the other, and logs those that raise. Concurrency: any thread."""

    def __init__(self, name: str, failure: str) -> None:
        self._failure = failure
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, task: Callable[[], None]) -> None:
        self._waiting.put(task)

    def _run(self) -> None:
        while True:
            task = self._waiting.get()
            try:
                task()
            except Exception:
                logger.exception(self._failure)
            # The reference to the finished task is dropped: it would keep its version's files mapped while this thread
            # waits for the next task.
            del task


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
        self._later = OneByOne("verify-tables", "tables could not be verified")

    def verify(self, files: GuardedFiles, stored: Sequence[Stored]) -> None:
        """Compares bytes in a version's files with their checksums; if one differs, marks the files as damaged. Blocks.

        Raises:
          NotReady: the verifier was stopped, or the files were closed, before the end.
          ArtifactError: a file can not be read now, which says nothing of its bytes.
        """
        with self._one:
            started_s, done, memory = self._clock(), 0, mmap.mmap(-1, _CHUNK_BYTES)
            rested_s = started_s
            for part in stored:
                # The checksum 0 means that there is none for this part of a file, so that it can not be verified.
                if not part.crc32c:
                    continue
                found = 0
                unread = os_errors_as(ArtifactError, f"cannot read {part.file}")
                with unread, files.reading(part.file) as (descriptor, address):
                    for begin, size in _chunks(part.offset, part.nbytes):
                        if self._is_stopped or files.is_closed:
                            raise NotReady("The version was given up before its tables were verified.")
                        if _read(files, descriptor, address, begin, memory, size) != size:
                            files.damaged(f"{part.what}: file {part.file} ends within it")
                            return
                        found = crc32c(np.frombuffer(memory, np.uint8, size), found)
                        done += size
                        rested_s = self._hold_back(done, started_s, rested_s)
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
        behind: Callable[[], object] | None = None,
    ) -> None:
        """Queues files for verification in the verifier's thread, which calls on_damage if they are damaged.

        Args:
          behind: called before the reads; waits for other work that must come first.
        """

        def run() -> None:
            if behind is not None:
                behind()
            try:
                self.verify(files, stored)
            except NotReady:
                return
            except ArtifactError as error:
                # The version answers already: its lookups of these rows fail.
                files.damaged(error.message)
            # If the server stops or the files are closed before the end, verify() raises NotReady and
            # is_verification_due stays True.
            files.is_verification_due = False
            if files.is_damaged:
                on_damage()

        files.is_verification_due = True
        self._later.add(run)

    def stop(self) -> None:
        self._is_stopped = True

    def _hold_back(self, done: int, started_s: float, rested_s: float) -> float:
        """Sleeps if it is time to; returns when this thread slept last."""
        now_s = self._clock()
        ahead_s = done / self._bytes_per_s - (now_s - started_s) if self._bytes_per_s else 0.0
        if ahead_s <= 0 and now_s - rested_s < _WORK_S:
            return rested_s
        self._sleep(max(ahead_s, _BREAK_S))
        return self._clock()


def _chunks(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
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
    was_there = files.is_kept or bool(pages_in_memory(address + begin, num_pages * mmap.PAGESIZE).any())
    done = 0
    try:
        with memoryview(memory) as view:
            while done < size:
                count = os.preadv(descriptor, [view[done:size]], offset + done)
                if not count:
                    break
                done += count
    finally:
        if not was_there:
            os.posix_fadvise(descriptor, begin, num_pages * mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
    return done
