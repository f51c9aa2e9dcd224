"""An index file is decoded as it was encoded, and is refused if anything in its bytes does not fit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.artifact.hashes import masked_of
from service.engine.neighbors import Metric
from service.tables.row_index import Lists, RowLists, decode, encode

ROWS, LISTS = 600, 5
IDENTITY = {"manifest": "00ff", "table": "tag", "metric": "l2"}


def index_of(metric: Metric = "l2") -> RowLists:
    """Returns an index of ROWS rows of two numbers; row i is in list i % LISTS."""
    centres = np.stack([np.arange(LISTS), np.ones(LISTS)], axis=1).astype(np.float32)
    width = {"dot": 3}.get(metric, 2)
    centres = np.ascontiguousarray(np.pad(centres, ((0, 0), (0, width - 2))))
    members = np.arange(ROWS, dtype=np.int32).reshape(-1, LISTS).T.ravel()
    starts = np.arange(LISTS + 1, dtype=np.int64) * (ROWS // LISTS)
    return RowLists.of(Lists(metric, centres, starts, members, members[:0], 9.5, 2, 0.97, 1.25))


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_an_index_is_decoded_as_it_was(metric: Metric) -> None:
    index = index_of(metric)
    identity = IDENTITY | {"metric": metric}
    decoded = decode(encode(index, np.array([7, 3]), identity), identity, ROWS)
    assert (decoded.recall, decoded.probes, decoded.num_lists, decoded.seconds) == (0.97, 2, LISTS, 1.25)
    assert decoded.lists().longest == 9.5 and decoded.lists().loose.tolist() == [3, 7]
    queries = np.array([[0.2, 1], [3.9, 1]], np.float32)
    for old, new in zip(index.candidates(queries), decoded.candidates(queries), strict=True):
        # Rows 3 and 7 had changed when the index was built, so they are candidates of every search, once each.
        assert new.tolist() == sorted({*old.tolist(), 3, 7}) and new.dtype == np.int64
    again = decode(encode(decoded, np.array([8]), identity), identity, ROWS)
    assert again.lists().loose.tolist() == [3, 7, 8]


@pytest.mark.parametrize("change", [{"manifest": "00fe"}, {"table": "user"}, {"metric": "dot"}])
def test_the_index_of_another_table_is_refused(change: dict[str, str]) -> None:
    data = encode(index_of(), np.empty(0, np.int64), IDENTITY)
    with pytest.raises(ValueError, match="another table"):
        decode(data, IDENTITY | change, ROWS)
    with pytest.raises(ValueError, match="another table"):
        decode(data, IDENTITY, ROWS + 1)


def with_header(data: bytes, **changes: Any) -> bytes:
    """Returns a file's bytes with another header and the checksum of these bytes."""
    size = int.from_bytes(data[8:12], "little")
    header = json.dumps(json.loads(data[12 : 12 + size]) | changes).encode()
    return sealed(data[:8] + len(header).to_bytes(4, "little") + header + data[12 + size : -4])


def sealed(data: bytes) -> bytes:
    """Returns bytes with their checksum appended."""
    return data + masked_of(data).to_bytes(4, "little")


DAMAGES = {
    "empty": (lambda data: b"", "no index of rows"),
    "foreign": (lambda data: b"GIF89a" * 100, "no index of rows"),
    "cut": (lambda data: data[: len(data) // 2], "checksum"),
    "flipped": (lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], "checksum"),
    "header": (lambda data: sealed(data[:8] + (200_000).to_bytes(4, "little") + b"[" * 200_000), "header"),
    "no_json": (lambda data: sealed(data[:12] + b"x" * (len(data) - 12)), "Expecting value"),
    "newer": (lambda data: with_header(data, format=2), "format 2"),
    "other_size": (lambda data: with_header(data, rows=ROWS + 1), "another table"),
    "longer": (lambda data: sealed(data[:-4] + bytes(4)), "size"),
    "too_few_lists": (lambda data: with_header(data, lists=3), "fit"),
    "negative": (lambda data: with_header(data, loose=-1), "its size does not fit"),
    "all_probes": (lambda data: with_header(data, probes=10_000), "fit together"),
    "text": (lambda data: with_header(data, recall="1"), "header is damaged"),
    # The four bytes before the file's checksum are a row's number in a list: here the last row has the number of the
    # row before it.
    "twice": (lambda data: sealed(data[:-8] + data[-12:-8]), "fit together"),
    "beyond": (lambda data: sealed(data[:-8] + b"\xff\xff\xff\x7f"), "fit together"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bytes_that_do_not_fit_are_refused(damage: str) -> None:
    change, reason = DAMAGES[damage]
    data = change(encode(index_of(), np.empty(0, np.int64), IDENTITY))
    with pytest.raises(ValueError, match=reason):
        decode(data, IDENTITY, ROWS)


def test_each_flipped_bit_is_noticed() -> None:
    data = encode(index_of(), np.array([5]), IDENTITY)
    for at in range(0, len(data), 7):
        with pytest.raises(ValueError, match="."):
            decode(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], IDENTITY, ROWS)
