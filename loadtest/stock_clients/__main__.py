"""Starts a server, calls it with each stock client, and prints one line per call; exits with 1 after a failure.

python -m loadtest.stock_clients                                     on a tiny model, trained and exported now
python -m loadtest.stock_clients --model_base_path models/movielens
python -m loadtest.stock_clients --model_base_path M --example '{"x": 1.0}' -- --tensorflow_session_parallelism=2
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from pathlib import Path

from loadtest.live_server import served_model
from loadtest.model_samples import ask
from loadtest.stock_clients.clients import CLIENTS
from loadtest.stock_clients.outcome import Place, run_checks


def main() -> int:
    """Runs the checks of all stock clients; returns 1 if a call failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", default="movielens")
    parser.add_argument("--model_base_path", type=Path, help="default: a tiny model, trained and exported now")
    parser.add_argument("--example", type=json.loads, default={}, help="a tf.Example to classify, as JSON")
    parser.add_argument("--signatures", default="", help="which to call, comma-separated (default: all)")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="which, comma-separated (default: %(default)s)")
    parser.add_argument("server_flags", nargs="*", help="more flags of the server, after --")
    options = parser.parse_args()
    with served_model(options.model_base_path, options.model_name, options.server_flags) as (server, base_path):
        called = frozenset(filter(None, options.signatures.split(",")))
        model = dataclasses.replace(ask(server.http, options.model_name), called=called)
        place = Place(server.http, server.grpc, base_path, model, options.example)
        chosen = [CLIENTS[name] for name in options.clients.split(",")]
        failed = run_checks(itertools.chain.from_iterable(checks(place) for checks in chosen))
        for fault, count in server.faults.most_common():
            sys.stdout.write(f"the server logged {count} times: {fault}\n")
        return 1 if failed or server.faults else 0


if __name__ == "__main__":
    sys.exit(main())
