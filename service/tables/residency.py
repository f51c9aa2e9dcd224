"""Prepares memory pages of tables before a version answers: reads them, locks them, or advises the kernel on them.

A mapped table costs nothing to open. The kernel reads a page from the disk at its first use, and keeps the page in the
shared page cache until other data needs the memory. This module trades a slower start for fast first requests. Linux
only, as the constants are.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from service.artifact.files import read_plain_file
from service.errors import ArtifactError
from service.tables.guarded_files import HUGE_PAGE, LIBC, POPULATE_READ, WILL_NEED
from service.tables.table import MappedTable
from service.types import Array

logger = logging.getLogger(__name__)

PageAdvice = Literal["normal", "random", "huge"]
LockRule = Literal["off", "try", "require"]

_ADVICE: Mapping[PageAdvice, int] = {"normal": 0, "random": 1, "huge": HUGE_PAGE}
# Number of bytes of a table that are read into memory before the rate of the reading is checked again.
_CHUNK_BYTES = 16 << 20
_PROGRESS_S = 5.0


@dataclass(frozen=True, slots=True)
class Residency:
    """The settings by which tables' memory pages are prepared before a version answers; by default nothing is done.

    is_prefaulted: every page is read.
    lock: pages may not leave memory; "require" fails the load where the system does not allow it.
    advice: "random" turns reading ahead off, "huge" asks for huge pages where the kernel has them for files.
    is_warmed: the rows that the training's statistics name as hot are read.
    """

    is_prefaulted: bool = False
    lock: LockRule = "off"
    advice: PageAdvice = "normal"
    is_warmed: bool = False

    def apply(
        self,
        artifact: Path,
        tables: Mapping[str, MappedTable],
        hot: Mapping[str, Array] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads, locks or advises the kernel on the memory pages of tables, as the settings say. Blocks; any thread.

        Raises:
          ArtifactError: the system refuses a required lock.
        """
        for name, table in tables.items():
            address, nbytes = _pages(table.weights)
            if self.advice == "huge":
                _advise(name, address, nbytes, self.advice)
            if self.is_prefaulted:
                self._prefault(name, address, nbytes, clock)
            # The advice "random" comes only after prefaulting, because it turns the kernel's read-ahead off: with
            # read-ahead, prefaulting 314 MB took 0.3 s, and without it a minute.
            if self.advice == "random":
                _advise(name, address, nbytes, self.advice)
            if self.lock != "off":
                self._lock(name, address, nbytes)
        if self.is_warmed:
            _warm(hottest_rows(artifact), tables, artifact)
        if hot:
            _warm(hot.items(), tables, artifact)

    def _prefault(self, name: str, address: int, nbytes: int, clock: Callable[[], float]) -> None:
        started_s = told_s = clock()
        for begin in range(0, nbytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, nbytes - begin)
            _read_pages(address + begin, size)
            done, now_s = begin + size, clock()
            if now_s - told_s >= _PROGRESS_S or done == nbytes:
                told_s = now_s
                extra = {"table": name, "bytes": done, "of": nbytes, "seconds": round(now_s - started_s, 3)}
                logger.info("reading a table's pages", extra=extra)

    def _lock(self, name: str, address: int, nbytes: int) -> None:
        if LIBC.mlock(address, nbytes) == 0:
            return
        number = ctypes.get_errno()
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        reason = (
            f"table {name!r}: {nbytes} bytes can not be locked in memory ({os.strerror(number)}); the system allows "
            f"this process {'any number of' if limit == resource.RLIM_INFINITY else limit} locked bytes: see "
            "RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=, --ulimit memlock=-1)"
        )
        if self.lock == "require":
            raise ArtifactError(reason) from OSError(number, os.strerror(number))
        logger.warning("table is not locked", extra={"table": name, "reason": reason})


def _pages(weights: np.ndarray[Any, Any]) -> tuple[int, int]:
    begin = weights.ctypes.data & -mmap.PAGESIZE
    end = weights.ctypes.data + weights.nbytes
    return begin, end - begin


def _advise(name: str, address: int, nbytes: int, advice: PageAdvice) -> None:
    if LIBC.madvise(address, nbytes, _ADVICE[advice]) != 0:
        reason = os.strerror(ctypes.get_errno())
        logger.warning(
            "the kernel refuses advice on a table's pages", extra={"table": name, "advice": advice, "reason": reason}
        )


def _read_pages(address: int, nbytes: int) -> None:
    if LIBC.madvise(address, nbytes, POPULATE_READ) == 0:
        return
    if (number := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS):
        reason = os.strerror(number)
        raise ArtifactError(f"a table can not be read: {reason}") from OSError(number, reason)
    # Without POPULATE_READ (Linux before 5.14), the kernel is asked for all pages, and then one byte of each page is
    # read.
    LIBC.madvise(address, nbytes, WILL_NEED)
    int(_octets(address, nbytes)[:: mmap.PAGESIZE].sum())


def _octets(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _warm(hot: Iterable[tuple[str, Array]], tables: Mapping[str, MappedTable], artifact: Path) -> None:
    started_s = time.monotonic()
    num_rows = 0
    for name, ids in hot:
        table, rows = tables.get(name), np.unique(ids[ids >= 0])
        # If a row number in a list of hot rows is beyond the table, the whole list is skipped: it is probably of
        # another table with the same name.
        if table is None or not rows.size or rows[-1] >= table.info.vocabulary_size:
            continue
        row_bytes = table.weights.strides[0]
        # The kernel is asked for all pages of hot rows first, so that it reads them while this thread waits for the
        # first page.
        for page, size in _runs(table.weights.ctypes.data + rows * row_bytes, row_bytes):
            LIBC.madvise(page, size, WILL_NEED)
        octets = _octets(table.weights.ctypes.data, table.weights.nbytes)
        # The read of a byte loads its page: a row has one of these bytes in each of its pages.
        for offset in (*range(0, row_bytes, mmap.PAGESIZE), row_bytes - 1):
            int(octets[rows * row_bytes + offset].sum())
        num_rows += rows.size
    seconds = round(time.monotonic() - started_s, 3)
    logger.info("read hot rows", extra={"rows": num_rows, "seconds": seconds, "path": str(artifact)})


def _runs(starts: np.ndarray[Any, Any], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the address and size of each range of pages that have rows. starts: the rows' addresses, ascending."""
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
# Largest file of a table's statistics that is read; it lists the ids that a training looks up most.
_MAX_STATISTICS_BYTES = 64 << 20


def hottest_rows(artifact: Path) -> Iterator[tuple[str, Array]]:
    """Yields the name of each table in the training's statistics, with its hot rows: [n] int64, the hottest first."""
    for file in sorted((artifact / STATISTICS_PATH).glob("*.json")):
        try:
            document = json.loads(read_plain_file(file, _MAX_STATISTICS_BYTES))
            name, found = str(document["table"]["name"]), document["counts"]
            ids = np.array(found["ids"], np.int64)
            order = np.lexsort((ids, -np.array(found.get("counts", np.zeros(ids.shape)), np.int64)))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("statistics can not be read", extra={"path": str(file), "reason": str(error)})
            continue
        ids = ids[order]
        yield name, ids[ids >= 0]
