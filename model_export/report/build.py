"""Collects the data of a report (ArtifactReport) from an artifact. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.report.document import ArtifactReport, FeatureReport, MetaGraphReport, TableReport
from model_export.report.findings import findings
from model_export.report.history import curves, read_run_history
from model_export.report.nearest import nearest_rows, searched_ids
from model_export.report.parity import parity_from_json
from model_export.report.projection import Projection, label_agreement, project, sample_ids
from model_export.report.saved_model import read_meta_graphs
from model_export.report.statistics import find_statistics
from model_export.report.table_files import declared_tables, map_table, matrix_variables
from model_export.row_names import LabelFile, Labels, read_labels, table_vocabularies, vocabulary_names
from model_export.statistics.table_health import Progress, TableRows, table_health
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.artifact.row_labels import open_labels
from service.errors import ArtifactError

# How many of the nearest rows a report page lists for each row that it shows.
_NEAREST = 10
# The seed is fixed, so that the pictures of two reports on a table show the same sample of rows.
_SEED = 0


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report: whether tables are read completely, and which further files are read.

    reads_tables: whether to read all tables completely, for their health.
    has_projections: whether to project every table to two dimensions, not only tables with labels, and to find the
        nearest rows of these rows.
    labels: files of labels, at most one per table.
    statistics: folder of lookup statistics; None: the artifact's own, if it has some.
    run: folder of the training run, for its curves; None: those of the provenance, if it has some.
    """

    reads_tables: bool = True
    has_projections: bool = False
    labels: tuple[LabelFile, ...] = ()
    statistics: Path | None = None
    run: Path | None = None


def build_report(
    artifact: Path,
    options: ReportOptions | None = None,
    *,
    progress: Callable[[str], Progress] = lambda table: lambda done, rows: None,
) -> ArtifactReport:
    """Builds the report on an artifact; the artifact may lack a lookup manifest.

    Args:
      progress: called with a table's name before it is read; returns a function that is called with (rows done, rows).

    Raises:
      ExportError: the artifact is no SavedModel, or an option names a file or table that does not exist.
      ArtifactError: the manifest or graph can not be read. A table that can not be read is a finding, not an error.
    """
    options = options or ReportOptions()
    manifest = Manifest.read(artifact)
    meta_graphs = read_meta_graphs(artifact, manifest)
    notes = []
    try:
        tables = matrix_variables(artifact) if manifest is None else declared_tables(manifest)
    except ArtifactError as error:
        tables = []
        notes.append(f"Variables are not listed: {error}")
    labels = read_table_labels(artifact, manifest, tables, options.labels)
    if options.reads_tables:
        tables = [_read_table(artifact, manifest, table, options, labels.get(table.name), progress) for table in tables]
    provenance = {} if manifest is None else dict(manifest.provenance)
    history = provenance.pop("history", None) if options.run is None else read_run_history(options.run)
    report = ArtifactReport(
        folder=str(artifact),
        has_manifest=manifest is not None,
        files=_file_sizes(artifact),
        meta_graphs=meta_graphs,
        tables=tuple(tables),
        features=() if manifest is None else tuple(_features(manifest)),
        curves=curves(history),
        statistics=find_statistics(artifact, options.statistics),
        provenance=provenance,
        parity=None if manifest is None else parity_from_json(manifest.parity),
        notes=(*_notes(manifest, meta_graphs, options, labels), *notes),
    )
    return dataclasses.replace(report, findings=tuple(findings(report, manifest)))


def read_table_labels(
    artifact: Path, manifest: Manifest | None, tables: list[TableReport], files: tuple[LabelFile, ...]
) -> dict[str, Labels]:
    """Reads label files; returns the labels by table.

    Raises:
      ExportError: a file can not be read, its table does not exist, or two files are for the same table.
    """
    by_name = {table.name: table for table in tables}
    found: dict[str, Labels] = {}
    for file in files:
        if file.table not in by_name:
            raise ExportError(f"--labels: there is no table {file.table!r}, only {', '.join(map(repr, by_name))}")
        if file.table in found:
            raise ExportError(f"--labels: table {file.table!r} is given twice")
        vocabularies = {} if manifest is None else table_vocabularies(artifact, manifest, file.table)
        found[file.table] = read_labels(file, by_name[file.table].vocabulary_size, vocabularies)
    return found


