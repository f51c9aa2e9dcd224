"""The faults of replicas under load. Each function begins a fault, lets it last, and ends it."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadtest.replicas.fleet import Fleet, until

# Index of the replica that each fault hits.
_LOST = 0
# Seconds for which a slow replica is stopped and then runs, in turns.
_STOPPED_S, _RUNNING_S = 0.045, 0.005
# Seconds for three health checks. The balancer sends requests to a restarted replica after two good ones.
_FOUND_S = 1.5


def rolling_restart(fleet: Fleet) -> None:
    """Restarts one replica after another by SIGTERM, each after the previous replica gets requests again."""
    for replica in fleet.replicas:
        replica.stop()
        replica.start()
        time.sleep(_FOUND_S)


def roll_out_version(fleet: Fleet) -> None:
    """Adds the next model version to one replica after another, each after the previous one serves it."""
    for replica in fleet.replicas:
        replica.add_version(2)
        until(lambda replica=replica: replica.serves(2))
        time.sleep(fleet.seconds / len(fleet.replicas))


def kill(fleet: Fleet) -> None:
    """Kills a replica (SIGKILL), and starts it again."""
    fleet.replicas[_LOST].kill()
    fleet.wait()
    fleet.replicas[_LOST].start()
    time.sleep(_FOUND_S)


def freeze(fleet: Fleet) -> None:
    """Stops a replica (SIGSTOP): its connections stay and nothing answers. Then lets it go on."""
    fleet.replicas[_LOST].freeze()
    try:
        fleet.wait()
    finally:
        fleet.replicas[_LOST].thaw()
    time.sleep(_FOUND_S)


def slow_down(fleet: Fleet) -> None:
    """Lets a replica run for only 5 ms of each 50 ms, as if other programs used its processors."""
    slow, end_s = fleet.replicas[_LOST], time.monotonic() + fleet.seconds
    try:
        while time.monotonic() < end_s:
            slow.freeze()
            time.sleep(_STOPPED_S)
            slow.thaw()
            time.sleep(_RUNNING_S)
    finally:
        slow.thaw()


def cut_host(fleet: Fleet) -> None:
    """Takes a host off the network, so that its clients get no packet, not even a refusal; then puts it back."""
    fleet.hosts.cut(_LOST)
    fleet.wait()
    fleet.hosts.join(_LOST)
    time.sleep(_FOUND_S)


# roll_out_version comes last, because the replicas keep the new version.
FAULTS: tuple[Callable[[Fleet], None], ...] = (rolling_restart, kill, freeze, slow_down, cut_host, roll_out_version)
