"""Rebuilds a servable on tables with deltas, and finds the signatures that would still answer with the old rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from service.artifact.delta_file import fingerprint_of
from service.artifact.manifest import Manifest
from service.deltas.overlay import Overlay
from service.deltas.private_map import PrivateMaps
from service.deltas.rules import DeltaRules
from service.deltas.version_deltas import Target
from service.engine.servable import Servable
from service.tables.backend import OpenedLookups
from service.tables.residency import Residency
from service.tables.table import MappedTable


def with_deltas(
    servable: Servable, lookups: OpenedLookups, artifact: Path, rules: DeltaRules, residency: Residency
) -> Servable:
    """Returns a servable whose tables have all present deltas, and will get later deltas.

    Raises:
      ArtifactError: the version's files are gone.
    """
    manifest = Manifest.read(artifact)
    if manifest is None or not (lookups.tables or lookups.remote):
        return servable
    manifest = lookups.fitting(manifest)
    # The private maps, which have the changed rows, are not locked in memory, because that would copy them whole. Locks
    # on the version's own maps keep the shared pages in memory.
    residency = replace(residency, lock="off", bytes_per_s=0.0)

    def rebuilt(tables: Mapping[str, MappedTable]) -> Servable:
        residency.apply(artifact, tables)
        return on_tables(followed, lookups, tables)

    target = Target(
        model=servable.name,
        version=servable.version,
        artifact=artifact,
        fingerprint=fingerprint_of(artifact),
        tables={
            **{name: table.info for name, table in lookups.tables.items()},
            **{name: table.info for name, table in lookups.remote.items()},
        },
        keys=lookups.keys,
        copied=_copied(servable, lookups),
        remote={name: table.changes for name, table in lookups.remote.items()},
    )
    deltas = rules.follow(target, Overlay(PrivateMaps(artifact, manifest, lookups.files), lookups.tables, rebuilt))
    followed = replace(servable, deltas=deltas)
    return deltas.at_load(followed)


def on_tables(servable: Servable, lookups: OpenedLookups, tables: Mapping[str, MappedTable]) -> Servable:
    """Returns a copy of a servable that reads the given tables, which have the names and shapes of its own.

    Both servables add to the same counts of reads, and only one of them is closed.
    """
    native = None if servable.native is None else servable.native.on_tables(tables)
    return replace(servable, tables={**tables, **lookups.remote}, native=native)


def _copied(servable: Servable, lookups: OpenedLookups) -> tuple[str, ...]:
    """Returns the signatures whose graphs have copies of the tables, and so would not see changed rows."""
    # The module of towers is imported here and not at the top, because a version that has only lookups does not need
    # it.
    from service.graph.tower import TowerBackend

    return tuple(
        sorted(
            name
            for name, backend in servable.backends.items()
            if backend is not lookups.backend and not isinstance(backend, TowerBackend)
        )
    )
