"""Measures how much faster a lookup of mapped tables is than the same signature run by TensorFlow, over the same wire.

Two servers on loopback serve the same SavedModel: one unchanged, the other without its lookup manifest, so that
TensorFlow runs all of it. Each round sends the same requests to both in turn over gRPC, one at a time, and compares the
answers. The output has medians and their ratio.

    python -m loadtest.bench.lookup_vs_graph --model_base_path models/movielens
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from loadtest.live_server import LiveServer
from loadtest.payloads import as_tensors, features_of, rows
from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

MODEL, SIGNATURE = "bench", "lookup"


def main() -> None:
    """Measures a server with mapped tables and one without; prints one line per number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_base_path", type=Path, default=Path("models/movielens"))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 128, 4096])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=20, help="per server and round")
    options = parser.parse_args()
    newest = max((p for p in options.model_base_path.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.copytree(newest, folder / "with" / "1")
        shutil.copytree(newest, folder / "without" / "1", ignore=shutil.ignore_patterns("assets.extra"))
        # TensorFlow is off for the version with a manifest, because lookups of mapped tables do not need it.
        servers = [
            stack.enter_context(
                LiveServer(f"--model_name={MODEL}", f"--model_base_path={folder / name}", *flags)
            ).ready()
            for name, flags in (("with", ["--graph_signatures=off"]), ("without", []))
        ]
        request_class, response_class = message_classes()
        calls = [
            stack.enter_context(grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])).unary_unary(
                PREDICT_METHOD, request_class.SerializeToString, response_class.FromString
            )
            for address in (server.grpc for server in servers)
        ]
        features = features_of(get(f"{servers[0].http}/v1/models/{MODEL}/tables")["tables"], signature(servers[0].http))
        write(machine())
        write(f"{'rows':>6} {'tables ms':>10} {'graph ms':>10} {'graph/tables':>13}   p99 {'tables':>8} {'graph':>8}")
        for num_rows in options.rows:
            tensors = as_tensors(features, rows(features, num_rows, random.Random(num_rows)))
            request = predict_request(request_class, MODEL, SIGNATURE, tensors)
            compare(*(call(request) for call in calls))
            times: list[list[float]] = [[], []]
            for _ in range(options.rounds):
                for call, seconds in zip(calls, times, strict=True):
                    seconds += [timed(call, request) for _ in range(options.requests)]
            ours, theirs = (1e3 * statistics.median(t) for t in times)
            tails = [1e3 * statistics.quantiles(t, n=100)[98] for t in times]
            medians = f"{ours:>10.3f} {theirs:>10.3f} {theirs / ours:>13.2f}"
            write(f"{num_rows:>6} {medians}   {tails[0]:>12.3f} {tails[1]:>8.3f}")


def timed(call: Any, request: Any) -> float:
    """Calls a method with a request, and returns the seconds until the answer."""
    started = time.perf_counter()
    call(request)
    return time.perf_counter() - started


def compare(ours: Any, theirs: Any) -> None:
    """Raises AssertionError unless the answers of two servers hold the same numbers, up to rounding."""
    assert set(ours.outputs) == set(theirs.outputs)
    for name, tensor in ours.outputs.items():
        other = theirs.outputs[name].float_val
        largest = max((abs(x) for x in other), default=0.0)
        assert len(tensor.float_val) == len(other)
        assert all(abs(a - b) <= 1e-6 * largest for a, b in zip(tensor.float_val, other, strict=True)), name


def signature(base: str) -> Any:
    """Returns the metadata of the model's lookup signature."""
    return get(f"{base}/v1/models/{MODEL}/metadata")["metadata"]["signature_def"]["signature_def"][SIGNATURE]


def get(url: str) -> Any:
    """Returns the JSON document at a URL, parsed."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def machine() -> str:
    """Returns a line of text about the machine and the measured commit."""
    return f"machine: {os.cpu_count()} cores, {platform.processor() or platform.machine()}, commit {commit()}"


def commit() -> str:
    """Returns the short hash of the commit that is measured."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def write(line: str) -> None:
    """Writes a line to standard output, which is flushed at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
