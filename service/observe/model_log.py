"""Writes one model's request log: requests wait in a bounded queue until a thread writes them to files."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from service.engine.inference import Classification, Regression
from service.engine.model_config import RequestLogConfig
from service.engine.recording import Draw
from service.observe.record_files import RecordFiles
from service.types import Array, SignatureSpec
from service.wire.prediction_log import Subject, core_record, encode_metadata, examples_record

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
      has_answers: whether records contain answers too.
      now: seconds since the epoch.
    """

    def __init__(
        self,
        model: str,
        config: RequestLogConfig,
        files: RecordFiles,
        *,
        tags: tuple[str, ...],
        has_answers: bool,
        now: Callable[[], float],
    ) -> None:
        self.draw = Draw(config.sampling_rate)
        self._model = model
        self._files = files
        self._tags = tags
        self._has_answers = has_answers
        self._now = now
        self._queue: deque[tuple[int, Callable[[], bytes]]] = deque()
        self._queued_bytes = 0
        self._news = threading.Condition()
        self._is_stopped = self._is_disabled = False
        self._written = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"request-log-{model}", daemon=True)
        self._thread.start()

    def inferred(
        self, spec: SignatureSpec, version: int, *, examples: Array, result: Classification | Regression
    ) -> None:
        """Queues a log record of a request with tf.Examples, with its answer if the request log keeps answers."""
        subject, metadata = self._subject(spec, version)
        make = partial(examples_record, examples=examples, result=result, has_answer=self._has_answers)
        self._put(_size(examples), lambda: make(subject, metadata()))

    def answered(self, version: int, signature_name: str, answered_s: int, log: bytes) -> None:
        """Queues a log record of a request that the native core has answered."""
        subject = Subject(self._model, version, signature_name)
        self._put(len(log), lambda: core_record(self._metadata(subject, answered_s), log))

    def note_dropped(self, count: int) -> None:
        """Counts requests that the native core chose for the log and dropped."""
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

    def _subject(self, spec: SignatureSpec, version: int) -> tuple[Subject, Callable[[], bytes]]:
        subject = Subject(self._model, version, spec.name)
        at_s = int(self._now())
        return subject, partial(self._metadata, subject, at_s)

    def _metadata(self, subject: Subject, at_s: int) -> bytes:
        return encode_metadata(subject, sampling_rate=self.draw.rate, tags=self._tags, timestamp_s=at_s)

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


def _size(array: Array) -> int:
    # An array of strings only holds addresses, so its nbytes is not its size: the strings' lengths are added up.
    return array.nbytes if array.dtype != object else sum(map(len, array.ravel().tolist()))
