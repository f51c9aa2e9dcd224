"""The threads of the soak test: clients with a schedule, a watch of health, and version swaps, upserts and attacks."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.attacks.cases import CASES
from loadtest.attacks.measuring import attacking
from loadtest.attacks.targets import HOST, targets_of
from loadtest.bench.workloads import MODEL, WORKLOADS, Data
from loadtest.live_server import LiveServer, exchange
from loadtest.soak.calls import SMALL_LOOKUP, Calls
from loadtest.soak.report import Tally
from loadtest.steady_load import SteadyLoad

THREADS = 8
# Seconds after which half of the sending threads replace their gRPC channels by new ones.
_CHANNEL_S = 5.0
_MAX_LOAD_S = 60.0


# Type of a function that disturbs the server until the event is set; it runs in a thread of its own.
Trouble = Callable[[threading.Event], None]


@contextmanager
def running(
    calls: Calls, tally: Tally, models: Path, *, rate: float, swap_s: float, troubles: Sequence[Trouble] = ()
) -> Iterator[None]:
    """Sends requests from several threads, watches health and swaps versions until the `with` block ends.

    Args:
      models: the served model folder, which holds version 1.
      rate: requests per second of all threads together.
      swap_s: seconds from one new version to the next.
      troubles: further functions that run in threads meanwhile.
    """
    stop, begin_s = threading.Event(), time.monotonic() + 0.1
    with calls.channel() as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=MODEL))
        work = [partial(_client, calls, tally, stop, number=n, rate=rate, at_s=begin_s) for n in range(THREADS)]
        work += [partial(_swap, calls, tally, stop, models, swap_s), partial(_watch, watch, tally, stop)]
        work += [partial(_troubled, trouble, tally, stop) for trouble in troubles]
        with SteadyLoad(*work):
            try:
                yield
            finally:
                stop.set()
                watch.cancel()


def _client(calls: Calls, tally: Tally, stop: threading.Event, *, number: int, rate: float, at_s: float) -> None:
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


def _troubled(trouble: Trouble, tally: Tally, stop: threading.Event) -> None:
    try:
        trouble(stop)
    except Exception as error:
        # Without this, a thread that ended would look like a run without trouble.
        tally.failed("trouble", _words(error))
        raise


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


# The table that upserts change and floods read, and its feature.
_TABLE = _FEATURE = "user"
_FLOOD_S = 3.0
# A flood that runs this many seconds longer than planned is killed, and counts as a failure.
_OVERTIME_S = 60.0
_FLOOD = "flood"


def flood(server: LiveServer, tally: Tally, stop: threading.Event, *, interval_s: float) -> None:
    """Runs the attacks of `loadtest.attacks` in turn, 3 s each, until `stop` is set.

    Args:
      interval_s: seconds from the end of an attack to the start of the next.
    """
    targets = targets_of(HOST, server.ports["grpc_port"], server.ports["http_port"], MODEL, _FEATURE, ())
    rounds = itertools.cycle([(name, target) for name in CASES for target in targets if CASES[name].fits(target)])
    while not stop.wait(interval_s):
        name, target = next(rounds)
        seconds = max(_FLOOD_S, CASES[name].least_s)
        process, ours = attacking(target, name, seconds)
        try:
            ours.recv()
            is_over = ours.poll(seconds + _OVERTIME_S)
            why = "" if is_over and ours.recv() else f"{name} did not end"
        except EOFError:
            why = f"{name}: the attacker's process ended with an error"
        finally:
            process.kill()
            process.join()
            ours.close()
        if why:
            tally.failed(_FLOOD, why)
        else:
            tally.done(_FLOOD, name, None, 0)


_PATIENCE_S = 30.0
# Number of consecutive answers, each over a new connection, that must show an upserted row before the row counts as
# seen.
_LOOKS = 4
_UPSERT = "upsert"


def free_row(data: Data) -> int:
    """Returns a row of the table that no other request of the soak test reads."""
    used = {int(i) for name in WORKLOADS for inputs in data.requests(name) for i in inputs.get(_FEATURE, [])}
    return next(row for row in range(data.sizes.tables[_TABLE][0]) if row not in used)


def upsert(server: LiveServer, data: Data, tally: Tally, stop: threading.Event, *, interval_s: float) -> None:
    """Changes one row every interval_s seconds, until `stop` is set."""
    row, dim = free_row(data), data.sizes.tables[_TABLE][1]
    number = 0
    while not stop.wait(interval_s):
        number += 1
        wanted = np.full(dim, number, np.float32).tolist()
        try:
            _post(server.admin, f"/v1/models/{MODEL}/tables/{_TABLE}:upsert", {"ids": [row], "rows": [wanted]})
            outcome = _seen(server.http, row, wanted, stop)
        except Exception as error:
            tally.failed(_UPSERT, f"{type(error).__name__} {error}")
            continue
        if outcome:
            tally.done(_UPSERT, outcome, None, 0)
        elif not stop.is_set():
            tally.failed(_UPSERT, f"not seen after {_PATIENCE_S:.0f} s")


def _seen(address: str, row: int, wanted: list[float], stop: threading.Event) -> str:
    """Reads the row until it has the written value; returns the outcome in words, "" if it never comes in time."""
    end_s = time.monotonic() + _PATIENCE_S
    in_a_row = 0
    versions = _versions(address)
    while not stop.is_set() and time.monotonic() < end_s:
        answer = _post(address, f"/v1/models/{MODEL}/tables/{_TABLE}:rows", {"ids": [row]})
        in_a_row = in_a_row + 1 if answer["rows"][0] == wanted else 0
        if in_a_row == _LOOKS:
            return "seen"
        if not in_a_row:
            if _versions(address) != versions:
                # The new version was copied from files that lack the upsert, so it does not have the changed row.
                return "overtaken by a version"
            time.sleep(0.05)
    return ""


def _versions(address: str) -> set[str]:
    statuses = json.loads(exchange(address, f"/v1/models/{MODEL}")[1])["model_version_status"]
    return {status["version"] for status in statuses if status["state"] == "AVAILABLE"}


def _post(address: str, path: str, document: dict[str, Any]) -> Any:
    status, body = exchange(address, path, json.dumps(document).encode())
    if status != 200:
        raise ValueError(f"HTTP {status}: {body[:200]!r}")
    return json.loads(body)
