"""Cuts the spec of a model to the first rows of each table, for a small copy whose graph TensorFlow can run."""

from __future__ import annotations

from dataclasses import replace

from model_export.spec.features import FeatureSpec, ModelSpec


def cut_spec(spec: ModelSpec, rows: int) -> ModelSpec:
    """Returns the spec with at most `rows` rows per table; drops keys of cut rows, and clamps ids of default rows."""
    tables = tuple(replace(table, vocabulary_size=min(rows, table.vocabulary_size)) for table in spec.tables)
    return ModelSpec(tables, tuple(_cut(feature, rows) for feature in spec.features))


def _cut(feature: FeatureSpec, rows: int) -> FeatureSpec:
    vocabulary = feature.vocabulary
    if vocabulary is not None:
        oov = None if vocabulary.oov_id is None else min(vocabulary.oov_id, rows - 1)
        kept = max(rows - vocabulary.first_id - vocabulary.num_oov_buckets, 0)
        vocabulary = replace(vocabulary, keys=vocabulary.keys[:kept], oov_id=oov)
    return replace(feature, vocabulary=vocabulary, default_id=min(feature.default_id, rows - 1))
