"""Writes pairs of version folders that differ in a known way: the toy model with larger tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.toy_model import SHARD, write_toy_model

Array = np.ndarray[Any, Any]
DIM = 8


def random_rows(count: int, seed: int, dim: int = DIM) -> Array:
    """Returns [count, dim] float32 rows of directions and norms that vary."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, dim)) * generator.uniform(0.5, 2, (count, 1))
    return rows.astype(np.float32)


def random_rotation(seed: int, dim: int = DIM) -> Array:
    """Returns an orthogonal [dim, dim] float64 matrix."""
    found, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    return found


def write_version(folder: Path, user: Array, tag: Array | None = None, keys: Sequence[str] = ()) -> Path:
    """Writes a version of the toy model with other tables.

    Args:
      user: rows of table `user`, which has ids. tag: rows of table `tag`: one for unknown keys, then one for each key.
    """
    keys = keys or [f"key{i}" for i in range(3)]
    tag = random_rows(len(keys) + 1, 9, 3) if tag is None else tag
    tables: Mapping[str, Array] = {"user": user, "tag": tag}

    def edit(manifest: dict[str, Any]) -> None:
        for name, table in tables.items():
            manifest["tables"][name] |= {"vocabulary_size": len(table), "embedding_dim": table.shape[1]}
        for entry in manifest["vocabularies"].values():
            entry["size"] = len(keys)
        vocabulary = folder / "assets" / "tag.txt"
        vocabulary.write_text("".join(f"{key}\n" for key in keys))
        manifest["files"]["assets/tag.txt"] = vocabulary.stat().st_size
        assert (folder / SHARD).stat().st_size == manifest["files"][SHARD.as_posix()]

    return write_toy_model(folder, tables=tables, edit_manifest=edit)
