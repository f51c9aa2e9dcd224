"""Handles what the system gives the process: signals, threads for blocking work, limits of descriptors and memory.

By default, glibc gets the memory of an answer of 2.6 MB from the kernel and returns it each time, and the kernel clears
640 pages for it: half of the processor time of such a request (docs/performance.md).

Source: mallopt(3) and the constants of glibc's malloc.h; malloc's DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from service.configuration.control_groups import memory_limit_bytes, private_bytes, swap_bytes
from service.configuration.settings import StartError
from service.versions.threads import Workers

# Number of file descriptors that are kept free of connections, for model files, listeners, logs and TensorFlow; at most
# three quarters of all. A server of a small model has some 40 open.
_SPARE = 128


# Number of file descriptors with which the server starts and answers. With fewer, gRPC ends the process.
_LEAST_FILES = 64


def raise_descriptor_limit() -> int:
    """Raises StartError if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _LEAST_FILES:
        raise StartError(f"the limit on open files is {hard} (ulimit -n): the server needs at least {_LEAST_FILES}")
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_connections(configured: int) -> int:
    """Returns a port's limit on connections: `configured`, at most the free file descriptors; for 0, half of these."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(soft - min(_SPARE, soft * 3 // 4) - max_admin_connections(), 2)
    return min(configured or possible // 2, possible)


# Number of threads that the server starts before it answers its first request, beside two for each thread of
# connections, and beside those of gRPC, which has one for each processor, at least two and at most 16.
_OWN_THREADS = 28
_LEAST_OF_GRPC, _MOST_OF_GRPC = 2, 16


def check_threads(num_threads: int) -> None:
    """Raises StartError if the system does not start the threads of a server with the native core.

    Else gRPC, or the core's runtime, would end the process or wait for ever when they get no thread.
    """
    # The native core is imported here and not at the top, because the reference server has none.
    from service import _native

    of_grpc = min(max(os.cpu_count() or 1, _LEAST_OF_GRPC), _MOST_OF_GRPC)
    try:
        _native.check_threads(_OWN_THREADS + 2 * num_threads + of_grpc)
    except OSError as error:
        raise StartError(str(error)) from error


# Most open connections of the admin port, of which each client address gets its share; at most one for each
# _FILES_PER_ADMIN descriptors, which the other ports leave to it.
MAX_ADMIN_CONNECTIONS, _FILES_PER_ADMIN = 100, 16


def max_admin_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MAX_ADMIN_CONNECTIONS, max(soft // _FILES_PER_ADMIN, 2))


# What the process may map in any case, so that small requests for memory do not fail.
_SPARE_BYTES = 64 << 20
# Number of looks after which memory that is not touched yet counts as memory that stays so, such as a thread's stack.
_LOOKS = 60


class MemoryBound:
    """Keeps the process from taking more memory than the machine, or its control group, has.

    Without it, the kernel gives out address space for a tensor of any size, and ends the process while TensorFlow fills
    it. With it, TensorFlow gets none, and the request an error. Concurrency: one caller at a time.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._given, self._hard = resource.getrlimit(resource.RLIMIT_DATA)
        self._untouched: deque[int] = deque(maxlen=_LOOKS)

    def look(self) -> None:
        """Sets the limit anew, about once a second: it depends on what is mapped and was not touched yet."""
        bound = self.bound_bytes()
        if bound is not None:
            soft = bound if self._given == resource.RLIM_INFINITY else min(bound, self._given)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, self._hard))

    def bound_bytes(self) -> int | None:
        """Returns how much private memory the process may map in the next second; None if the kernel does not tell."""
        limit, private = memory_limit_bytes(self._root), private_bytes(self._root)
        if limit is None or private is None:
            return None
        mapped, held = private
        # A large tensor counts as untouched while it is being filled, so the least of the last minute is taken.
        self._untouched.append(mapped - held)
        return max(limit + swap_bytes(self._root) + min(self._untouched), mapped + _SPARE_BYTES)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Freed memory that malloc keeps for the next answers, in each arena.
_KEPT_BYTES = 64 << 20
_LARGEST_MMAP_THRESHOLD = 32 << 20
# Number of malloc's arenas, each of which keeps freed memory. Two are enough, because the interpreter's lock lets one
# thread run at a time.
_ARENAS = 2


