"""Builds the manifest of a saved artifact from the spec's declarations and the places of tables in the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.parity.integrity import VARIABLES_PREFIX, file_sizes, table_entry
from model_export.spec.features import ModelSpec, TableSpec
from service.artifact.bundle import read_bundle
from service.artifact.manifest import FeatureEntry, Manifest, SignatureEntry, TableEntry, VocabularyEntry
from service.types import SCALED_DTYPES, packed_dim, saved_dtype, stored_columns


def build_manifest(
    artifact: Path,
    spec: ModelSpec,
    signatures: Mapping[str, SignatureEntry],
    table_variables: Mapping[str, str],
    *,
    provenance: Mapping[str, Any],
    table_index: Mapping[str, str] | None = None,
    table_scales: Mapping[str, str] | None = None,
    table_dtypes: Mapping[str, str] | None = None,
) -> Manifest:
    """Builds the manifest of a SavedModel that was just written.

    Args:
      table_variables: table -> its key in a checkpoint index.
      table_index: table -> the index that holds it (without ".index", relative to the artifact), if not that of
          variables/.
      table_scales: table -> key of its scales in the same index.
      table_dtypes: table -> dtype that it must be saved as, if not float32.

    Raises:
      ExportError: the artifact's files do not fit the spec.
    """
    indices = table_index or {}
    return Manifest(
        tables={
            table.name: _table(
                artifact,
                spec.table(table.name),
                (table_variables[table.name], (table_scales or {}).get(table.name)),
                indices.get(table.name, VARIABLES_PREFIX),
                (table_dtypes or {}).get(table.name, "float32"),
            )
            for table in spec.tables
        },
        features={f.name: FeatureEntry(f.table, f.name if f.vocabulary else None) for f in spec.features},
        signatures=signatures,
        vocabularies={
            f.name: VocabularyEntry(
                file=vocabulary_file(f.name),
                size=len(f.vocabulary.keys),
                first_id=f.vocabulary.first_id,
                oov_id=f.vocabulary.oov_id,
                num_oov_buckets=f.vocabulary.num_oov_buckets,
                on_oov=f.vocabulary.on_oov,
                key_dtype=f.vocabulary.key_dtype,
            )
            for f in spec.features
            if f.vocabulary is not None
        },
        files=file_sizes(artifact),
        provenance=provenance,
    )


def vocabulary_file(feature: str) -> str:
    return f"assets/{feature}.txt"


def _table(artifact: Path, table: TableSpec, keys: tuple[str, str | None], index: str, dtype: str) -> TableEntry:
    key, scale_key = keys
    found = read_bundle(artifact / index)
    entry = found.get(key)
    shape = (table.vocabulary_size, stored_columns(dtype, table.embedding_dim))
    if entry is None or entry.is_sliced or entry.shape != shape:
        what = "nothing" if entry is None else f"{'parts of ' if entry.is_sliced else ''}{list(entry.shape)}"
        raise ExportError(f"table {table.name!r}: {index}.index has {what} under {key!r}, expected {list(shape)}")
    if entry.dtype != saved_dtype(dtype):
        raise ExportError(f"table {table.name!r} was saved as {entry.dtype}, expected {dtype}")
    scale = None if scale_key is None else found.get(scale_key)
    if (dtype in SCALED_DTYPES) != (scale is not None and scale.dtype == "float32"):
        raise ExportError(f"table {table.name!r}: {index}.index has no float32 scales under {scale_key!r}")
    named = None if scale is None else (str(scale_key), scale)
    return table_entry(artifact, key, entry, named, packed_dim=packed_dim(dtype, table.embedding_dim))
