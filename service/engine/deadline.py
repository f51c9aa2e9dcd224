"""The deadline of the request that the calling thread works on, for what waits for other machines."""

from __future__ import annotations

from contextvars import ContextVar

# On time.monotonic(); None where there is none.
DEADLINE_S: ContextVar[float | None] = ContextVar("deadline_s", default=None)
