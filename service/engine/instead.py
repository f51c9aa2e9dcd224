"""Counts stale and default rows that an answer has in place of unreadable rows, for the answer's headers.

The native core's part is `native/src/edge/instead.rs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal
from urllib.parse import quote

Kind = Literal["stale", "default"]

# The kind of rows that an answer has in place of unreadable ones, "stale" (cached rows) or "default" (default rows)
# -> table -> number of distinct rows that were replaced.
Noted = dict[Kind, dict[str, int]]

_NOTED: ContextVar[Noted | None] = ContextVar("instead", default=None)


@contextmanager
def noting() -> Iterator[Noted]:
    """Yields one request's counts of stale and default rows, to which note() adds while the block runs."""
    noted: Noted = {}
    before = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(before)


def note(kind: Kind, table: str, rows: int) -> None:
    """Adds stale or default rows to the counts of the enclosing noting() block; without such a block, as in a batch
    of requests, it does nothing.
    """
    noted = _NOTED.get()
    if noted is not None and rows:
        of_kind = noted.setdefault(kind, {})
        of_kind[table] = of_kind.get(table, 0) + rows


def headers_of(noted: Noted) -> Mapping[str, str]:
    """Returns the headers, or the trailing metadata, that tell how many stale and default rows an answer has.

    >>> headers_of({"stale": {"user": 3, "film, new": 1}})
    {'x-stale-rows': 'user=3, film%2C%20new=1'}
    """
    return {
        f"x-{kind}-rows": ", ".join(f"{quote(table, safe='')}={count}" for table, count in tables.items())
        for kind, tables in noted.items()
    }
