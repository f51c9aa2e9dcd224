"""Derives a ModelSpec from a lookup's manifest entry, so that the lookup's graph can be built without the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from model_export.errors import ExportError
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.vocabulary_lines import vocabulary_lines


def lookup_spec(artifact: Path, manifest: Manifest, entry: SignatureEntry, id_dtypes: Mapping[str, str]) -> ModelSpec:
    """Returns the tables and features that a manifest's lookup reads, as a ModelSpec.

    Args:
      id_dtypes: feature -> dtype of its ids input; it decides whether clients send keys or rows.

    Raises:
      ExportError: a feature is not one that the exporter could have written.
    """
    try:
        features = tuple(
            _feature(artifact, manifest, name, lookup, id_dtypes[name]) for name, lookup in entry.features.items()
        )
        used = dict.fromkeys(feature.table for feature in features)
        tables = tuple(
            TableSpec(name, manifest.tables[name].vocabulary_size, manifest.tables[name].embedding_dim) for name in used
        )
        return ModelSpec(tables, features)
    except (ValueError, OSError) as error:
        raise ExportError(f"its lookups can not be built again: {error}") from error


def _feature(artifact: Path, manifest: Manifest, name: str, lookup: LookupFeature, id_dtype: str) -> FeatureSpec:
    vocabulary = _vocabulary(artifact, manifest, name)
    length = lookup.max_sequence_length or 0
    return FeatureSpec(
        name,
        manifest.features[name].table,
        is_ragged=lookup.row_splits is not None,
        max_ids_per_row=length or lookup.max_ids_per_row or 1,
        combiner=lookup.combiner,
        max_sequence_length=length,
        vocabulary=vocabulary,
        sends_rows=vocabulary is not None and vocabulary.key_dtype == "string" and id_dtype != "string",
        default_id=lookup.default_row,
        on_bad_id=lookup.on_bad_id,
        on_nonpositive_weight=lookup.on_nonpositive_weight,
        on_too_many_ids=lookup.on_too_many_ids,
    )


def _vocabulary(artifact: Path, manifest: Manifest, feature: str) -> VocabularySpec | None:
    name = manifest.features[feature].vocabulary
    if name is None:
        return None
    entry = manifest.vocabularies[name]
    lines = [line.decode() for line in vocabulary_lines(artifact / entry.file)]
    keys = tuple(lines) if entry.key_dtype == "string" else tuple(int(line) for line in lines)
    return VocabularySpec(keys, entry.first_id, entry.oov_id, entry.num_oov_buckets, entry.on_oov)
