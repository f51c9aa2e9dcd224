"""Threads that send requests until a `with` block ends, and the counts of their requests while a fault lasts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

_WHY_CHARACTERS = 160


class SteadyLoad:
    """Threads that call functions, which return once `is_over` is set: at the end of the `with` block.

    counting: a lock for what the threads count.
    """

    def __init__(self, *calls: Callable[[], None]) -> None:
        self.is_over = threading.Event()
        self.counting = threading.Lock()
        self._threads = [threading.Thread(target=call) for call in calls]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join()


@dataclass
class Counts:
    """Counts of the requests while one fault lasts.

    begin_s, last_failure_s: the start of the fault and the end of the last failed request, on time.monotonic(). why:
    error -> how often it occurred. versions: model versions that answered.
    """

    begin_s: float = field(default_factory=time.monotonic)
    failed: int = 0
    wrong: int = 0
    last_failure_s: float = 0.0
    why: Counter[str] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)

    def fail(self, error: str) -> None:
        """Counts a request that has failed now."""
        self.failed += 1
        self.last_failure_s = time.monotonic()
        self.why[error[:_WHY_CHARACTERS]] += 1

    @property
    def recovery_s(self) -> float:
        """Seconds from the start of the fault to the end of the last failed request; 0 if none failed."""
        return max(self.last_failure_s - self.begin_s, 0.0)
