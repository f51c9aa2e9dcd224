"""Where tables' pages are: read before a version answers, locked, or with advice to the kernel on how to read them.

A mapped table costs nothing to open; its pages come from the disk as they are asked for, and stay in the page cache
that all processes share as long as nothing else needs the memory. What is here trades a slower start for no slow first
requests. Linux only, as the constants are.

Source: madvise(2), mlock(2) and the constants of include/uapi/asm-generic/mman-common.h (Linux 6.18).
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from service.errors import ArtifactError
from service.tables.table import MappedTable
from service.types import Array

logger = logging.getLogger(__name__)

PageAdvice = Literal["normal", "random", "huge"]
LockRule = Literal["off", "try", "require"]

_ADVICE: Mapping[PageAdvice, int] = {"normal": 0, "random": 1, "huge": 14}
_WILL_NEED, _POPULATE_READ = 3, 22
# So much is read between two looks at the clock.
_CHUNK_BYTES = 16 << 20
_PROGRESS_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)
for _name, _types in {
    "madvise": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    "mlock": [ctypes.c_void_p, ctypes.c_size_t],
}.items():
    getattr(_libc, _name).argtypes = _types


@dataclass(frozen=True, slots=True)
class Residency:
    """What is done with tables' pages before a version answers; nothing by default.

    is_prefaulted: every page is read. bytes_per_s: no faster than that; 0 is as fast as it goes.
    lock: pages may not leave memory; "require" fails the load where the system does not allow it.
    advice: "random" turns reading ahead off, "huge" asks for huge pages where the kernel has them for files.
    is_warmed: the rows that the training's statistics name as hot are read.
    """

    is_prefaulted: bool = False
    bytes_per_s: float = 0.0
    lock: LockRule = "off"
    advice: PageAdvice = "normal"
    is_warmed: bool = False

    def apply(
        self,
        artifact: Path,
        tables: Mapping[str, MappedTable],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Does it; raises ArtifactError where locking is required and not allowed. Blocks; any thread."""
        for name, table in tables.items():
            address, nbytes = _pages(table.weights)
            if self.advice == "huge":
                _advise(name, address, nbytes, self.advice)
            if self.is_prefaulted:
                self._prefault(name, address, nbytes, clock, sleep)
            # Not before: a table without reading ahead is read page by page, 314 MB in a minute and not in 0.3 s.
            if self.advice == "random":
                _advise(name, address, nbytes, self.advice)
            if self.lock != "off":
                self._lock(name, address, nbytes)
        if self.is_warmed:
            _warm(artifact, tables)

    def _prefault(
        self, name: str, address: int, nbytes: int, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        started_s = told_s = clock()
        for begin in range(0, nbytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, nbytes - begin)
            _read_pages(address + begin, size)
            done, now_s = begin + size, clock()
            ahead_s = done / self.bytes_per_s - (now_s - started_s) if self.bytes_per_s else 0.0
            if ahead_s > 0:
                sleep(ahead_s)
                now_s = clock()
            if now_s - told_s >= _PROGRESS_S or done == nbytes:
                told_s = now_s
                extra = {"table": name, "bytes": done, "of": nbytes, "seconds": round(now_s - started_s, 3)}
                logger.info("reading a table's pages", extra=extra)

    def _lock(self, name: str, address: int, nbytes: int) -> None:
        if _libc.mlock(address, nbytes) == 0:
            return
        number = ctypes.get_errno()
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        reason = (
            f"table {name!r}: {nbytes} bytes can not be locked in memory ({os.strerror(number)}); the system allows "
            f"this process {'any number of' if limit == resource.RLIM_INFINITY else limit} locked bytes: see "
            "RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=, --ulimit memlock=-1)"
        )
        if self.lock == "require":
            raise ArtifactError(reason)
        logger.warning("table is not locked", extra={"table": name, "reason": reason})


def _pages(weights: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Returns the address and size of the whole pages that an array lies in."""
    begin = weights.ctypes.data & -mmap.PAGESIZE
    end = weights.ctypes.data + weights.nbytes
    return begin, end - begin


def _advise(name: str, address: int, nbytes: int, advice: PageAdvice) -> None:
    if _libc.madvise(address, nbytes, _ADVICE[advice]) != 0:
        reason = os.strerror(ctypes.get_errno())
        logger.warning("advice on pages is not taken", extra={"table": name, "advice": advice, "reason": reason})


def _read_pages(address: int, nbytes: int) -> None:
    if _libc.madvise(address, nbytes, _POPULATE_READ) == 0:
        return
    if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
        raise ArtifactError(f"a table can not be read: {os.strerror(ctypes.get_errno())}")
    # Before Linux 5.14: ask for all of it at once, then look at one byte of each page.
    _libc.madvise(address, nbytes, _WILL_NEED)
    int(_octets(address, nbytes)[:: mmap.PAGESIZE].sum())


def _octets(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _warm(artifact: Path, tables: Mapping[str, MappedTable]) -> None:
    started_s = time.monotonic()
    num_rows = 0
    for name, rows in hot_rows(artifact):
        table = tables.get(name)
        # Statistics of another table than the one that is served name other rows.
        if table is None or not rows.size or rows[-1] >= table.info.vocabulary_size:
            continue
        row_bytes = table.weights.strides[0]
        # All of them are asked for before the first is waited for.
        for page, size in _runs(table.weights.ctypes.data + rows * row_bytes, row_bytes):
            _libc.madvise(page, size, _WILL_NEED)
        octets = _octets(table.weights.ctypes.data, table.weights.nbytes)
        # Both ends of each row: it may lie in two pages, and a row of many pages has its middle asked for.
        int(octets[rows * row_bytes].sum())
        int(octets[(rows + 1) * row_bytes - 1].sum())
        num_rows += rows.size
    seconds = round(time.monotonic() - started_s, 3)
    logger.info("read hot rows", extra={"rows": num_rows, "seconds": seconds, "path": str(artifact)})


def _runs(starts: np.ndarray[Any, Any], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the pages of ascending rows, those that follow each other together."""
    begin = end = 0
    for start in starts.tolist():
        first, behind = start & -mmap.PAGESIZE, start + row_bytes
        if first > end:
            if end:
                yield begin, end - begin
            begin = first
        end = behind
    if end:
        yield begin, end - begin


STATISTICS_PATH = "assets.extra/statistics"


def hot_rows(artifact: Path) -> Iterator[tuple[str, Array]]:
    """Yields each table's name with [n] int64 ascending rows, none below 0."""
    for file in sorted((artifact / STATISTICS_PATH).glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            name, ids = str(document["table"]["name"]), np.unique(np.array(document["counts"]["ids"], np.int64))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("statistics can not be read", extra={"path": str(file), "reason": str(error)})
            continue
        yield name, ids[ids >= 0]
