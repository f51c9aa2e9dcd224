"""Runs one attack beside a well-behaved client (the victim), and samples the memory of the attacked processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from loadtest.attacks.attacker import Outcome, run
from loadtest.attacks.cases import CASES
from loadtest.attacks.targets import Target
from loadtest.attacks.victim import Victim, Waits

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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loadtest.attacks.cases"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_attack, args=(target, name, attack_s, theirs), daemon=True)
    process.start()
    theirs.close()
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


def _attack(target: Target, name: str, seconds: float, pipe: Connection) -> None:
    pipe.send("begun")
    pipe.send(run(target, name, seconds))
