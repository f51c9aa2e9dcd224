"""Defines OneProcess: a training in one process, and the interface of trainings in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from model_export.estimator.run_config import RunConfig


class OneProcess:
    """An estimator's training in this process alone; the subclasses of `OneProcess` train in several processes.

    is_chief: whether this process writes checkpoints and summaries.
    parts: number of variables into which each table is split.
    shares_variables: whether several processes update the same variables.
    """

    is_chief = True
    parts = 1
    shares_variables = False

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def placing(self) -> AbstractContextManager[None]:
        """Returns a context manager; its `with` block must add the variables and operations of the training graph."""
        return nullcontext()

    def averaging(self) -> AbstractContextManager[None]:
        """Returns a context manager: optimizers that model_fn calls in its block apply the workers' mean gradients."""
        return nullcontext()

    def joined(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Returns the tables' gradients of all workers together; None, for a table without a gradient, stays None."""
        return gradients

    def session_arguments(self) -> dict[str, Any]:
        """Returns the arguments of MonitoredTrainingSession that depend on the training's processes."""
        return {"config": self._config.session_config}

    def hooks(self) -> list[Any]:
        return []

    def finish_steps(self) -> None:
        """Waits for the other processes, or tells them that the steps have ended; call it in the session, before the
        last checkpoint.
        """

    def finish(self) -> None:
        """Tells other processes of the training that this process has ended; call it after the last checkpoint."""
