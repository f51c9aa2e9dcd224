"""Opens the tables and vocabularies of an artifact's manifest, and a backend that runs its lookup signatures."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from service.artifact.manifest import Manifest
from service.artifact.signature_rules import described, lookup_rules, signature_faults
from service.engine.hot_rows import FeatureCounts, summed
from service.tables.guarded_files import GuardedFiles
from service.tables.plan import SignaturePlan, compile_signature
from service.tables.remote_table import RemoteTable
from service.tables.row_pool import RowRunner, in_one_piece
from service.tables.table import MappedTable, open_tables
from service.tables.table_keys import TableKeys
from service.tables.vocabulary import OpenedVocabulary, counted_apart, open_vocabularies
from service.types import Array, SignatureSpec, TableCounts, Tensors


class LookupBackend:
    """The backend that runs lookup signatures on mapped and remote tables. Concurrency: any thread.

    vocabularies: table -> the vocabularies whose keys name its rows.
    """

    def __init__(
        self, plans: Mapping[str, SignaturePlan], vocabularies: Mapping[str, Sequence[OpenedVocabulary]]
    ) -> None:
        self._plans = plans
        self._vocabularies = vocabularies

    @property
    def vocabularies(self) -> Mapping[str, Sequence[OpenedVocabulary]]:
        """Table -> the vocabularies whose keys stand for its rows; a vocabulary counts the requested keys it lacks."""
        return self._vocabularies

    def plan(self, signature_name: str) -> SignaturePlan:
        """Returns the compiled plan of a lookup signature."""
        return self._plans[signature_name]

    def on_tables(self, tables: Mapping[str, MappedTable]) -> LookupBackend:
        """Returns a backend that reads other tables of the same names and shapes; both add to the same counts."""
        plans = {name: plan.on_tables(tables) for name, plan in self._plans.items()}
        return LookupBackend(plans, self._vocabularies)

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Runs a lookup signature; returns those of the named outputs for which the request has all features."""
        return self._plans[signature_name].run(inputs, outputs)

    def table_counts(self) -> dict[str, TableCounts]:
        """Returns table -> counts of reads so far; leaves out a table without lookups and without vocabularies."""
        totals: dict[str, TableCounts] = {}
        for plan in self._plans.values():
            for table, more in plan.counts():
                totals[table] = TableCounts(*map(operator.add, totals.get(table, TableCounts()), more))
        for table, vocabularies in self._vocabularies.items():
            oov_keys = sum(vocabulary.strangers.total for vocabulary in vocabularies)
            totals[table] = totals.get(table, TableCounts())._replace(oov_keys=oov_keys)
        return totals

    def feature_counts(self) -> FeatureCounts:
        """Returns the counts of the ids of each feature so far, by table."""
        plans = self._plans.values()
        return summed(*({table: {name: ids}} for plan in plans for table, name, ids in plan.feature_counts()))

    def close(self) -> None:
        """Does nothing: mapped files are unmapped later, with the last array on their memory."""


@dataclass(frozen=True, slots=True)
class OpenedLookups:
    """The tables, vocabularies, completed signatures and lookup backend that a manifest adds to a SavedModel.

    signatures: every signature of the SavedModel, now with kinds, optional inputs, id ranges, vocabularies and shapes.
    lookup_names: the names of the signatures that backend answers.
    files: the mapped files of the tables and vocabularies.
    remote: the tables that lie in clusters, and are not among tables.
    keys: table -> keys of its rows, for tables with vocabularies.
    faults: why a signature does not fit its description in the manifest, by name; such a signature stays as the
      SavedModel has it.
    is_paged: the tables are larger than memory, so the native core reads their pages and drops them again.
    """

    tables: Mapping[str, MappedTable]
    signatures: Mapping[str, SignatureSpec]
    lookup_names: frozenset[str]
    backend: LookupBackend
    files: GuardedFiles
    faults: Mapping[str, str]
    remote: Mapping[str, RemoteTable] = field(default_factory=dict)
    keys: Mapping[str, TableKeys] = field(default_factory=dict)
    is_paged: bool = False

    @property
    def remote_signatures(self) -> frozenset[str]:
        """The names of the lookup signatures that read a remote table."""
        plans = {name: self.backend.plan(name) for name in self.lookup_names}
        return frozenset(
            name
            for name, plan in plans.items()
            if any(isinstance(feature.table, RemoteTable) for feature in plan.features.values())
        )

    def fitting(self, manifest: Manifest) -> Manifest:
        """Returns a copy of the manifest without the signatures that contradict the SavedModel."""
        fitting = {name: entry for name, entry in manifest.signatures.items() if name not in self.faults}
        return replace(manifest, signatures=fitting)


def open_lookups(
    artifact: Path,
    manifest: Manifest,
    signatures: Mapping[str, SignatureSpec],
    runner: RowRunner = in_one_piece,
    remote: Mapping[str, RemoteTable] = MappingProxyType({}),
) -> OpenedLookups:
    """Maps the tables of an artifact and compiles its lookup signatures.

    Args:
      signatures: as read from the artifact's saved_model.pb.
      runner: runs the kernels; a RowPool shares large lookups out among threads.
      remote: the tables that lie in clusters, by name; they are not mapped.

    Raises:
      ArtifactError: manifest and files do not agree.
    """
    files = GuardedFiles()
    tables = open_tables(artifact, manifest, files, left_out=remote)
    vocabularies = open_vocabularies(artifact, manifest, files)
    faults = signature_faults(manifest, signatures)
    all_described = dict(signatures)
    plans = {}
    views = _by_feature(manifest, vocabularies)
    feature_tables = {name: feature.table for name, feature in manifest.features.items()}
    for name, entry in manifest.signatures.items():
        if name in faults:
            continue
        all_described[name] = described(signatures[name], entry, manifest, views)
        if entry.kind == "lookup":
            rules = lookup_rules(signatures[name], entry, manifest)
            plans[name] = compile_signature(entry, feature_tables, {**tables, **remote}, runner, rules)
    counted: dict[str, list[OpenedVocabulary]] = {}
    by_table: dict[str, dict[str, OpenedVocabulary]] = {}
    for feature_name, view in views.items():
        by_table.setdefault(feature_tables[feature_name], {})[feature_name] = view
        of_table = counted.setdefault(feature_tables[feature_name], [])
        if view not in of_table:
            of_table.append(view)
    backend = LookupBackend(plans, counted)
    keys = {table: TableKeys(table, of_table) for table, of_table in by_table.items()}
    return OpenedLookups(tables, all_described, frozenset(plans), backend, files, faults, remote, keys)


def _by_feature(manifest: Manifest, vocabularies: Mapping[str, OpenedVocabulary]) -> dict[str, OpenedVocabulary]:
    """Returns feature -> vocabulary; features of one table with the same vocabulary share a count of unknown keys."""
    views: dict[tuple[str, str], OpenedVocabulary] = {}
    by_feature = {}
    for name, feature in manifest.features.items():
        if feature.vocabulary:
            key = (feature.vocabulary, feature.table)
            if key not in views:
                views[key] = counted_apart(vocabularies[feature.vocabulary])
            by_feature[name] = views[key]
    return by_feature
