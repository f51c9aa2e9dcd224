"""Appends the upserts of one version to a file, the journal, and reads them back; each record is a delta.

A record is on disk before its upsert is answered. A process writes or reads the file only while it holds the file's
lock, which the kernel frees if the process dies. So an incomplete record at the end was left by a writer that was
killed before it answered, and the next writer cuts the record off. A record that was damaged later is left out; the
records behind it are read.

The file's name says which version it is for, and so does each record's fingerprint.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from service.artifact.delta_file import HEADER, MAGIC, Delta, DeltaFault, decode, size_of
from service.artifact.files import close_unwritten, sync_names
from service.errors import DeltaRefused, JournalUnavailable

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.002
# Longest time in seconds that a writer of the journal waits for the file's lock while another process holds it; then
# the upsert fails.
_PATIENCE_S = 5.0
_WINDOW_BYTES = 1 << 20
# Errors of a disk that is read-only, or of a file that this process may only read: such a disk takes nothing back.
_READ_ONLY = (errno.EROFS, errno.EBADF)


def journal_path(folder: Path, model: str, version: int, fingerprint: bytes) -> Path:
    """Returns the path of a version's journal; model names are escaped, so that none leads out of the folder.

    >>> journal_path(Path("j"), "../a", 3, b"\\x01" * 32).as_posix()
    'j/%2E%2E%2Fa/3-0101010101010101.journal'
    """
    return model_folder(folder, model) / f"{version}-{fingerprint[:8].hex()}.journal"


def model_folder(folder: Path, model: str) -> Path:
    return folder / quote(model, safe="").replace(".", "%2E")


class Journal:
    """The journal of one version: a file of upserts. Concurrency: any thread.

    Args:
      max_bytes: of the file; max_record_bytes: of one record.
      refused: called once with the fault and the place of each record that can not be read.

    failures: counts of failed appends by reason: the journal is full, another process holds it, or the disk failed.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_record_bytes: int,
        refused: Callable[[DeltaFault, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_record_bytes = max_record_bytes
        self._refused = refused
        self._clock = clock
        self.failures = {"full": 0, "held": 0, "unwritable": 0}
        self._mine = threading.Lock()
        self._descriptor = -1
        self._is_named = False
        self._end = 0
        self._torn_at = -1
        self._last = 0
        self._unread: list[Delta] = []

    def read(self, max_bytes: int) -> list[Delta]:
        """Returns the deltas that were appended to the journal since the last call of read(); raises OSError.

        Records are not checked against the version; the caller does that.

        Args:
          max_bytes: after so many bytes the remaining records are left for the next call.
        """
        with self._mine:
            if self._open(is_writing=False) and os.fstat(self._descriptor).st_size != self._end:
                with self._locked(fcntl.LOCK_SH, 0.0) as is_mine:
                    if is_mine:
                        self._catch_up(self._end + max_bytes)
            unread, self._unread = self._unread, []
            return unread

    def append(self, make: Callable[[int], tuple[Delta, bytes]], at_least: int) -> Delta:
        """Appends a delta to the journal and returns it once it is on disk; the next read() returns the delta too.

        Args:
          make: returns a delta and its bytes for a sequence number.
          at_least: the smallest sequence number to give it.

        Raises:
          JournalUnavailable: the journal can not be written; nothing was appended.
          DeltaRefused: the journal is full.
        """
        with self._mine:
            try:
                while True:
                    self._open(is_writing=True)
                    with self._locked(fcntl.LOCK_EX, _PATIENCE_S) as is_mine:
                        if not is_mine:
                            self.failures["held"] += 1
                            raise JournalUnavailable(
                                "The journal of upserts is held by another process; nothing changed."
                            )
                        # deltas.rules removes a journal file only while it holds this lock: the file may have
                        # been removed before this process got the lock, but not after that.
                        if not self._is_replaced():
                            self._catch_up()
                            return self._write(*make(max(self._last + 1, at_least)))
            except OSError as error:
                self.failures["unwritable"] += 1
                logger.error("journal can not be written", extra={"path": str(self._path), "reason": str(error)})
                raise JournalUnavailable(
                    f"The journal of upserts can not be written ({error.strerror}); nothing was changed."
                ) from error

    @property
    def size(self) -> tuple[int, int]:
        return self._end, self._max_bytes

    def close(self) -> None:
        with self._mine:
            self._close()

    def _write(self, delta: Delta, data: bytes) -> Delta:
        if self._end + len(data) > self._max_bytes:
            self.failures["full"] += 1
            raise DeltaRefused(
                f"The journal of upserts has {self._end} bytes, its limit is {self._max_bytes}: fold it into a new "
                "version with `model-export compact`."
            )
        if os.fstat(self._descriptor).st_size > self._end:
            # The bytes behind the last whole record are an incomplete delta, left by a writer that was killed. They are
            # cut off, because no client was told that this delta is stored.
            os.ftruncate(self._descriptor, self._end)
        if not self._is_named:
            # Whoever made the file may have been killed before its name was synced.
            sync_names(self._path.parent)
            self._is_named = True
        try:
            self._write_at(self._end, data)
            os.fsync(self._descriptor)
        except OSError:
            # The record may be on the disk all the same, and its upsert is refused: the shorter file is synced, too.
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)
            raise
        self._end += len(data)
        self._last = delta.sequence
        self._unread.append(delta)
        return delta

    def _open(self, *, is_writing: bool) -> bool:
        if self._descriptor >= 0 and self._is_replaced():
            # If the journal's file was removed or replaced, the journal is opened again: a record written to the old
            # file would be lost with the next restart.
            self._close()
        if self._descriptor >= 0:
            return True
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if is_writing:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._descriptor = os.open(self._path, flags | (os.O_CREAT if is_writing else 0), 0o644)
        except FileNotFoundError:
            return False
        except OSError:
            if is_writing:
                raise
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._close()
            raise OSError(f"{self._path} is no file")
        return True

    def _is_replaced(self) -> bool:
        try:
            named = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return True
        try:
            mine = os.fstat(self._descriptor)
        except OSError:
            # The open file is lost (ESTALE after a change of the NFS server, for example), although its path leads to a
            # file: that one is opened.
            return True
        # A journal file that is shorter than the part that was read of it was truncated: it is read again from its
        # start, and deltas with known sequence numbers are skipped.
        return (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino) or mine.st_size < self._end

    def _close(self) -> None:
        descriptor = self._descriptor
        self._descriptor, self._is_named, self._end, self._torn_at = -1, False, 0, -1
        if descriptor >= 0:
            # All that was written is synced. After an error, the number may already be another file's.
            close_unwritten(descriptor)

    @contextmanager
    def _locked(self, kind: int, patience_s: float) -> Iterator[bool]:
        end_s = self._clock() + patience_s
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if self._clock() >= end_s:
                    yield False
                    return
                time.sleep(_LOOK_AGAIN_S)
        try:
            yield True
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _write_at(self, at: int, data: bytes) -> None:
        # A disk that has become full takes the first bytes only.
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], at + written)

    def _write_again(self, size: int) -> None:
        # After a failed fsync, perhaps of a writer that was killed then, the kernel takes the pages for written: the
        # next one would succeed without them. The records before the last were synced before the last was written.
        try:
            for at in range(max(self._end, size - self._max_record_bytes), size, _WINDOW_BYTES):
                self._write_at(at, os.pread(self._descriptor, min(_WINDOW_BYTES, size - at), at))
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise

    def _catch_up(self, up_to: int | None = None) -> None:
        """Reads deltas that were appended behind the last one that was read; the caller holds the journal's lock."""
        size = os.fstat(self._descriptor).st_size
        if self._end < size:
            # A writer that was killed before its fsync left a record which a power cut would take back. It must not be
            # shown before.
            self._write_again(size)
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
        while self._end < (size if up_to is None else min(up_to, size)):
            at, found = self._end, self._record(self._end, size)
            if isinstance(found, DeltaFault):
                behind = self._next_record(at + 1, size)
                if behind is None:
                    if self._torn_at != at:
                        self._torn_at = at
                        self._refused(
                            found, f"{self._path}: {size - at} bytes at its end, of an upsert that was never confirmed"
                        )
                    return
                self._refused(found, f"{self._path}: bytes {at} to {behind}")
                self._end = behind
                continue
            delta, length = found
            self._end += length
            if delta.sequence <= self._last:
                continue
            self._last = delta.sequence
            self._unread.append(delta)

    def _record(self, at: int, size: int) -> tuple[Delta, int] | DeltaFault:
        try:
            length = size_of(os.pread(self._descriptor, HEADER.size, at))
            if length > self._max_record_bytes:
                raise DeltaFault("oversized", f"a record of {length} bytes, the limit is {self._max_record_bytes}")
            if at + length > size:
                raise DeltaFault("truncated", f"a record of {length} bytes, {size - at} are there")
            return decode(_read(self._descriptor, length, at)), length
        except DeltaFault as fault:
            return fault

    def _next_record(self, at: int, size: int) -> int | None:
        while at < size:
            window = os.pread(self._descriptor, _WINDOW_BYTES + len(MAGIC) - 1, at)
            found = window.find(MAGIC)
            while found >= 0:
                if not isinstance(self._record(at + found, size), DeltaFault):
                    return at + found
                found = window.find(MAGIC, found + 1)
            at += _WINDOW_BYTES
        return None


def _read(descriptor: int, length: int, at: int) -> bytes:
    data = os.pread(descriptor, length, at)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), at + len(data))
        if not more:
            break
        data += more
    return data
