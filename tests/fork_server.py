"""Starts programs in processes that are forked from one which has imported their modules, so that each starts at once.

A forked process runs a module as `python -m` does, in its own environment, and ends as any other interpreter. Run as a
program, with a socket's descriptor and the names of modules to import first, this module is the process that forks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
# Longest request in bytes: a command line and an environment.
_MAX_BYTES = 200_000


class ForkedProcess:
    """A process that a ForkServer started; `returncode` is None until wait() or poll() has seen its end."""

    def __init__(self, server: ForkServer, pid: int, output: int) -> None:
        self._server, self.pid, self._output = server, pid, output
        self._ends = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self, timeout_s: float = 0) -> int | None:
        """Waits at most so long for the end of the process; returns its exit status, or None if it still runs."""
        if self.returncode is None and select.select([self._ends], [], [], timeout_s)[0]:
            self.returncode = self._server.ask({"reap": self.pid})
            os.close(self._ends)
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        """Waits for the end of the process; returns its exit status."""
        if (status := self.poll(timeout_s)) is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s")
        return status

    def end(self, timeout_s: float) -> tuple[int, str]:
        """Waits for the end of the process; returns its exit status and all that it wrote."""
        status = self.wait(timeout_s)
        return status, os.pread(self._output, os.fstat(self._output).st_size, 0).decode()

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process at once."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks others on request."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests, self._lock = requests, threading.Lock()
        self.started: list[ForkedProcess] = []

    def ask(self, request: Mapping[str, Any], *descriptors: int) -> int:
        """Sends one request to the process that forks, and returns its answer."""
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
            answer = self._requests.recv(_MAX_BYTES)
        assert answer, "the process that forks has ended"
        return int(answer)

    def start(
        self, module: str, *arguments: object, environment: Mapping[str, str], output: int | None = None
    ) -> ForkedProcess:
        """Starts `python -m module arguments`, which writes to the descriptor `output`, or into memory for end()."""
        output = os.memfd_create("output") if output is None else output
        request = {"module": module, "arguments": [*map(str, arguments)], "environment": dict(environment)}
        self.started.append(ForkedProcess(self, self.ask(request, output), output))
        return self.started[-1]


@contextmanager
def fork_server(
    modules: Sequence[str], hash_seed: int, *, folder: Path = ROOT, path: Sequence[Path] = (ROOT,)
) -> Iterator[ForkServer]:
    """Runs a ForkServer whose processes have imported some modules; kills those that still run at the end.

    Args:
      hash_seed: the seed of the hashes of strings in these processes, and so of the order of sets.
      folder, path: the folder in which the processes run, and where they find modules.
    """
    # One thread in numpy: a fork takes no other thread along.
    given = {"PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": 1, "PYTHONPATH": os.pathsep.join(map(str, path))}
    environment = os.environ | {name: str(value) for name, value in given.items()}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = theirs.fileno()
    command = [sys.executable, "-m", "tests.fork_server", str(number), *modules]
    with subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, pass_fds=[number]), ours:
        theirs.close()
        server = ForkServer(ours)
        try:
            yield server
        finally:
            for started in server.started:
                started.kill()


def _fork_on_request(requests: socket.socket) -> tuple[dict[str, Any], int] | None:
    # Returns a request and the descriptor of its output in the process that was forked for it; returns None at the end.
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_BYTES, 1)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        elif not (answer := os.fork()):
            requests.close()
            return request, descriptors[0]
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(answer).encode())


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    # A forked process would copy each object that a garbage collection visits.
    gc.freeze()
    found = _fork_on_request(requests)
    if found is None:
        return
    request, output = found
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    # Each process draws its own random numbers, as if it had imported numpy itself.
    np.random.seed()
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
