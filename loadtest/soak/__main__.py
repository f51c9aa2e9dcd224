"""Starts a server and keeps it under a steady mixed load, swaps versions, floods it, and reports the result.

    python -m loadtest.soak --minutes 60
    python -m loadtest.soak --minutes 60 --flood_seconds 10
    python -m loadtest.soak --minutes 5 --rate 100 --out build/soak -- --graph_signatures=off

Every answer is compared with the expected one. The exit status is 1 if a request failed, a version was not loaded, or
the server logged an error or ended. Ctrl-C ends the run with a report so far.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from loadtest.bench.models import SIZES, prepared
from loadtest.bench.workloads import MODEL, Data
from loadtest.live_server import ROOT, LiveServer, say
from loadtest.soak import load
from loadtest.soak.calls import Calls
from loadtest.soak.load import Trouble, running
from loadtest.soak.report import Report, Tally, sampled


def main(arguments: list[str] | None = None) -> int:
    """Runs the soak test; returns 1 if there were failures, else 0."""
    options = _parser().parse_args(arguments)
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    report = Report(_about(options))
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        exported = prepared(options.folder or Path(scratch) / "export", options.sizes)
        shutil.copytree(exported / "model" / "1", models / "1")
        flags = [f"--model_name={MODEL}", f"--model_base_path={models}", f"--delta_journal_dir={scratch}/journal"]
        with LiveServer(*flags, *options.server_flags) as server:
            _soak(server.ready(), models, report, options, interrupted)
        # Errors that the server logs while it stops count, too.
        report.faults = dict(server.faults)
    report.write(options.out)
    say(report.markdown())
    say(f"{'ok' if report.is_good else 'FAILED'}; all samples: {options.out / 'soak.json'}")
    return 0 if report.is_good else 1


def _soak(
    server: LiveServer, models: Path, report: Report, options: argparse.Namespace, interrupted: threading.Event
) -> None:
    tally, data = Tally(interrupted), Data(SIZES[options.sizes])
    calls = Calls(server, data, has_predict="--graph_signatures=off" not in options.server_flags)
    report.problems = tally.problems
    troubles: list[Trouble] = []
    if options.upsert_seconds:
        troubles.append(lambda stop: load.upsert(server, data, tally, stop, interval_s=options.upsert_seconds))
    else:
        say("no rows are changed: --upsert_seconds is 0")
    if options.flood_seconds:
        troubles.append(lambda stop: load.flood(server, tally, stop, interval_s=options.flood_seconds))
    say(f"server {server.pid}: {server.held()}")
    start_s = time.monotonic()
    end_s = start_s + options.minutes * 60
    with running(calls, tally, models, rate=options.rate, swap_s=options.swap_seconds, troubles=troubles):
        next_s = start_s + options.sample_seconds
        while next_s < end_s and not interrupted.wait(max(0.0, next_s - time.monotonic())) and server.is_alive:
            _sample(server, tally, report, start_s)
            report.write(options.out)
            next_s += options.sample_seconds
        if server.is_alive:
            interrupted.wait(max(0.0, end_s - time.monotonic()))
    # The last sample also counts the requests that were in flight when the time was over.
    _sample(server, tally, report, start_s)


def _sample(server: LiveServer, tally: Tally, report: Report, start_s: float) -> None:
    try:
        sample = sampled(server.pid, time.monotonic() - start_s, tally.next_window())
    except (OSError, KeyError) as error:
        # The server has ended. Tally.failed() counts this as a failure, unless Ctrl-C ended the server.
        tally.failed("server", f"it is gone: {error}")
        return
    report.samples.append(sample)
    report.faults = dict(server.faults)
    done, failed = sum(sample.requests.values()), sum(sample.failures.values())
    say(f"{sample.at_s / 60:.1f} min: {done} requests, {failed} failures, p99 {sample.p99_ms:.2f} ms, {sample}")


def _about(options: argparse.Namespace) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    given = {name: value for name, value in vars(options).items() if name not in ("out", "folder")}
    return {"commit": commit, "python": platform.python_version(), "began": time.time(), **given}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, what in (
        ("minutes", 30.0, "of load"),
        ("rate", 200.0, "requests per second"),
        ("swap_seconds", 30.0, "between versions"),
        ("upsert_seconds", 5.0, "between changes of a row, where the server can; 0: none"),
        ("flood_seconds", 0.0, "between attacks of loadtest.attacks, each of 3 s; 0: none"),
        ("sample_seconds", 60.0, "between samples"),
    ):
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder (default: %(default)s)")
    parser.add_argument("--sizes", choices=("small", "tiny"), default="small", help="of tables (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the exported model is kept for the next run")
    parser.add_argument("server_flags", nargs="*", help="more flags of the server, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
