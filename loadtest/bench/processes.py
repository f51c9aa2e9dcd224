"""Starts server processes bound to processor cores, and reads their processor time and memory (Linux)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.live_server import ROOT, Held, LiveServer, held_by

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Binds this thread, and the processes that the `with` block starts, to some processor cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Service:
    """A process of the service that is bound to processor cores. root: the folder whose `service` is run."""

    def __init__(self, cores: frozenset[int], flags: Sequence[str], root: Path = ROOT) -> None:
        with bound_to(cores):
            self._server = LiveServer("--file_system_poll_wait_seconds=0", *flags, root=root)

    def wait(self) -> None:
        """Waits until the service answers; raises RuntimeError if it ends, or does not answer in time."""
        self._server.ready()

    def port(self, *, is_grpc: bool) -> int:
        """Returns the server's port for gRPC or for HTTP."""
        return int((self._server.grpc if is_grpc else self._server.http).rsplit(":", 1)[1])

    @property
    def pid(self) -> int:
        """The process id of the main process of the service."""
        return self._server.pid

    def stop(self) -> None:
        """Stops the service and waits until its process has ended."""
        self._server.__exit__(None, None, None)


class Baseline:
    """Process of a baseline server (loadtest.bench.baselines), bound to processor cores; it sends constant answers."""

    def __init__(self, cores: frozenset[int], module: str, arguments: Sequence[Any]) -> None:
        command = [sys.executable, "-m", f"loadtest.bench.baselines.{module}", *map(str, arguments)]
        with bound_to(cores):
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        self._port = 0

    def wait(self) -> None:
        """Waits until the baseline server has written its port; raises RuntimeError if the server ends before that."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError(f"{self.process.args} ended at its start")
        self._port = int(line)

    def port(self, *, is_grpc: bool) -> int:
        """Returns the server's port for gRPC or for HTTP."""
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the baseline server."""
        return self.process.pid

    def stop(self) -> None:
        """Stops the baseline server and waits until its process has ended."""
        self.process.kill()
        self.process.communicate()


def tree(pid: int) -> list[int]:
    """Returns the process ids of a process and of all its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # In /proc/PID/stat, the process name in parentheses may hold any characters; the fields after it are
                # the state, the parent, and others.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [pid]
    for process in found:
        found += parents.get(process, [])
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """Returns the processor time that processes have used so far, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def memory(pids: Sequence[int]) -> Held:
    """Returns the memory and the file descriptors that several processes hold together."""
    each = [held_by(pid) for pid in pids]
    return Held(sum(h.pss_mib for h in each), sum(h.private_mib for h in each), sum(h.descriptors for h in each))
