"""Writes the models' request logs: a bounded queue for each, a thread, and TFRecord files."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from service.artifact.hashes import masked_of
from service.artifact.protos import message_class
from service.artifact.tf_record import MAX_WARMUP_RECORDS, encode_record
from service.control.request_context import Recorder
from service.observe.metric_text import Families, lines_of
from service.versions.model_config import ModelConfig, RequestLogConfig

SUFFIX, OPEN_SUFFIX = ".tfrecord", ".tfrecord.part"
# Least number of full files that a request log is divided into, so that little is lost when the oldest one is removed.
_NUM_FILES = 16


class RecordFiles:
    """The writer of one request log's TFRecord files, with names <prefix>-<UTC time>-<process>-<number>.tfrecord.

    The open file's name ends in .part; it too holds only complete records. No file has more records than a warm-up file
    may have, so that any file can be copied into a version as its warm-up file.

    Concurrency: one caller at a time.

    Args:
      max_bytes: of all files with this prefix, of all processes; a file has at most a sixteenth. The newest file stays.
      now: seconds since 1970.
    """

    def __init__(self, prefix: str, *, max_bytes: int, now: Callable[[], float]) -> None:
        self._prefix = Path(prefix)
        self._max_bytes = max_bytes
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
                self._num_records >= MAX_WARMUP_RECORDS or self._num_bytes + len(data) > self._max_bytes // _NUM_FILES
            ):
                self.close()
            if self._path is None:
                self._open()
            self._write(data)

    def close(self) -> None:
        """Closes the open file and renames it to its final name, or removes it if it is empty, and removes the
        oldest files beyond max_bytes; raises OSError.
        """
        if self._path is None:
            return
        path, self._path = self._path, None
        try:
            if self._num_records:
                path.rename(path.with_name(path.name.removesuffix(OPEN_SUFFIX) + SUFFIX))
                self._remove_oldest()
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)

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
        # The lock tells other processes that this file is in use: one without a lock is of a process that was killed.
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path, self._num_bytes, self._num_records = path, 0, 0
        self._remove_oldest()

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
        # The names of a request log's files contain the time, so their order by name is their order by age. The prefix
        # of another log may begin with this one, or match it as a pattern.
        name = re.compile(re.escape(self._prefix.name) + rf"-\d{{8}}T\d{{6}}-\d+-\d{{4,}}{re.escape(SUFFIX)}(\.part)?")
        done = sorted(
            (path for path in self._prefix.parent.iterdir() if name.fullmatch(path.name)), key=lambda path: path.name
        )
        kept = 0
        for position, path in enumerate(reversed(done)):
            # Another process with this prefix may remove the file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                kept += path.stat().st_size
                if position and kept > self._max_bytes and (path.suffix == SUFFIX or not _is_locked(path)):
                    path.unlink()


def _is_locked(path: Path) -> bool:
    """Returns whether a process holds the file's lock; True if the file system can not tell."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 64 << 20


class LogCounts(NamedTuple):
    """Numbers of requests that a request log has written or dropped. is_disabled: an error has ended the log."""

    written: int
    dropped: int
    is_disabled: bool


class ModelLog:
    """The request log of one model; implements engine.recording.Recorder. Concurrency: any thread."""

    def __init__(self, model: str, config: RequestLogConfig, files: RecordFiles, *, tags: tuple[str, ...]) -> None:
        self.rate = config.sampling_rate
        self._model = model
        self._files = files
        self._tags = tags
        self._queue: deque[tuple[int, Callable[[], bytes]]] = deque()
        self._queued_bytes = 0
        self._news = threading.Condition()
        self._is_stopped = self._is_disabled = False
        self._written = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"request-log-{model}", daemon=True)
        self._thread.start()

    def answered(self, version: int, signature_name: str, answered_s: int, log: bytes) -> None:
        self._put(len(log), lambda: self._metadata(version, signature_name, answered_s) + log)

    def note_dropped(self, count: int) -> None:
        with self._news:
            self._dropped += count

    def counts(self) -> LogCounts:
        return LogCounts(self._written, self._dropped, self._is_disabled)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        with self._news:
            self._is_stopped = True
            self._news.notify_all()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _metadata(self, version: int, signature_name: str, answered_s: int) -> bytes:
        """Returns a PredictionLog with only its log_metadata: the bytes of the other fields may follow it."""
        message = message_class("tensorflow.serving.PredictionLog")()
        metadata = message.log_metadata
        spec = metadata.model_spec
        spec.name, spec.version.value, spec.signature_name = self._model, version, signature_name
        metadata.sampling_config.sampling_rate = self.rate
        metadata.saved_model_tags.extend(self._tags)
        metadata.timestamp_secs = answered_s
        return bytes(message.SerializeToString())

    def _put(self, size: int, make: Callable[[], bytes]) -> None:
        with self._news:
            if (
                self._is_stopped
                or self._is_disabled
                or len(self._queue) >= MAX_QUEUED
                or self._queued_bytes + size > MAX_QUEUED_BYTES
            ):
                self._dropped += 1
                return
            self._queue.append((size, make))
            self._queued_bytes += size
            if len(self._queue) == 1:
                self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._queue or self._is_stopped)
                if not self._queue:
                    break
                size, make = self._queue[0]
            # A record of the request log leaves the queue only after it was written, so that it counts towards the
            # queue's limit until then.
            self._write(make)
            with self._news:
                self._queue.popleft()
                self._queued_bytes -= size
        self._close()

    def _write(self, make: Callable[[], bytes]) -> None:
        if self._is_disabled:
            self._dropped += 1
            return
        try:
            self._files.append([make()])
        except OSError as error:
            self._dropped += 1
            self._is_disabled = True
            # A failed write of a request log is reported only once, because the request log stays disabled until a
            # restart or a change of the model's logging_config.
            logger.error(
                "request log is disabled",
                extra={"model": self._model, "reason": f"{error.strerror}: {error.filename or 'its file'}"},
            )
        except Exception:
            self._dropped += 1
            logger.exception("a request could not be logged", extra={"model": self._model})
        else:
            self._written += 1

    def _close(self) -> None:
        try:
            self._files.close()
        except OSError as error:
            logger.warning("request log is not closed", extra={"model": self._model, "reason": str(error)})


