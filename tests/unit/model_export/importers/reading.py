"""Reads whole tables through their readers, to compare them with numpy's result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.importers import table_reader
from model_export.importers.formats import open_table


def read_all(address: str | Path, scratch: Path | None = None) -> tuple[np.ndarray, list[Any] | None]:
    """Returns all rows of the table at an address, and its keys or None."""
    reader = open_table(str(address), scratch)
    chunks = list(reader.chunks())
    assert all(len(chunk.rows) for chunk in chunks)
    rows = np.concatenate([chunk.rows for chunk in chunks])
    assert reader.num_rows in (None, len(rows))
    keys = [key for chunk in chunks for key in chunk.keys or ()]
    return rows, keys if chunks[0].keys is not None else None


def small_chunks(monkeypatch: pytest.MonkeyPatch, *modules: Any, num_bytes: int = 64) -> None:
    """Sets a small chunk size, so that small tables have several chunks."""
    monkeypatch.setattr(table_reader, "CHUNK_BYTES", num_bytes)
    for module in modules:
        monkeypatch.setattr(module, "CHUNK_BYTES", num_bytes)


def matrix(rows: int, dim: int, dtype: Any = np.float32) -> np.ndarray:
    """Returns a matrix of distinct numbers, which every float dtype holds exactly if there are at most 2048."""
    return np.arange(rows * dim).reshape(rows, dim).astype(dtype) - 7
