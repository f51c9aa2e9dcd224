"""Joins what a manifest says of features with the graphs that look them up: the claims that a cut is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from service.core.manifest import LookupFeature, Manifest, SignatureEntry
from service.core.shortcuts import Shortcut
from service.core.types import Array, SignatureSpec, Tensors
from service.direct.predict import WIRE_FORMAT
from service.direct.tower_signature import DirectTower
from service.graph.table_rows import Claim, FeatureRows, RowSource
from service.graph.tower import TowerBackend
from service.graph.tower_opening import MappedTables, open_tower
from service.lookup.backend import OpenedLookups
from service.lookup.plan import SignaturePlan, compile_signature
from service.lookup.table import MappedTable


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
    """Opens what can be cut of these signatures into lookups and towers; None where nothing can."""
    claims = {name: _claims(spec, manifest, lookups) for name, spec in signatures.items()}
    keys = {entry.variable: name for name, entry in manifest.tables.items()}
    mapped = MappedTables(lookups.tables, keys, claims)
    return open_tower(artifact, signatures, mapped, tags, threads=threads, inter_op_threads=inter_op_threads)


def _claims(spec: SignatureSpec, manifest: Manifest, lookups: OpenedLookups) -> list[Claim]:
    """Returns what the manifest says of a signature's features; of one that it does not describe, what lookups say."""
    entry = manifest.signatures.get(spec.name)
    described = dict(entry.features) if entry is not None else {}
    features = dict(described)
    for other in manifest.signatures.values():
        if other.kind == "lookup" and other.device != "tpu_tensor_core":
            for name, feature in other.features.items():
                features.setdefault(name, feature)
    return [
        Claim(feature, manifest.features[name].table, _lookup(name, feature, manifest, lookups), name in described)
        for name, feature in ((n, _fitted(f, spec)) for n, f in features.items())
        if {feature.ids, feature.row_splits or feature.ids} <= spec.inputs.keys()
    ]


def _fitted(feature: LookupFeature, spec: SignatureSpec) -> LookupFeature:
    return feature if feature.weights in spec.inputs else replace(feature, weights=None)


@dataclass(frozen=True, slots=True)
class FeatureLookup:
    """One feature looked up by itself. Concurrency: any thread."""

    name: str
    plan: SignaturePlan

    def __call__(self, inputs: Tensors) -> Array:
        """Returns [B, D] float32, of a sequence [B, L, D]."""
        return self.plan.run(inputs, (self.name,))[self.name]


def _lookup(name: str, feature: LookupFeature, manifest: Manifest, lookups: OpenedLookups) -> FeatureLookup:
    entry = SignatureEntry("lookup", {name: replace(feature, output=name)})
    return FeatureLookup(name, compile_signature(entry, {name: manifest.features[name].table}, lookups.tables))


def tower_on_tables(tower: TowerBackend, tables: Mapping[str, MappedTable]) -> TowerBackend:
    """Returns the same tower, its session shared, that looks up other tables of the same names and shapes."""
    cuts = {
        name: replace(cut, sources={tensor: _moved(source, tables) for tensor, source in cut.sources.items()})
        for name, cut in tower.cuts.items()
    }
    return tower.with_cuts(cuts)


def _moved(source: RowSource, tables: Mapping[str, MappedTable]) -> RowSource:
    table = tables[source.table.info.name]
    if not isinstance(source, FeatureRows):
        return replace(source, table=table)
    lookup = source.claim.lookup
    assert isinstance(lookup, FeatureLookup)  # as _claims makes them
    moved = FeatureLookup(lookup.name, lookup.plan.on_tables(tables))
    return replace(source, table=table, claim=replace(source.claim, lookup=moved))


def tower_shortcuts(towers: Mapping[str, TowerBackend], model: str, version: int) -> dict[tuple[str, str], Shortcut]:
    """Returns the shortcuts of those signatures, by name, that need nothing but whole features of their request."""
    found: dict[tuple[str, str], Shortcut] = {}
    for name, tower in towers.items():
        cut = tower.cuts[name]
        dense = tower.dense_part(name)
        features = {}
        for tensor, source in cut.sources.items():
            if isinstance(source, FeatureRows):
                lookup = source.claim.lookup
                if isinstance(lookup, FeatureLookup):
                    features[tensor] = lookup.plan.features[lookup.name]
        if dense is not None and features.keys() == cut.sources.keys():
            found[WIRE_FORMAT, name] = DirectTower(cut.spec, features, *dense, model=model, version=version)
    return found
