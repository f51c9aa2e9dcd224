"""Runs blocking work of the event loop in daemon threads, for which no end of the process waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """Calls `work` in a new thread and returns its result.

    asyncio.to_thread would wait for a free thread of the event loop's pool, all of which may wait for a disk.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name=name, daemon=True).start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]


class UnjoinedThreads(ThreadPoolExecutor):
    """A pool of threads for asyncio.to_thread, whose shutdown does not wait for running work."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Starts no more work; never waits, because the work may wait for a disk that never answers."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
