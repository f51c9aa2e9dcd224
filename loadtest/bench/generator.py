"""Sends a benchmark's load with h2load, and measures answers per second, latencies and the server's processor time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.wire import framed

_COUNTS = re.compile(r"requests: .* (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_DATA = re.compile(r"\((\d+)\) data")
# One h2load sends one body; so many run at once, for as many different requests.
_MOST_AT_ONCE = 4
# Seconds between the end of the measurement and the end of the load, so that all connections are busy throughout.
_AFTER_S = 0.1
_PATIENCE_S = 60.0
_MOST_ROUNDS = 7


class LoadError(Exception):
    """Raised if an answer is no success or has another size than the first one, or if h2load is not installed."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The requests of a load.

    bodies: the different requests; for gRPC, messages without the prefix of their length.
    expected: for each body, the number of bytes of the right answer.
    headers: for each body, the header fields in addition to those that the protocol requires.
    """

    is_grpc: bool
    path: str
    bodies: Sequence[bytes]
    expected: Sequence[int]
    headers: Sequence[Sequence[tuple[str, str]]]
    is_gzipped: bool = False
    is_tls: bool = False


@dataclass(frozen=True, slots=True)
class Shot:
    """The figures of one measured round. busy: share of a core that h2load used; 1 means it was the limit."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    server_cpu_us: float
    busy: float


def drive(
    ask: Ask,
    port: int,
    *,
    connections: int = 32,
    seconds: float,
    warm_s: float,
    server_cpu_s: Callable[[], float],
) -> Shot:
    """Measures one round of a load; raises LoadError if an answer is an error or has a wrong size.

    Repeats the round with twice the seconds if no answer came, as in a short round on a busy machine.
    """
    at_once = min(_MOST_AT_ONCE, len(ask.bodies), connections)
    shares = [connections // at_once + (i < connections % at_once) for i in range(at_once)]
    for _ in range(_MOST_ROUNDS):
        before_s = _children_s()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            running = [_start(ask, i, port, folder, share, warm_s + seconds) for i, share in enumerate(shares)]
            try:
                time.sleep(warm_s)
                used_s, started_s = server_cpu_s(), time.time()
                time.sleep(seconds)
                used_s, ended_s = server_cpu_s() - used_s, time.time()
                told = [process.communicate(timeout=_PATIENCE_S)[0] for process in running]
            finally:
                for process in running:
                    process.kill()
                    process.communicate()
            busy = (_children_s() - before_s) / (warm_s + seconds + _AFTER_S)
            for i, text in enumerate(told):
                _check(ask, i, text, shares[i])
            answers = _answers("".join((folder / f"log{i}").read_text() for i in range(at_once)))
        ends_s, lasted_us = answers.T
        measured = lasted_us[(ends_s >= started_s) & (ends_s < ended_s)]
        if done := len(measured):
            p50, p99 = np.quantile(measured, [0.5, 0.99]) / 1e3
            return Shot(done / (ended_s - started_s), float(p50), float(p99), done, used_s / done * 1e6, busy)
        seconds *= 2
    raise LoadError(f"{ask.path}: no answer in {seconds / 2:g} s")


def _start(ask: Ask, number: int, port: int, folder: Path, connections: int, seconds: float) -> subprocess.Popen[str]:
    program = shutil.which("h2load")
    if program is None:
        raise LoadError("h2load is not installed; on Debian and Ubuntu: apt install nghttp2-client")
    body = ask.bodies[number]
    file = folder / f"body{number}"
    file.write_bytes(framed(body, flag=int(ask.is_gzipped)) if ask.is_grpc else body)
    scheme = "https" if ask.is_tls else "http"
    headers = {"content-type": "application/grpc", "te": "trailers"} if ask.is_grpc else {}
    fields = [f"--header={name}: {value}" for name, value in (headers | dict(ask.headers[number])).items()]
    command = [program, "-m1" if ask.is_grpc else "--h1", f"-c{connections}", f"--data={file}", *fields]
    command += [f"--duration={round((seconds + _AFTER_S) * 1000)}ms", f"--log-file={folder / f'log{number}'}"]
    command.append(f"{scheme}://127.0.0.1:{port}{ask.path}")
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _check(ask: Ask, number: int, told: str, most_unfinished: int) -> None:
    counts, data = _COUNTS.search(told), _DATA.search(told)
    if counts is None or data is None:
        raise LoadError(f"{ask.path}: h2load failed: {told[-500:]}")
    done, succeeded, *others = map(int, counts.groups())
    size = ask.expected[number] + (5 if ask.is_grpc else 0)
    # h2load counts the bytes of all answers together. At the end it drops the answers that are under way, whose bytes
    # it has counted.
    if succeeded != done or any(others) or not done * size <= int(data[1]) <= (done + most_unfinished) * size:
        raise LoadError(
            f"{ask.path}: {done - succeeded + sum(others)} of {done} answers are errors, and all have {data[1]} bytes "
            f"in place of {done} times {size}"
        )


def _answers(log: str) -> np.ndarray[Any, Any]:
    """Returns [N, 2] float64: when each answer ended (seconds, the system's clock), and how long it took (us)."""
    # Each line has the start of a request, the HTTP status, and the duration.
    began_us, _, lasted_us = np.array(log.split(), np.float64).reshape(-1, 3).T
    return np.stack([(began_us + lasted_us) / 1e6, lasted_us], axis=1)


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system
