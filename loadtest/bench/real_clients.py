"""Measures the server's processor time for a Predict of other projects' clients, with and without extra header fields.

python -m loadtest.bench.real_clients --clients grpcio,ghz --seconds 5 --rounds 5

h2load and ghz are found in PATH, @grpc/grpc-js in NODE_PATH. A client that is not installed is skipped, with a line of
output. The header fields are a token, a deadline, a request id and a trace context. All but the token differ from call
to call; only h2load sends the same fields with all calls.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from loadtest.bench.artifact import prepared
from loadtest.bench.cases import Case
from loadtest.bench.generator import framed, h2load
from loadtest.bench.messages import GRPC
from loadtest.bench.processes import Service, bound_to, cpu_s
from loadtest.bench.rounds import ask_of
from loadtest.bench.workloads import FULL, MODEL, TINY, Data
from loadtest.live_server import ROOT

_PATH = "/tensorflow.serving.PredictionService/Predict"
_TOKEN = "Bearer 0123456789abcdef0123456789abcdef01234567"
_TRACE = "00-0af7651916cd43dd8448eb211c80319c-{:016x}-00"
_CONNECTIONS, _STREAMS = 4, 8
# A client program of the benchmark is killed if it runs this many seconds longer than planned.
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement with one client program. body: the message of each call, without gRPC's prefix of five bytes."""

    port: int
    body: bytes
    seconds: float
    has_fields: bool
    folder: Path


def _run(job: Job, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=job.seconds + _PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def _h2load(job: Job) -> int:
    body = job.folder / "body.grpc"
    body.write_bytes(framed(job.body))
    fields = {"authorization": _TOKEN, "grpc-timeout": "4321m", "x-request-id": str(uuid.uuid4())}
    fields["traceparent"] = _TRACE.format(1)
    headers = fields if job.has_fields else {}
    url = f"http://127.0.0.1:{job.port}{_PATH}"
    command = h2load(url, body, is_grpc=True, headers=headers, connections=_CONNECTIONS, streams=_STREAMS)
    told = _run(job, *command, f"-D{job.seconds:g}")
    found = re.search(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored", told)
    return _good(found and (int(found[1]), int(found[2]) + int(found[3])), told)


def _ghz(job: Job) -> int:
    body = job.folder / "body"
    body.write_bytes(job.body)
    fields = {}
    if job.has_fields:
        fields = {
            "authorization": _TOKEN,
            "x-request-id": "{{newUUID}}",
            "traceparent": _TRACE[:-6] + "{{.RequestNumber}}",
        }
    told = json.loads(
        _run(
            job,
            "ghz",
            "--insecure",
            f"--call={_PATH[1:]}",
            f"--binary-file={body}",
            f"--metadata={json.dumps(fields)}",
            f"--duration={job.seconds:g}s",
            "--duration-stop=wait",
            f"--concurrency={_CONNECTIONS * _STREAMS}",
            f"--connections={_CONNECTIONS}",
            *(["--timeout=5s"] if job.has_fields else ["--timeout=0"]),
            "--format=json",
            f"127.0.0.1:{job.port}",
        )
    )
    good = told["statusCodeDistribution"].get("OK", 0)
    return _good((good, told["count"] - good), str(told["statusCodeDistribution"]))


def _grpc_js(job: Job) -> int:
    body = job.folder / "body"
    body.write_bytes(job.body)
    script = str(Path(__file__).with_name("grpc_js_client.js"))
    numbers = (f"{job.seconds:g}", str(_CONNECTIONS), str(_STREAMS), str(job.has_fields).lower())
    told = json.loads(_run(job, "node", script, str(job.port), str(body), *numbers))
    return _good((told["calls"], told["errors"]), str(told))


def _grpcio(job: Job) -> int:
    end = time.monotonic() + job.seconds
    counts: list[int] = []

    def ask(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        calls = 0
        with grpc.insecure_channel(f"127.0.0.1:{job.port}", options) as channel:
            call = channel.unary_unary(_PATH)
            while time.monotonic() < end:
                fields = None
                if job.has_fields:
                    trace = _TRACE.format(number << 32 | calls)
                    fields = (("authorization", _TOKEN), ("x-request-id", str(uuid.uuid4())), ("traceparent", trace))
                call(job.body, metadata=fields, timeout=5 if job.has_fields else None)
                calls += 1
        counts.append(calls)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < len(threads):
        raise RuntimeError("grpcio: a call failed")
    return sum(counts)


def _good(counts: tuple[int, int] | None, told: str) -> int:
    if counts is None or counts[1] or not counts[0]:
        raise RuntimeError(f"not all calls were answered: {told[-800:]}")
    return counts[0]


def _has_grpc_js() -> bool:
    command = ["node", "-e", "require('@grpc/grpc-js')"]
    return shutil.which("node") is not None and subprocess.run(command, capture_output=True).returncode == 0


CLIENTS: dict[str, tuple[Callable[[Job], int], Callable[[], bool]]] = {
    "grpcio": (_grpcio, lambda: True),
    "grpc-js": (_grpc_js, _has_grpc_js),
    "grpc-go (ghz)": (_ghz, lambda: shutil.which("ghz") is not None),
    "h2load": (_h2load, lambda: shutil.which("h2load") is not None),
}


def main(arguments: list[str] | None = None) -> int:
    """Measures the server with each client program, and prints a table; returns 0 for any figures."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.real_clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args(arguments)
    chosen = []
    for name in options.clients.split(","):
        if CLIENTS[name][1]():
            chosen.append(name)
        else:
            sys.stdout.write(f"left out, for it is not installed: {name}\n")
    size = "tiny" if options.tiny else "full"
    models = options.folder / size / "models"
    models.mkdir(parents=True, exist_ok=True)
    prepared(models, size)
    data = Data(TINY if options.tiny else FULL)
    cores = sorted(os.sched_getaffinity(0))
    flags = (f"--model_name={MODEL}", f"--model_base_path={models / 'model'}", "--threads=1")
    found: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    server = Service(frozenset(cores[:1]), flags)
    try:
        server.wait()
        port = server.port(is_grpc=True)
        with tempfile.TemporaryDirectory() as folder, bound_to(frozenset(cores[1:] or cores)):
            for _, workload, name in itertools.product(range(options.rounds), ("W1", "W2"), chosen):
                asked = ask_of(Case("real", workload, "service", GRPC), data, server)
                for has_fields in (False, True):
                    job = Job(port, asked.bodies[0], options.seconds, has_fields, Path(folder))
                    cpu_before, began = cpu_s([server.pid]), time.monotonic()
                    calls = CLIENTS[name][0](job)
                    used = cpu_s([server.pid]) - cpu_before
                    rate = calls / (time.monotonic() - began)
                    found.setdefault((workload, name, has_fields), []).append((rate, used / calls))
    finally:
        server.stop()
    lines = ["| workload | client | fields | calls/s | server CPU us/call |", "|---|---|---|---|---|"]
    for (workload, client, has_fields), some in found.items():
        rate = statistics.median(rate for rate, _ in some)
        used_us = statistics.median(used for _, used in some) * 1e6
        lines.append(f"| {workload} | {client} | {'all' if has_fields else 'none'} | {rate:.0f} | {used_us:.1f} |")
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
