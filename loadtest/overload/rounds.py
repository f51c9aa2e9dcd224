"""Measures a server's capacity in a closed loop, and offers it loads below and above the capacity in open loops."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.overload.wires import Outcome, Wire, timed

# Largest number of requests in flight; with more, the load generator would be slower than the server.
_MAX_ON_THEIR_WAY = 5000


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one round, in which the generator offers the server one load (requests per second).

    factor: load as a multiple of the capacity; offered, goodput, refused: requests per second. goodput counts answers
        within the client's timeout.
    ok_ms, refused_ms: median and 99th percentile; nan if there were none.
    """

    factor: float
    offered: float
    goodput: float
    refused: float
    kinds: Counter[str]
    ok_ms: tuple[float, float]
    refused_ms: tuple[float, float]
    hints: int


async def capacity(wire: Wire, model: str, *, clients: int, seconds: float, timeout_s: float) -> float:
    """Returns right answers per second to N clients, each of which sends its next request after an outcome."""
    end_s = time.perf_counter() + seconds
    done = 0

    async def client() -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            outcome = await timed(wire, model, time.perf_counter(), timeout_s)
            done += outcome.kind == "ok"

    await asyncio.gather(*(client() for _ in range(clients)))
    return done / seconds


async def offer(
    wire: Wire, model: str, *, factor: float, per_s: float, seconds: float, timeout_s: float, seed: int
) -> Round:
    """Offers a load: sends requests at random times, without waiting for earlier answers; returns the results."""
    random_times = random.Random(seed)
    started_s = time.perf_counter()
    due_s = started_s
    asked: list[asyncio.Task[Outcome]] = []
    on_their_way = 0

    def ended(task: asyncio.Task[Outcome]) -> None:
        nonlocal on_their_way
        on_their_way -= 1

    while (due_s := due_s + random_times.expovariate(per_s)) < started_s + seconds:
        await asyncio.sleep(max(due_s - time.perf_counter(), 0))
        if on_their_way >= _MAX_ON_THEIR_WAY:
            raise RuntimeError("the generator can not keep up")
        on_their_way += 1
        asked.append(asyncio.create_task(timed(wire, model, due_s, timeout_s)))
        asked[-1].add_done_callback(ended)
    outcomes = await asyncio.gather(*asked)
    return _summary(factor, outcomes, seconds, timeout_s)


def _summary(factor: float, outcomes: Sequence[Outcome], seconds: float, timeout_s: float) -> Round:
    ok = sorted(one.seconds for one in outcomes if one.kind == "ok" and one.seconds <= timeout_s)
    refused = sorted(one.seconds for one in outcomes if one.kind == "refused")
    return Round(
        factor,
        len(outcomes) / seconds,
        len(ok) / seconds,
        len(refused) / seconds,
        Counter(one.kind for one in outcomes),
        _percentiles_ms(ok),
        _percentiles_ms(refused),
        sum(one.has_hint for one in outcomes),
    )


def _percentiles_ms(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    return values[len(values) // 2] * 1e3, values[min(round(len(values) * 0.99), len(values) - 1)] * 1e3
