"""Compares the request rates of a cut signature and of its whole graph, in alternating turns of one process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

# One turn lasts about this long: many times the interpreter's switch interval of 5 ms.
_TURN_S = 0.06

Name = TypeVar("Name", bound=Hashable)
Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Rates:
    """Median request rates, in requests per second. cut: looked-up rows are fed to the rest of the graph.

    Whole: the whole graph runs.
    """

    cut: float
    whole: float

    @property
    def ratio(self) -> float:
        """The cut signature's rate over the whole graph's."""
        return self.cut / self.whole


def compare_runs(
    cut: Callable[[Request], object],
    whole: Callable[[Request], object],
    requests: Mapping[Name, Request],
    *,
    threads: int = 8,
    turns: int = 9,
) -> dict[Name, Rates]:
    """Measures both functions on each request, in turns: cut, whole, cut, whole.

    Args:
      cut, whole: functions that answer a request, either from bytes to bytes as a server does, or by a backend alone.
      requests: key of the caller's choice, such as the number of rows -> request.
      threads: number of concurrent callers. A server has several, and they wait for the interpreter's lock, which one
        caller does not: with 8 small tables, cut took one caller 0.6 of whole's time, and 8 callers more than whole.
      turns: number of turns of each function; a turn has as many runs as take about 60 ms.

    Raises:
      ServiceError: a request is refused.
    """
    found: dict[Name, Rates] = {}
    with ThreadPoolExecutor(threads, "comparison") as pool:
        for name, request in requests.items():
            callers = [_Callers(pool, threads, answer, request) for answer in (cut, whole)]
            rates = [[caller.rate() for caller in callers] for _ in range(turns)]
            found[name] = Rates(*(median(column) for column in zip(*rates, strict=True)))
    return found


class _Callers:
    # Concurrent callers of one function: each thread sends one request again and again.

    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, answer: Callable[[Request], object], request: Request
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._answer = partial(answer, request)
        # The first run fills caches that later runs use.
        self._seconds(1)
        self._runs = max(1, int(3 * _TURN_S / self._seconds(3)))

    def rate(self) -> float:
        """Runs one turn and returns its requests per second."""
        return self._threads * self._runs / self._seconds(self._runs)

    def _seconds(self, runs: int) -> float:
        started_s = perf_counter()
        for done in [self._pool.submit(self._run, runs) for _ in range(self._threads)]:
            done.result()
        return perf_counter() - started_s

    def _run(self, runs: int) -> None:
        for _ in range(runs):
            self._answer()
