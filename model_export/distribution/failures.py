"""Turns TensorFlow's errors about lost processes into a message that says what to start again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from model_export.distribution.cluster import ClusterTask
from model_export.errors import ExportError
from model_export.tensorflow_setup import tf

_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
# Collective operations report a lost process as InternalError, with one of these words in the message.
_WORDS = ("peer", "connection", "collective", "task", "socket", "recvtensor")


@contextmanager
def named_failures(task: ClusterTask) -> Iterator[None]:
    """Raises ExportError for TensorFlow's error if another process of the cluster is lost, or this one's port is in
    use.
    """
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error.message)
        if "Could not start gRPC server" in text:
            address = task.cluster[task.kind][task.index]
            raise ExportError(
                f"{task.kind} {task.index} can not listen on port {address.rpartition(':')[2]} of its address "
                f"{address} in TF_CONFIG: another process uses it"
            ) from error
        is_own = isinstance(error, tf.errors.InvalidArgumentError)
        if is_own or not isinstance(error, _LOST) and not any(word in text.lower() for word in _WORDS):
            raise
        lines = [line.strip() for line in text.splitlines() if any(word in line.lower() for word in _WORDS)]
        raise ExportError(
            f"{task.kind} {task.index} lost another process of the cluster ({(lines or [type(error).__name__])[0]}); "
            "start every process that has ended again with the same command: the training resumes from its newest "
            "checkpoint"
        ) from error