_STOP_S = 5.0
_PREFIX = "embedding_server_request_log_"
_FAMILIES: Families = (
    ("records_total", "Requests written to the request log.", "written"),
    ("dropped_total", "Requests chosen for the log and not written: queue full, or disabled.", "dropped"),
    ("disabled", "1: an error, such as a full disk, ended the request log.", "is_disabled"),
)


class RequestLogs:
    """The running request logs, at most one for each model. Concurrency: any thread.

    recorders: model -> recorder; empty if no model has a logging_config.
    """

    def __init__(
        self,
        *,
        tags: Sequence[str],
        max_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.recorders: dict[str, Recorder] = {}
        self._tags = tuple(tags)
        self._max_bytes = max_bytes
        self._now = now
        self._changing = threading.Lock()
        self._logs: dict[str, tuple[RequestLogConfig, ModelLog]] = {}
        # Logs that still write their queued records, and model -> counts of its logs that have ended; kept, because
        # metric counters must not decrease.
        self._ending: list[tuple[str, ModelLog]] = []
        self._ended: dict[str, LogCounts] = {}

    def configure(self, models: Sequence[ModelConfig]) -> None:
        """Starts the request logs that a new list of models configures, and ends those that it lacks or configures
        otherwise, without a wait for their last records: a disk may be slow.
        """
        wanted = {model.name: model.request_log for model in models if model.request_log is not None}
        with self._changing:
            for name, (config, log) in list(self._logs.items()):
                if wanted.get(name) != config:
                    del self._logs[name]
                    self.recorders.pop(name, None)
                    log.stop()
                    self._ending.append((name, log))
            for name, config in wanted.items():
                if name not in self._logs and config.sampling_rate > 0:
                    log = self._begin(name, config)
                    self._logs[name] = (config, log)
                    self.recorders[name] = log

    def stop(self) -> None:
        """Ends all request logs, and waits a few seconds at most until their queued records are written."""
        self.configure([])
        end_s = time.monotonic() + _STOP_S
        for _, log in self._ending:
            log.wait(max(end_s - time.monotonic(), 0.0))

    def read(self) -> dict[str, dict[str, object]]:
        with self._changing:
            logs = dict(self._logs)
        return {
            name: {"prefix": config.filename_prefix, "sampling_rate": config.sampling_rate, **log.counts()._asdict()}
            for name, (config, log) in logs.items()
        }

    def forget(self, model: str) -> None:
        with self._changing:
            self._ended.pop(model, None)

    def metric_lines(self) -> list[str]:
        with self._changing:
            ending, self._ending = self._ending, []
            for name, log in ending:
                if log.is_over:
                    self._ended[name] = _sum(self._ended.get(name), log.counts())
                else:
                    self._ending.append((name, log))
            counts = dict(self._ended)
            running = [(name, log) for name, (_, log) in self._logs.items()]
            for name, log in self._ending + running:
                counts[name] = _sum(counts.get(name), log.counts())
        return lines_of(_PREFIX, _FAMILIES, [({"model": name}, found) for name, found in sorted(counts.items())])

    def _begin(self, name: str, config: RequestLogConfig) -> ModelLog:
        files = RecordFiles(config.filename_prefix, max_bytes=self._max_bytes, now=self._now)
        extra = {"model": name, "prefix": config.filename_prefix, "rate": config.sampling_rate}
        logger.info("request log", extra=extra)
        return ModelLog(name, config, files, tags=self._tags)


def _sum(before: LogCounts | None, now: LogCounts) -> LogCounts:
    if before is None:
        return now
    return LogCounts(before.written + now.written, before.dropped + now.dropped, now.is_disabled)
