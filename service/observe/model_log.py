"""Writes one model's request log: requests wait in a bounded queue until a thread writes them to files."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from service.artifact.protos import message_class
from service.engine.model_config import RequestLogConfig
from service.observe.record_files import RecordFiles

logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 64 << 20


class LogCounts(NamedTuple):
    """Numbers of requests that a request log has written or dropped. is_disabled: an error has ended the log."""

    written: int
    dropped: int
    is_disabled: bool


class ModelLog:
    """The request log of one model; implements engine.recording.Recorder. Concurrency: any thread.

    Args:
      tags: tags of the MetaGraph, which records contain.
    """

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
        """Queues a log record of a request that the native core has answered."""
        self._put(len(log), lambda: self._metadata(version, signature_name, answered_s) + log)

    def note_dropped(self, count: int) -> None:
        with self._news:
            self._dropped += count

    def counts(self) -> LogCounts:
        """Returns how many of the requests sampled for the log were written and dropped, and whether an error has ended
        the log.
        """
        return LogCounts(self._written, self._dropped, self._is_disabled)

    @property
    def is_over(self) -> bool:
        """Whether the request log has ended: its queue is written and its file is closed."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Makes the request log's thread write its queue and close the file; does not wait for it."""
        with self._news:
            self._is_stopped = True
            self._news.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Waits until the request log has ended after stop(), at most timeout_s seconds."""
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
