"""Three replicas of the server, each on a host of its own, a load balancer before them, and faults that hit them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from loadtest.live_server import ROOT, LiveServer, exchange
from loadtest.network_hosts import Host, Hosts
from tests.integration.process import until
from tests.toy_model import toy_tables, write_toy_model

MODEL = "toy"
GRPC_PORT, HTTP_PORT = 8500, 8501
_COUNT = 3
_PATIENCE_S = 60
_CONFIGURATIONS = ROOT / "examples" / "balancers"
# The first three numbers of the addresses in the example configurations, which the test replaces.
_EXAMPLE_NETWORK = "10.0.0."
# --shutdown_delay_s is longer than the second within which the balancers notice that a replica is not ready.
_FLAGS = ("--shutdown_delay_s=2", "--graph_signatures=off", "--file_system_poll_wait_seconds=0.1")


@cache
def user_rows(version: int) -> np.ndarray:
    """Returns the rows of the table `user` in a version, float32 [5, 2]; each version has other rows."""
    return toy_tables(version)["user"]


class Replica:
    """A server process on a host, with a model folder of its own."""

    def __init__(self, host: Host, models: Path) -> None:
        self.host, self._models = host, models
        self.add_version(1)
        self.start()

    def add_version(self, version: int) -> None:
        """Writes a version beside the replica's model folder, and renames the finished version into the folder."""
        incoming = write_toy_model(self._models.parent / f"{self._models.name}-incoming", scale=version)
        self._models.mkdir(parents=True, exist_ok=True)
        incoming.rename(self._models / str(version))

    def start(self) -> None:
        """Starts the replica's process, and waits until the replica is ready."""
        flags = [f"--port={GRPC_PORT}", f"--rest_api_port={HTTP_PORT}", f"--model_name={MODEL}", *_FLAGS]
        self.server = LiveServer(*flags, f"--model_base_path={self._models}", host=self.host).ready()

    def serves(self, version: int) -> bool:
        status, answer = exchange(self.server.http, f"/v1/models/{MODEL}/versions/{version}")
        return status == 200 and b'"AVAILABLE"' in answer

    def kill(self) -> None:
        self.server.signal(signal.SIGKILL)
        self.server.stop()


@dataclass
class Fleet:
    """Replicas behind a balancer. seconds: for how long a fault lasts. grpc, http: where clients send requests.

    http is "" if clients themselves distribute their gRPC calls, without a balancer.
    """

    replicas: Sequence[Replica]
    hosts: Hosts
    seconds: float
    grpc: str
    http: str

    def wait(self) -> None:
        time.sleep(self.seconds)


def balancers() -> list[str]:
    """Returns the names of the balancers that are installed on this machine, and "none" for no balancer."""
    return ["none", *(name for name in _COMMANDS if _program(name))]


@contextmanager
def fleet(folder: Path, balancer: str, seconds: float) -> Iterator[Fleet]:
    """Starts three replicas and the named balancer, and stops them at the end. Needs root."""
    with ExitStack() as stack:
        # The balancer has a host of its own: the example configurations bind their ports on all addresses, and this
        # machine's ports may be in use.
        hosts = stack.enter_context(Hosts(_COUNT + 1))
        *places, before = hosts.hosts
        replicas = []
        for number, host in enumerate(places):
            replicas.append(Replica(host, folder / f"models-{number}"))
            stack.callback(replicas[-1].kill)
        if balancer == "none":
            every = ",".join(f"{host.address}:{GRPC_PORT}" for host in places)
            yield Fleet(replicas, hosts, seconds, f"ipv4:{every}", "")
            return
        stack.enter_context(_balancer(balancer, folder, before))
        yield Fleet(replicas, hosts, seconds, f"{before.address}:{GRPC_PORT}", f"http://{before.address}:{HTTP_PORT}")


def _program(name: str) -> str | None:
    # Debian installs HAProxy and nginx in /usr/sbin, which is not on every user's PATH.
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


# Balancer -> (its file in examples/balancers, arguments before the file's name, arguments after it).
_COMMANDS = {
    "haproxy": ("haproxy.cfg", ("-db", "-f"), ()),
    "nginx": ("nginx.conf", ("-c",), ("-g", "daemon off; pid nginx.pid; error_log stderr error;")),
}


@contextmanager
def _balancer(name: str, folder: Path, host: Host) -> Iterator[None]:
    file, before, after = _COMMANDS[name]
    program = _program(name)
    assert program is not None
    network = f"{host.address.rpartition('.')[0]}."
    text = (_CONFIGURATIONS / file).read_text().replace(_EXAMPLE_NETWORK, network)
    assert len(re.findall(re.escape(network), text)) == 2 * _COUNT, "the example names each replica twice"
    configuration = folder / file
    configuration.write_text(text)
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*host.prefix, program, *before, str(configuration), *after], cwd=folder, stdout=log, stderr=log
        )
        try:
            until(lambda: process.poll() is not None or _answers(f"{host.address}:{HTTP_PORT}"))
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended: {(folder / f'{name}.log').read_text()}")
            # Seconds after which the balancer's health checks have found all replicas.
            time.sleep(2)
            yield
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)


def _answers(address: str) -> bool:
    with suppress(OSError):
        return exchange(address, "/readyz", timeout_s=2)[0] == 200
    return False


# Index of the replica that each fault hits.
_LOST = 0
# Seconds for which a slow replica is stopped and then runs, in turns.
_STOPPED_S, _RUNNING_S = 0.045, 0.005
# Seconds for three health checks. The balancer sends requests to a restarted replica after two good ones.
_FOUND_S = 1.5


def rolling_restart(fleet: Fleet) -> None:
    """Restarts one replica after another by SIGTERM, each after the previous replica gets requests again."""
    for replica in fleet.replicas:
        replica.server.stop()
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
    frozen = fleet.replicas[_LOST].server
    frozen.signal(signal.SIGSTOP)
    try:
        fleet.wait()
    finally:
        frozen.signal(signal.SIGCONT)
    time.sleep(_FOUND_S)


def slow_down(fleet: Fleet) -> None:
    """Lets a replica run for only 5 ms of each 50 ms, as if other programs used its processors."""
    slow, end_s = fleet.replicas[_LOST].server, time.monotonic() + fleet.seconds
    try:
        while time.monotonic() < end_s:
            slow.signal(signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            slow.signal(signal.SIGCONT)
            time.sleep(_RUNNING_S)
    finally:
        slow.signal(signal.SIGCONT)


def cut_host(fleet: Fleet) -> None:
    """Takes a host off the network, so that its clients get no packet, not even a refusal; then puts it back."""
    fleet.hosts.cut(_LOST)
    fleet.wait()
    fleet.hosts.join(_LOST)
    time.sleep(_FOUND_S)


# roll_out_version comes last, because the replicas keep the new version.
FAULTS: tuple[Callable[[Fleet], None], ...] = (rolling_restart, kill, freeze, slow_down, cut_host, roll_out_version)
