"""Writes models whose table "user" a cluster has, and names the keys under which it has the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.artifact.delta_file import fingerprint_of
from service.remote.layout import TableLayout
from tests.toy_model import manifest_of, rewrite_manifest, toy_tables, write_bundle, write_toy_model


def layout_of(artifact: Path, table: str) -> TableLayout:
    """Returns the layout in a cluster of a table of this artifact, served as model "toy"."""
    manifest = manifest_of(artifact)
    return TableLayout.of("toy", table, fingerprint_of(artifact), manifest.tables[table])


def large(folder: Path, rows: int, seed: int = 3) -> tuple[Path, np.ndarray]:
    """Writes a version whose table "user" has this many random rows of two numbers; returns its folder and the rows."""
    table = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    write_toy_model(folder)
    tensors = {f"tables/{name}/.ATTRIBUTES/VARIABLE_VALUE": part for name, part in toy_tables().items()}
    tensors["tables/user/.ATTRIBUTES/VARIABLE_VALUE"] = table
    entries = write_bundle(folder / "variables" / "variables", tensors)

    def edit(manifest: dict) -> None:
        manifest["tables"]["user"]["vocabulary_size"] = rows
        for name, entry in manifest["tables"].items():
            entry.update(entries[f"tables/{name}/.ATTRIBUTES/VARIABLE_VALUE"])
        manifest["files"] = {
            name: (folder / name).stat().st_size for name in manifest["files"] if (folder / name).is_file()
        }

    rewrite_manifest(folder, edit)
    return folder, table
