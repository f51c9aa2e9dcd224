"""Encodes a nearest-row index of a table as the bytes of a file, and decodes such bytes.

Little-endian: MAGIC, the length of a JSON header as uint32, the header, and the arrays centres [L, E] float32, starts
[L + 1] int64, members [V] int32, loose [N] int32; then the masked CRC-32C of all bytes before it as uint32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from service.artifact.crc32c import masked_of
from service.tables.row_index import Lists, RowLists
from service.types import Array

MAGIC = b"ROWINDEX"
# Number of the format of a nearest-row index's file; decode() refuses a file with another number.
FORMAT_VERSION = 1
_LENGTH = struct.Struct("<I")
_NUMBERS = ("longest", "probes", "recall", "seconds")


def encode(index: RowLists, changed: Array, identity: Mapping[str, Any]) -> bytes:
    """Encodes a nearest-row index as the bytes of a file.

    Args:
      changed: [N] int64, rows that differed from the table's file when the index was built; searches with the decoded
        index compare them always. identity: JSON values that name the table, its bytes and the metric.
    """
    lists = index.lists()
    loose = np.union1d(lists.loose, changed)
    sizes = {"lists": len(lists.centres), "width": lists.centres.shape[1], "rows": len(lists.members)}
    numbers = {name: getattr(lists, name) for name in _NUMBERS}
    fields = {"format": FORMAT_VERSION, "identity": dict(identity), **sizes, "loose": len(loose), **numbers}
    header = json.dumps(fields, allow_nan=False).encode()
    parts = (lists.centres.astype("<f4"), lists.starts.astype("<i8"), lists.members.astype("<i4"), loose.astype("<i4"))
    data = b"".join([MAGIC, _LENGTH.pack(len(header)), header, *(part.tobytes() for part in parts)])
    return data + _LENGTH.pack(masked_of(data))


def decode(data: bytes, identity: Mapping[str, Any], num_rows: int) -> RowLists:
    """Decodes the bytes of a file to the nearest-row index of a table with num_rows rows.

    Raises:
      ValueError: the bytes are damaged, of another format, or the index of another table, as the text says.
    """
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start + _LENGTH.size:
        raise ValueError("it is no index of rows")
    if _LENGTH.unpack(data[-_LENGTH.size :])[0] != masked_of(data[: -_LENGTH.size]):
        raise ValueError("its checksum does not fit")
    end = start + _LENGTH.unpack_from(data, len(MAGIC))[0]
    try:
        fields = json.loads(data[start:end])
        if fields["format"] != FORMAT_VERSION:
            raise ValueError(f"it has format {fields['format']}, this server reads {FORMAT_VERSION}")
        if fields["identity"] != dict(identity) or fields["rows"] != num_rows:
            raise ValueError("it is the index of another table")
        count, width, loose = (int(fields[name]) for name in ("lists", "width", "loose"))
        if min(count, width, loose) < 0:
            raise ValueError("its size does not fit")
        shapes = (("<f4", (count, width)), ("<i8", (count + 1,)), ("<i4", (num_rows,)), ("<i4", (loose,)))
        arrays: list[Array] = []
        for dtype, shape in shapes:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays.append(np.frombuffer(data[end : end + size], dtype).reshape(shape))
            end += size
        numbers = {name: fields[name] for name in _NUMBERS}
        centres, starts, members, extra = arrays
        lists = Lists(identity["metric"], centres, starts, members, extra, **numbers)
        if end != len(data) - _LENGTH.size:
            raise ValueError("its size does not fit")
        _check(lists)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header is damaged: {error!r}") from error
    return RowLists.of(lists)


def _check(lists: Lists) -> None:
    # The arrays of an index's file are checked, because another program may have written the file: no search may read
    # beyond an array, or find a row twice.
    count, rows = len(lists.centres), len(lists.members)
    is_listed = np.zeros(rows, bool)
    inside = (lists.members >= 0) & (lists.members < rows)
    is_listed[lists.members[inside]] = True
    fits = (
        count > 0
        and lists.starts[0] == 0
        and lists.starts[-1] == rows
        and bool((np.diff(lists.starts) >= 0).all())
        and bool(is_listed.all())
        and bool(np.isfinite(lists.centres).all())
        and bool(((lists.loose >= 0) & (lists.loose < rows)).all())
        and isinstance(lists.probes, int)
        and 1 <= lists.probes <= count
        and 0 <= lists.recall <= 1
        and lists.longest >= 0
        and lists.seconds >= 0
    )
    if not fits:
        raise ValueError("its numbers do not fit together")
