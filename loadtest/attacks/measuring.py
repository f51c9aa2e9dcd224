"""Runs one attack beside a well-behaved client of the port (the victim), and samples the memory of the server."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from loadtest.attacks import frames
from loadtest.attacks.attacker import Outcome, run
from loadtest.attacks.cases import CASES
from loadtest.attacks.targets import Target

PAUSE_S = 0.002
# Timeout of one request of the victim; a longer wait counts as a fault.
PATIENCE_S = 20.0
_WINDOW = 1 << 30
_START_S = 60.0
# The victim opens a new connection after a longer silence, as any client does before the server's keep-alive timeout:
# a busy machine may suspend the victim for that long.
_SILENT_S = 0.1


@dataclass(frozen=True, slots=True)
class Waits:
    """The response times of the victim's requests in milliseconds, and the faults."""

    count: int
    median: float
    p99: float
    longest: float
    faults: tuple[str, ...]

    @classmethod
    def of(cls, seconds: Sequence[float], faults: Sequence[str]) -> Waits:
        """Computes median, p99 and longest time from the response times of single requests."""
        ordered = sorted(seconds) or [float("nan")]
        at = [1e3 * ordered[int((len(ordered) - 1) * part)] for part in (0.5, 0.99, 1.0)]
        return cls(len(seconds), at[0], at[1], at[2], tuple(faults))

    def __str__(self) -> str:
        return f"{self.median:.1f} / {self.p99:.1f} / {self.longest:.1f}" + (" !" if self.faults else "")


class Victim:
    """Client in a separate process, which the attacker's work does not slow. Close it at the end.

    It rests after its first answer; waits() makes it send requests until rest().
    """

    def __init__(self, target: Target) -> None:
        self._process, self._ours = _forked(_be_victim, target)
        assert self._ours.poll(_START_S), "the victim does not start"
        problem = self._ours.recv()
        if problem:
            raise RuntimeError(f"{target.name} does not answer: {problem}")

    def waits(self) -> Waits:
        """Returns the victim's response times since the previous call, including that of the request in flight now."""
        self._ours.send("go on")
        assert self._ours.poll(2 * PATIENCE_S), "the victim does not answer"
        seconds, faults = self._ours.recv()
        return Waits.of(seconds, faults)

    def rest(self) -> None:
        """Stops the victim's requests until the next call of waits(), so that it uses no processor time meanwhile."""
        self._ours.send("rest")

    def close(self) -> None:
        """Ends the victim's process; kills the process if it has not ended after 5 s."""
        self._ours.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Client:
    """A client that sends requests on one connection, and opens a new connection after a fault."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sock: socket.socket | None = None
        self._stream = 1
        self._answered_s = 0.0
        self.expected: bytes | None = None

    def ask(self) -> str:
        """Sends one request; returns a text about the fault, or "" if there was none."""
        if time.monotonic() - self._answered_s > _SILENT_S:
            self._close()
        try:
            sock = self._sock or self._open()
            got = self._http2(sock) if self._target.wire == "http2" else self._http1(sock)
        except (OSError, http.client.HTTPException) as error:
            self._close()
            return f"{type(error).__name__}: {error}"
        self._answered_s = time.monotonic()
        if self.expected is None:
            self.expected = got
        return "" if got and got == self.expected else f"another answer: {got[:80]!r}"

    def _open(self) -> socket.socket:
        self._sock = self._target.connect()
        self._sock.settimeout(PATIENCE_S)
        if self._target.wire == "http2":
            self._stream = 1
            self._received = frames.Received()
            self._sock.sendall(frames.PREFACE + frames.settings() + frames.window_update(0, _WINDOW))
        return self._sock

    def _close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _http2(self, sock: socket.socket) -> bytes:
        seen, stream = self._received, self._stream
        self._stream += 2
        seen.watched, seen.is_ended, seen.data = stream, False, bytearray()
        acks = seen.frames[frames.SETTINGS]
        sock.sendall(self._target.request(stream))
        while not seen.is_ended:
            data = sock.recv(1 << 16)
            if not data or seen.goaway:
                raise ConnectionError(f"closed {seen.goaway}")
            seen.feed(data)
        if seen.frames[frames.SETTINGS] > acks == 0:
            sock.sendall(frames.frame(frames.SETTINGS, frames.ACK, 0))
        return bytes(seen.data)

    def _http1(self, sock: socket.socket) -> bytes:
        target = self._target
        sock.sendall(target.whole() if target.body else target.get(target.path))
        response = http.client.HTTPResponse(sock)
        response.begin()
        body = response.read()
        if response.status != 200:
            raise ConnectionError(f"HTTP {response.status}")
        if response.will_close:
            self._close()
        return body


def _be_victim(target: Target, pipe: Connection) -> None:
    client = _Client(target)
    pipe.send(client.ask())
    seconds: list[float] = []
    faults: list[str] = []
    is_resting = True
    try:
        while True:
            if is_resting or pipe.poll(PAUSE_S):
                is_resting = pipe.recv() == "rest"
                if is_resting:
                    continue
                pipe.send((seconds, faults))
                seconds, faults = [], []
            started_s = time.perf_counter()
            fault = client.ask()
            seconds.append(time.perf_counter() - started_s)
            if fault:
                faults.append(fault)
    except (EOFError, OSError):
        return


_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK_S = 0.02
# Seconds in which the server must free memory after an attack, on a machine that is busy with other work too.
_BACK_S = 60.0
# An attacker that runs this many seconds longer than planned is killed.
_OVERTIME_S = 30.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Growth of the server's resident memory, in MiB, from before the attack; None if no process was watched.

    most: during the attack. left: at the end.
    """

    most: float | None
    left: float | None

    def __str__(self) -> str:
        return "-" if self.most is None else f"{self.most:+.0f} / {self.left:+.0f}"


