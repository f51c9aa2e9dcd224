"""Floods the server with one attack after another, while the other clients send their requests."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from multiprocessing.connection import Connection

from loadtest.attacks.attacker import run as attack
from loadtest.attacks.cases import CASES
from loadtest.attacks.peers import targets_of
from loadtest.attacks.targets import Target
from loadtest.bench.workloads import MODEL
from loadtest.soak.tally import Tally

_FEATURE = "user"
_FLOOD_S = 3.0
# A flood that runs this many seconds longer than planned is killed, and counts as a failure.
_OVERTIME_S = 60.0
_KIND = "flood"


def run(grpc_address: str, http_address: str, tally: Tally, stop: threading.Event, *, interval_s: float) -> None:
    """Runs the attacks of `loadtest.attacks` in turn, 3 s each, until `stop` is set.

    Args:
      grpc_address, http_address: host:port of the server's listeners without TLS.
      interval_s: seconds from the end of an attack to the start of the next.
    """
    host = grpc_address.rpartition(":")[0]
    ports = (int(address.rpartition(":")[2]) for address in (grpc_address, http_address))
    targets = targets_of(host, *ports, MODEL, _FEATURE, ())
    rounds = itertools.cycle([(name, target) for name in CASES for target in targets if CASES[name].fits(target)])
    # The attacker runs in a process of its own, because its loops would hold the interpreter lock that the clients
    # need.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loadtest.attacks.cases"])
    while not stop.wait(interval_s):
        name, target = next(rounds)
        ours, theirs = context.Pipe()
        process = context.Process(target=_attack, args=(target, name, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            is_over = ours.poll(max(_FLOOD_S, CASES[name].least_s) + _OVERTIME_S)
            why = "" if is_over and ours.recv() else f"{name} did not end"
        except EOFError:
            why = f"{name}: the attacker's process ended with an error"
        finally:
            process.kill()
            process.join()
            ours.close()
        if why:
            tally.failed(_KIND, why)
        else:
            tally.done(_KIND, name, None, 0)


def _attack(target: Target, name: str, pipe: Connection) -> None:
    attack(target, name, max(_FLOOD_S, CASES[name].least_s))
    pipe.send(True)
