"""Measures, in alternating turns, how much processor time a cut signature and its whole graph take for a request.

Processor time, not elapsed time: what else the machine does then decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import process_time
from typing import TypeVar

# Seconds of processor time of one measurement of a function: many times 5 ms, after which Python's interpreter switches
# threads.
_TURN_S = 0.06

Name = TypeVar("Name", bound=Hashable)
Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Rates:
    """Median requests per second of processor time of both forms of a signature.

    cut: looked-up rows are fed to the rest of the graph. whole: TensorFlow runs the whole graph.
    """

    cut: float
    whole: float

    @property
    def ratio(self) -> float:
        """The whole graph's processor time for a request, divided by the cut signature's."""
        return self.cut / self.whole


def compare_runs(
    cut: Callable[[Request], object],
    whole: Callable[[Request], object],
    requests: Mapping[Name, Request],
    *,
    threads: int = 8,
    turns: int = 9,
) -> dict[Name, Rates]:
    """Measures how many requests cut() and whole() answer in a second of processor time, in alternating turns.

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
    # _Callers runs one function in several threads; each thread calls it with the same request again and again.

    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, answer: Callable[[Request], object], request: Request
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._answer = partial(answer, request)
        # The duration of the first of the measured runs is not used, because this run fills caches for later ones.
        self._seconds(1)
        self._runs = max(1, int(3 * _TURN_S / self._seconds(3)))

    def rate(self) -> float:
        """Runs the request again and again in each thread; returns requests per second of processor time."""
        return self._threads * self._runs / self._seconds(self._runs)

    def _seconds(self, runs: int) -> float:
        started_s = process_time()
        for done in [self._pool.submit(self._run, runs) for _ in range(self._threads)]:
            done.result()
        # A clock of processor time may tick in steps that a quick run does not fill.
        return max(process_time() - started_s, 1e-6)

    def _run(self, runs: int) -> None:
        for _ in range(runs):
            self._answer()
