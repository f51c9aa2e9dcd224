"""Computes the size of a cluster for given tables and a given load, from measured figures.

    python -m loadtest.cluster_size --tables_gb 1000 --rows_per_s 1000000

GB are 10^9 bytes. Rows are of 64 float32. docs/scaling.md contains the output; a test compares both.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

ROW_BYTES = 256
# Seconds of an average month.
_MONTH_S = 730 * 3600


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure, and the section of docs/scaling.md, or the ADR, that has it."""

    value: float
    unit: str
    what: str
    where: str


NODE_BYTES = Figure(262, "bytes", "Memory of a node for a row", "Figures")
NODE_US = Figure(1.35, "us", "CPU of a node for a row, 1,000 ids a request", "ADR 0046, Blocks")
SERVER_US = Figure(0.39, "us", "CPU of a server for a row, 1,000 ids a request, no cache", "W2 and W3 on six nodes")
LINK_BYTES = Figure(358, "bytes", "Bytes between nodes and servers for a row", "W2 and W3 on six nodes")
DISK_ROWS = Figure(73_149, "rows/s", "Cold rows that one disk gave", "Tables larger than memory, 0 % hot")
DISK_US = Figure(17.37, "us", "CPU of a server for a cold row", "Tables larger than memory, 0 % hot")
FIGURES = (NODE_BYTES, NODE_US, SERVER_US, LINK_BYTES, DISK_ROWS, DISK_US)


@dataclass(frozen=True, slots=True)
class Choices:
    """The load, the tables and the machines for which a cluster is sized, from the command line.

    copies: of each row, on a primary and its replicas. versions: in the cluster at once (push keeps two). node_gb:
    memory of a node. used: share of a node's memory for rows. busy: largest share of CPU and network to use.
    link_gbit_s: network of a server.
    """

    tables_gb: float = 1000
    rows_per_s: float = 1e6
    hit_rate: float = 0.0
    copies: int = 2
    versions: int = 2
    node_gb: float = 64
    used: float = 0.75
    busy: float = 0.5
    link_gbit_s: float = 10


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a cluster and of its servers. It has one server more than the load needs, because one may be lost."""

    memory_gb: float
    nodes: int
    nodes_by_memory: int
    primaries_by_cpu: int
    node_cores: float
    cluster_gbit_s: float
    servers: int
    server_cores: float
    server_gbit_s: float
    disk_gb: float
    month_gb: float
    disks: int
    disk_cores: float


def size_of(choices: Choices) -> Size:
    """Computes the size of the cluster that the chosen load and tables need."""
    rows = choices.tables_gb * 1e9 / ROW_BYTES
    memory_gb = rows * NODE_BYTES.value / 1e9 * choices.copies * choices.versions
    by_memory = math.ceil(memory_gb / (choices.node_gb * choices.used))
    read_per_s = choices.rows_per_s * (1 - choices.hit_rate)
    node_cores = read_per_s * NODE_US.value / 1e6
    # A node runs commands on one thread, and replicas answer no reads while their primaries answer, so the CPU time for
    # the load limits how few primaries there can be.
    primaries = max(math.ceil(node_cores / choices.busy), 3)
    nodes = max(by_memory, primaries * choices.copies)
    nodes = math.ceil(nodes / choices.copies) * choices.copies
    cluster_gbit_s = read_per_s * LINK_BYTES.value * 8 / 1e9
    # A server's link carries each row that the server reads from the cluster; it also receives an id of 8 bytes, and
    # sends the row, for each row that a client asks for.
    server_gbit_s = cluster_gbit_s + choices.rows_per_s * (ROW_BYTES + 8) * 8 / 1e9
    server_cores = choices.rows_per_s * SERVER_US.value / 1e6
    servers = math.ceil(server_gbit_s / (choices.link_gbit_s * choices.busy)) + 1
    disks = math.ceil(choices.rows_per_s / DISK_ROWS.value)
    return Size(
        memory_gb=memory_gb,
        nodes=nodes,
        nodes_by_memory=by_memory,
        primaries_by_cpu=primaries,
        node_cores=node_cores,
        cluster_gbit_s=cluster_gbit_s,
        servers=servers,
        server_cores=server_cores,
        server_gbit_s=server_gbit_s,
        disk_gb=servers * choices.versions * choices.tables_gb,
        month_gb=cluster_gbit_s / 8 * _MONTH_S,
        disks=disks,
        disk_cores=choices.rows_per_s * DISK_US.value / 1e6,
    )


def report(choices: Choices) -> str:
    """Returns two Markdown tables: the measured figures, and the size with its cost in terms of prices."""
    size = size_of(choices)
    all_disks_gb = size.disks * choices.versions * choices.tables_gb
    used = [f"| {one.what} | {one.value:,} {one.unit} | {one.where} |" for one in FIGURES]
    parts = [
        ("memory of nodes", f"{size.memory_gb:,.0f} GB", f"{size.nodes * choices.node_gb:,.0f} x `gb_month`"),
        ("nodes", f"{size.nodes}: {size.nodes_by_memory} by memory, {size.primaries_by_cpu} primaries by CPU", ""),
        (
            "CPU of nodes",
            f"{size.node_cores:.2f} cores busy, on {size.nodes // choices.copies} primaries",
            f"{size.nodes} x `node_vcpus` x 730 x `vcpu_hour`",
        ),
        (
            "network of nodes",
            f"{size.cluster_gbit_s:.2f} Gbit/s, {size.cluster_gbit_s / size.nodes * choices.copies:.2f} a primary",
            f"{size.month_gb:,.0f} x `gb_between_zones` x share of reads between zones",
        ),
        (
            "CPU of servers",
            f"{size.server_cores:.2f} cores busy, on {size.servers} servers",
            f"{size.servers} x `server_vcpus` x 730 x `vcpu_hour`",
        ),
        ("network of servers", f"{size.server_gbit_s:.2f} Gbit/s", ""),
        ("disks of servers", f"{size.disk_gb:,.0f} GB", f"{size.disk_gb:,.0f} x `disk_gb_month`"),
        (
            "instead of all this: local disks",
            f"{size.disks} servers with a disk each, {size.disk_cores:.1f} cores busy",
            f"{all_disks_gb:,.0f} x `disk_gb_month` + {size.disks} x `server_vcpus` x 730 x `vcpu_hour`",
        ),
    ]
    rows = [f"| {part} | {amount} | {cost} |" for part, amount, cost in parts]
    lines = ["| Figure | Measured | Where |", "|---|---|---|", *used, ""]
    return "\n".join([*lines, "| Part | Amount | Cost of a month |", "|---|---|---|", *rows, ""])


def main() -> None:
    """Prints the size of the cluster for the load and the tables of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("copies", int), ("versions", int)):
        parser.add_argument(f"--{name}", type=kind, default=getattr(Choices(), name))
    for name in ("tables_gb", "rows_per_s", "hit_rate", "node_gb", "used", "busy", "link_gbit_s"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Choices(), name))
    sys.stdout.write(report(Choices(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
