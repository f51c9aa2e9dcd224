"""Holds the deadline of the current request in a context variable, for code that waits for other machines."""

from __future__ import annotations

from contextvars import ContextVar

# The current request's deadline on time.monotonic(); None if it has no deadline.
DEADLINE_S: ContextVar[float | None] = ContextVar("deadline_s", default=None)
