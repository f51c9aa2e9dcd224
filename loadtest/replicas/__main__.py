"""Breaks three replicas under load, behind HAProxy, behind nginx, and with clients that distribute their calls.

  python -m loadtest.replicas --seconds 5

Each replica is on a host of its own, a network namespace of this machine; balancers and clients are on a fourth host.
Needs root, and Debian's packages haproxy, nginx-light and iproute2; a balancer that is not installed is left out.
Prints a table, a line for each fault and wire. Recovery is the time from the start of the fault to the end of the last
failed request. Returns 1 if any row was wrong, or if any request failed in a rolling restart or a roll-out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.live_server import header, row, say
from loadtest.network_hosts import can_make_hosts
from loadtest.replicas.fleet import FAULTS, Fleet, balancers, fleet, roll_out_version, rolling_restart
from loadtest.replicas.load import PERIOD_S, Load, Tally

Show = Callable[[str, str, dict[str, Tally]], None]
# Faults that an operator causes on purpose; no client may notice them.
_PLANNED = (rolling_restart.__name__, roll_out_version.__name__)
_QUIET = "no fault"


def run(
    faults: Sequence[Callable[[Fleet], None]],
    balancer: str,
    seconds: float,
    show: Show,
    settled_s: float = 5.0,
    period_s: float = PERIOD_S,
) -> None:
    """Runs faults one after another; calls `show` with the balancer, the fault, and the counts by wire.

    settled_s: the pause after a fault. Requests under way still count for this fault. Clients wait longer after each
    failed connection; they must connect again before the next fault, so that it hits a replica with requests.
    period_s: the time from one request of a client to its next one.
    """
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), balancer, seconds) as present:
        with Load(present.grpc, present.http, period_s) as load:
            # The first requests open connections, and so are slower: do not count them.
            time.sleep(1)
            tallies = load.renew()
            present.wait()
            load.renew()
            show(balancer, _QUIET, tallies)
            for fault in faults:
                tallies = load.renew()
                fault(present)
                load.renew()
                time.sleep(settled_s)
                show(balancer, fault.__name__, tallies)


def main() -> int:
    by_name = {fault.__name__: fault for fault in FAULTS}
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each fault lasts")
    parser.add_argument("--faults", default=",".join(by_name))
    parser.add_argument("--balancers", default=",".join(balancers()))
    options = parser.parse_args()
    if not can_make_hosts():
        sys.stderr.write("network namespaces need root and `ip` (Debian's package iproute2)\n")
        return 1
    bad = 0

    def show(balancer: str, fault: str, tallies: dict[str, Tally]) -> None:
        nonlocal bad
        for wire, tally in tallies.items():
            num_requests = len(tally.seconds) + tally.failed
            bad += tally.wrong + (tally.failed if fault in _PLANNED else 0)
            times = [f"{tally.quantile_ms(q):.1f}" for q in (0.5, 0.99, 1)]
            counts = (num_requests, tally.failed, tally.wrong, f"{tally.recovery_s:.1f}")
            say(row(balancer, fault, wire, *counts, *times))
            for why, count in tally.why.most_common():
                sys.stderr.write(f"    {count} x {why}\n")

    counted = ("Requests", "Failed", "Wrong", "Recovery s")
    say(header("Balancer", "Fault", "Wire", *counted, "p50 ms", "p99 ms", "Longest ms"))
    for balancer in options.balancers.split(","):
        run([by_name[name] for name in options.faults.split(",")], balancer, options.seconds, show)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
