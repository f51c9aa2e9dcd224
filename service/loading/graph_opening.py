"""Opens the graphs of a version's signatures, whole or without their lookups (a tower), for the native core."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.manifest import LookupFeature, Manifest
from service.artifact.signature_def import SERVE_TAGS
from service.errors import ArtifactError
from service.graph.lazy import LazyBackend
from service.graph.native_form import NativeGraph, PythonOnly
from service.graph.native_graph import composite_fault, native_savedmodel, native_tower
from service.graph.savedmodel import SavedModelBackend, open_savedmodel
from service.graph.tower import Claim, ComputedRows, FeatureRows, RowSource, TowerBackend
from service.graph.tower_opening import MappedTables, open_tower
from service.loading.feature_lookups import CompileNative, SingleFeature, core_lookups
from service.tables.backend import LookupBackend, OpenedLookups
from service.tables.plan import FeaturePlan
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import Array, Backend, GraphThreads, SignatureSpec
from service.versions.servable import Servable
from service.wire.config_protos import BatchingParameters

# Most keys with which the manifest's vocabulary is compared with the graph's own; this many take half a second.
_MOST_KEYS = 100_000


def open_towers(
    artifact: Path,
    manifest: Manifest,
    lookups: OpenedLookups,
    signatures: Mapping[str, SignatureSpec],
    tags: frozenset[str],
    compile_native: CompileNative,
    threads: GraphThreads,
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
    mapped = MappedTables(tables, fed, keys, claims, core_lookups(claimed, lookups, compile_native))
    return open_tower(artifact, signatures, mapped, tags, threads)


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
    entry = manifest.vocabularies[manifest.features[feature].vocabulary or ""]
    lines = vocabulary_lines(artifact / entry.file) if entry.file else ()
    chosen = lines[:: -(-len(lines) // _MOST_KEYS) or 1]
    if entry.key_dtype == "int64":
        return np.array([int(line) for line in chosen], np.int64)
    return np.array([*chosen, None], object)[:-1]


def native_plan(spec: SignatureSpec, source: RowSource) -> FeaturePlan:
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


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphOpening:
    """The opener of TensorFlow graphs, with the settings that all versions share. Concurrency: any thread.

    is_lazy: whether a graph is opened only at its first request. The other fields are those of ServableLoader.
    """

    compile_native: CompileNative
    tags: frozenset[str]
    is_lazy: bool
    threads: GraphThreads
    has_towers: bool

    def whole(self, path: Path) -> Backend:
        open_now = partial(self._open_now, path)
        return LazyBackend(open_now) if self.is_lazy else open_now()

    def predicts(
        self, path: Path, manifest: Manifest, lookups: OpenedLookups, names: Sequence[str]
    ) -> dict[str, Backend]:
        specs = {name: lookups.signatures[name] for name in names}
        if self.is_lazy:
            # A graph that a client's first request opens (a lazy graph) runs whole: its lookups are not taken out,
            # because the graph is not read before that request.
            return dict.fromkeys(names, self.whole(path))
        backends: dict[str, Backend] = {}
        tower = None
        if self.has_towers and self.tags == SERVE_TAGS:
            kept_whole = {name for name, entry in manifest.signatures.items() if entry.run == "whole"}
            cut_specs = {name: spec for name, spec in specs.items() if name not in kept_whole}
            tower = open_towers(
                path,
                manifest,
                lookups,
                cut_specs,
                self.tags,
                self.compile_native,
                self.threads,
            )
        if tower is not None:
            tower = _only_run_in_core(tower)
        if tower is not None:
            backends |= dict.fromkeys(tower.cuts, tower)
        if whole := [name for name in names if name not in backends]:
            # The whole graph is opened only if a signature needs it, because TensorFlow then loads all tables.
            try:
                backends |= dict.fromkeys(whole, self._open_now(path))
            except ArtifactError as error:
                if any(name not in lookups.faults for name in whole):
                    if tower is not None:
                        tower.close()
                    raise
                # The whole graph can not be loaded, and only signatures that contradict their manifest entry need it.
                # The version is served without these signatures.
                logger.warning("the graph can not be loaded", extra={"path": str(path), "reason": error.message})
        return backends

    def _open_now(self, path: Path) -> SavedModelBackend:
        return open_savedmodel(path, self.tags, self.threads)


def _only_run_in_core(tower: TowerBackend) -> TowerBackend | None:
    """Returns the tower with those of its signatures that the native core can run cut; None if it can run none so.

    The core runs the others whole.
    """
    kept = {}
    for name, cut in tower.cuts.items():
        found = native_tower(tower, name, native_plan)
        if isinstance(found, PythonOnly):
            logger.info("the whole graph is run", extra={"signature": name, "reason": found.reason})
        else:
            kept[name] = cut
    if not kept:
        tower.close()
        return None
    return replace(tower, cuts=kept)


def native_graphs(
    servable: Servable, batching: BatchingParameters | None = None
) -> dict[str, NativeGraph | PythonOnly]:
    """Returns, for each signature with a graph, its graph for the native core, or why no request can run it."""
    return {
        name: _native_graph(name, servable, batching)
        for name, backend in servable.backends.items()
        if not isinstance(backend, LookupBackend)
    }


def _native_graph(name: str, servable: Servable, batching: BatchingParameters | None) -> NativeGraph | PythonOnly:
    backend, spec = servable.backends[name], servable.signatures[name]
    if isinstance(backend, TowerBackend):
        return _batched(native_tower(backend, name, native_plan), batching)
    if isinstance(backend, SavedModelBackend):
        return _batched(native_savedmodel(backend, spec), batching)
    assert isinstance(backend, LazyBackend), backend
    if fault := composite_fault(spec):
        return PythonOnly(fault)
    return NativeGraph((), {}, opener=partial(_open, backend, spec, batching))


def _open(backend: LazyBackend[SavedModelBackend], spec: SignatureSpec, batching: BatchingParameters | None) -> str:
    found = _batched(native_savedmodel(backend.opened(), spec), batching)
    if isinstance(found, PythonOnly):
        raise ArtifactError(found.reason)
    return json.dumps(found.document)


def _batched(graph: NativeGraph | PythonOnly, batching: BatchingParameters | None) -> NativeGraph | PythonOnly:
    if batching is None or isinstance(graph, PythonOnly):
        return graph
    return replace(graph, document={**graph.document, "batching": batching.document})
