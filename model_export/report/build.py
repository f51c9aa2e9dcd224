"""Reads an artifact's files and builds the report on them.

>>> import numpy as np
>>> found = nearest_rows(np.array([[1, 0], [0, 1], [2, 1], [0, 0]], np.float32), np.array([0]), 2)
>>> [(row, round(cosine, 3)) for row, cosine in found[0]]
[(2, 0.894), (1, 0.0)]
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from model_export.errors import ExportError, why
from model_export.folder_checks import SAVED_MODEL, check_saved_model
from model_export.parity.comparison import ParityReport, SignatureParity
from model_export.report.document import (
    ArtifactReport,
    Curve,
    FeatureReport,
    MetaGraphReport,
    Projection,
    SignatureReport,
    TableReport,
    TensorReport,
    find_statistics,
    findings,
    label_agreement,
    project,
)
from model_export.report.table_files import declared_tables, map_table, matrix_variables
from model_export.row_names import LabelFile, Labels, read_labels, table_vocabularies, vocabulary_names
from model_export.statistics.table_health import Progress, TableRows, sample_ids, table_health, unit_rows
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.artifact.row_labels import open_labels
from service.artifact.signature_def import read_saved_model, read_signatures
from service.errors import ArtifactError
from service.types import Array, SignatureSpec, TensorSpec, runnable

_X_NAMES = ("epoch", "step", "global_step")
_RUN_FILE = "run.json"


def read_run_history(folder: Path) -> Any:
    path = folder / _RUN_FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))["history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"cannot read the history of {path}: {why(error)}; is it a folder that `train` wrote?"
        ) from error


def curves(history: Any) -> tuple[Curve, ...]:
    """Returns a curve for each metric of a training history; skips entries of unknown form: provenance is free-form.

    Args:
      history: a list of objects, {"epoch": 1, "loss": 0.9}, or an object of lists, {"loss": [0.9, 0.8]}, as Keras
        returns it; the n-th entry is epoch n unless it names an epoch or step.

    >>> curves([{"step": 10, "loss": 1.5}, {"step": 20, "loss": 1.25}])[0].points
    ((10.0, 1.5), (20.0, 1.25))
    """
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    if isinstance(history, list):
        for count, entry in enumerate(history, 1):
            if not isinstance(entry, Mapping):
                continue
            x_name = next((name for name in _X_NAMES if _number(entry.get(name)) is not None), None)
            x = float(count) if x_name is None else float(entry[x_name])
            for name, value in entry.items():
                if name not in _X_NAMES:
                    _add(points, (str(name), x_name or "epoch"), x, value)
    elif isinstance(history, Mapping):
        for name, values in history.items():
            if name not in _X_NAMES and isinstance(values, list):
                for count, value in enumerate(values, 1):
                    _add(points, (str(name), "epoch"), float(count), value)
    return tuple(Curve(name, x_name, tuple(sorted(found))) for (name, x_name), found in points.items())


def _add(points: dict[tuple[str, str], list[tuple[float, float]]], key: tuple[str, str], x: float, value: Any) -> None:
    number = _number(value)
    if number is not None:
        points.setdefault(key, []).append((x, number))


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


_SERVE = ("serve",)


def read_meta_graphs(artifact: Path, manifest: Manifest | None) -> tuple[MetaGraphReport, ...]:
    """Returns every MetaGraph in saved_model.pb; {serve} is the first.

    Args:
      manifest: gives the kind and features of the signatures in {serve}, the only MetaGraph that a server loads.

    Raises:
      ExportError: the folder is no SavedModel.
      ArtifactError: saved_model.pb is corrupt.
    """
    path = artifact / SAVED_MODEL
    check_saved_model(artifact)
    versions = {
        tuple(sorted(graph.meta_info_def.tags)): str(graph.meta_info_def.tensorflow_version)
        for graph in read_saved_model(path).meta_graphs
    }
    return tuple(
        MetaGraphReport(
            tags,
            versions[tags],
            tuple(
                _signature(spec, manifest if tags == _SERVE else None)
                for spec in runnable(read_signatures(path, frozenset(tags))).values()
            ),
        )
        for tags in sorted(versions, key=lambda tags: (tags != _SERVE, tags))
    )


def _signature(spec: SignatureSpec, manifest: Manifest | None) -> SignatureReport:
    entry = None if manifest is None else manifest.signatures.get(spec.name)
    inputs, outputs = _tensors(spec.inputs), _tensors(spec.outputs)
    found = SignatureReport(spec.name, "graph", spec.method_name, inputs, outputs)
    if entry is None:
        return found
    return dataclasses.replace(
        found, kind=entry.kind, device=entry.device, batch_sizes=entry.batch_sizes, features=entry.features
    )


def _tensors(specs: Mapping[str, TensorSpec]) -> tuple[TensorReport, ...]:
    return tuple(TensorReport(spec.name, spec.dtype, spec.shape, spec.is_optional) for spec in specs.values())


def parity_from_json(data: Mapping[str, Any]) -> ParityReport | None:
    """Makes a ParityReport of a manifest's `parity` object, which maps signatures to comparisons.

    The manifest's format does not define this object, so an entry that is no comparison is skipped, never an error.
    Returns None if no signature is described.
    """
    found = {}
    for name, entry in data.items():
        with suppress(ValidationError):
            found[name] = _PARITY.validate_python(entry)
    return ParityReport(found) if found else None


_PARITY = TypeAdapter(SignatureParity)

# Number of a table's rows to compare at a time. With 2,000 queries, the cosines of one such block take 8 MB.
_BLOCK_ROWS = 1024
# Number of multiplications for one table, about half a second of a processor. Of a table for which all rows would take
# more, only some rows are searched for, but at least _MIN_QUERIES.
_MAX_PRODUCTS = 1 << 34
_MIN_QUERIES = 100

Nearest = Mapping[int, tuple[tuple[int, float], ...]]


def searched_ids(ids: Array, shape: tuple[int, ...]) -> Array:
    count = max(_MIN_QUERIES, _MAX_PRODUCTS // max(shape[0] * shape[1], 1))
    if len(ids) <= count:
        return ids
    return ids[np.linspace(0, len(ids) - 1, count).astype(np.int64)]


def nearest_rows(table: TableRows, ids: Array, k: int) -> Nearest:
    """Finds the rows nearest to each of [N] distinct ids: at most k pairs of row and cosine each, the nearest first.

    Of rows with equal cosines the smaller id comes first. A row is not its own neighbour. Rows that are not finite are
    no neighbours, and neither they nor rows of zeros have neighbours.
    """
    own = np.asarray(table[ids])
    queries = unit_rows(own)
    has_direction = np.isfinite(own).all(axis=1) & queries.any(axis=1)
    ids, queries = ids[has_direction], queries[has_direction]
    best_ids = np.full((len(ids), k), -1, np.int64)
    best = np.full((len(ids), k), -np.inf, np.float32)
    for start, stop in _blocks(table.shape[0]):
        rows = np.asarray(table[start:stop])
        cosines = queries @ unit_rows(rows).T
        cosines[:, ~np.isfinite(rows).all(axis=1)] = -np.inf
        inside = np.flatnonzero((ids >= start) & (ids < stop))
        cosines[inside, ids[inside] - start] = -np.inf
        # A candidate with the same cosine as the k-th best row so far has a larger id than that row, so it is not kept.
        at, column = np.divmod(np.flatnonzero(cosines > best[:, -1:]), stop - start)
        _keep_best(best_ids, best, at, start + column, cosines[at, column])
    return {
        row: tuple((near, cosine) for near, cosine in zip(nears, cosines, strict=True) if near >= 0)
        for row, nears, cosines in zip(ids.tolist(), best_ids.tolist(), best.tolist(), strict=True)
    }


def _keep_best(best_ids: Array, best: Array, at: Array, new_ids: Array, cosines: Array) -> None:
    # Merges candidates into the k nearest rows found so far for each query: new_ids[i] is a candidate of query at[i].
    k = best.shape[1]
    changed = np.unique(at)
    owner = np.concatenate([np.repeat(changed, k), at])
    ids = np.concatenate([best_ids[changed].ravel(), new_ids])
    scores = np.concatenate([best[changed].ravel(), cosines])
    order = np.lexsort((ids, -scores, owner))
    firsts = np.searchsorted(owner[order], changed)
    kept = order[firsts[:, None] + np.arange(k)]
    best_ids[changed], best[changed] = ids[kept], scores[kept]


def _blocks(num_rows: int) -> Iterator[tuple[int, int]]:
    # The first blocks of rows are small: most of their rows are among the nearest rows found so far, and _keep_best()
    # sorts all such rows.
    start, size = 0, 32
    while start < num_rows:
        yield start, min(start + size, num_rows)
        start += size
        size = min(2 * size, _BLOCK_ROWS)


# How many of the nearest rows a report page lists for each row that it shows.
_NEAREST = 10
_MAX_POINTS = 2000
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
    files = sorted(artifact.rglob("*"))
    history = provenance.pop("history", None) if options.run is None else read_run_history(options.run)
    report = ArtifactReport(
        folder=str(artifact),
        has_manifest=manifest is not None,
        files={path.relative_to(artifact).as_posix(): path.stat().st_size for path in files if path.is_file()},
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
    """Reads label files; returns the labels by table. Raises ExportError for a file or table that does not fit."""
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
    ids = sample_ids(view.shape[0], seed=_SEED, limit=_MAX_POINTS, candidates=candidates)
    rows = np.asarray(view[ids])
    picture = project(rows, ids)
    if labels is None:
        return picture
    shown = tuple(labels.labels.get(row) for row in picture.ids)
    found = label_agreement(rows[np.isfinite(rows).all(axis=1)], shown)
    share, chance = found or (None, None)
    return dataclasses.replace(picture, labels=shown, label_title=labels.title, agreement=share, chance=chance)


def row_names(artifact: Path, manifest: Manifest | None, table: str, rows: Collection[int]) -> dict[int, str]:
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
