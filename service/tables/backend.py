"""Opens the tables and vocabularies of an artifact's manifest, and describes its lookup signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from service.artifact.manifest import Manifest
from service.artifact.signature_rules import described, lookup_rules, signature_faults
from service.tables.guarded_files import GuardedFiles
from service.tables.plan import SignaturePlan, signature_plan
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable, open_tables
from service.tables.vocabulary import OpenedVocabulary, TableKeys, open_vocabularies
from service.types import SignatureSpec

# How the native core reads pages of mapped tables. "off": a thread that needs a page reads it. "fits": the core reads
# the pages that lookups need, and meanwhile all others. "larger": it reads the pages that lookups need, and drops
# others.
Paging = Literal["off", "fits", "larger"]


@dataclass(frozen=True, slots=True)
class LookupBackend:
    """The backend of lookup signatures on mapped and remote tables, which the native core looks up.

    plans: signature -> its plan. vocabularies: table -> the vocabularies whose keys stand for its rows.
    """

    plans: Mapping[str, SignaturePlan]
    vocabularies: Mapping[str, Sequence[OpenedVocabulary]]

    def close(self) -> None:
        """Does nothing: mapped files are unmapped later, with the last array on their memory."""


@dataclass(frozen=True, slots=True)
class OpenedLookups:
    """The tables, vocabularies, completed signatures and lookup backend that a manifest adds to a SavedModel.

    signatures: every signature of the SavedModel, now with kinds, optional inputs, id ranges, vocabularies and shapes.
    remote: the tables that lie in clusters, and are not among tables.
    keys: table -> keys of its rows, for tables with vocabularies.
    faults: why a signature does not fit its description in the manifest, by name; such a signature stays as the
      SavedModel has it.
    """

    tables: Mapping[str, MappedTable]
    signatures: Mapping[str, SignatureSpec]
    backend: LookupBackend
    files: GuardedFiles
    faults: Mapping[str, str]
    remote: Mapping[str, RemoteTable] = field(default_factory=dict)
    keys: Mapping[str, TableKeys] = field(default_factory=dict)
    paging: Paging = "off"

    @property
    def lookup_names(self) -> frozenset[str]:
        return frozenset(self.backend.plans)

    def fitting(self, manifest: Manifest) -> Manifest:
        fitting = {name: entry for name, entry in manifest.signatures.items() if name not in self.faults}
        return replace(manifest, signatures=fitting)


def open_lookups(
    artifact: Path,
    manifest: Manifest,
    signatures: Mapping[str, SignatureSpec],
    remote: Mapping[str, RemoteTable] = MappingProxyType({}),
) -> OpenedLookups:
    """Maps the tables of an artifact and describes its lookup signatures.

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
            plans[name] = signature_plan(entry, feature_tables, {**tables, **remote}, rules)
    vocabularies_of: dict[str, list[OpenedVocabulary]] = {}
    by_table: dict[str, dict[str, OpenedVocabulary]] = {}
    for feature_name, view in views.items():
        by_table.setdefault(feature_tables[feature_name], {})[feature_name] = view
        of_table = vocabularies_of.setdefault(feature_tables[feature_name], [])
        if view not in of_table:
            of_table.append(view)
    backend = LookupBackend(plans, vocabularies_of)
    keys = {table: TableKeys(table, of_table) for table, of_table in by_table.items()}
    return OpenedLookups(tables, all_described, backend, files, faults, remote, keys)


def _by_feature(manifest: Manifest, vocabularies: Mapping[str, OpenedVocabulary]) -> dict[str, OpenedVocabulary]:
    views: dict[tuple[str, str], OpenedVocabulary] = {}
    by_feature = {}
    for name, feature in manifest.features.items():
        if feature.vocabulary:
            key = (feature.vocabulary, feature.table)
            if key not in views:
                views[key] = copy(vocabularies[feature.vocabulary])
            by_feature[name] = views[key]
    return by_feature
