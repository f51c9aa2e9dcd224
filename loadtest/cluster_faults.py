"""Breaks a real cluster of three primaries and three replicas under load, and counts failed, stale and wrong answers.

  python -m loadtest.cluster_faults --rows 200000 --seconds 5
  python -m loadtest.cluster_faults --hosts       cuts and loses hosts, which are network namespaces; needs root

Two servers read the cluster, and one of them takes an upsert every tenth of a second. Readers ask both servers for
random rows and for the rows that are upserted. A row is stale if it is older than an upsert that was visible a second
before the request; it is wrong if it is neither the version's own nor any upsert's. Recovery is the time from the
beginning of the fault to the end of the last failed request. At the end, the history of all reads is checked as that of
simulated clusters is: docs/faults.md. With --hosts, three hosts have a primary and another primary's replica each, and
the servers and their clients are on a fourth host.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import redis

from loadtest.live_server import JSON_TYPE, LiveServer, exchange, header, row, say
from loadtest.network_hosts import LOOPBACK, Hosts
from loadtest.operator_view import SEEN_WITHIN_S, OperatorView
from loadtest.steady_load import Counts, SteadyLoad
from model_export.remote.push import push
from service.remote.address import StoreAddress
from tests.integration.test_remote_push import large, layout_of
from tests.valkey_cluster import Cluster, Security, until

_IDS = 50
# Number of rows that every upsert sets, all to the same number. Each request reads each of these rows once.
_CHANGED = 8
_READERS = 4
_UPSERT_EVERY_S = 0.1
_STALE_S = 1.0
# Number of hash slots that the fault moves from one primary to another.
_MOVED = 8
# A read is in the history if its reader's last one that is there began so long before.
_NOTED_EVERY_S = 0.05
# In the history: what a row's age may be, and for how long a primary takes changes that another one replaces
# (cluster-node-timeout).
_OLDEST_S, _NODE_TIMEOUT_S = 2.0, 1.0
_PASSWORD = "first"
# The name of the first counts, which are taken before any fault.
NO_FAULT = "no fault"
# With --hosts: the number of hosts, and the index of the host on which faults act.
NUM_HOSTS, _LOST = 3, 0


@dataclass
class Tally(Counts):
    """Counts of requests, rows and upserts while one fault lasts.

    wrong: rows. worst_s: of the longest request. seen: what an operator saw at a server in ten seconds, and when.
    """

    requests: int = 0
    stale_rows: int = 0
    upserts: int = 0
    failed_upserts: int = 0
    worst_s: float = 0.0
    seen: str = ""


class History:
    """The reads and upserts of a run, as `native/src/clusters/simulation/history.rs` checks it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._begin_s = time.monotonic()

    def change(self, version: str, number: int, acknowledged_s: float | None) -> None:
        """Notes an upsert; None: it was not acknowledged."""
        at = "-" if acknowledged_s is None else self._us(acknowledged_s)
        self.lines += [f"change {_cell(version, row)} {number} {at} -" for row in range(_CHANGED)]

    def read(self, version: str, numbers: Sequence[int], begin_s: float, end_s: float) -> None:
        """Notes the upserts that the changed rows of an answer are of."""
        times = f"{self._us(begin_s)} {self._us(end_s)} {round(_OLDEST_S * 1e6)}"
        self.lines += [f"read {_cell(version, row)} {number} {times}" for row, number in enumerate(numbers)]

    def loss(self, begin_s: float, end_s: float) -> None:
        """Notes that between two moments a replica took over, or a node lost its rows."""
        self.lines.append(f"loss {self._us(begin_s)} {self._us(end_s + _NODE_TIMEOUT_S)}")

    def check(self) -> str:
        """Returns what the checker of the simulations says: "" if no promise is broken."""
        if shutil.which("cargo") is None:
            return "not checked, because cargo is not installed"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(self.lines))
            file.flush()
            command = ["cargo", "test", "--locked", "--lib", "clusters::simulation::history", "--", "--nocapture"]
            environ = {**os.environ, "HISTORY": file.name}
            native = Path(__file__).resolve().parents[1] / "native"
            done = subprocess.run(command, cwd=native, env=environ, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def _us(self, at_s: float) -> int:
        return round((at_s - self._begin_s) * 1e6)


def _cell(version: str, row: int) -> int:
    return int(version) * _CHANGED + row


class Load(SteadyLoad):
    """Load of a fault test: threads that look up rows on two servers, and a thread that sends upserts.

    tally: their counts; the caller sets a new Tally for each fault. history: what they read and wrote.

    Args:
      rows: version -> its rows.
      period_s: the time from one request of a reader to its next one; 0: the next one follows at once.
    """

    def __init__(self, servers: Sequence[LiveServer], rows: dict[str, np.ndarray], period_s: float) -> None:
        super().__init__(*(partial(self._read, number) for number in range(_READERS)), self._write)
        self.tally = Tally()
        self.history = History()
        self._period_s = period_s
        self._servers = servers
        # Version -> its rows.
        self._rows = rows
        # _sent: version -> number of the last upsert that was sent. _visible: version -> for each upsert, the time from
        # which it was visible, and its number.
        self._sent: dict[str, int] = dict.fromkeys(rows, 0)
        self._visible: dict[str, list[tuple[float, int]]] = {version: [] for version in rows}

    def _read(self, number: int) -> None:
        random = np.random.default_rng(number)
        server = _connection(self._servers[number % len(self._servers)].http)
        changed = np.arange(_CHANGED)
        num_rows = min(len(rows) for rows in self._rows.values())
        begin_s = noted_s = 0.0
        while not self.is_over.wait(max(0.0, begin_s + self._period_s - time.monotonic())):
            ids = np.concatenate([changed, random.integers(_CHANGED, num_rows, _IDS)])
            tally, begin_s = self.tally, time.monotonic()
            status, version, answer = _post(server, "/v1/models/toy:lookup", {"features": {"user": ids.tolist()}})
            with self.counting:
                tally.requests += 1
                tally.worst_s = max(tally.worst_s, time.monotonic() - begin_s)
                if status != 200:
                    tally.fail(str(answer.get("error", answer)))
                    continue
            found = np.array(answer["embeddings"]["user"], np.float32)
            numbers = self._judge(tally, version, begin_s, ids, found)
            if begin_s >= noted_s + _NOTED_EVERY_S:
                noted_s = begin_s
                with self.counting:
                    self.history.read(version, numbers, begin_s, time.monotonic())
        server.close()

    def _judge(self, tally: Tally, version: str, begin_s: float, ids: np.ndarray, found: np.ndarray) -> list[int]:
        """Counts stale and wrong rows; returns the number of the upsert of each changed row, 0 for none."""
        rows = self._rows[version]
        numbers = []
        wrong = int((found[_CHANGED:] != rows[ids[_CHANGED:]]).any(axis=1).sum())
        stale = 0
        with self.counting:
            sent = self._sent[version]
            due = max((n for at_s, n in self._visible[version] if at_s + _STALE_S <= begin_s), default=0)
        for vector, own in zip(found[:_CHANGED], rows[:_CHANGED], strict=True):
            # An upsert writes its number into the first column of a row, and the negative of its number into the second
            # column.
            number = 0 if (vector == own).all() else int(vector[0])
            if number and not (vector[1] == -number and 0 < number <= sent):
                wrong += 1
            stale += number < due
            numbers.append(number)
        with self.counting:
            tally.versions[int(version)] += 1
            tally.wrong += wrong
            tally.stale_rows += stale
        return numbers

    def _write(self) -> None:
        server = _connection(self._servers[0].admin)
        while not self.is_over.wait(_UPSERT_EVERY_S):
            with self.counting:
                # Only the answer says which version the upsert changed, so until then the number counts as sent to both
                # versions.
                number = max(self._sent.values()) + 1
                self._sent = dict.fromkeys(self._sent, number)
                tally = self.tally
            body = {"ids": list(range(_CHANGED)), "rows": [[number, -number]] * _CHANGED}
            status, _, answer = _post(server, "/v1/models/toy/tables/user:upsert", body)
            with self.counting:
                tally.upserts += 1
                tally.failed_upserts += status != 200
                if status == 200 and answer["is_visible"]:
                    self.history.change(str(answer["version"]), number, time.monotonic())
                    self._visible[str(answer["version"])].append((time.monotonic(), number))
                else:
                    for version in self._rows:
                        self.history.change(version, number, None)
        server.close()


def _connection(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)


def _post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> tuple[int, str, dict[str, Any]]:
    """Posts JSON; returns status, model version and answer. Without an answer: status 0 and the error's text.

    After an error, the next request opens the connection anew.
    """
    try:
        connection.request("POST", path, json.dumps(body), dict(JSON_TYPE))
        answer = connection.getresponse()
        return answer.status, answer.headers.get("X-Model-Version", ""), json.loads(answer.read())
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return 0, "", {"error": f"{type(error).__name__}: {error}"}


@dataclass
class Stage:
    """A cluster, and the model versions in it.

    seconds: for how long a fault lasts at least. hosts: those of the nodes; None: this machine. view: sees the present
    fault. secret: file of the cluster's password. losses_s: moments at which replicas had taken over, or a node was
    empty.
    """

    cluster: Cluster
    servers: Sequence[LiveServer]
    folder: Path
    newer: Path
    models: Path
    secret: Path
    address: StoreAddress
    seconds: float
    hosts: Hosts | None
    view: OperatorView | None = None
    losses_s: list[float] = field(default_factory=list)

    def wait(self) -> None:
        """Waits until the fault has lasted `seconds`, and until an operator has seen it or ought to have seen it."""
        time.sleep(self.seconds)
        if self.view is not None:
            self.view.wait()

    def wait_for_takeover(self, *killed: int) -> None:
        """Waits until living nodes are the primaries of all slots.

        The nodes keep no files. A primary that starts again before its replica has taken over would be empty, and would
        empty the replica too.
        """
        living = [number for number in range(6) if number not in killed]
        until(lambda: sum(self.role(number) == "master" for number in living) == 3)
        self.losses_s.append(time.monotonic())

    def primary(self) -> int:
        """Returns the number of a node that is a primary now; a primary holds a third of the table's rows."""
        return next(n for n in range(6) if self.role(n) == "master")

    def replica(self) -> int:
        return next(n for n in range(6) if self.role(n) == "slave")

    def role(self, number: int) -> str:
        """Returns the role of a node, "master" or "slave"."""
        return str(self.cluster.nodes[number].ask("INFO", "replication")["role"])

    def all_nodes(self, *words: object) -> None:
        """Sends the command that consists of `words` to each node of the cluster."""
        for node in self.cluster.nodes:
            node.ask(*words)

    def network(self) -> Hosts:
        assert self.hosts is not None
        return self.hosts

    def lost_nodes(self) -> list[int]:
        """Returns the numbers of the nodes on the host on which faults act."""
        lost = self.network().hosts[_LOST]
        return [number for number, node in enumerate(self.cluster.nodes) if node.host == lost]

    def restore(self) -> None:
        """Waits until the cluster is whole, and makes the first three nodes its primaries again, one on each host."""
        until(self.cluster.is_whole)
        for number in range(NUM_HOSTS):
            until(lambda number=number: self._is_primary(number))
        until(self.cluster.is_whole)

    def _is_primary(self, number: int) -> bool:
        if self.role(number) == "master":
            return True
        # CLUSTER FAILOVER is repeated: a replica refuses it while it knows no primary, and gives up a failover after
        # five seconds.
        with suppress(redis.ResponseError):
            self.cluster.nodes[number].ask("CLUSTER FAILOVER")
        time.sleep(0.5)
        return False


def _kill(stage: Stage, *numbers: int, takes_over: bool = True) -> None:
    """Kills nodes for a time; takes_over: waits until replicas are primaries in their place."""
    for number in numbers:
        stage.cluster.nodes[number].kill()
    stage.wait()
    if takes_over:
        stage.wait_for_takeover(*numbers)
    for number in numbers:
        stage.cluster.nodes[number].start()
    until(stage.cluster.is_whole)


def _stop(stage: Stage, number: int) -> None:
    stage.cluster.nodes[number].freeze()
    stage.wait()
    stage.cluster.nodes[number].thaw()
    until(stage.cluster.is_whole)
    stage.losses_s.append(time.monotonic())


def kill_primary(stage: Stage) -> None:
    """Kills a primary; its replica takes over."""
    _kill(stage, stage.primary())


def kill_replica(stage: Stage) -> None:
    _kill(stage, stage.replica(), takes_over=False)


def kill_host(stage: Stage) -> None:
    """Kills a primary and another primary's replica, as the loss of a host with two nodes would."""
    first = stage.primary()
    _kill(stage, first, _foreign_replica(stage, first))


def stop_primary(stage: Stage) -> None:
    """Stops a primary (SIGSTOP); after the fault, lets it go on."""
    _stop(stage, stage.primary())


def stop_replica(stage: Stage) -> None:
    _stop(stage, stage.replica())


def _foreign_replica(stage: Stage, primary: int) -> int:
    port = stage.cluster.nodes[primary].port
    for number, node in enumerate(stage.cluster.nodes):
        info = node.ask("INFO", "replication")
        if info["role"] == "slave" and int(info["master_port"]) != port:
            return number
    raise AssertionError("each primary has a replica")


def failover(stage: Stage) -> None:
    """Makes a replica and its primary change places (CLUSTER FAILOVER)."""
    number = stage.replica()
    stage.cluster.nodes[number].ask("CLUSTER FAILOVER")
    until(lambda: stage.role(number) == "master")
    stage.wait()
    until(stage.cluster.is_whole)


def reshard(stage: Stage) -> None:
    primaries = [node for n, node in enumerate(stage.cluster.nodes) if stage.role(n) == "master"]
    ids = [node.ask("CLUSTER MYID") for node in primaries]
    slots = sorted(set(layout_of(stage.folder, "user").slots.tolist()))
    auth = ("AUTH", stage.secret.read_text())
    moved = 0
    for slot in slots:
        if moved == _MOVED or not primaries[0].ask("CLUSTER GETKEYSINSLOT", slot, 1):
            continue
        primaries[1].ask("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        primaries[0].ask("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        while keys := primaries[0].ask("CLUSTER GETKEYSINSLOT", slot, 10):
            words = ("MIGRATE", "127.0.0.1", primaries[1].port, "", 0, 5000, *auth, "KEYS", *keys)
            primaries[0].ask(*words)
        for node in (primaries[1], primaries[0], primaries[2]):
            node.ask("CLUSTER SETSLOT", slot, "NODE", ids[1])
        moved += 1
        time.sleep(stage.seconds / _MOVED)
    assert moved == _MOVED, "the first primary has rows of fewer slots: give more --rows"


def memory_full(stage: Stage) -> None:
    """Sets maxmemory of all nodes to 1 byte for a while, so their memory is full: reads go on, upserts are refused."""
    stage.all_nodes("CONFIG SET", "maxmemory", "1")
    stage.wait()
    stage.all_nodes("CONFIG SET", "maxmemory", "0")


def read_only(stage: Stage) -> None:
    """Makes primaries refuse writes: min-replicas-to-write asks for more replicas than exist."""
    stage.all_nodes("CONFIG SET", "min-replicas-to-write", "5")
    stage.wait()
    stage.all_nodes("CONFIG SET", "min-replicas-to-write", "0")


def change_password(stage: Stage) -> None:
    """Changes the cluster's password and the file with it, then cuts all connections with the old password."""
    old, new = stage.secret.read_text(), f"{time.monotonic_ns()}"
    stage.all_nodes("ACL SETUSER", "default", f">{new}")
    stage.all_nodes("CONFIG SET", "masterauth", new)
    stage.secret.write_text(new)
    stage.all_nodes("ACL SETUSER", "default", f"<{old}")
    stage.all_nodes("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
    stage.cluster.authenticate(new)
    stage.wait()


def empty_node(stage: Stage) -> None:
    """Empties a primary, as a restart without its replica's data does; `push` writes the rows again."""
    node = stage.cluster.nodes[stage.primary()]
    node.ask("FLUSHALL")
    stage.wait()
    push(stage.folder, stage.address, model="toy", tables=["user"])
    stage.losses_s.append(time.monotonic())


def flip_bits(stage: Stage) -> None:
    """Changes a byte in a tenth of a primary's blocks; `push` writes the blocks again."""
    node, layout = stage.cluster.nodes[stage.primary()], layout_of(stage.folder, "user")
    # The upserts of this test change rows of block 0, and changed rows are not compared.
    keys = [key for key in node.ask("KEYS", f"{layout.tag}*") if not key.endswith("orders") and key != layout.key(0)]
    for key in keys[:: max(len(keys) // max(len(keys) // 10, 1), 1)]:
        node.ask("SETRANGE", key, 3, "?")
    stage.wait()
    push(stage.folder, stage.address, model="toy", tables=["user"])


def flip_version(stage: Stage) -> None:
    """Pushes a newer version, moves it to where servers look for versions, and waits until both answer with it."""
    push(stage.newer, stage.address, model="toy", tables=["user"])
    stage.newer.rename(stage.models / "2")
    asked = ("/v1/models/toy/versions/2:lookup", b'{"features": {"user": [0]}}')
    until(lambda: all(exchange(server.http, *asked)[0] == 200 for server in stage.servers))
    stage.wait()


# flip_version is last, because its new version stays, and because upserts of the other faults change the newest
# version.
FAULTS: tuple[Callable[[Stage], None], ...] = (
    *(kill_primary, kill_replica, kill_host, stop_primary, stop_replica, failover, reshard, memory_full, read_only),
    *(change_password, empty_node, flip_bits, flip_version),
)


def lose_host(stage: Stage) -> None:
    """Loses a host for a time: both of its nodes end, and no packet is answered, not even with a refusal."""
    lost = stage.lost_nodes()
    stage.network().cut(_LOST)
    for number in lost:
        stage.cluster.nodes[number].kill()
    stage.wait()
    stage.wait_for_takeover(*lost)
    stage.network().join(_LOST)
    for number in lost:
        stage.cluster.nodes[number].start()
    stage.restore()


def cut_host(stage: Stage) -> None:
    """Takes a host off the network, then puts it back; the nodes on the host keep running."""
    stage.network().cut(_LOST)
    stage.wait()
    stage.wait_for_takeover(*stage.lost_nodes())
    stage.network().join(_LOST)
    stage.restore()


def part_from_servers(stage: Stage) -> None:
    """Parts a host from the servers only. Other hosts still reach the parted host, so no replica takes over."""
    hosts = stage.network()
    hosts.part(_LOST, hosts.near)
    stage.wait()
    hosts.mend(_LOST, hosts.near)
    stage.restore()


def part_from_hosts(stage: Stage) -> None:
    """Parts a host from the other hosts, but not from servers. For a time two nodes are primaries of the same slots."""
    hosts = stage.network()
    pairs = [(_LOST, other) for other in range(1, NUM_HOSTS)] + [(other, _LOST) for other in range(1, NUM_HOSTS)]
    for number, other in pairs:
        hosts.part(number, hosts.hosts[other].address)
    stage.wait()
    stage.wait_for_takeover(*stage.lost_nodes())
    for number, other in pairs:
        hosts.mend(number, hosts.hosts[other].address)
    stage.restore()


HOST_FAULTS = (lose_host, cut_host, part_from_servers, part_from_hosts)


@contextmanager
def _stage(
    folder: Path, num_rows: int, seconds: float, hosts: Hosts | None, period_s: float
) -> Iterator[tuple[Stage, Load]]:
    models = folder / "toy"
    first, rows = large(models / "1", num_rows)
    newer, newer_rows = large(folder / "new" / "2", num_rows, seed=4)
    secret = folder / "password"
    secret.write_text(_PASSWORD)
    with ExitStack() as stack:
        places = hosts.hosts if hosts else (LOOPBACK,)
        nodes = Cluster(folder / "nodes", 3, 1, security=Security(None, _PASSWORD), hosts=places)
        cluster = stack.enter_context(nodes)
        text = f"{cluster.address}?password_file={secret}&timeout_ms=5000&node_timeout_ms=500"
        address = StoreAddress.parse(text)
        push(first, address, tables=["user"])
        flags = ["--model_name=toy", f"--model_base_path={models}", "--graph_signatures=off"]
        flags += [f"--remote_tables=user={text}", "--file_system_poll_wait_seconds=0.2"]
        servers = [stack.enter_context(LiveServer(*flags)).ready() for _ in range(2)]
        stage = Stage(cluster, servers, first, newer, models, secret, address, seconds, hosts)
        with Load(servers, {"1": rows, "2": newer_rows}, period_s) as load:
            yield stage, load


def run(
    faults: Sequence[Callable[[Stage], None]],
    num_rows: int,
    seconds: float,
    show: Callable[[str, Tally], None],
    settled_s: float = 1.0,
    period_s: float = 0.0,
    seen_within_s: float = SEEN_WITHIN_S,
    hosts: Hosts | None = None,
) -> History:
    """Runs faults one after another on one cluster; calls show with the name and the counts of each.

    Returns what was read and upserted.

    settled_s: the pause after a fault, twice. In the first one, failed requests still count for this fault.
    period_s: as in Load. seen_within_s: what an operator sees later does not count. hosts: as in Stage.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _stage(Path(folder), num_rows, seconds, hosts, period_s) as (stage, load),
    ):
        time.sleep(seconds)
        show(NO_FAULT, load.tally)
        for fault in faults:
            load.tally = tally = Tally()
            server = stage.servers[0]
            with OperatorView(server.http, server.records, ["toy"], seen_within_s) as stage.view:
                fault(stage)
                time.sleep(settled_s)
                stage.view.wait()
            tally.seen = stage.view.told_of("toy")
            for lost_s in stage.losses_s:
                load.history.loss(tally.begin_s, lost_s)
            stage.losses_s.clear()
            # The old tally stays open for a while: requests that are under way when the fault ends count for this
            # fault.
            load.tally = Tally()
            time.sleep(settled_s)
            show(fault.__name__, tally)
    return load.history


def main() -> int:
    """Prints a table, a line for each fault.

    Returns 1 if a row was wrong, if an operator did not see a fault, or if the history breaks a promise.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long each fault lasts")
    parser.add_argument("--hosts", action="store_true", help="faults of three hosts, in place of nodes")
    parser.add_argument("--faults", help="names of their functions, comma-separated (default: all)")
    options = parser.parse_args()
    faults = {fault.__name__: fault for fault in (HOST_FAULTS if options.hosts else FAULTS)}
    chosen = [faults[name] for name in options.faults.split(",")] if options.faults else [*faults.values()]
    is_bad = False

    def show(name: str, tally: Tally) -> None:
        nonlocal is_bad
        is_bad |= tally.wrong > 0 or (name != NO_FAULT and not tally.seen)
        counts = (tally.requests, tally.failed, tally.stale_rows, tally.wrong, tally.upserts, tally.failed_upserts)
        say(row(name, *counts, f"{tally.recovery_s:.1f}", f"{tally.worst_s * 1e3:.0f}", tally.seen))
        for why, count in tally.why.items():
            sys.stderr.write(f"    {count} x {why}\n")

    counted = ("Requests", "Failed", "Stale rows", "Wrong rows", "Upserts", "Refused")
    say(header("Fault", *counted, "Recovery s", "Longest ms", "An operator saw"))
    with Hosts(NUM_HOSTS) if options.hosts else nullcontext() as hosts:
        history = run(chosen, options.rows, options.seconds, show, hosts=hosts)
    problem = history.check()
    say(f"\n{len(history.lines)} lines of history: {problem or 'no promise is broken'}")
    return int(is_bad or bool(problem))


if __name__ == "__main__":
    sys.exit(main())
