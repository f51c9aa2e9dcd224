"""Starts a server, sends it mutated requests, and reports the wrong reactions; exits with 1 if there are any.

    python -m loadtest.fuzz                                  100,000 requests over each wire, then schemathesis
    python -m loadtest.fuzz --requests 2000 --seed 7 --wires grpc,http --model_base_path models/movielens
    python -m loadtest.fuzz --seed 7 --wires http --only 1234       one request again
    python -m loadtest.fuzz --requests 2000 -- --graph_signatures=off
    python -m loadtest.fuzz --wires grpc,http --requests 1000000 --tls

A finding is a 500, INTERNAL, UNKNOWN or anything else that blames the server, an answer that is not well formed, a log
record of level error, a server that is gone, or one that grows by more than --max_growth_mib when some of the requests
are sent once more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest.fuzz.campaign import Campaign
from loadtest.fuzz.wires import GrpcWire, HttpWire, Wire
from loadtest.live_server import LiveServer, say, served_model, server_flags, write_ssl_config
from loadtest.model_samples import ServedModel, ask
from loadtest.wire import RELOAD_METHOD

_TLS_WIRES = ("grpc", "http")
_WIRES = (*_TLS_WIRES, "schema", "reload")
# Reload requests are slow and may unload the model, so they are sent last, and a hundred times fewer than others.
_RELOAD_SHARE = 100


def main() -> int:
    """Sends the requests of all chosen wires; returns 1 if the server reacted wrongly to one."""
    parser = _parser()
    options = parser.parse_args()
    options.certificate = None
    wires = options.wires.split(",")
    with ExitStack() as stack:
        flags = list(options.server_flags)
        if options.tls:
            if not set(wires) <= set(_TLS_WIRES):
                parser.error(f"--tls is for the wires {','.join(_TLS_WIRES)}")
            config = write_ssl_config(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            flags += server_flags(config)
            options.certificate = config.with_name("cert.pem")
        server, _ = stack.enter_context(served_model(options.model_base_path, options.model_name, flags))
        say(f"seed {options.seed}; the server at the start: {server.held()}")
        failed = [wire for wire in wires if not _attack(wire, server, options)]
        for fault, count in server.faults.most_common():
            say(f"FINDING the server logged {count} times: {fault}")
        if server.faults:
            failed.append("log")
        say(f"FAILED: {', '.join(failed)}" if failed else "ok")
        return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", default="movielens")
    parser.add_argument("--model_base_path", type=Path, help="default: a tiny model, trained and exported now")
    parser.add_argument("--requests", type=int, default=100_000, help="over each wire (default: %(default)s)")
    parser.add_argument("--examples", type=int, default=100, help="schemathesis' cases per operation and phase")
    parser.add_argument("--phases", default=PHASES, help="of schemathesis (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="send the request of this number alone")
    parser.add_argument("--wires", default=",".join(_WIRES), help="which, comma-separated (default: %(default)s)")
    parser.add_argument("--tls", action="store_true", help=f"for {' and '.join(_TLS_WIRES)}: connect with TLS")
    parser.add_argument("--connections", type=int, default=8, help="requests in flight (default: %(default)s)")
    parser.add_argument(
        "--max_growth_mib", type=float, default=64.0, help="when requests are repeated (default: %(default)s)"
    )
    parser.add_argument("server_flags", nargs="*", help="more flags of the server, after --")
    return parser


def _attack(wire: str, server: LiveServer, options: argparse.Namespace) -> bool:
    """Sends the mutated requests of one wire; returns whether the server reacted rightly to all."""
    if wire == "schema":
        return _run_schemathesis(server.http, options) == 0
    model = ask(server.http, options.model_name)
    kinds: dict[str, tuple[Callable[[str, ServedModel, int], Wire], str]] = {
        "grpc": (partial(GrpcWire, certificate=options.certificate), server.grpc),
        "http": (partial(HttpWire, certificate=options.certificate), server.http),
        "reload": (partial(GrpcWire, only=RELOAD_METHOD), server.grpc),
    }
    kind, address = kinds[wire]
    count = max(1, options.requests // _RELOAD_SHARE) if wire == "reload" else options.requests
    connect: partial[Wire] = partial(kind, address, model, options.seed)
    campaign = Campaign(wire, server, connect, connections=options.connections, seed=options.seed)
    campaign.run(range(count) if options.only is None else [options.only], options.max_growth_mib)
    return not campaign.problems


# The checks of schemathesis that fit this server's HTTP API. Left out are negative_data_rejection and
# positive_data_acceptance, because valid inputs depend on the signature, which a route's schema can not describe;
# unsupported_method, because TensorFlow Serving's status is 400, not 405; and the checks of required headers,
# authentication and resources, which the API does not have.
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance"
_CHECKS += ",response_schema_conformance"
PHASES = "examples,coverage,fuzzing,stateful"


def _run_schemathesis(url: str, options: argparse.Namespace) -> int:
    """Runs schemathesis against a server; its report goes to standard output; returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            f"--checks={_CHECKS}",
            f"--phases={options.phases}",
            f"--max-examples={options.examples}",
            f"--seed={options.seed}",
            *("--continue-on-failure", "--request-timeout=60", "--generation-database=none"),
            *("--suppress-health-check=all", "--warnings=off", "--no-color"),
        ]
        # schemathesis runs in a temporary folder, because it writes files into its current folder.
        return subprocess.run(command, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
