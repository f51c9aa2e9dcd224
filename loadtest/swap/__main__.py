"""Swaps versions of gigabytes under a steady load and prints response times and memory.

python -m loadtest.swap --gigabytes=4 --folder=/some/disk --seconds=45 --every=8 [flags of the server]

Two versions are written first and deleted at the end; they are added and removed by rename, as an exporter does it. A
request belongs to a swap if it was due between the rename and the unloading of the old version.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.live_server import ROOT, LiveServer, exchange, say
from loadtest.swap.model import rows_of, write_version

_VERSIONS = 2
_LOOK_S = 0.05
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Run:
    """Observations of a whole swap test: the swaps, and samples of the memory.

    swaps: times of each swap on the monotonic clock: the rename, the old version's end, and the new version's first
        answer.
    memory: samples of (seconds, resident MiB, MiB of file pages among them, number of mapped versions).
    """

    swaps: list[tuple[float, float, float]] = field(default_factory=list)
    memory: list[tuple[float, float, float]] = field(default_factory=list)


def main() -> int:
    """Runs the swap test; returns 1 if a request failed, or an answer mixed numbers of two versions."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.swap")
    parser.add_argument("--gigabytes", type=float, default=0.25)
    parser.add_argument("--folder", type=Path, help="where the versions are written; default: the temporary folder")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=6.0, help="seconds from one rename to the next")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--keep", type=Path, help="folder that versions are kept in for the next time, of this size")
    options, flags = parser.parse_known_args()
    if options.keep is not None:
        options.keep.mkdir(exist_ok=True)
        return _measure(options.keep, options, flags)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        return _measure(Path(scratch), options, flags)


def _measure(scratch: Path, options: argparse.Namespace, flags: list[str]) -> int:
    say(f"writing {_VERSIONS} versions of {options.gigabytes:g} GB ...")
    for number in range(1, _VERSIONS + 1):
        if not (scratch / f"spare-{number}").exists():
            write_version(scratch / f"spare-{number}", number, options.gigabytes)
    base = scratch / "swap"
    base.mkdir(exist_ok=True)
    (scratch / "spare-1").rename(base / "1")
    subprocess.run(["sync"], check=True)
    given = [f"--model_base_path={base}", "--model_name=swap", "--graph_signatures=off"]
    with LiveServer(*given, "--file_system_poll_wait_seconds=0.1", *flags) as server:
        server.ready()
        rows = [str(n) for n in rows_of(options.gigabytes).values()]
        port = server.http.rpartition(":")[2]
        command = [
            sys.executable,
            "-m",
            "loadtest.swap.steady_load",
            port,
            *rows,
            str(options.rate),
            str(options.connections),
        ]
        load = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            run = _swap(server, base, scratch, options)
            asked = json.loads(load.communicate(timeout=_PATIENCE_S)[0])
        finally:
            load.kill()
            load.wait()
            for folder in base.iterdir():
                folder.rename(scratch / f"spare-{(int(folder.name) - 1) % _VERSIONS + 1}")
        return _report(run, asked, options, server)


def _swap(server: LiveServer, base: Path, scratch: Path, options: argparse.Namespace) -> Run:
    run = Run()
    started_s = time.monotonic()
    next_s, version = started_s + options.every, 1
    while (now_s := time.monotonic()) - started_s < options.seconds:
        _remember(server, run)
        # The versions' states are read between swaps as often as during one, because reading them loads the server,
        # too.
        _states(server)
        if now_s >= next_s:
            _one_swap(server, base, scratch, version, run)
            next_s, version = max(now_s + options.every, time.monotonic() + 1), version + 1
        time.sleep(_LOOK_S)
    return run


