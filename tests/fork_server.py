"""Starts programs in processes that are forked from one which has imported TensorFlow, so that each starts at once.

A forked process runs a module as `python -m` does, in its own environment, and ends as any other interpreter. Run as a
program, with the names of modules to import first, this module is the process that forks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


class ForkedProcess:
    """A process that a ForkServer started; `returncode` is None until wait() or poll() has seen its end."""

    def __init__(self, server: ForkServer, pid: int, output: Path) -> None:
        self._server, self.pid, self._output = server, pid, output
        self._ends = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self, timeout_s: float = 0) -> int | None:
        """Waits at most so long for the end of the process; returns its exit status, or None if it still runs."""
        if self.returncode is None and select.select([self._ends], [], [], timeout_s)[0]:
            self.returncode = self._server.ask({"reap": self.pid})
            os.close(self._ends)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self, timeout_s: float) -> tuple[int, str]:
        """Waits for the end of the process; returns its exit status and all that it wrote."""
        status = self.poll(timeout_s)
        if status is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s: {self._output.read_text()}")
        return status, self._output.read_text()


class ForkServer:
    """The process that forks others on request. Concurrency: one caller at a time."""

    def __init__(self, process: subprocess.Popen[str], outputs: Path) -> None:
        self._process, self._outputs = process, outputs
        self.started: list[ForkedProcess] = []

    def ask(self, request: Mapping[str, Any]) -> int:
        """Sends one request to the process that forks, and returns its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, module: str, *arguments: object, environment: Mapping[str, str]) -> ForkedProcess:
        """Starts `python -m module arguments`, with variables added to the environment."""
        output = self._outputs / f"output-{len(self.started)}"
        output.touch()
        request = {"module": module, "arguments": [*map(str, arguments)], "output": str(output)}
        self.started.append(ForkedProcess(self, self.ask({**request, "environment": dict(environment)}), output))
        return self.started[-1]


@contextmanager
def fork_server(outputs: Path, modules: Sequence[str], hash_seed: int) -> Iterator[ForkServer]:
    """Runs a ForkServer whose processes have imported some modules; their output is kept in files of a folder.

    Kills the processes that still run at the end.

    Args:
      hash_seed: the seed of the hashes of strings in these processes, and so of the order of sets.
    """
    outputs.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environment["PYTHONHASHSEED"] = str(hash_seed)
    command = [sys.executable, "-m", "tests.fork_server", *modules]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        server = ForkServer(process, outputs)
        try:
            yield server
        finally:
            for started in server.started:
                started.send_signal(signal.SIGKILL)


def _fork_on_request() -> dict[str, Any] | None:
    # Returns a request in the process that was forked for it; returns None at the end of the requests.
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        elif not (answer := os.fork()):
            return request
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    return None


def _main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # A forked process would copy each object that a garbage collection visits.
    gc.freeze()
    request = _fork_on_request()
    if request is None:
        return
    output, nothing = os.open(request["output"], os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
    os.environ.update(request["environment"])
    # Each process draws its own random numbers, as if it had imported numpy itself.
    np.random.seed()
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
