"""Writes upserts of a remote table into the Valkey or Redis cluster that holds the table's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from service.artifact.delta_file import Delta
from service.engine.deltas import UpsertReceipt
from service.errors import TableUnreachable

if TYPE_CHECKING:
    from service.deltas.version_deltas import Target


def upsert_remote(target: Target, table: str, make: Callable[[int], tuple[Delta, bytes]], floor: int) -> UpsertReceipt:
    """Writes an upsert into a table's cluster, as Deltas.upsert declares; the cluster keeps it, and no journal does.

    Raises:
      TableUnreachable: the cluster takes no writes now.
    """
    # service.remote is imported here and not at the top: redis-py, which it needs, is an optional extra.
    from service.remote.primaries import Refused
    from service.remote.topology import Unreachable

    try:
        delta, is_visible = target.remote[table].upsert(make, floor)
    except (Unreachable, Refused) as error:
        why = str(error).rstrip(".")
        raise TableUnreachable(f'Rows of table "{table}" can not be changed now: {why}.') from error
    return UpsertReceipt(target.model, target.version, table, delta.sequence, delta.ids.size, is_visible)
