"""The manifest of a saved artifact: what the spec declares, joined with where the files really are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.export.integrity import file_sizes
from model_export.export.oracle import VARIABLE_SUFFIX, VARIABLES_PREFIX
from model_export.export.signature_names import LOOKUP, LOOKUP_TENSOR_CORE, PREDICT, PREDICT_EXAMPLES
from model_export.spec.features import FeatureSpec, ModelSpec
from service.core.manifest import (
    FeatureEntry,
    LookupFeature,
    Manifest,
    SignatureEntry,
    TableEntry,
    VocabularyEntry,
)
from service.lookup.bundle import BundleEntry, read_bundle


def build_manifest(
    artifact: Path, spec: ModelSpec, *, batch_sizes: Sequence[int], provenance: Mapping[str, Any]
) -> Manifest:
    """Describes a SavedModel that was just written. Raises ExportError where its files do not fit the spec."""
    bundle = read_bundle(artifact / VARIABLES_PREFIX)
    return Manifest(
        tables={table.name: _table(artifact, bundle, spec, table.name) for table in spec.tables},
        features={f.name: FeatureEntry(f.table, f.name if f.vocabulary else None) for f in spec.features},
        signatures={
            LOOKUP: SignatureEntry("lookup", {f.name: _cpu(spec, f) for f in spec.features}, "cpu"),
            LOOKUP_TENSOR_CORE: SignatureEntry(
                "lookup", {f.name: _tensor_core(spec, f) for f in spec.features}, "tpu_tensor_core", tuple(batch_sizes)
            ),
            PREDICT: SignatureEntry("predict", {f.name: _predict(spec, f) for f in spec.features}),
            PREDICT_EXAMPLES: SignatureEntry("predict", {}),
        },
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
    """Where a feature's vocabulary lies, relative to the artifact."""
    return f"assets/{feature}.txt"


def _table(artifact: Path, bundle: Mapping[str, BundleEntry], spec: ModelSpec, name: str) -> TableEntry:
    key = f"tables/{name}{VARIABLE_SUFFIX}"
    entry, table = bundle.get(key), spec.table(name)
    if entry is None or entry.is_sliced or entry.shape != (table.vocabulary_size, table.embedding_dim):
        raise ExportError(f"the saved variables have no whole [{table.vocabulary_size}, {table.embedding_dim}] {key}")
    return TableEntry(
        variable=key,
        vocabulary_size=table.vocabulary_size,
        embedding_dim=table.embedding_dim,
        dtype=entry.dtype,
        file=entry.file.relative_to(artifact).as_posix(),
        offset=entry.offset,
        nbytes=entry.nbytes,
        crc32c=entry.crc32c,
    )


def _predict(spec: ModelSpec, feature: FeatureSpec) -> LookupFeature:
    return LookupFeature(
        ids=feature.ids_input,
        row_splits=feature.row_splits_input,
        combiner=spec.table(feature.table).combiner if feature.is_ragged else None,
    )


def _cpu(spec: ModelSpec, feature: FeatureSpec) -> LookupFeature:
    return LookupFeature(
        ids=feature.ids_input,
        row_splits=feature.row_splits_input,
        weights=feature.weights_input,
        output=feature.name,
        combiner=spec.table(feature.table).combiner if feature.is_ragged else None,
    )


def _tensor_core(spec: ModelSpec, feature: FeatureSpec) -> LookupFeature:
    return LookupFeature(
        ids=feature.ids_input,
        row_splits=feature.row_splits_input,
        weights=feature.weights_input,
        output=feature.name,
        combiner=spec.table(feature.table).combiner if feature.is_ragged else None,
        mean_divisor="at_least_one",
        max_ids_per_row=feature.max_ids_per_row,
        on_too_many_ids="error",
    )
