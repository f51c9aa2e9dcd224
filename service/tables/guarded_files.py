"""Maps the files of one version, and marks the version as damaged if a file is cut short, overwritten or unreadable.

The mark is one word of memory; each request that read from a map checks the mark before it answers. Three things set
the mark: the native core's handler of bus errors, at once; `look`, if a file's size or time has changed; and the
Verifier, if a table does not fit its checksum. Where the native core is not built, a bus error ends the process.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.native_tables import NATIVE_TABLES

logger = logging.getLogger(__name__)

_DONT_NEED = 4
# Number of bytes of mapped memory that close() frees before it pauses, so that other threads can get the kernel's lock
# on the process's memory map.
_SLICE_BYTES = 64 << 20
_BREAK_S = 0.001
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class GuardedMap(mmap.mmap):
    """A memory map of a file: with the native core, reads from it are safe even if the file is cut short.

    Pages behind the new end of the file then read as zeros, after the version's mark was set.
    """

    _place: int | None = None

    def guard(self, mark: mmap.mmap) -> None:
        """Registers this memory map with the native core's handler of bus errors, which sets the mark for damage."""
        if NATIVE_TABLES is None:
            return
        # A reference keeps the memory of the version's mark for damage alive, because the handler of bus errors may
        # write to it as long as this map exists.
        self._mark = mark
        address = np.frombuffer(self, np.uint8).ctypes.data
        self._place = NATIVE_TABLES.add_guard(address, len(self), np.frombuffer(mark, np.int64).ctypes.data)
        if self._place is None:
            logger.warning("too many mapped files: if this file is cut short, a read of it ends the process")

    def __del__(self) -> None:
        # The handler of bus errors must forget the address range before the base class unmaps the file, because other
        # memory may get the same addresses afterwards.
        if self._place is not None:
            NATIVE_TABLES.remove_guard(self._place)


@dataclass(frozen=True, slots=True)
class _Opened:
    path: Path
    map: GuardedMap
    descriptor: int
    size: int
    changed_ns: int


class GuardedFiles:
    """A version's mapped files, with a mark for damage. Concurrency: map() by one caller at a time, else any thread.

    mark: one word, other than 0 once the bytes of a file may differ from the opened bytes.
    is_verified: all bytes with a checksum fit their checksums. is_verification_due: that check is still to be done,
      while the version answers. is_closed: close() was called.
    """

    def __init__(self) -> None:
        # The version's mark for damage has a memory page of its own, so that its address does not change while the
        # handler of bus errors may write to it.
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.mark = memoryview(self._memory).cast("q")
        self._opened: dict[Path, _Opened] = {}
        self.is_verified = self.is_verification_due = False
        self.is_closed = False
        self._why = ""

    def map(self, path: Path) -> mmap.mmap:
        """Maps a file, or returns its existing map; raises OSError, or ValueError for an empty file or a bad name."""
        if path not in self._opened:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                mapped = GuardedMap(file.fileno(), 0, access=mmap.ACCESS_READ)
                mapped.guard(self._memory)
                # GuardedFiles.look() needs this descriptor of the mapped file: the path may lead to another file later.
                kept = os.dup(file.fileno())
            self._opened[path] = _Opened(path, mapped, kept, found.st_size, found.st_mtime_ns)
        return self._opened[path].map

    @property
    def sizes(self) -> dict[Path, int]:
        """Path of each mapped file of the version -> size of the file in bytes."""
        return {path: opened.size for path, opened in self._opened.items()}

    def guard(self, mapped: GuardedMap) -> None:
        """Makes damage to another memory map of one of the version's files count as damage to the version."""
        mapped.guard(self._memory)

    def place(self, address: int) -> tuple[int, int]:
        """Returns the file that is mapped at a memory address: its descriptor, and the address of its first byte.

        The descriptor is valid until close(). Raises LookupError if no file is mapped there.
        """
        for opened in self._opened.values():
            begin = np.frombuffer(opened.map, np.uint8).ctypes.data
            if begin <= address < begin + opened.size:
                return opened.descriptor, begin
        raise LookupError(f"no file is mapped at {address:#x}")

    def look(self) -> str:
        """Marks the version as damaged if a mapped file was changed; returns the damage in words, "" if none."""
        if not self.mark[0]:
            for opened in self._opened.values():
                found = os.fstat(opened.descriptor)
                if found.st_size != opened.size:
                    self.damaged(f"file {opened.path} has {found.st_size} bytes since it was opened with {opened.size}")
                elif found.st_mtime_ns != opened.changed_ns:
                    self.damaged(f"file {opened.path} was written to since it was opened")
        if self.mark[0]:
            return self._why or f"the system could not read a page of {' or '.join(map(str, self._opened))}"
        return ""

    def damaged(self, why: str) -> None:
        """Marks the version as damaged; keeps the reason only of the first call."""
        self._why = self._why or why
        self.mark[0] = 1

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
            os.close(descriptor)

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
                _libc.munlock(address + begin, num_bytes)
                _libc.madvise(address + begin, num_bytes, _DONT_NEED)
                sleep(_BREAK_S)
            os.close(opened.descriptor)
        self._opened = {}

    def __del__(self) -> None:
        # If close() was not called, as after a failed load of the version, the files' descriptors are still open, and
        # are closed here.
        for opened in self._opened.values():
            os.close(opened.descriptor)
