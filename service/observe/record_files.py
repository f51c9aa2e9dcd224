"""Writes TFRecord files of a request log: begins a new file when one is large enough, and removes the oldest files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from service.artifact.crc32c import masked_of
from service.artifact.tf_record import MAX_WARMUP_RECORDS, encode_record

SUFFIX, OPEN_SUFFIX = ".tfrecord", ".tfrecord.part"


class RecordFiles:
    """The writer of one request log's TFRecord files, with names <prefix>-<UTC time>-<process>-<number>.tfrecord.

    The open file's name ends in .part; it too holds only complete records. No file has more records than a warm-up file
    may have, so that any file can be copied into a version as its warm-up file.

    Concurrency: one caller at a time.

    Args:
      max_bytes: size of a file beyond which the next file is begun.
      max_files: number of files that are kept, of all processes with this prefix.
      now: seconds since 1970.
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
        """Appends records to the open file, or to a new one if it is full; raises OSError, and then leaves no part of a
        record in the file.
        """
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
        """Closes the open file and renames it to its final name, or removes it if it is empty, and removes files beyond
        max_files; raises OSError.
        """
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
        time = datetime.fromtimestamp(self._now(), UTC).strftime("%Y%m%dT%H%M%S")
        while True:
            self._number += 1
            path = self._prefix.with_name(f"{self._prefix.name}-{time}-{os.getpid()}-{self._number:04d}{OPEN_SUFFIX}")
            # Another log of this process, which ends, may have files of the same prefix and the same second.
            with contextlib.suppress(FileExistsError):
                if path.with_name(path.name.removesuffix(OPEN_SUFFIX) + SUFFIX).exists():
                    continue
                # Mode 0o640 keeps users outside the file's group from reading the recorded requests, which may be
                # private.
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(path, flags, 0o640)
                break
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
        # The names of a request log's files contain the time, so their order by name is their order by age.
        done = sorted(self._prefix.parent.glob(f"{self._prefix.name}-*{SUFFIX}"), key=lambda path: path.name)
        for path in done[: -self._max_files]:
            path.unlink(missing_ok=True)
