"""Maps the files of one version, and marks the version as damaged if a file is cut short, overwritten or unreadable.

Each request that read from a map checks the version's mark for damage before it answers. Three things set the mark:
the native core's handler of bus errors, at once; `look`, if a file's size or time has changed; and the Verifier, if a
table does not fit its checksum. Where the native core is not built, a bus error ends the process.
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
from typing import Any

import numpy as np

from service.native_tables import NATIVE_TABLES

logger = logging.getLogger(__name__)

_DONT_NEED = 4
# Linux's flag MAP_NORESERVE: without this flag the kernel reserves memory for a copy of every page, and refuses to map
# tables larger than memory.
_MAP_NORESERVE = 0x4000
# Number of bytes of mapped memory that close() frees before it pauses, so that other threads can get the kernel's lock
# on the process's memory map.
_SLICE_BYTES = 64 << 20
_BREAK_S = 0.001
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


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
        """Path of each mapped file of the version -> size of the file in bytes."""
        return {path: opened.size for path, opened in self._opened.items()}

    @property
    def maps(self) -> list[object]:
        return [opened.map.obj for opened in self._opened.values()]

    @property
    def is_damaged(self) -> bool:
        """Whether the bytes of a file may differ from the opened bytes."""
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
                found = os.fstat(opened.descriptor)
                if found.st_size != opened.size:
                    self.damaged(f"file {opened.path} has {found.st_size} bytes since it was opened with {opened.size}")
                elif found.st_mtime_ns != opened.changed_ns:
                    self.damaged(f"file {opened.path} was written to since it was opened")
        if self.is_damaged:
            return self._why or f"the system could not read a page of {' or '.join(map(str, self._opened))}"
        return ""

    def damaged(self, why: str) -> None:
        """Marks the version as damaged; keeps the reason only of the first call."""
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