def _one_swap(server: LiveServer, base: Path, scratch: Path, old: int, run: Run) -> None:
    # The contents of versions alternate: all numbers of version v are (v - 1) % 2 + 1.
    begun_s = time.monotonic()
    (scratch / f"spare-{old % _VERSIONS + 1}").rename(base / str(old + 1))
    answers_s = 0.0
    while True:
        _remember(server, run)
        states = _states(server)
        if not answers_s and states.get(old + 1) == "AVAILABLE":
            answers_s = time.monotonic()
        if states.get(old) == "END":
            break
        if time.monotonic() - begun_s > _PATIENCE_S:
            raise RuntimeError(f"the swap does not end: {states}")
        time.sleep(_LOOK_S)
    run.swaps.append((begun_s, answers_s, time.monotonic()))
    (base / str(old)).rename(scratch / f"spare-{(old - 1) % _VERSIONS + 1}")


def _states(server: LiveServer) -> dict[int, str]:
    statuses = json.loads(exchange(server.http, "/v1/models/swap")[1])["model_version_status"]
    return {int(status["version"]): status["state"] for status in statuses}


def _remember(server: LiveServer, run: Run) -> None:
    # smaps is not read, because the kernel computes it under the lock that page faults need.
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssFile"))}
    run.memory.append((time.monotonic(), kib["VmRSS"] / 1024, kib["RssFile"] / 1024))


def _report(run: Run, asked: dict[str, Any], options: argparse.Namespace, server: LiveServer) -> int:
    answers = np.array(asked["answers"]).reshape(-1, 3)
    due, ms = answers[:, 0], 1000 * answers[:, 1]
    # The first second is left out, because connections and caches are cold then.
    is_settled = due > due.min() + 1
    during = np.zeros(len(due), bool)
    for begun_s, _, ended_s in run.swaps:
        during |= (due >= begun_s) & (due <= ended_s)
    say(f"{len(answers)} answers at {options.rate:g}/s, {len(run.swaps)} swaps, {asked['num_wrong']} failures")
    for what in asked["wrong"]:
        say(f"  {what}")
    if not run.swaps:
        say("no version was swapped in")
        return 1
    took = [f"{answers_s - begun_s:.1f}/{ended_s - begun_s:.1f}" for begun_s, answers_s, ended_s in run.swaps]
    say(f"seconds to the new version's first answer / to the old one's end: {', '.join(took)}")
    quantiles = {}
    for name, chosen in (("without", ~during & is_settled), ("during", during & is_settled)):
        p50, p99, p999 = np.percentile(ms[chosen], [50, 99, 99.9])
        quantiles[name] = p99
        say(
            f"{name:8} swaps: {chosen.sum():6} requests, p50 {p50:.2f} ms, p99 {p99:.2f}, p99.9 {p999:.2f}, "
            f"most {ms[chosen].max():.2f}"
        )
    say(f"p99 during swaps: {quantiles['during'] / quantiles['without']:.2f} x p99 without")
    _memory(run, options, server)
    return 1 if asked["num_wrong"] else 0


def _memory(run: Run, options: argparse.Namespace, server: LiveServer) -> None:
    memory = np.array(run.memory)
    most = memory[memory[:, 1].argmax()]
    say(
        f"resident: {memory[0][1]:.0f} MiB at first, at most {most[1]:.0f} ({most[2]:.0f} of files), "
        f"at the end {memory[-1][1]:.0f} ({memory[-1][2]:.0f} of files); a version is {options.gigabytes * 1024:.0f}"
    )
    for begun_s, _, ended_s in run.swaps:
        before = memory[memory[:, 0] <= begun_s][-1]
        within = memory[(memory[:, 0] >= begun_s) & (memory[:, 0] <= ended_s)]
        after = memory[memory[:, 0] >= ended_s]
        left = f"{after[0][1]:.0f} behind it" if len(after) else "the run ended with it"
        say(f"  swap: {before[1]:.0f} MiB before, at most {within[:, 1].max():.0f} in it, {left}")
    say(f"now: {server.held()}")


if __name__ == "__main__":
    sys.exit(main())
