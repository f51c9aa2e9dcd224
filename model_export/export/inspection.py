"""An artifact in readable text, from its manifest alone; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from model_export.errors import ExportError
from service.core.manifest import LookupFeature, Manifest


def describe(artifact: Path) -> str:
    """Returns tables, features, signatures, provenance and parity as text. Raises ExportError, ArtifactError."""
    manifest = Manifest.read(artifact)
    if manifest is None:
        raise ExportError(f"{artifact} has no lookup manifest; `model-export` did not write it")
    parts = (_tables(manifest), _features(manifest), _signatures(manifest), _facts(manifest))
    return "\n".join([f"{artifact}", *(line for part in parts for line in part)])


def _tables(manifest: Manifest) -> Iterator[str]:
    yield "tables"
    for name, table in manifest.tables.items():
        shape = f"{table.vocabulary_size} x {table.embedding_dim} {table.dtype}"
        yield f"  {name:16} {shape:20} {table.nbytes:,} bytes at {table.offset:,} of {table.file}"


def _features(manifest: Manifest) -> Iterator[str]:
    yield "features"
    for name, feature in manifest.features.items():
        vocabulary = manifest.vocabularies.get(feature.vocabulary or "")
        strings = f", {vocabulary.size} strings in {vocabulary.file}" if vocabulary else ""
        yield f"  {name:16} table {feature.table}{strings}"


def _signatures(manifest: Manifest) -> Iterator[str]:
    yield "signatures"
    for name, signature in manifest.signatures.items():
        device = f" on {signature.device}" if signature.device else ""
        sizes = f", padded to {', '.join(map(str, signature.batch_sizes))} rows" if signature.batch_sizes else ""
        yield f"  {name} ({signature.kind}{device}{sizes})"
        yield from (f"    {key:14} {_feature(feature)}" for key, feature in signature.features.items())


def _feature(feature: LookupFeature) -> str:
    inputs = [name for name in (feature.ids, feature.row_splits, feature.weights) if name]
    combining = f", {feature.combiner}" if feature.combiner else ""
    width = f", at most {feature.max_ids_per_row} ids a row" if feature.max_ids_per_row and feature.combiner else ""
    return " ".join(inputs) + combining + width


def _facts(manifest: Manifest) -> Iterator[str]:
    yield "provenance"
    for name, value in manifest.provenance.items():
        text = ", ".join(f"{key} {entry}" for key, entry in value.items()) if isinstance(value, dict) else str(value)
        yield f"  {name:16} {text}"
    yield "parity with the numpy oracle"
    for name, entry in manifest.parity.items():
        yield f"  {name:24} {entry['cases']} cases, largest relative error {entry['max_relative_error']:.1e}"
