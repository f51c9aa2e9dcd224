"""Claims, for a version that is being loaded, which tensors of its graph equal the lookup of a feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from service.artifact.manifest import LookupFeature, Manifest
from service.artifact.vocabulary_lines import vocabulary_lines
from service.graph.table_rows import Claim, ComputedRows, FeatureRows, RowSource
from service.graph.tower import TowerBackend
from service.graph.tower_opening import MappedTables, open_tower
from service.loading.feature_lookups import CompileNative, SingleFeature, core_lookups
from service.tables.backend import OpenedLookups
from service.tables.plan import FeaturePlan
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import Array, SignatureSpec

# Most keys with which the manifest's vocabulary is compared with the graph's own; this many take half a second.
_MOST_KEYS = 100_000


def open_towers(
    artifact: Path,
    manifest: Manifest,
    lookups: OpenedLookups,
    signatures: Mapping[str, SignatureSpec],
    tags: frozenset[str],
    compile_native: CompileNative,
    *,
    threads: int,
    inter_op_threads: int | None = None,
) -> TowerBackend | None:
    """Takes the lookups out of signatures' graphs, and opens the rest (a tower); None if no lookup can be taken out.

    Args:
      compile_native: compiles the features of the claims for the native core, whose lookups are compared with the
        graph's.

    Raises:
      ArtifactError: TensorFlow can not load the towers, or the core can not compile the features.
    """
    # A lookup of a remote table is taken out of a graph only if the table is float32. With another dtype, the graph
    # itself reads the table, from the version's own file.
    fed = {name: table for name, table in lookups.remote.items() if table.info.dtype == "float32"}
    tables: dict[str, MappedTable | RemoteTable] = {**lookups.tables, **fed}
    claims = {name: _claims(artifact, spec, manifest, lookups) for name, spec in signatures.items()}
    claimed = [
        SingleFeature(claim.name, claim.feature, tables[claim.table], spec.inputs, claim.vocabulary)
        for name, spec in signatures.items()
        for claim in claims[name]
    ]
    keys = {entry.variable: name for name, entry in manifest.tables.items() if name in tables}
    mapped = MappedTables(tables, keys, claims, core_lookups(claimed, lookups, compile_native))
    return open_tower(artifact, signatures, mapped, tags, threads=threads, inter_op_threads=inter_op_threads)


def _claims(artifact: Path, spec: SignatureSpec, manifest: Manifest, lookups: OpenedLookups) -> list[Claim]:
    """Returns, for each feature, the claim that a tensor of a signature's graph equals the feature's lookup.

    A feature's lookup is described by the signature's own manifest entry, else by the entry of a lookup signature.
    service.graph checks each claim before it takes the lookup out of the graph.
    """
    entry = manifest.signatures.get(spec.name)
    described = dict.fromkeys(entry.features, spec.name) if entry is not None else {}
    # Feature -> name of the signature whose manifest entry describes the feature's lookup.
    saying = dict(described)
    for other, lookup in manifest.signatures.items():
        if lookup.kind == "lookup" and lookup.device != "tpu_tensor_core":
            for name in lookup.features:
                saying.setdefault(name, other)
    claims = []
    for name, signature in saying.items():
        feature = _fitted(manifest.signatures[signature].features[name], spec)
        if not {feature.ids, feature.row_splits or feature.ids} <= spec.inputs.keys():
            continue
        table = manifest.features[name].table
        if manifest.tables[table].dtype != "float32":
            # The graph reads rows of another dtype as they are stored, and the lookup converts them.
            continue
        vocabulary = lookups.signatures[signature].inputs[feature.ids].vocabulary
        if vocabulary is not None and (vocabulary.key_dtype == "string") != (
            spec.inputs[feature.ids].dtype == "string"
        ):
            # The graph's input takes strings and the vocabulary has integer keys, or the reverse: so the input holds
            # row ids, not keys, and the claim has no vocabulary.
            vocabulary = None
        keys = _some_keys(artifact, manifest, name) if vocabulary is not None else None
        claims.append(Claim(f"{spec.name}/{name}", feature, table, name in described, vocabulary, keys))
    return claims


def _fitted(feature: LookupFeature, spec: SignatureSpec) -> LookupFeature:
    return feature if feature.weights in spec.inputs else replace(feature, weights=None)


def _some_keys(artifact: Path, manifest: Manifest, feature: str) -> Array:
    """Returns keys of a feature's vocabulary, every n-th if there are too many; none if it only hashes keys."""
    entry = manifest.vocabularies[manifest.features[feature].vocabulary or ""]
    lines = vocabulary_lines(artifact / entry.file) if entry.file else ()
    chosen = lines[:: -(-len(lines) // _MOST_KEYS) or 1]
    if entry.key_dtype == "int64":
        return np.array([int(line) for line in chosen], np.int64)
    return np.array([*chosen, None], object)[:-1]


def native_plan(spec: SignatureSpec, source: RowSource) -> FeaturePlan:
    """Returns a plan by which the native core computes the rows for one input of a graph without its lookups."""
    table = source.table
    # open_towers() takes only reads of mapped and remote tables out of a graph.
    assert isinstance(table, MappedTable | RemoteTable)
    if isinstance(source, FeatureRows):
        return FeaturePlan(source.claim.feature, table)
    # The graph reads single rows as they are stored; open_towers() leaves reads of other dtypes in the graph.
    dtype = table.info.dtype
    if isinstance(source, ComputedRows):
        return FeaturePlan(LookupFeature(source.tensor), table, dtype, ids_rank=None)
    shape = spec.inputs[source.input_name].shape
    ids_rank = None if shape is None else len(shape)
    return FeaturePlan(LookupFeature(source.input_name), table, dtype, ids_rank)
