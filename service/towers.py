"""Joins what a manifest says of features with the graphs that look them up: the claims that a cut is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from service.core.manifest import LookupFeature, Manifest, SignatureEntry
from service.core.types import Array, SignatureSpec, Tensors
from service.graph.table_rows import Claim
from service.graph.tower import TowerBackend
from service.graph.tower_opening import MappedTables, open_tower
from service.lookup.backend import OpenedLookups
from service.lookup.plan import compile_signature


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


def _lookup(
    name: str, feature: LookupFeature, manifest: Manifest, lookups: OpenedLookups
) -> Callable[[Tensors], Array]:
    entry = SignatureEntry("lookup", {name: replace(feature, output=name)})
    plan = compile_signature(entry, {name: manifest.features[name].table}, lookups.tables)
    outputs = (name,)
    return lambda inputs: plan.run(inputs, outputs)[name]
