"""The files of one version under open maps, and what may become of them: cut short, overwritten, unreadable.

A damaged version says so by a mark, one word of memory, that whoever read from a map looks at before it answers. Three
things set it: the native core's handler of bus errors at once, `look` where a file's size or time has changed, and
whoever finds that a table is not what its checksum says. Where the native core is not built, a bus error ends the
process.
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
# So much of a map is given back at a time, with a break in which who waits for the memory map's lock may have it.
_SLICE_BYTES = 64 << 20
_BREAK_S = 0.001
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class GuardedMap(mmap.mmap):
    """A file mapped to be read, that reads as zeros once its bytes are gone; its version is marked first."""

    _place: int | None = None

    def guard(self, mark: mmap.mmap) -> None:
        """Asks for that; mark is where it is told."""
        if NATIVE_TABLES is None:
            return
        # Held as long as the handler may write there.
        self._mark = mark
        address = np.frombuffer(self, np.uint8).ctypes.data
        self._place = NATIVE_TABLES.add_guard(address, len(self), np.frombuffer(mark, np.int64).ctypes.data)
        if self._place is None:
            logger.warning("too many maps at a time: this one ends the process where its file is cut short")

    def __del__(self) -> None:
        # Before it is unmapped, which the base class does behind this.
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
    """The mapped files of one version. Concurrency: map by one caller at a time, the rest any thread.

    mark: one word, other than 0 once what is read may not be what was opened.
    is_verified: all that has a checksum was held against it. is_verification_due: that is still to be done, while the
      version answers. is_closed: nobody asks any more.
    """

    def __init__(self) -> None:
        # Memory of its own, at one address for as long as anyone can write to it.
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.mark = memoryview(self._memory).cast("q")
        self._opened: dict[Path, _Opened] = {}
        self.is_verified = self.is_verification_due = False
        self.is_closed = False
        self._why = ""

    def map(self, path: Path) -> mmap.mmap:
        """Maps a file, once; raises OSError, or ValueError for what has no bytes or can have no such name."""
        if path not in self._opened:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                mapped = GuardedMap(file.fileno(), 0, access=mmap.ACCESS_READ)
                mapped.guard(self._memory)
                # The file that is mapped, whatever its name means by then.
                kept = os.dup(file.fileno())
            self._opened[path] = _Opened(path, mapped, kept, found.st_size, found.st_mtime_ns)
        return self._opened[path].map

    @property
    def sizes(self) -> dict[Path, int]:
        """Bytes of each file that is mapped."""
        return {path: opened.size for path, opened in self._opened.items()}

    def guard(self, mapped: GuardedMap) -> None:
        """Has another map of one of the files tell of damage as those of map() do."""
        mapped.guard(self._memory)

    def look(self) -> str:
        """Returns what is wrong with the files, and marks them; "" where nothing is."""
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
        """Marks the version; the first reason counts."""
        self._why = self._why or why
        self.mark[0] = 1

    @contextmanager
    def reading(self, path: Path) -> Iterator[tuple[int, int]]:
        """Gives a descriptor of a mapped file, to be read at places that the reader says, and where it is mapped."""
        opened = self._opened[path]
        # Of its own: what is advised of reading it must not hold for the map. It is the same file, renamed or not.
        descriptor = os.open(f"/proc/self/fd/{opened.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            yield descriptor, np.frombuffer(opened.map, np.uint8).ctypes.data
        finally:
            os.close(descriptor)

    def close(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Gives the memory back, a slice at a time; whoever reads once more has the pages read again. Blocks.

        The maps themselves go when the last array that looks into them does, wherever that is: it is quick then.
        """
        self.is_closed = True
        for opened in self._opened.values():
            address = np.frombuffer(opened.map, np.uint8).ctypes.data
            for begin in range(0, opened.size, _SLICE_BYTES):
                num_bytes = min(_SLICE_BYTES, opened.size - begin)
                # What is locked can not be given back.
                _libc.munlock(address + begin, num_bytes)
                _libc.madvise(address + begin, num_bytes, _DONT_NEED)
                sleep(_BREAK_S)
            os.close(opened.descriptor)
        self._opened = {}

    def __del__(self) -> None:
        # Of a version that was not loaded to its end.
        for opened in self._opened.values():
            os.close(opened.descriptor)
