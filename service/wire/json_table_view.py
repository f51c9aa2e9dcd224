"""Writes lists, pages, rows and maps of tables as JSON; NaN and infinity are null, so that browsers can read it."""

from __future__ import annotations

import numpy as np

from service.engine.table_projection import Projection
from service.engine.table_view import Key, Names, Page, Row
from service.types import Array, TableInfo
from service.wire.json_body import dump_plain

# Number of decimals of the coordinates on a table's 2-D map, which lie between -1 and 1.
_PLACE_DECIMALS = 5


def encode_tables(tables: list[TableInfo]) -> bytes:
    return dump_plain({"tables": tables})


def encode_page(page: Page) -> bytes:
    """Encodes a page of a table: {"version", "start", "total", "keys", "labels", "norms"}; keys may be empty."""
    return dump_plain(page._asdict() | {"keys": [_text(key) for key in page.keys]})


def encode_row(row: Row) -> bytes:
    """Encodes one row of a table as JSON; the field delta is null for a row that is as the version was saved."""
    document = row._asdict()
    origin = document.pop("origin")
    document["keys"] = {feature: _text(key) for feature, key in row.keys.items()}
    document["delta"] = None if origin is None else {"sequence": origin.sequence, "time_s": origin.time_s}
    return dump_plain(document)


def encode_projection(projection: Projection, version: int, total: int) -> bytes:
    """Encodes a 2-D map of a table's rows; the coordinates are scaled so that the largest one is 1 or -1."""
    largest = float(np.abs(projection.places).max(initial=0.0)) or 1.0
    places = np.round(projection.places / largest, _PLACE_DECIMALS).astype(np.float32)
    return dump_plain(
        {
            "version": version,
            "total": total,
            "explained": list(projection.explained),
            "ids": projection.ids,
            "x": np.ascontiguousarray(places[:, 0]),
            "y": np.ascontiguousarray(places[:, 1]),
            "norms": projection.norms,
        }
    )


def encode_drift(cosines: Array, version: int, older: int, *, is_aligned: bool) -> bytes:
    """Encodes {"version", "from", "is_aligned", "values"}; values: per row on a 2-D map, 1 - cosine to its old row."""
    values = np.round(1 - cosines, _PLACE_DECIMALS).astype(np.float32)
    return dump_plain({"version": version, "from": older, "is_aligned": is_aligned, "values": values})


def encode_names(names: Names, version: int) -> bytes:
    """Encodes {"version", "keys", "labels"}: the names of each row on a table's 2-D map, null for a row without one."""
    keys = {feature: [_text(key) for key in of_feature] for feature, of_feature in names.keys.items()}
    return dump_plain({"version": version, "keys": keys, "labels": names.labels})


def encode_found(found: list[tuple[int, str]]) -> bytes:
    """Encodes {"rows": [{"id", "label"}, ...]}."""
    return dump_plain({"rows": [{"id": row, "label": label} for row, label in found]})


def _text(key: Key | None) -> str | int | None:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key
