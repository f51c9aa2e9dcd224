"""Measures the time from a server's start (exec) to its first answer, in processor time and in wall-clock time.

python -m loadtest.bench.first_answer --rounds 10 --body '{"features": {"user": [1]}}' --model_base_path=models/toy
python -m loadtest.bench.first_answer --verb predict --body '{"instances": [...]}' --model_base_path=models/movielens

Unknown flags are passed to the server, which is killed after its first answer.
"""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from loadtest.live_server import ROOT

_LOOK_AGAIN_S = 0.004
_PATIENCE_S = 120.0


class Start(NamedTuple):
    """Seconds from a server's exec to its first answer: processor time of all threads, and wall-clock time."""

    cpu_s: float
    wall_s: float


def first_answer(path: str, body: str, flags: Sequence[str]) -> Start:
    """Measures a server's start up to its first answer with status 200; raises RuntimeError if that takes too long."""
    http_port, grpc_port = _free_port(), _free_port()
    where = ["--host=127.0.0.1", f"--rest_api_port={http_port}", f"--port={grpc_port}", "--log_format=json"]
    started_s = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "service", *where, *flags],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    status: int | None = None
    try:
        while status != 200 and time.perf_counter() - started_s < _PATIENCE_S:
            status = _ask(http_port, path, body)
            if status != 200:
                time.sleep(_LOOK_AGAIN_S)
        wall_s = time.perf_counter() - started_s
    finally:
        server.kill()
        # os.wait4 is used instead of Popen.wait, because it returns the processor time of the process.
        _, _, used = os.wait4(server.pid, 0)
        server.returncode = 0
    if status != 200:
        raise RuntimeError(f"no answer within {_PATIENCE_S:.0f} s, at last {status}")
    return Start(used.ru_utime + used.ru_stime, wall_s)


def _ask(port: int, path: str, body: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        return connection.getresponse().status
    except OSError:
        # The connection failed, because the server does not listen yet.
        return None
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the server several times, and prints the medians of the times in one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--verb", default="lookup")
    parser.add_argument("--body", required=True)
    options, flags = parser.parse_known_args(arguments)
    path = f"/v1/models/default:{options.verb}"
    starts = [first_answer(path, options.body, flags) for _ in range(options.rounds)]
    columns = {name: [getattr(start, name) for start in starts] for name in Start._fields}
    told = (f"{n} {statistics.median(c):.3f} ({min(c):.3f} to {max(c):.3f})" for n, c in columns.items())
    sys.stdout.write(f"first {options.verb}, {options.rounds} starts: {', '.join(told)}\n")


if __name__ == "__main__":
    main()
