"""Checks that a cluster holds all rows of a table for the version that is being loaded."""

from __future__ import annotations

import time

import redis

from service.errors import TableUnreachable
from service.remote.clients import node_client
from service.remote.layout import TableLayout, slot_of
from service.remote.topology import Reason, Topology, Unreachable

_PAUSE_S = 0.1


def check_records(layout: TableLayout, topology: Topology, end_s: float) -> None:
    """Raises TableUnreachable unless a cluster's record says, before end_s, that it holds all rows of a table."""
    slot, why = slot_of(layout.record), Reason("no node was asked")
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            topology.refresh(end_s)
            # One node has both the table's record and the pointer to the newest fingerprint, because their keys have
            # the same hash tag, so one connection reads both. Only the primary surely has the newest pointer, so no
            # replica is asked.
            for node in topology.nodes(slot)[:1]:
                with node_client(topology.address, node, min(left_s, 2.0)) as client:
                    record, pointer = client.get(layout.record), client.get(layout.pointer)
                layout.check_record(record, pointer)
                return
            why = Reason(f"slot {slot} has no node")
        except (Unreachable, redis.RedisError, OSError) as error:
            why.note(error)
        time.sleep(_PAUSE_S)
    raise TableUnreachable(f"table {layout.table!r} is remote, and {topology.address} does not answer: {why.text}")