def keep_freed_memory() -> bool:
    """Lets malloc keep freed memory, and not return it to the system. Call before threads start.

    Returns:
      Whether malloc keeps the memory; False with another C library than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {
        _TRIM_THRESHOLD: _KEPT_BYTES,
        _MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD,
        _ARENA_MAX: _ARENAS,
    }
    return all([mallopt(name, value) == 1 for name, value in settings.items()])


# Minimum number of connections that must have closed before malloc's freed memory is returned to the system. Each can
# have left some 80 KB.
_CLOSED = 100
# Freed memory is also returned once requests and answers have held this many bytes, and then, for _CALM_LOOKS looks in
# a row, at most one _CALM_PART of what they held before the busiest look.
_HELD_BYTES = 64 << 20
_CALM_LOOKS, _CALM_PART = 5, 10


class FreedMemory:
    """Returns malloc's freed memory to the system once, after a load has fallen to a small part of what it was.

    The memory that malloc keeps is for the next requests and answers of the same size; after a flood, there are none. A
    load has fallen if at least half of the connections, and at least 100, have closed, or if requests and answers hold
    far fewer bytes than before. A steady load never falls, however small or large it is.

    Does nothing with another C library than glibc. Concurrency: one caller at a time.
    """

    def __init__(self) -> None:
        self._most_connections = 0
        self._held_total = self._held = self._busiest = self._calm = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def look(self, connections: int, held_total: int) -> None:
        """Looks at the load, about once a second; returns freed memory if the load has fallen since that was last done.

        Args:
          connections: number of open connections.
          held_total: number of bytes that requests and answers have held since the server's start.
        """
        step, self._held_total = held_total - self._held_total, held_total
        self._held += step
        self._busiest = max(self._busiest, step)
        self._calm = self._calm + 1 if step * _CALM_PART <= self._busiest else 0
        self._most_connections = max(self._most_connections, connections)
        have_closed = self._most_connections - connections >= max(_CLOSED, connections)
        is_calm = self._held >= _HELD_BYTES and self._calm >= _CALM_LOOKS
        if self._trim is not None and (have_closed or is_calm):
            self._most_connections = connections
            self._held = self._calm = 0
            self._busiest = step
            # Errors and their tracebacks refer to each other, and may hold the last parsed documents.
            gc.collect()
            self._trim(0)


T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """Calls `work` in a new thread and returns its result.

    asyncio.to_thread would wait for a free thread of the event loop's pool, all of which may wait for a disk.
    """
    done: Future[T] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        # The system starts no further thread.
        asyncio.get_running_loop().run_in_executor(None, run)
    return await asyncio.wrap_future(done)


class UnjoinedThreads(Workers):
    """A pool of threads for asyncio.to_thread, whose shutdown does not wait for running work."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


logger = logging.getLogger(__name__)

# Longest wait, in seconds, for each kind of file that the server writes at its end.
_WRITE_S = 5.0


def handle_signals(
    stop: asyncio.Event, *, force: Callable[[], None], on_hangup: Callable[[], None], end_s: float
) -> None:
    """Makes SIGTERM and SIGINT set `stop`, and end the process after end_s seconds, whatever it waits for then.

    The thread that ends the process starts now: the system may start none when the signal comes.

    Concurrency: event loop only.

    Args:
      force: called at a second signal, and must not block.
      on_hangup: called in a thread at each SIGHUP.
    """
    is_ending = threading.Event()
    threading.Thread(target=_end_after, args=(is_ending, end_s), name="end-in-time", daemon=True).start()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stop.is_set():
            logger.warning("second signal: not waiting for requests in flight", extra={"signal": name})
            force()
            return
        logger.info("draining", extra={"signal": name})
        is_ending.set()
        stop.set()

    def hang_up() -> None:
        logger.info("SIGHUP: the list of models is read again")
        loop.run_in_executor(None, on_hangup)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up)


async def wait_unless(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _end_after(is_ending: threading.Event, seconds: float) -> None:
    is_ending.wait()
    time.sleep(seconds)
    logger.error("the shutdown takes too long: the process ends without it", extra={"seconds": seconds})
    logging.shutdown()
    os._exit(0)


async def write_last(work: Mapping[str, Callable[[], object]]) -> None:
    """Calls functions that write files at the server's end, one after the other, and waits for each a few seconds."""
    for name, write in work.items():
        try:
            await asyncio.wait_for(in_own_thread(write, name), _WRITE_S)
        except TimeoutError:
            logger.warning("not waiting for a disk", extra={"written": name, "seconds": _WRITE_S})
