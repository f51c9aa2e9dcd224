"""Attacks a server; prints how each attack slows another client, what memory it costs, and how the server reacts.

python -m loadtest.attacks                              # all cases on servers that it starts
python -m loadtest.attacks --grpc=127.0.0.1:8500 --http=127.0.0.1:8501 --pid=1234 --model=movielens --feature=user
python -m loadtest.attacks --only='http2.ping*' --seconds=2

The victim is a well-behaved client of the same port. Its times are in ms: median / p99 / longest; "!" means that an
answer was wrong or did not come. Memory is in MiB above that before the attack: the most during it / the rest at the
end. A host that is not this machine needs --other_hosts, and its owner's consent.
"""

from __future__ import annotations

import argparse
import fnmatch
import ipaddress
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from loadtest.attacks.cases import CASES
from loadtest.attacks.measuring import Result, Victim, measure
from loadtest.attacks.targets import Target, ours, targets_of
from loadtest.live_server import header, row, say

# Limits for an attack on this project's server: the longest wait of the other client (the victim), that wait's ratio to
# the wait without an attack, and the memory that the server still holds afterwards.
_LONGEST_MS = 50.0
_TIMES_QUIET = 5.0
_HELD_MIB = 64.0


def main() -> int:
    """Runs the attacks; returns 1 if an attack on this project's server broke a limit, 2 for wrong flags, else 0."""
    options, flags = _parser().parse_known_args()
    names = [name for name in CASES if any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split(","))]
    if options.list:
        for name in names:
            say(f"{name}: {CASES[name].what}")
        return 0
    if not options.other_hosts:
        for where in filter(None, (options.grpc, options.http)):
            if not _is_loopback(where.rpartition(":")[0]):
                say(f"{where} is not this machine: give --other_hosts if you may attack it")
                return 2
    with ExitStack() as stack:
        return _run(_targets(options, flags, stack), names, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.attacks", description="Other flags go to our server.")
    parser.add_argument("--grpc", help="HOST:PORT of a running server of this project")
    parser.add_argument("--http", help="HOST:PORT of its HTTP port")
    parser.add_argument("--pid", type=int, action="append", default=[], help="its processes, whose memory is watched")
    parser.add_argument("--model", default="default", help="what the victim looks up there")
    parser.add_argument("--feature", default="user")
    parser.add_argument("--other_hosts", action="store_true", help="allows hosts other than this machine")
    parser.add_argument("--only", default="*", help="patterns of case names, with commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack")
    parser.add_argument("--quiet_seconds", type=float, default=1.0, help="measured before it")
    return parser


def _targets(options: argparse.Namespace, flags: list[str], stack: ExitStack) -> list[Target]:
    """Starts servers, or takes the running server that the flags name; returns their ports."""
    if options.grpc or options.http:
        host = (options.grpc or options.http).rpartition(":")[0].strip("[]")
        ports = [int(where.rpartition(":")[2]) if where else None for where in (options.grpc, options.http)]
        return targets_of(host, ports[0], ports[1], options.model, options.feature, tuple(options.pid))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attacks-")))
    return stack.enter_context(ours(folder, flags))


def _run(targets: list[Target], names: list[str], options: argparse.Namespace) -> int:
    say(header("case", "port", "quiet, ms", "attacked, ms", "memory, MiB", "the attacker got", "sent, MB"))
    beyond = []
    for name in names:
        for target in targets:
            if not CASES[name].fits(target):
                continue
            victim = Victim(target)
            try:
                result = measure(
                    target,
                    name,
                    victim=victim,
                    quiet_s=options.quiet_seconds,
                    attack_s=options.seconds,
                    allowed_mib=_HELD_MIB / 4,
                )
            finally:
                victim.close()
            outcome, sent_mb = result.outcome, f"{result.outcome.sent_bytes / 1e6:.1f}"
            say(row(name, target.name, result.quiet, result.during, result.memory, outcome.text, sent_mb))
            beyond += [f"{name}, {target.name}: {what}" for what in judge(name, result)]
    for line in beyond:
        say(line)
    return 1 if beyond else 0


def judge(name: str, result: Result) -> list[str]:
    found = [f"the victim: {fault}" for fault in sorted(set(result.during.faults))]
    longest = result.during.longest
    if longest > _LONGEST_MS and longest > _TIMES_QUIET * result.quiet.longest:
        found.append(f"the victim waited {longest:.0f} ms, {result.quiet.longest:.0f} when it was quiet")
    memory = result.memory
    cached_mib = CASES[name].cached_mib
    if (
        memory.most is not None
        and memory.left is not None
        and max(memory.most - cached_mib, (memory.left - cached_mib) * 2) > _HELD_MIB
    ):
        found.append(f"memory {memory} MiB")
    if CASES[name].is_ended and not result.outcome.is_out:
        found.append(f"not ended: {result.outcome.text}")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
