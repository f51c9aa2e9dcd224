"""Files of TFRecords below one prefix: closed when they hold enough, and the oldest removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from service.artifact.crc32c import masked_of
from service.artifact.tf_record import MAX_WARMUP_RECORDS, encode_record

SUFFIX, OPEN_SUFFIX = ".tfrecord", ".tfrecord.part"


class RecordFiles:
    """Files that one process writes below a prefix: <prefix>-<UTC time>-<process>-<number>.tfrecord.

    A file that is still written to ends in .part; it, too, holds whole records only. None holds more records than a
    warm-up takes, so that any can be copied to where versions have theirs.

    Concurrency: one caller at a time.

    Args:
      max_bytes: of a file, beyond which the next one is begun.
      max_files: that are kept, of all processes with this prefix.
      now: seconds since the epoch.
    """

    def __init__(self, prefix: str, *, max_bytes: int, max_files: int, now: Callable[[], float]) -> None:
        self._prefix = Path(prefix)
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._now = now
        self._path: Path | None = None
        self._descriptor = -1
        self._num_bytes = self._num_records = self._number = 0

    def append(self, records: Sequence[bytes]) -> None:
        """Writes records; raises OSError, and then none of those that it could not write is left in part."""
        for record in records:
            data = encode_record(record, masked_of)
            if self._path is not None and (
                self._num_records >= MAX_WARMUP_RECORDS or self._num_bytes + len(data) > self._max_bytes
            ):
                self.close()
            if self._path is None:
                self._open()
            self._write(data)

    def close(self) -> None:
        """Gives the file that is written to its final name; raises OSError."""
        if self._path is None:
            return
        path, self._path = self._path, None
        os.close(self._descriptor)
        if self._num_records:
            path.rename(path.with_name(path.name.removesuffix(OPEN_SUFFIX) + SUFFIX))
            self._remove_oldest()
        else:
            path.unlink(missing_ok=True)

    def _open(self) -> None:
        self._number += 1
        time = datetime.fromtimestamp(self._now(), UTC).strftime("%Y%m%dT%H%M%S")
        path = self._prefix.with_name(f"{self._prefix.name}-{time}-{os.getpid()}-{self._number:04d}{OPEN_SUFFIX}")
        # Requests are their senders' business: nobody else's.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._path, self._num_bytes, self._num_records = path, 0, 0

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self._num_bytes)
            raise
        self._num_bytes += len(data)
        self._num_records += 1

    def _remove_oldest(self) -> None:
        # The time is in the name, so the order of names is that of time.
        done = sorted(self._prefix.parent.glob(f"{self._prefix.name}-*{SUFFIX}"), key=lambda path: path.name)
        for path in done[: -self._max_files]:
            path.unlink(missing_ok=True)
