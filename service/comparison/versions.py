"""Compares two version folders table by table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from service.artifact import dict_vocabulary
from service.artifact.manifest import Manifest
from service.artifact.row_labels import NO_LABELS, RowLabels, open_labels
from service.comparison.document import TableDiff, VersionDiff
from service.comparison.tables import (
    ROWS_PER_DIM,
    Budget,
    ById,
    ByKey,
    KeyedRows,
    Matching,
    can_match,
    drift_of,
    neighbours_of,
    pair_rows,
    row_cosines,
)
from service.errors import DataLoss, InvalidRequest, TableNotFound
from service.native_tables import NATIVE_TABLES
from service.tables.guarded_files import GuardedFiles
from service.tables.residency import hottest_rows
from service.tables.table import MappedTable, open_tables
from service.tables.vocabulary import open_vocabularies
from service.types import Array, Table

_DEFAULT = Budget()


@dataclass(frozen=True, slots=True)
class OpenedVersion:
    """The tables of a version folder. Concurrency: any thread.

    tables: empty for a folder without a lookup manifest. vocabularies: table -> vocabularies by name.
    labels: table -> labels of its rows, from a file.
    """

    tables: Mapping[str, MappedTable]
    vocabularies: Mapping[str, Mapping[str, KeyedRows]]
    files: GuardedFiles
    labels: Mapping[str, RowLabels] = field(default_factory=dict)

    def check(self) -> None:
        """Raises DataLoss if a file of the version's tables has changed since it was opened."""
        if why := self.files.look():
            raise DataLoss(why)


def open_version(folder: Path) -> OpenedVersion:
    """Maps the tables and vocabularies of a version; raises ArtifactError if its files do not fit its manifest."""
    files = GuardedFiles()
    manifest = Manifest.read(folder)
    if manifest is None:
        return OpenedVersion({}, {}, files)
    tables = open_tables(folder, manifest, files)
    opened: Mapping[str, KeyedRows] = (
        dict_vocabulary.open_vocabularies(folder, manifest)
        if NATIVE_TABLES is None
        else open_vocabularies(folder, manifest, files)
    )
    by_table: dict[str, dict[str, KeyedRows]] = {name: {} for name in tables}
    for feature in manifest.features.values():
        if feature.vocabulary:
            by_table[feature.table][feature.vocabulary] = opened[feature.vocabulary]
    return OpenedVersion(tables, by_table, files, open_labels(folder, manifest, files.map))


def compare_versions(
    old: Path,
    new: Path,
    *,
    names: tuple[str, str] | None = None,
    budget: Budget = _DEFAULT,
    served: Mapping[str, Table] = MappingProxyType({}),
    hottest: Mapping[str, Array] | None = None,
) -> VersionDiff:
    """Compares the tables of two version folders. Blocks; any thread.

    Args:
      names: names of the two versions in the result; None: the folders.
      served: tables of the old version whose rows are read in place of the folder's: with the deltas that changed them.
      hottest: table -> ids of the old version's hottest rows; None: those of the statistics in its folder.

    Raises:
      ArtifactError: the files of a version do not fit its manifest.
      DataLoss: a file changed meanwhile.
    """
    before, after = open_version(old), open_version(new)
    if hottest is None:
        hottest = dict(hottest_rows(old))
    found = tuple(
        _compare_table(name, before, after, served.get(name), budget, hottest.get(name))
        for name in sorted(before.tables.keys() & after.tables.keys())
    )
    before.check()
    after.check()
    notes = tuple(
        f"Version {name} has no lookup manifest: its tables are unknown."
        for name, version in zip(names or (str(old), str(new)), (before, after), strict=True)
        if not version.tables
    )
    return VersionDiff(
        *(names or (str(old), str(new))),
        found,
        added_tables=tuple(sorted(after.tables.keys() - before.tables.keys())),
        removed_tables=tuple(sorted(before.tables.keys() - after.tables.keys())),
        notes=notes,
    )


def compare_rows(
    old: Path,
    new: Path,
    table: str,
    new_ids: Array,
    *,
    served: tuple[Mapping[str, Table], Mapping[str, Table]] = (MappingProxyType({}), MappingProxyType({})),
) -> tuple[Array, bool]:
    """Returns the cosines between single rows of a table in two version folders, as row_cosines does for opened tables.

    Blocks; any thread.

    Args:
      new_ids: [n] int64 ids of the new version.
      served: loaded tables of the old and of the new version; their rows are read instead of the folders' rows.

    Raises:
      TableNotFound: a version has no such table. InvalidRequest: the versions differ in the numbers of a row.
      ArtifactError, DataLoss: as compare_versions.
    """
    before, after = open_version(old), open_version(new)
    for name, version in ((old.name, before), (new.name, after)):
        if table not in version.tables:
            raise TableNotFound(f'Version {name} has no table "{table}" whose rows can be compared.')
    pair = served[0].get(table, before.tables[table]), served[1].get(table, after.tables[table])
    if pair[0].info.embedding_dim != pair[1].info.embedding_dim:
        raise InvalidRequest(
            f'Rows of table "{table}" can not be compared: the versions differ in the numbers of a row.'
        )
    found = row_cosines(*pair, _matching(table, before, after), new_ids)
    before.check()
    after.check()
    return found


def _compare_table(
    name: str,
    before: OpenedVersion,
    after: OpenedVersion,
    served: Table | None,
    budget: Budget,
    hottest: Array | None,
) -> TableDiff:
    old, new = served or before.tables[name], after.tables[name]
    matching = _matching(name, before, after)
    pairs = pair_rows(matching, budget)
    notes = []
    drift = None
    if old.info.embedding_dim != new.info.embedding_dim:
        notes.append("The versions differ in the numbers of a row: rows are not compared, only their neighbours.")
    elif not len(pairs.old_ids):
        notes.append("No row of the old version is in the new one.")
    else:
        drift = drift_of(old, new, pairs, matching)
        if not drift.is_aligned:
            least = ROWS_PER_DIM * old.info.embedding_dim
            notes.append(
                f"A rotation is fitted from {least} common rows on; {drift.rows} are compared as they are, and "
                "--max_drift does not judge them."
            )
    return TableDiff(
        table=name,
        matched_by="key" if isinstance(matching, ByKey) else "id",
        old_rows=old.info.vocabulary_size,
        new_rows=new.info.vocabulary_size,
        old_dim=old.info.embedding_dim,
        new_dim=new.info.embedding_dim,
        old_dtype=old.info.dtype,
        new_dtype=new.info.dtype,
        added=pairs.added,
        removed=pairs.removed,
        moved=pairs.moved,
        common=pairs.common,
        drift=drift,
        neighbours=neighbours_of(old, new, pairs, matching, budget, hottest),
        notes=tuple(notes),
    )


def _matching(name: str, before: OpenedVersion, after: OpenedVersion) -> Matching:
    old, new = before.vocabularies[name], after.vocabularies[name]
    for vocabulary in sorted(old.keys() & new.keys()):
        if can_match(old[vocabulary], new[vocabulary]):
            return ByKey(old[vocabulary], new[vocabulary])
    sizes = [version.tables[name].info.vocabulary_size for version in (before, after)]
    return ById(
        range(sizes[0]), range(sizes[1]), (before.labels.get(name, NO_LABELS), after.labels.get(name, NO_LABELS))
    )
