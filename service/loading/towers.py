"""Claims, for a version that is being loaded, which tensors of its graph equal the lookup of a feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.vocabulary_lines import vocabulary_lines
from service.graph.table_rows import Claim, ComputedRows, FeatureRows, RowSource
from service.graph.tower import TowerBackend
from service.graph.tower_opening import MappedTables, open_tower
from service.tables.backend import OpenedLookups
from service.tables.plan import FeaturePlan, SignaturePlan, compile_signature
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import Array, SignatureSpec, Tensors, Vocabulary

# Most keys with which the manifest's vocabulary is compared with the graph's own; this many take half a second.
_MOST_KEYS = 100_000


def open_towers(
    artifact: Path,
    manifest: Manifest,
    lookups: OpenedLookups,
    signatures: Mapping[str, SignatureSpec],
    tags: frozenset[str],
    *,
    threads: int,
    inter_op_threads: int | None = None,
) -> TowerBackend | None:
    """Takes the lookups out of signatures' graphs, and opens the rest (a tower); None if no lookup can be taken out."""
    # A lookup of a remote table is taken out of a graph only if the table is float32. With another dtype, the graph
    # itself reads the table, from the version's own file.
    fed = {name: table for name, table in lookups.remote.items() if table.info.dtype == "float32"}
    tables: dict[str, MappedTable | RemoteTable] = {**lookups.tables, **fed}
    claims = {name: _claims(artifact, spec, manifest, lookups) for name, spec in signatures.items()}
    keys = {entry.variable: name for name, entry in manifest.tables.items() if name in tables}
    mapped = MappedTables(tables, keys, claims)
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
        if (remote := lookups.remote.get(manifest.features[name].table)) is not None and remote.info.dtype != "float32":
            continue
        vocabulary = lookups.signatures[signature].inputs[feature.ids].vocabulary
        if vocabulary is not None and (vocabulary.key_dtype == "string") != (
            spec.inputs[feature.ids].dtype == "string"
        ):
            # The graph's input takes strings and the vocabulary has integer keys, or the reverse: so the input holds
            # row ids, not keys, and the claim has no vocabulary.
            vocabulary = None
        keys = _some_keys(artifact, manifest, name) if vocabulary is not None else None
        looked_up = _lookup(name, feature, manifest, lookups, vocabulary)
        claims.append(Claim(feature, manifest.features[name].table, looked_up, name in described, vocabulary, keys))
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


@dataclass(frozen=True, slots=True)
class FeatureLookup:
    """The lookup of a single feature by the kernels, outside of any signature. Concurrency: any thread.

    vocabulary: maps the keys in the feature's input; None: the input holds ids.
    """

    name: str
    plan: SignaturePlan
    vocabulary: Vocabulary | None = None

    def __call__(self, inputs: Tensors) -> Array:
        """Looks up the feature's ids in a request; returns [B, D] float32, [B, L, D] for a sequence."""
        if self.vocabulary is not None:
            ids = self.plan.features[self.name].feature.ids
            inputs = {**inputs, ids: self.vocabulary.ids_of(inputs[ids], ids)}
        return self.plan.run(inputs, (self.name,))[self.name]


def _lookup(
    name: str, feature: LookupFeature, manifest: Manifest, lookups: OpenedLookups, vocabulary: Vocabulary | None
) -> FeatureLookup:
    entry = SignatureEntry("lookup", {name: replace(feature, output=name)})
    plan = compile_signature(entry, {name: manifest.features[name].table}, {**lookups.tables, **lookups.remote})
    return FeatureLookup(name, plan, vocabulary)


def tower_on_tables(tower: TowerBackend, tables: Mapping[str, MappedTable]) -> TowerBackend:
    """Returns a copy of a tower, with the same session, that reads the given tables, which have the names and shapes of
    its own.
    """
    cuts = {
        name: replace(cut, sources={tensor: _moved(source, tables) for tensor, source in cut.sources.items()})
        for name, cut in tower.cuts.items()
    }
    return tower.with_cuts(cuts)


def _moved(source: RowSource, tables: Mapping[str, MappedTable]) -> RowSource:
    table = tables.get(source.table.info.name, source.table)
    if not isinstance(source, FeatureRows):
        return replace(source, table=table)
    lookup = source.claim.lookup
    assert isinstance(lookup, FeatureLookup)  # _claims() sets `lookup` of each claim to a FeatureLookup.
    moved = replace(lookup, plan=lookup.plan.on_tables(tables))
    return replace(source, table=table, claim=replace(source.claim, lookup=moved))


def native_plan(source: RowSource) -> FeaturePlan | None:
    """Returns a plan by which the native core computes the rows for one input of a graph without its lookups; None if
    one kernel call can not compute them.

    Rows of a feature are float32; those of single ids have the dtype that the table stores.
    """
    table = source.table
    # open_towers() takes only reads of mapped and remote tables out of a graph.
    assert isinstance(table, MappedTable | RemoteTable)
    if isinstance(source, FeatureRows):
        lookup = source.claim.lookup
        assert isinstance(lookup, FeatureLookup)  # _claims() sets `lookup` of each claim to a FeatureLookup.
        plan = lookup.plan.features[lookup.name]
        is_fit = plan.is_one_kernel and plan.feature.default_row < table.info.vocabulary_size
        return plan if is_fit else None
    ids = source.tensor if isinstance(source, ComputedRows) else source.input_name
    return FeaturePlan(LookupFeature(ids), table, None, ids_rank=None)