def _read_table(
    artifact: Path,
    manifest: Manifest | None,
    table: TableReport,
    options: ReportOptions,
    labels: Labels | None,
    progress: Callable[[str], Progress],
) -> TableReport:
    try:
        view = map_table(artifact, table)
        health = table_health(view, progress=progress(table.name))
    except ArtifactError as error:
        return dataclasses.replace(table, unread=str(error))
    picture = None
    if options.has_projections or labels is not None:
        picture = _projection(view, labels)
        if options.has_projections:
            searched = searched_ids(np.array(picture.ids, np.int64), view.shape)
            picture = dataclasses.replace(picture, nearest=nearest_rows(view, searched, _NEAREST))
        near = {row for rows in picture.nearest.values() for row, _ in rows} - set(picture.ids)
        found = row_names(artifact, manifest, table.name, {*picture.ids, *near})
        names = found | dict({} if labels is None else labels.names)
        if names:
            shown = tuple(names.get(row, "") for row in picture.ids)
            others = {row: names[row] for row in sorted(near & set(names))}
            picture = dataclasses.replace(picture, names=shown, nearest_names=others)
    return dataclasses.replace(table, health=health, projection=picture)


def _projection(view: TableRows, labels: Labels | None) -> Projection:
    candidates = None if labels is None else np.array(sorted(labels.labels), np.int64)
    ids = sample_ids(view.shape[0], seed=_SEED, candidates=candidates)
    rows = np.asarray(view[ids])
    picture = project(rows, ids)
    if labels is None:
        return picture
    shown = tuple(labels.labels.get(row) for row in picture.ids)
    found = label_agreement(rows[np.isfinite(rows).all(axis=1)], shown)
    share, chance = found or (None, None)
    return dataclasses.replace(picture, labels=shown, label_title=labels.title, agreement=share, chance=chance)


def row_names(artifact: Path, manifest: Manifest | None, table: str, rows: Collection[int]) -> dict[int, str]:
    """Returns the labels of some rows of a table, else their keys; {} if there are none that can be read."""
    if manifest is None:
        return {}
    try:
        found = vocabulary_names(table_vocabularies(artifact, manifest, table), rows)
        if table in manifest.labels:
            only = dataclasses.replace(manifest, labels={table: manifest.labels[table]})
            ids = sorted(rows)
            labels = open_labels(artifact, only)[table].of(ids)
            found |= {row: label for row, label in zip(ids, labels, strict=True) if label is not None}
        return found
    except ArtifactError:
        # An unreadable vocabulary is reported as a finding already, and the picture is useful without names of rows.
        return {}


def _features(manifest: Manifest) -> Iterator[FeatureReport]:
    for name, feature in manifest.features.items():
        vocabulary = None if feature.vocabulary is None else manifest.vocabularies[feature.vocabulary]
        yield FeatureReport(name, feature.table, feature.vocabulary, vocabulary)


def _file_sizes(artifact: Path) -> dict[str, int]:
    paths = sorted(path for path in artifact.rglob("*") if path.is_file())
    return {path.relative_to(artifact).as_posix(): path.stat().st_size for path in paths}


def _notes(
    manifest: Manifest | None,
    meta_graphs: tuple[MetaGraphReport, ...],
    options: ReportOptions,
    labels: dict[str, Labels],
) -> Iterator[str]:
    if manifest is None:
        yield (
            f"No {MANIFEST_PATH}: a server runs the graph's signatures only. `model-export adopt` adds lookups on "
            "the tables. Until then every 2-D variable is listed, tables and weights of dense layers alike."
        )
    if len(meta_graphs) > 1:
        yield "Several MetaGraphs: loading the SavedModel needs `tags`; a server takes {serve}."
    if not options.reads_tables:
        yield "Tables were not read, as asked (--fast): nothing is known of their health."
    for name, found in labels.items():
        if found.unmatched:
            yield f"Labels of table {name!r}: {found.unmatched:,} lines name no row of the table."
