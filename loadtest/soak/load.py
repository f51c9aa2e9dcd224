"""The clients of the soak test: threads that send requests by a schedule, that watch health, and that swap versions."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.bench.workloads import MODEL
from loadtest.soak.calls import SMALL_LOOKUP, Calls
from loadtest.soak.tally import Tally

THREADS = 8
# Seconds after which half of the sending threads replace their gRPC channels by new ones.
_CHANNEL_S = 5.0
_MAX_LOAD_S = 60.0


# Type of a function that disturbs the server until the event is set; it runs in a thread of its own.
Trouble = Callable[[threading.Event], None]


@contextmanager
def running(
    calls: Calls,
    tally: Tally,
    models: Path,
    *,
    rate: float,
    swap_s: float,
    troubles: Sequence[Trouble] = (),
) -> Iterator[None]:
    """Sends requests from several threads, watches health and swaps versions until the `with` block ends.

    Args:
      models: the served model folder, which holds version 1.
      rate: requests per second of all threads together.
      swap_s: seconds from one new version to the next.
      troubles: further functions that run in threads meanwhile.
    """
    stop = threading.Event()
    begin_s = time.monotonic() + 0.1
    clients = [
        threading.Thread(
            target=_client,
            args=(calls, tally, stop),
            kwargs={"number": n, "rate": rate, "at_s": begin_s},
        )
        for n in range(THREADS)
    ]
    swapper = threading.Thread(target=_swap, args=(calls, tally, stop, models, swap_s))
    others = [threading.Thread(target=trouble, args=(stop,)) for trouble in troubles]
    with calls.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=MODEL))
        watcher = threading.Thread(target=_watch, args=(watch, tally, stop))
        threads = [*clients, swapper, watcher, *others]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            watch.cancel()
            for thread in threads:
                thread.join()


def _client(
    calls: Calls,
    tally: Tally,
    stop: threading.Event,
    *,
    number: int,
    rate: float,
    at_s: float,
) -> None:
    kinds = list(calls.share)
    weights = [share for share, _ in calls.share.values()]
    period_s = THREADS / rate
    at_s += number / rate
    source = random.Random(number)
    channel, opened_s = calls.channel(), time.monotonic()
    while not stop.wait(max(0.0, at_s - time.monotonic())):
        (kind,) = source.choices(kinds, weights)
        start_s = time.monotonic()
        try:
            outcome = calls.share[kind][1](channel, source)
        except Exception as error:
            # Every exception counts as a failure: if it ended the thread, nobody would see that requests are missing.
            tally.failed(kind, _words(error))
        else:
            seconds = time.monotonic() - start_s
            tally.done(kind, outcome, seconds if kind == SMALL_LOOKUP else None, start_s - at_s)
        at_s += period_s
        if number % 2 and time.monotonic() - opened_s > _CHANNEL_S:
            channel.close()
            channel, opened_s = calls.channel(), time.monotonic()
    channel.close()


def _words(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name} {error.details()}"
    return f"{type(error).__name__} {error}"


def _watch(watch: Iterator[health_pb2.HealthCheckResponse], tally: Tally, stop: threading.Event) -> None:
    """Watches the server's health service; each status other than SERVING, and an early end, counts as a failure."""
    serving = health_pb2.HealthCheckResponse.SERVING
    try:
        for answer in watch:
            if answer.status == serving:
                tally.done("health watch", "SERVING", None, 0)
            else:
                tally.failed("health watch", health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
        why = "the server ended it"
    except grpc.RpcError as error:
        why = _words(error)
    if not stop.is_set():
        tally.failed("health watch", why)


def _swap(calls: Calls, tally: Tally, stop: threading.Event, models: Path, swap_s: float) -> None:
    """Publishes copies of the model as version 2, 3, ..., and removes the version before the previous one each time."""
    version = 1
    with calls.channel() as channel:
        while not stop.wait(swap_s):
            old, version = models / str(version), version + 1
            incoming = models.parent / f"incoming-{version}"
            shutil.copytree(old, incoming)
            os.rename(incoming, models / str(version))
            start_s = time.monotonic()
            while not stop.is_set():
                try:
                    if version in calls.available(channel):
                        shutil.rmtree(models / str(version - 2), ignore_errors=True)
                        tally.done("version swap", "OK", None, 0)
                        break
                except grpc.RpcError as error:
                    tally.failed("version swap", _words(error))
                    return
                if time.monotonic() - start_s > _MAX_LOAD_S:
                    tally.failed("version swap", f"version {version} is not AVAILABLE after {_MAX_LOAD_S:.0f} s")
                    return
                stop.wait(0.2)
