"""Writes a model with 10 GB of tables in sparse files: only rows that the requests read hold numbers.

The rest of the artifact is copied from an exported one, because a lookup's description does not depend on table sizes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.workloads import Arrays
from loadtest.swap.model import sorted_table, tensor_entry

TABLES = {"user": (30_000_000, 64), "item": (9_000_000, 64), "tag": (50_000, 32)}
_DATA, _INDEX = "variables/variables.data-00000-of-00001", "variables/variables.index"
_MANIFEST = "assets.extra/lookup_manifest.json"


def write_large_model(small: Path, target: Path, tables: Mapping[str, tuple[int, int]] = TABLES) -> None:
    """Writes a version folder whose tables are larger than those of an exported version.

    Args:
      small: an exported version folder with tables of the same names.
    """
    shutil.copytree(small, target, ignore=shutil.ignore_patterns("variables.*"))
    manifest = json.loads((small / _MANIFEST).read_text())
    offset = 0
    with (target / _DATA).open("wb") as file:
        for name, (rows, dim) in tables.items():
            entry = manifest["tables"][name]
            entry |= {"vocabulary_size": rows, "offset": offset, "nbytes": rows * dim * 4, "crc32c": 0, "file": _DATA}
            for row in written_rows(rows):
                file.seek(offset + row * dim * 4)
                file.write(row_of(name, row, dim).tobytes())
            offset += entry["nbytes"]
        file.truncate(offset)
    _write_index(target, manifest)
    paths = [path for path in target.rglob("*") if path.is_file()]
    sizes = {path.relative_to(target).as_posix(): path.stat().st_size for path in paths}
    sizes.pop(_MANIFEST, None)
    manifest["files"] = sizes
    (target / _MANIFEST).write_text(json.dumps(manifest))


def _write_index(target: Path, manifest: dict[str, Any]) -> None:
    entries = {
        entry["variable"].encode(): tensor_entry(
            (entry["vocabulary_size"], entry["embedding_dim"]),
            offset=entry["offset"],
            nbytes=entry["nbytes"],
            crc32c=entry["crc32c"],
        )
        for entry in manifest["tables"].values()
    }
    (target / _INDEX).write_bytes(sorted_table({b"": b"\x08\x01", **entries}))


def written_rows(rows: int) -> tuple[int, ...]:
    """Returns the rows that hold numbers: the last row, which would show an overflowing offset, and two others."""
    return (0, rows // 2, rows - 1)


def row_of(table: str, row: int, dim: int) -> np.ndarray[Any, Any]:
    """Returns the random numbers that the model holds in one row of a table."""
    return np.random.default_rng([*table.encode(), row]).standard_normal(dim, np.float32)


def request(tables: Mapping[str, tuple[int, int]]) -> tuple[dict[str, Any], Arrays]:
    """Returns the ids of a lookup that reads only the rows of written_rows(), and the embeddings that it must get."""
    features = {"user": "user", "item": "item", "tags": "tag"}
    ids = {feature: list(written_rows(tables[table][0])) for feature, table in features.items()}
    expected = {
        feature: np.stack([row_of(table, row, tables[table][1]) for row in ids[feature]])
        for feature, table in features.items()
    }
    # Each request row has one tag, so the mean over its tags is that tag's row.
    return {**ids, "tags": [[row] for row in ids["tags"]]}, expected