@dataclass(frozen=True, slots=True)
class Result:
    """The victim's response times, the server's memory and the attack's outcome, for one attack on one server."""

    quiet: Waits
    during: Waits
    memory: Memory
    outcome: Outcome


def resident_mib(pids: Sequence[int]) -> float:
    """Returns the sum of the processes' resident memory in MiB."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * _PAGE / 2**20


class _Watcher:
    """Watcher of processes: a thread samples their resident memory, and keeps the maximum."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.before = self.most = resident_mib(pids)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self.most = max(self.most, resident_mib(self._pids))

    def end(self, allowed_mib: float) -> Memory:
        """Returns memory's highest and last growth; waits up to a minute until the last is at most `allowed_mib`."""
        self._is_over.set()
        self._thread.join()
        if not self._pids:
            return Memory(None, None)
        end_s = time.monotonic() + _BACK_S
        while (left := resident_mib(self._pids) - self.before) > allowed_mib and time.monotonic() < end_s:
            time.sleep(0.1)
        return Memory(self.most - self.before, left)


def measure(
    target: Target, name: str, *, victim: Victim, quiet_s: float, attack_s: float, allowed_mib: float
) -> Result:
    """Attacks a target for `attack_s` seconds, after `quiet_s` seconds without an attack.

    Args:
      allowed_mib: the server may keep this much memory and the case's cached_mib; until it frees the rest, the
        measurement waits.
    """
    victim.waits()
    time.sleep(quiet_s)
    quiet = victim.waits()
    watcher = _Watcher(target.pids)
    attack_s = max(attack_s, CASES[name].least_s)
    process, ours = attacking(target, name, attack_s)
    try:
        ours.recv()
        victim.waits()
        outcome = ours.recv() if ours.poll(attack_s + _OVERTIME_S) else Outcome("did not end", False, 0)
        during = victim.waits()
    except EOFError:
        outcome, during = Outcome("the attacker failed", False, 0), victim.waits()
    finally:
        victim.rest()
        process.join(1)
        if process.is_alive():
            process.kill()
        ours.close()
    return Result(quiet, during, watcher.end(allowed_mib + CASES[name].cached_mib), outcome)


def attacking(target: Target, name: str, seconds: float) -> tuple[BaseProcess, Connection]:
    """Starts an attack; the connection gets "begun", and then the Outcome."""
    return _forked(_attack, target, name, seconds)


def _attack(target: Target, name: str, seconds: float, pipe: Connection) -> None:
    pipe.send("begun")
    pipe.send(run(target, CASES[name], seconds))


def _forked(function: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    """Runs a function in a process of its own, so that its loops do not hold this interpreter's lock.

    Returns the process and one end of a pipe; the function gets the other end as its last argument.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loadtest.attacks.cases"])
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours
