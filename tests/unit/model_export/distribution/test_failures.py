"""TensorFlow's errors about lost processes become one message; its other errors stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

from model_export.distribution.cluster import ClusterTask
from model_export.errors import ExportError
from tests.unit.model_export.late import tf

pytestmark = pytest.mark.tf

TASK = ClusterTask({"worker": ("a:1", "b:2")}, "worker", 1)


def raised(error: Any) -> None:
    """Raises `error` inside named_failures() for the task of this file."""
    from model_export.distribution.failures import named_failures

    with named_failures(TASK):
        raise error


def test_a_lost_process_is_named_with_what_to_do() -> None:
    for error in (
        tf.errors.UnavailableError(None, None, "Graph execution error:\n\nrecvmsg:Connection reset by peer\n[[op]]"),
        tf.errors.InternalError(None, None, "Collective ops is aborted by: Connection reset by peer"),
    ):
        with pytest.raises(
            ExportError, match=r"worker 1 lost another process of the cluster \(.*reset by peer\); start"
        ):
            raised(error)
    with pytest.raises(ExportError, match="AbortedError"):
        raised(tf.errors.AbortedError(None, None, ""))


def test_a_port_in_use_is_named() -> None:
    with pytest.raises(ExportError, match="can not listen on port 2 of its address b:2"):
        raised(tf.errors.UnknownError(None, None, "Could not start gRPC server"))


def test_another_error_stays() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        raised(tf.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 5)"))
